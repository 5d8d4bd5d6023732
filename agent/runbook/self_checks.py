"""The agent's checks on itself, as `/healthz` and the page show them; pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agent.snapshot.cluster import (
    ANOTHER_MACHINE,
    KUBELET_OK,
    ApiSessionStatus,
    KubeletStatus,
    WatchPhase,
    WatchStatus,
    WritePermission,
)
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.self_check import LoopStatus, SelfCheck, SelfCheckReport

# Kinds that a cluster may lack: without koord-manager there is no NodeSLO. For an object that the
# agent writes, the check of its publisher reports the absent CRD.
OPTIONAL_RESOURCES = ("nodeslos", "nodemetrics", "devices", "noderesourcetopologies")


def self_report(snapshot: NodeSnapshot, now_s: float) -> SelfCheckReport:
    """Return all checks: loops, parts of the snapshot, vendors, publishers and services."""
    return SelfCheckReport(
        (
            *loop_checks(snapshot.loops, now_s),
            *snapshot_checks(snapshot),
            *snapshot.checks,
            *cluster_checks(snapshot),
            *container_checks(snapshot),
        )
    )


def loop_checks(loops: Iterable[LoopStatus], now_s: float) -> list[SelfCheck]:
    """Return one check for each loop: its heartbeat and its last error."""
    checks = []
    for loop in loops:
        ok = loop.is_healthy(now_s)
        if loop.last_success_s is not None:
            message = f"last good {now_s - loop.last_success_s:.1f} s ago"
        elif loop.due_s is not None and now_s < loop.due_s:
            message = f"first due in {loop.due_s - now_s:.0f} s"
        else:
            message = "never good"
        if loop.failures:
            message += f"; {loop.failures} failures in a row: {loop.last_error}"
        reason = "LoopFailing" if loop.failures else "LoopLate"
        checks.append(SelfCheck(name=f"loop:{loop.name}", ok=ok, message=message, reason=reason))
    return checks


def host_parts(snapshot: NodeSnapshot) -> tuple[tuple[str, SnapshotPart[Any]], ...]:
    """Return the parts of the snapshot that are read from the host, by name."""
    return (
        ("cpus", snapshot.cpus),
        ("numa", snapshot.numa),
        ("pci", snapshot.pci),
        ("devices", snapshot.devices),
    )


def part_check(name: str, part: SnapshotPart[Any]) -> SelfCheck:
    """Return the check on one part of the snapshot: whether its last reading succeeded."""
    return SelfCheck(
        name=f"part:{name}",
        ok=part.taken_s is not None and not part.error,
        message=part.error,
        reason="HostPartUnread",
    )


def snapshot_checks(snapshot: NodeSnapshot) -> list[SelfCheck]:
    """Return the checks on parts of the snapshot and on the vendors.

    A vendor that does not answer does not make the agent unready: otherwise one broken driver
    would take all other devices out of the metrics.
    """
    checks = [part_check(name, part) for name, part in host_parts(snapshot)]
    for vendor in snapshot.vendors:
        message = f"{vendor.state} {vendor.reason} {vendor.message}".strip()
        checks.append(
            SelfCheck(
                name=f"vendor:{vendor.vendor}",
                ok=vendor.state == "ready",
                message=message,
                gates_ready=False,
            )
        )
    return checks


def cluster_checks(snapshot: NodeSnapshot) -> list[SelfCheck]:
    """Return one check for each part of the cluster service; none in standalone mode.

    Only the Node of another machine gates readiness. Every other failure ends without help, and
    an agent out of service would not end it sooner.
    """
    status = snapshot.cluster_service
    if status is None:
        return []
    checks = [_node_check(status.write_permission), _api_check(status.session)]
    checks += [_watch_check(watch) for watch in status.watches]
    if status.kubelet is not None:
        checks.append(_kubelet_check(status.kubelet))
    if status.proxy is not None:
        proxy = status.proxy
        checks.append(_informative_check("pod-resources-proxy", proxy.is_serving, proxy.error))
    if status.events is not None:
        checks.append(
            _informative_check("events-at-api-server", not status.events.error, status.events.error)
        )
    return checks


def container_checks(snapshot: NodeSnapshot) -> list[SelfCheck]:
    """Return one check for each kind of access to containers and files; none gates readiness."""
    status = snapshot.container_service
    if status is None:
        return []
    checks = []
    if status.nri is not None:
        runtime = snapshot.runtime.value
        message = f"{runtime.state} {runtime.reason} {runtime.message}".strip()
        checks.append(_informative_check("runtime", runtime.is_synchronized, message))
    for resource in snapshot.served.value.resources:
        message = f"{resource.state} {resource.reason} {resource.message}".strip()
        is_watched = resource.state == "watched"
        checks.append(_informative_check(f"kubelet:{resource.name}", is_watched, message))
    for vendor, problem in status.offer_problems:
        message = f"{problem.reason}: {problem.message}"
        checks.append(_informative_check(f"offered:{vendor}", ok=False, message=message))
    if status.file_problems is not None:
        message = "; ".join(status.file_problems)
        checks.append(_informative_check("pod-files", not status.file_problems, message))
    if status.cdi_problem is not None:
        checks.append(_informative_check("cdi-files", not status.cdi_problem, status.cdi_problem))
    return checks


def _informative_check(name: str, ok: bool, message: str) -> SelfCheck:
    return SelfCheck(name=name, ok=ok, message=message, gates_ready=False)


def _node_check(permission: WritePermission) -> SelfCheck:
    return SelfCheck(
        name="node",
        ok=permission.is_allowed,
        message=permission.message or "this machine's",
        gates_ready=permission.reason == ANOTHER_MACHINE,
    )


def _api_check(state: ApiSessionStatus) -> SelfCheck:
    request_count = sum(state.requests.values())
    message = f"{request_count} requests, {state.streams} streams"
    if state.clock_skew_s:
        message += f", its clock is {state.clock_skew_s:+.0f} s from ours"
    if state.reachable is not True and state.last_error:
        message = f"{state.last_error}; {message}"
    return _informative_check("api-server", state.reachable is True, message)


def is_watch_failing(state: WatchStatus) -> bool:
    """Return whether a watch has an error; an optional kind that the server lacks is none."""
    is_absent = state.phase is WatchPhase.ABSENT and state.resource in OPTIONAL_RESOURCES
    return bool(state.last_error) and not is_absent


def _watch_check(state: WatchStatus) -> SelfCheck:
    message = f"{state.phase.value}, {state.objects} objects, {state.events} events"
    if state.last_error:
        message += f": {state.last_error}"
    return _informative_check(f"watch:{state.resource}", not is_watch_failing(state), message)


def _kubelet_check(state: KubeletStatus) -> SelfCheck:
    message = f"pods {state.pods}, settings {state.config}"
    return _informative_check(
        "kubelet",
        state.pods == KUBELET_OK,
        f"{message}: {state.detail}" if state.detail else message,
    )
