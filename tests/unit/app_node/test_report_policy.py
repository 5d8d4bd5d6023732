"""What the NodeMetric object says of reports, over what the settings say."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.clock import ManualClock
from agent.config.sources import decode_settings
from agent.recording.host_source import HostSource
from agent.snapshot.cluster import ClusterView, MetricCollectPolicy
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.snapshot.usage import UsageReport
from agent.usage.history import UsageReportPolicy
from agent.usage.monitor import MAX_REPORT_WINDOWS, UsageMonitor, report_policy
from tests.cgroups import CgroupHost

SETTINGS = decode_settings(
    {"publish": {"aggregate_duration_s": 120, "memory_policy": "usageWithPageCache"}}
)
DEFAULT = UsageReportPolicy(aggregate_s=120, memory="usageWithPageCache")


@pytest.mark.parametrize(
    ("told", "policy"),
    [
        (None, DEFAULT),
        (MetricCollectPolicy(), DEFAULT),
        (MetricCollectPolicy(aggregate_s=300), replace(DEFAULT, aggregate_s=300)),
        (MetricCollectPolicy(aggregate_s=1), replace(DEFAULT, aggregate_s=60)),
        (MetricCollectPolicy(aggregate_s=-7), replace(DEFAULT, aggregate_s=60)),
        (MetricCollectPolicy(durations_s=(300, 60)), replace(DEFAULT, windows_s=(300, 60))),
        (
            MetricCollectPolicy(durations_s=(60, 60, 0, -1, 10**9)),
            replace(DEFAULT, windows_s=(60,)),
        ),
        (MetricCollectPolicy(durations_s=()), DEFAULT),
        (
            MetricCollectPolicy(memory="usageWithoutPageCache"),
            replace(DEFAULT, memory="usageWithoutPageCache"),
        ),
    ],
)
def test_the_object_counts_field_by_field_and_the_settings_where_it_is_silent(
    told: MetricCollectPolicy | None, policy: UsageReportPolicy
) -> None:
    assert report_policy(SETTINGS, told) == policy


def test_windows_are_bounded_in_number() -> None:
    collect_policy = MetricCollectPolicy(durations_s=tuple(range(60, 1000)))
    assert len(report_policy(SETTINGS, collect_policy).windows_s) == MAX_REPORT_WINDOWS


class Node:
    """A measured host whose NodeMetric may be changed."""

    def __init__(self, folder: Path) -> None:
        host = CgroupHost(folder)
        host.group("/poda", cpu_ns=10**9, anon=3)
        self.clock = ManualClock()
        self.store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))
        self._measuring = UsageMonitor(
            HostSource(files=host.files), decode_settings({}), self.store, self.clock
        )

    def measure(self, seconds: int) -> None:
        for _ in range(seconds):
            self._measuring.cycle()
            self.clock.advance(1.0)

    def report(self) -> UsageReport:
        self._measuring.report()
        return self.store.current.report.value

    def say(self, policy: MetricCollectPolicy | None) -> None:
        self.store.put(
            cluster=ClusterView(is_clustered=True, metric_policy=SnapshotPart(policy, 1.0))
        )


def test_a_change_of_the_object_takes_effect_with_the_next_report(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.measure(3)
    assert [a.duration_s for a in node.report().aggregates] == [300, 600, 1800]
    node.say(MetricCollectPolicy(durations_s=(60,)))
    assert [a.duration_s for a in node.report().aggregates] == [60]
    node.say(MetricCollectPolicy())
    assert [a.duration_s for a in node.report().aggregates] == [300, 600, 1800]


def test_a_cluster_without_a_node_metric_has_no_report_not_even_an_earlier_one(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    node.measure(3)
    assert node.report().pods
    node.say(None)
    node.measure(3)
    assert node.report() == UsageReport()
    assert node.store.current.report.taken_s is None
    node.say(MetricCollectPolicy())
    assert node.report().pods


def test_no_report_lacks_the_pods_when_their_window_becomes_longer(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.measure(3)
    for aggregate_s in (300, 600, 1800, 60):
        node.say(MetricCollectPolicy(aggregate_s=aggregate_s))
        assert [pod.uid for pod in node.report().pods] == ["a"]
        node.measure(2)


@pytest.mark.parametrize("memory", ["usageWithPageCache", "usageWithHotPageCache", "odd"])
def test_no_memory_policy_empties_the_report(tmp_path: Path, memory: str) -> None:
    node = Node(tmp_path)
    node.say(MetricCollectPolicy(memory=memory))
    node.measure(3)
    report = node.report()
    assert report.node.memory_bytes is not None
    assert [pod.uid for pod in report.pods] == ["a"]
