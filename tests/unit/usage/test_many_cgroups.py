"""Nodes with more cgroups than anybody expects: figures are right or absent, and it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.clock import ManualClock
from agent.config.sources import decode_settings
from agent.host import files
from agent.recording.host_source import HostSource
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore
from agent.usage import cgroup_usage
from agent.usage.monitor import UsageCollector, UsageMonitor
from tests.cgroups import PAGE, CgroupHost, container_id

PODS = 10_000


def test_ten_thousand_pods_have_their_own_figures_and_the_system_has_the_rest(
    tmp_path: Path,
) -> None:
    host = CgroupHost(tmp_path)
    for number in range(PODS):
        host.group(f"/burstable/pod{number}", anon=number % 7)
    used = sum(number % 7 for number in range(PODS)) * PAGE
    host.node(busy=0, free_kb=1000, total_kb=1000 + used // 1024 + 100)
    collector = UsageCollector(host.files)
    collector.measure(1.0)
    sample = collector.measure(2.0)
    assert len(sample.pods) == PODS
    assert all(sample.pods[str(number)].memory_bytes == number % 7 * PAGE for number in range(PODS))
    assert sample.node.system_memory_bytes == 100 * 1024
    collector.close()


@pytest.fixture
def crowded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CgroupHost:
    """A host with a directory of more cgroups than one listing may have."""
    for module in (files, cgroup_usage):
        monkeypatch.setattr(module, "MAX_ENTRIES", 10)
    host = CgroupHost(tmp_path)
    for number in range(12):
        host.group(f"/burstable/pod{number:02}", anon=1)
    return host


def test_where_pods_are_missing_the_system_is_absent_and_the_others_are_right(
    crowded: CgroupHost,
) -> None:
    collector = UsageCollector(crowded.files)
    sample = collector.measure(1.0)
    assert 0 < len(sample.pods) < 12
    assert {use.memory_bytes for use in sample.pods.values()} == {PAGE}
    assert sample.node.system_memory_bytes is None
    assert all(one.pods_memory_bytes is None for one in sample.node.numa)
    assert not collector.is_complete


def test_missing_pods_are_reported_until_all_fit_again(
    crowded: CgroupHost, caplog: pytest.LogCaptureFixture
) -> None:
    store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))
    monitor = UsageMonitor(
        HostSource(files=crowded.files), decode_settings({}), store, ManualClock()
    )
    for _ in range(2):
        monitor.cycle()
    (status,) = (
        collector for collector in store.current.usage.value.collectors if collector.name == "usage"
    )
    assert not status.success
    assert [problem.reason for problem in status.problems] == ["TooManyCgroups"]
    reasons = [getattr(record, "reason", "") for record in caplog.records]
    assert reasons.count("TooManyCgroups") == 1
    for number in range(6):
        crowded.remove(f"/burstable/pod{number:02}")
    crowded.group(f"/burstable/pod11/{container_id(1)}")
    for _ in range(2):
        monitor.cycle()
    (status,) = (
        collector for collector in store.current.usage.value.collectors if collector.name == "usage"
    )
    assert (status.success, status.problems) == (True, ())
    assert store.current.usage.value.node.system_memory_bytes is not None
    monitor.close()
