"""Alerts select values of labels that the agent and the scheduler have: no other one can fire."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent.deviceplugin import registration
from agent.metrics.agent_series import WORKER_STATES
from agent.metrics.container_series import RUNTIME_STATES
from agent.runbook.entries import OWN_ENTRIES
from agent.runbook.entry import RecommendedAction
from agent.runbook.problem import Severity
from agent.snapshot.allocation import VerificationStatus
from agent.snapshot.device import HealthState
from agent.snapshot.pod import EvictionOutcome
from agent.snapshot.publications import WriterPhase
from plugins.vendors.cambricon.library import board_meters
from plugins.vendors.nvidia.health.trends import THROTTLES
from plugins.vendors.nvidia.library import slow_cycle
from tests.prometheus.observed import ROOT, alerts
from tests.prometheus.promql import Matcher, parse

SCHEDULER = (ROOT / "docs" / "scheduler.md").read_text("utf-8")


def words_of(metric: str) -> set[str]:
    """Return the words that docs/scheduler.md lists for a metric."""
    (row,) = (line for line in SCHEDULER.splitlines() if line.startswith(f"| `{metric}{{"))
    return set(re.findall(r"`(\w+)`", row))


VALUES: dict[tuple[str, str], set[str]] = {
    ("xpu_device_health_reason", "state"): {state.value for state in HealthState},
    ("xpu_device_fault", "severity"): {severity.value for severity in Severity},
    ("xpu_device_fault", "action"): {action.value for action in RecommendedAction},
    ("xpu_device_ecc_errors_total", "kind"): {"corrected", "uncorrected"},
    ("xpu_device_throttle_seconds_total", "reason"): {
        reason for reason, _ in slow_cycle._THROTTLE_TIMES
    },
    ("xpu_device_throttle_active", "reason"): {reason for reason, _ in THROTTLES},
    ("xpu_mlu_throttled", "reason"): {reason for _, reason in board_meters._THROTTLE_REASONS},
    ("xpu_mlu_memory_repair", "state"): {"pending", "failed", "retirement_pending"},
    ("xpu_agent_vendor_state", "state"): set(WORKER_STATES),
    ("xpu_agent_node_writes_allowed", "reason"): set(OWN_ENTRIES.by_reason),
    ("xpu_agent_object_state", "state"): {phase.value for phase in WriterPhase},
    ("xpu_agent_runtime_state", "state"): set(RUNTIME_STATES),
    ("xpu_agent_runtime_requests_total", "result"): {"ok", "late"},
    ("xpu_agent_grants", "state"): {"held", "refused"},
    ("xpu_agent_allocations", "verdict"): {status.value for status in VerificationStatus},
    ("xpu_agent_deviceplugin_state", "state"): {
        getattr(registration, name)
        for name in ("WAITING", "REGISTERING", "REGISTERED", "WATCHED", "REFUSED", "CONFLICT")
    },
    ("xpu_agent_enforcement_conditions", "reason"): set(OWN_ENTRIES.by_reason),
    ("xpu_agent_evictions_total", "outcome"): {outcome.value for outcome in EvictionOutcome},
    ("xpu_scheduler_binds_total", "outcome"): words_of("xpu_scheduler_binds_total"),
    ("xpu_scheduler_holds", "state"): words_of("xpu_scheduler_holds"),
}
# names of checks have parts of any name; tests/process compares them with those of an agent
ANY = {("xpu_agent_self_check", "check")}


def matchers() -> Iterator[tuple[str, Matcher]]:
    """Yield the metric and each matcher of the alerts."""
    for alert in alerts():
        for selector in parse(alert["expr"]).selectors:
            yield from ((selector.metric, matcher) for matcher in selector.matchers)


def test_every_value_that_an_alert_selects_is_one_that_is_exported() -> None:
    selected = [(metric, one) for metric, one in matchers() if (metric, one.label) not in ANY]
    assert len(selected) >= len(VALUES)
    unknown = [
        (metric, one.label, value)
        for metric, one in selected
        for value in one.values
        if value not in VALUES.get((metric, one.label), ())
    ]
    assert unknown == []


def test_every_state_in_which_the_kubelet_offers_nothing_is_alerted() -> None:
    (states,) = (
        set(one.values) for metric, one in matchers() if metric == "xpu_agent_deviceplugin_state"
    )
    every = VALUES["xpu_agent_deviceplugin_state", "state"]
    assert states == every - {registration.WATCHED}
