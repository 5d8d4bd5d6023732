"""Series of the agent itself: loops, ages of the snapshot's parts, publishers, workers."""

from __future__ import annotations

import platform
from collections import Counter

from agent.metrics.families import FAULT
from agent.metrics.text_format import SeriesLines, label_pairs, last_run_series, sample_line
from agent.runbook.problem import Severity, SubjectKind
from agent.runbook.problems import find_problems
from agent.runbook.runbook import Runbook
from agent.runbook.self_checks import self_report
from agent.snapshot.node import HotplugView, NodeSnapshot, VendorState
from agent.snapshot.publications import PublisherStatus
from agent.version import VERSION
from agent.wire_formats.device_info import CUDA_VENDOR
from agent.wire_formats.device_object import select_devices
from agent.wire_formats.snapshot_json import SNAPSHOT_PARTS

WORKER_STATES = ("starting", "ready", "stalled", "restarting", "quarantined", "released")


def agent_series(snapshot: NodeSnapshot, now_s: float, label_prefix: str) -> SeriesLines:
    """Yield the families of the agent; `label_prefix` has the labels of every sample."""
    name = "xpu_agent_build_info"
    build = label_pairs(("version", "python"), (VERSION, platform.python_version()))
    yield name, [sample_line(name, label_prefix, 1, build)]
    yield from _check_series(snapshot, now_s, label_prefix)
    yield from _part_series(snapshot, now_s, label_prefix)
    name = "xpu_agent_host_read_errors_total"
    yield (
        name,
        [
            sample_line(name, label_prefix, n, label_pairs(("errno",), (e,)))
            for e, n in snapshot.refused
        ],
    )
    yield from _hotplug_series(snapshot.hotplug, label_prefix)
    yield from _vendor_series(snapshot.vendors, now_s, label_prefix)
    yield from _problem_series(snapshot, label_prefix)
    yield from _publisher_series(snapshot.publishers, label_prefix)


def _check_series(snapshot: NodeSnapshot, now_s: float, label_prefix: str) -> SeriesLines:
    """Yield the agent's checks on itself; none for a command that reads the host once."""
    if not snapshot.loops:
        return
    report = self_report(snapshot, now_s)
    name = "xpu_agent_ready"
    yield name, [sample_line(name, label_prefix, int(report.is_ready))]
    name = "xpu_agent_self_check"
    yield (
        name,
        [
            sample_line(name, label_prefix, int(check.ok), label_pairs(("check",), (check.name,)))
            for check in report.checks
        ],
    )


def _part_series(snapshot: NodeSnapshot, now_s: float, label_prefix: str) -> SeriesLines:
    parts = [(f'part="{part}"', getattr(snapshot, part)) for part in SNAPSHOT_PARTS]
    name = "xpu_agent_snapshot_part_age_seconds"
    yield name, _ages(name, label_prefix, [(extra, part.age_s(now_s)) for extra, part in parts])
    name = "xpu_agent_snapshot_part_failed"
    yield (
        name,
        [sample_line(name, label_prefix, int(bool(part.error)), extra) for extra, part in parts],
    )


def _hotplug_series(hotplug: HotplugView, label_prefix: str) -> SeriesLines:
    name = "xpu_agent_uevents_heard"
    values = () if hotplug.state == "off" else (int(hotplug.state == "listening"),)
    yield name, [sample_line(name, label_prefix, value) for value in values]
    for name, label, counts in (
        ("xpu_agent_uevents_total", "subsystem", hotplug.seen),
        ("xpu_agent_uevents_dropped_total", "reason", hotplug.dropped),
        ("xpu_agent_host_looks_total", "cause", hotplug.scans),
    ):
        yield (
            name,
            [
                sample_line(name, label_prefix, n, label_pairs((label,), (key,)))
                for key, n in counts
            ],
        )


def _vendor_series(
    vendors: tuple[VendorState, ...], now_s: float, label_prefix: str
) -> SeriesLines:
    labelled = [(label_pairs(("vendor",), (vendor.vendor,)), vendor) for vendor in vendors]
    name = "xpu_agent_vendor_state"
    yield (
        name,
        [
            sample_line(name, label_prefix, int(vendor.state == state), f'{extra},state="{state}"')
            for extra, vendor in labelled
            for state in WORKER_STATES
        ],
    )
    name = "xpu_agent_vendor_restarts_total"
    yield (
        name,
        [sample_line(name, label_prefix, vendor.restarts, extra) for extra, vendor in labelled],
    )
    name = "xpu_agent_vendor_recycles_total"
    yield (
        name,
        [sample_line(name, label_prefix, vendor.recycles, extra) for extra, vendor in labelled],
    )
    name = "xpu_device_readings_rejected_total"
    yield (
        name,
        [
            sample_line(
                name,
                label_prefix,
                rejection.count,
                f"{extra},{label_pairs(('family',), (rejection.family,))}",
            )
            for extra, vendor in labelled
            for rejection in vendor.rejections
        ],
    )
    name = "xpu_agent_vendor_inventory_age_seconds"
    yield name, _ages(name, label_prefix, [(x, v.inventory.age_s(now_s)) for x, v in labelled])
    name = "xpu_agent_vendor_sample_age_seconds"
    yield name, _ages(name, label_prefix, [(x, v.samples.age_s(now_s)) for x, v in labelled])


def _ages(name: str, label_prefix: str, ages: list[tuple[str, float | None]]) -> list[str]:
    return [
        sample_line(name, label_prefix, round(age_s, 3), x)
        for x, age_s in ages
        if age_s is not None
    ]


def _problem_series(snapshot: NodeSnapshot, label_prefix: str) -> SeriesLines:
    view = snapshot.devices.value
    name = "xpu_agent_vendor_problem"
    shared = [(CUDA_VENDOR, problem) for problem in snapshot.sharing.value.problems]
    reasons = sorted({(vendor, p.reason) for vendor, p in (*view.problems, *shared)})
    yield (
        name,
        [
            sample_line(name, label_prefix, 1, label_pairs(("vendor", "reason"), reason))
            for reason in reasons
        ],
    )
    name = "xpu_agent_devices_unpublished"
    counts = Counter(reason for _, reason in select_devices(view.devices).omissions)
    yield (
        name,
        [
            sample_line(name, label_prefix, counts[reason], f'reason="{reason}"')
            for reason in sorted(counts)
        ],
    )


def _publisher_series(publishers: tuple[PublisherStatus, ...], label_prefix: str) -> SeriesLines:
    finished = [(f'publisher="{p.name}"', p) for p in publishers if p.duration_s is not None]
    yield from last_run_series("xpu_agent_publisher", finished, label_prefix)
    name = "xpu_agent_publisher_objects_total"
    yield (
        name,
        [
            sample_line(name, label_prefix, count, f'{extra},result="{result}"')
            for extra, p in finished
            for result, count in (
                ("written", p.written),
                ("unchanged", p.unchanged),
                ("failed", p.failed),
            )
        ],
    )


def problem_series(
    snapshot: NodeSnapshot, runbook: Runbook, now_s: float, label_prefix: str
) -> SeriesLines:
    """Yield the number of problems, and the faults of devices; `now_s` is monotonic."""
    problems = find_problems(snapshot, runbook.find, now_s, 0.0)
    counts = Counter(problem.severity for problem in problems)
    name = "xpu_agent_problems"
    yield (
        name,
        [
            sample_line(
                name, label_prefix, counts[severity], label_pairs(("severity",), (severity.value,))
            )
            for severity in Severity
        ],
    )
    infos = {device.key: device.info for device in snapshot.devices.value.devices}
    cards = {part.uuid: key for key, info in infos.items() for part in info.partitions}
    rows: dict[str, None] = {}  # in order, each once
    name = "xpu_device_fault"
    for problem in problems:
        if problem.kind not in (SubjectKind.DEVICE, SubjectKind.SLICE):
            continue
        is_slice = problem.kind is SubjectKind.SLICE
        key = cards.get(problem.subject, "") if is_slice else problem.subject
        info = infos.get(key)
        minor = "" if info is None or info.minor is None else str(info.minor)
        uuid = problem.subject if is_slice else (info.uuid or "" if info is not None else "")
        values = (
            *(key, minor, uuid, problem.category.value or "other", problem.reason),
            *(problem.action.value, problem.severity.value),
        )
        rows[sample_line(name, label_prefix, 1, label_pairs(FAULT, values))] = None
    yield name, list(rows)
