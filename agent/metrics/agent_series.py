"""Series of the agent itself: loops, ages of the snapshot's parts, publishers, workers."""

from __future__ import annotations

import platform
from collections import Counter

from agent.metrics.text_format import SeriesLines, label_pairs, sample_line
from agent.snapshot.node import HotplugView, NodeSnapshot, VendorState
from agent.snapshot.publications import PublisherStatus
from agent.version import VERSION
from agent.wire_formats.device_info import CUDA_VENDOR
from agent.wire_formats.device_object import select_devices
from agent.wire_formats.snapshot_json import SNAPSHOT_PARTS

WORKER_STATES = ("starting", "ready", "stalled", "restarting", "quarantined", "released")


def agent_series(snapshot: NodeSnapshot, now_s: float, opened: str) -> SeriesLines:
    """Yield the families of the agent; `opened` are the labels that every sample has."""
    name = "xpu_agent_build_info"
    build = label_pairs(("version", "python"), (VERSION, platform.python_version()))
    yield name, [sample_line(name, opened, 1, build)]
    yield from _part_series(snapshot, now_s, opened)
    name = "xpu_agent_host_read_errors_total"
    yield (
        name,
        [sample_line(name, opened, n, label_pairs(("errno",), (e,))) for e, n in snapshot.refused],
    )
    yield from _hotplug_series(snapshot.hotplug, opened)
    yield from _vendor_series(snapshot.vendors, now_s, opened)
    yield from _problem_series(snapshot, opened)
    yield from _publisher_series(snapshot.publishers, opened)


def _part_series(snapshot: NodeSnapshot, now_s: float, opened: str) -> SeriesLines:
    parts = [(f'part="{part}"', getattr(snapshot, part)) for part in SNAPSHOT_PARTS]
    name = "xpu_agent_snapshot_part_age_seconds"
    yield name, _ages(name, opened, [(extra, part.age_s(now_s)) for extra, part in parts])
    name = "xpu_agent_snapshot_part_failed"
    yield name, [sample_line(name, opened, int(bool(part.error)), extra) for extra, part in parts]


def _hotplug_series(hotplug: HotplugView, opened: str) -> SeriesLines:
    name = "xpu_agent_uevents_heard"
    heard = () if hotplug.state == "off" else (int(hotplug.state == "listening"),)
    yield name, [sample_line(name, opened, value) for value in heard]
    for name, label, counts in (
        ("xpu_agent_uevents_total", "subsystem", hotplug.seen),
        ("xpu_agent_uevents_dropped_total", "reason", hotplug.dropped),
        ("xpu_agent_host_looks_total", "cause", hotplug.scans),
    ):
        yield (
            name,
            [sample_line(name, opened, n, label_pairs((label,), (key,))) for key, n in counts],
        )


def _vendor_series(vendors: tuple[VendorState, ...], now_s: float, opened: str) -> SeriesLines:
    labelled = [(label_pairs(("vendor",), (vendor.vendor,)), vendor) for vendor in vendors]
    name = "xpu_agent_vendor_state"
    yield (
        name,
        [
            sample_line(name, opened, int(vendor.state == state), f'{extra},state="{state}"')
            for extra, vendor in labelled
            for state in WORKER_STATES
        ],
    )
    name = "xpu_agent_vendor_restarts_total"
    yield name, [sample_line(name, opened, vendor.restarts, extra) for extra, vendor in labelled]
    name = "xpu_agent_vendor_recycles_total"
    yield name, [sample_line(name, opened, vendor.recycles, extra) for extra, vendor in labelled]
    name = "xpu_agent_vendor_inventory_age_seconds"
    yield name, _ages(name, opened, [(x, v.inventory.age_s(now_s)) for x, v in labelled])
    name = "xpu_agent_vendor_sample_age_seconds"
    yield name, _ages(name, opened, [(x, v.samples.age_s(now_s)) for x, v in labelled])


def _ages(name: str, opened: str, ages: list[tuple[str, float | None]]) -> list[str]:
    return [sample_line(name, opened, round(age_s, 3), x) for x, age_s in ages if age_s is not None]


def _problem_series(snapshot: NodeSnapshot, opened: str) -> SeriesLines:
    view = snapshot.devices.value
    name = "xpu_agent_vendor_problem"
    shared = [(CUDA_VENDOR, problem) for problem in snapshot.sharing.value.problems]
    reasons = sorted({(vendor, p.reason) for vendor, p in (*view.problems, *shared)})
    yield (
        name,
        [
            sample_line(name, opened, 1, label_pairs(("vendor", "reason"), reason))
            for reason in reasons
        ],
    )
    name = "xpu_agent_devices_unpublished"
    left_out = Counter(reason for _, reason in select_devices(view.devices).omissions)
    yield (
        name,
        [
            sample_line(name, opened, left_out[reason], f'reason="{reason}"')
            for reason in sorted(left_out)
        ],
    )


def _publisher_series(publishers: tuple[PublisherStatus, ...], opened: str) -> SeriesLines:
    ran = [(f'publisher="{p.name}"', p) for p in publishers if p.duration_s is not None]
    name = "xpu_agent_publisher_success"
    yield name, [sample_line(name, opened, int(p.success), extra) for extra, p in ran]
    name = "xpu_agent_publisher_duration_seconds"
    yield name, [sample_line(name, opened, p.duration_s or 0.0, extra) for extra, p in ran]
    name = "xpu_agent_publisher_last_success_timestamp_seconds"
    yield (
        name,
        [
            sample_line(name, opened, p.last_success_s, extra)
            for extra, p in ran
            if p.last_success_s is not None
        ],
    )
    name = "xpu_agent_publisher_objects_total"
    yield (
        name,
        [
            sample_line(name, opened, count, f'{extra},result="{result}"')
            for extra, p in ran
            for result, count in (
                ("written", p.written),
                ("unchanged", p.unchanged),
                ("failed", p.failed),
            )
        ],
    )
