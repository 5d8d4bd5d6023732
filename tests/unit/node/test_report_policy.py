"""What the NodeMetric object says of reports, over what the settings say."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.clock import ManualClock
from agent.collect.report import ReportPolicy
from agent.config.decode import settings_from
from agent.model.cluster.facts import ClusterFacts, MetricPolicy
from agent.model.part import Part
from agent.model.snapshot import NodeIdentity, NodeSnapshot
from agent.model.usage import UsageReport
from agent.node.measuring import MAX_WINDOWS, Measuring, report_policy
from agent.node.store import SnapshotStore
from agent.recording.open import OpenedHost
from tests.cgroups import CgroupHost

SETTINGS = settings_from(
    {"publish": {"aggregate_duration_s": 120, "memory_policy": "usageWithPageCache"}}
)
DEFAULT = ReportPolicy(aggregate_s=120, memory="usageWithPageCache")


@pytest.mark.parametrize(
    ("told", "policy"),
    [
        (None, DEFAULT),
        (MetricPolicy(), DEFAULT),
        (MetricPolicy(aggregate_s=300), replace(DEFAULT, aggregate_s=300)),
        (MetricPolicy(aggregate_s=1), replace(DEFAULT, aggregate_s=60)),
        (MetricPolicy(aggregate_s=-7), replace(DEFAULT, aggregate_s=60)),
        (MetricPolicy(durations_s=(300, 60)), replace(DEFAULT, windows_s=(300, 60))),
        (MetricPolicy(durations_s=(60, 60, 0, -1, 10**9)), replace(DEFAULT, windows_s=(60,))),
        (MetricPolicy(durations_s=()), DEFAULT),
        (
            MetricPolicy(memory="usageWithoutPageCache"),
            replace(DEFAULT, memory="usageWithoutPageCache"),
        ),
    ],
)
def test_the_object_counts_field_by_field_and_the_settings_where_it_is_silent(
    told: MetricPolicy | None, policy: ReportPolicy
) -> None:
    assert report_policy(SETTINGS, told) == policy


def test_windows_are_bounded_in_number() -> None:
    told = MetricPolicy(durations_s=tuple(range(60, 1000)))
    assert len(report_policy(SETTINGS, told).windows_s) == MAX_WINDOWS


class Node:
    """A measured host whose NodeMetric may be changed."""

    def __init__(self, folder: Path) -> None:
        host = CgroupHost(folder)
        host.group("/poda", cpu_ns=10**9, anon=3)
        self.clock = ManualClock()
        self.store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))
        self._measuring = Measuring(
            OpenedHost(files=host.files), settings_from({}), self.store, self.clock
        )

    def measure(self, seconds: int) -> None:
        for _ in range(seconds):
            self._measuring.cycle()
            self.clock.advance(1.0)

    def report(self) -> UsageReport:
        self._measuring.report()
        return self.store.current.report.value

    def say(self, policy: MetricPolicy | None) -> None:
        self.store.put(cluster=ClusterFacts(clustered=True, metric_policy=Part(policy, 1.0)))


def test_a_change_of_the_object_takes_effect_with_the_next_report(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.measure(3)
    assert [a.duration_s for a in node.report().aggregates] == [300, 600, 1800]
    node.say(MetricPolicy(durations_s=(60,)))
    assert [a.duration_s for a in node.report().aggregates] == [60]
    node.say(MetricPolicy())
    assert [a.duration_s for a in node.report().aggregates] == [300, 600, 1800]


def test_nothing_is_computed_while_a_cluster_has_no_object_to_tell_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.measure(3)
    before = node.report()
    node.say(None)
    node.measure(3)
    assert node.report() is before
    node.say(MetricPolicy())
    assert node.report() is not before


def test_no_report_lacks_the_pods_when_their_window_becomes_longer(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.measure(3)
    for aggregate_s in (300, 600, 1800, 60):
        node.say(MetricPolicy(aggregate_s=aggregate_s))
        assert [pod.uid for pod in node.report().pods] == ["a"]
        node.measure(2)


@pytest.mark.parametrize("memory", ["usageWithPageCache", "usageWithHotPageCache", "odd"])
def test_no_memory_policy_empties_the_report(tmp_path: Path, memory: str) -> None:
    node = Node(tmp_path)
    node.say(MetricPolicy(memory=memory))
    node.measure(3)
    report = node.report()
    assert report.node.memory_bytes is not None
    assert [pod.uid for pod in report.pods] == ["a"]
