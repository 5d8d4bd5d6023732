"""The state of the node in one word: the worst of the agent and of the devices. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agent.runbook.problem import Problem, Severity
from agent.snapshot.device import HealthState
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.self_check import SelfCheckReport

MAX_NAMES = 3  # of checks


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the node: healthy, suspect or failed, and why in a few words."""

    state: str
    words: str


def overview(
    snapshot: NodeSnapshot, report: SelfCheckReport, problems: Sequence[Problem]
) -> Overview:
    """Return the worst state of the agent, of the managed devices, and of all problems.

    An agent that is not ready and a device out of service are failures, as is every critical
    problem. A problem that asks for nothing does not change the state.
    """
    healths = [one.info.health for one in snapshot.devices.value.devices if one.info.managed]
    failed = sum(not health.is_in_service for health in healths)
    odd = sum(
        health.is_in_service and (health.state is not HealthState.HEALTHY or not health.certain)
        for health in healths
    )
    words = []
    if not report.is_ready:
        late = [check.name for check in report.checks if check.gates_ready and not check.ok]
        names = ", ".join(late[:MAX_NAMES]) + (" …" if len(late) > MAX_NAMES else "")
        words.append(f"agent not ready ({names})")
    if failed:
        words.append(f"{failed} of {len(healths)} devices out of service")
    if odd:
        words.append(f"{odd} of {len(healths)} devices suspect")
    bad = [one.severity for one in problems if one.severity is not Severity.INFO]
    if bad:
        words.append(f"{len(bad)} {'problem' if len(bad) == 1 else 'problems'}")
    if not report.is_ready or failed or Severity.CRITICAL in bad:
        return Overview(state="failed", words=", ".join(words))
    return Overview(
        state="suspect" if words else "healthy", words=", ".join(words) or "ready, all well"
    )
