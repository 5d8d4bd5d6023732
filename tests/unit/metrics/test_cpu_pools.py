"""Shared CPUs are counted as NodeResourceTopology lists them, once their owners are known."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from agent.metrics.cpu_pool_series import SharedCpuCounter
from agent.metrics.exposition import MetricsRenderer
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from tests import factory
from tests.clustered import machine, pod, snapshot

MACHINE = machine(2, 2, 2)


def counts(now: NodeSnapshot) -> dict[str, int]:
    return dict(SharedCpuCounter().count(now))


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ((), {"ls": 8, "be": 8}),
        ((pod("pinned", "1,5", "LSR"),), {"ls": 6, "be": 8}),
        ((pod("alone", "1,5", "LSE"),), {"ls": 6, "be": 6}),
        ((pod("all", "0-7", "LSR"),), {"ls": 0, "be": 8}),
    ],
)
def test_cpus_of_pods_are_not_shared(pods: tuple[PodView, ...], expected: dict[str, int]) -> None:
    assert counts(snapshot(MACHINE, pods=pods)) == expected


def test_nothing_is_counted_while_owners_or_cpus_are_unknown() -> None:
    now = snapshot(MACHINE)
    unread = replace(now, cluster=replace(now.cluster, kubelet=SnapshotPart(None)))
    without_pods = replace(now, pods=SnapshotPart(()))
    without_cpus = replace(now, cpus=factory.snapshot().cpus)
    assert [counts(one) for one in (unread, without_pods, without_cpus)] == [{}, {}, {}]


def test_shared_cpus_are_counted_again_when_pods_or_the_kubelet_change() -> None:
    counter, now = SharedCpuCounter(), snapshot(MACHINE)
    first = counter.count(now)
    assert counter.count(replace(now, usage=factory.snapshot().usage)) is first
    other = replace(now, pods=SnapshotPart((pod("pinned", "1,5", "LSR"),), 1.0))
    assert counter.count(other)["ls"] == 6
    unread = replace(now, cluster=replace(now.cluster, kubelet=SnapshotPart(None)))
    for cluster, known in ((now.cluster, True), (unread.cluster, False), (now.cluster, True)):
        assert bool(counter.count(replace(now, cluster=cluster))) is known


def test_both_pools_are_exported_under_both_names() -> None:
    now = snapshot(MACHINE, pods=(pod("pinned", "1,5", "LSR"),))
    page = MetricsRenderer({}, aliases=("koordlet",)).render(now, 1.0).decode()
    found = {
        (sample.name, sample.labels.get("pool")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if "share" in sample.name
    }
    assert found == {
        ("xpu_node_shared_cpus", "ls"): 6,
        ("xpu_node_shared_cpus", "be"): 8,
        ("koordlet_cpuset_share_pool_cpu_cores", None): 6,
        ("koordlet_cpuset_be_share_pool_cpu_cores", None): 8,
    }
