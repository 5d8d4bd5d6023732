"""Metrics of the extender, in Prometheus' text format."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Protocol

from plugins.scheduler.allocation_audit import AllocationAudit, overcommitted_devices
from plugins.scheduler.cluster_state import ClusterState
from plugins.scheduler.devices.allocator import NodeState
from plugins.scheduler.server.binding import Binder
from plugins.scheduler.server.cluster_feed import ClusterFeed
from plugins.scheduler.server.extender import Extender

BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)
MAX_NODES = 1024  # that have series of their own; `nodeDeviceSummaries` has all
NODES_AT_ONCE = 64  # between two chances for other calls


class CountedTerm(Protocol):
    """The objects of a term that are counted."""

    state: ClusterState
    extender: Extender
    binder: Binder
    feed: ClusterFeed
    audit: AllocationAudit


class CallStatistics:
    """Counts and durations of calls by verb and result."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.sums_s: Counter[str] = Counter()
        self.buckets: dict[str, list[int]] = {}

    def add(self, verb: str, result: str, duration_s: float) -> None:
        """Count one call."""
        self.counts[verb, result] += 1
        self.sums_s[verb] += duration_s  # type: ignore[assignment]  # a sum of seconds
        buckets = self.buckets.setdefault(verb, [0] * (len(BUCKETS_S) + 1))
        buckets[sum(duration_s > bound for bound in BUCKETS_S)] += 1


def call_lines(statistics: CallStatistics, *, is_leader: bool) -> list[str]:
    """Return the lines about calls, which also a replica that is not the leader counts."""
    lines = ["# TYPE xpu_scheduler_requests_total counter"]
    for (verb, result), count in sorted(statistics.counts.items()):
        labels = f'verb="{verb}",result="{result}"'
        lines.append(f"xpu_scheduler_requests_total{{{labels}}} {count}")
    name = "xpu_scheduler_request_duration_seconds"
    lines.append(f"# TYPE {name} histogram")
    for verb, buckets in sorted(statistics.buckets.items()):
        total = 0
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), buckets, strict=True):
            total += count
            lines.append(f'{name}_bucket{{verb="{verb}",le="{bound}"}} {total}')
        lines.append(f'{name}_sum{{verb="{verb}"}} {statistics.sums_s[verb]}')
        lines.append(f'{name}_count{{verb="{verb}"}} {total}')
    lines.append("# TYPE xpu_scheduler_leader gauge")
    lines.append(f"xpu_scheduler_leader {int(is_leader)}")
    return lines


def term_lines(term: CountedTerm) -> list[str]:
    """Return the lines about decisions and bindings."""
    lines = ["# TYPE xpu_scheduler_decisions_total counter"]
    for reason, count in sorted(term.extender.log.reasons.items()):
        lines.append(f'xpu_scheduler_decisions_total{{reason="{_escape(reason)}"}} {count}')
    lines.append("# TYPE xpu_scheduler_binds_total counter")
    for outcome, count in sorted(term.extender.log.binds.items()):
        lines.append(f'xpu_scheduler_binds_total{{outcome="{outcome}"}} {count}')
    lines.append("# TYPE xpu_scheduler_holds gauge")
    uncertain = len(term.binder.uncertain)
    lines.append(f'xpu_scheduler_holds{{state="uncertain"}} {uncertain}')
    assigned = term.binder.hold_count - uncertain
    lines.append(f'xpu_scheduler_holds{{state="assigned"}} {assigned}')
    lines.append(f'xpu_scheduler_holds{{state="planned"}} {term.state.planned_count}')
    lines.append("# TYPE xpu_scheduler_grant_unreadable gauge")
    lines.append(f"xpu_scheduler_grant_unreadable {term.feed.pods.unreadable_count}")
    lines.append("# TYPE xpu_scheduler_grant_unknown_device gauge")
    lines.append(f"xpu_scheduler_grant_unknown_device {term.audit.unknown_device_count}")
    return lines


async def device_lines(state: ClusterState) -> list[str]:
    """Return the free amounts on nodes, and how many devices are allocated beyond their amounts."""
    lines = ["# TYPE xpu_scheduler_device_free gauge"]
    double = 0
    for number, name in enumerate(sorted(state.node_names())):
        if number % NODES_AT_ONCE == NODES_AT_ONCE - 1:
            await asyncio.sleep(0)
        node = state.state(name)
        double += sum(1 for _ in overcommitted_devices(node))
        if number < MAX_NODES:
            lines += _free_lines(node)
    lines.append("# TYPE xpu_scheduler_double_granted gauge")
    lines.append(f"xpu_scheduler_double_granted {double}")
    return lines


def _free_lines(node: NodeState) -> list[str]:
    lines: list[str] = []
    devices = node.table.devices if node.table is not None else {}
    for kind, of_kind in sorted(devices.items()):
        free = Counter[str]()
        for device in of_kind:
            free.update(node.usage.free(device))
        for resource, amount in sorted(free.items()):
            labels = f'node="{node.name}",type="{_escape(kind)}",resource="{_escape(resource)}"'
            lines.append(f"xpu_scheduler_device_free{{{labels}}} {amount}")
    return lines


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
