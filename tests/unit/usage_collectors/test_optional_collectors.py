from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.clock import ManualClock
from agent.config.settings import UsageSettings
from agent.config.sources import decode_settings
from agent.recording.host_source import HostSource
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore
from agent.snapshot.usage import UsageSample
from agent.usage.collector import CollectorInput
from agent.usage.monitor import UsageMonitor
from agent.usage.optional_collectors import OptionalCollectors
from tests.cgroups import PAGE, CgroupHost

OFF = UsageSettings(best_effort=False, storage=False)


def run(tmp_path: Path, settings: UsageSettings) -> OptionalCollectors:
    collectors = OptionalCollectors(CgroupHost(tmp_path).files, settings, ManualClock())
    collectors.run(CollectorInput(now_s=1.0))
    collectors.close()
    return collectors


def test_a_collector_that_is_off_has_neither_values_nor_a_status(tmp_path: Path) -> None:
    collectors = run(tmp_path, OFF)
    assert (collectors.statuses, dict(collectors.values)) == ((), {})


def test_only_cheap_collectors_are_on_by_default(tmp_path: Path) -> None:
    names = [status.name for status in run(tmp_path, UsageSettings()).statuses]
    assert names == ["best_effort", "storage"]


@pytest.mark.parametrize("name", ["best_effort", "cycles", "resctrl", "cold_memory", "storage"])
def test_each_collector_is_switched_on_by_its_name(tmp_path: Path, name: str) -> None:
    collectors = run(tmp_path, replace(OFF, **{name: True}))
    assert [status.name for status in collectors.statuses] == [name]
    assert collectors.values[name] is not None
    assert hasattr(UsageSample(), name)


def test_the_monitor_puts_values_and_statuses_into_the_snapshot(tmp_path: Path) -> None:
    host = CgroupHost(tmp_path)
    host.group("/besteffort", anon=3)
    store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))
    settings = decode_settings({"collect": {"resctrl": True}})
    monitor = UsageMonitor(HostSource(files=host.files), settings, store, ManualClock())
    monitor.cycle()
    monitor.close()
    usage = store.current.usage.value
    assert usage.best_effort is not None
    assert usage.best_effort.use is not None
    assert usage.best_effort.use.memory_bytes == 3 * PAGE
    assert {collector.name: collector.success for collector in usage.collectors} == {
        "usage": True,
        "best_effort": True,
        "resctrl": False,
        "storage": True,
    }


def test_a_node_whose_counters_are_unreadable_is_no_success(tmp_path: Path) -> None:
    host = CgroupHost(tmp_path)
    clock, store = ManualClock(), SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))
    monitor = UsageMonitor(HostSource(files=host.files), decode_settings({}), store, clock)
    monitor.cycle()
    first_s = clock.wall()
    clock.advance(5.0)
    host.write("/proc/stat", "cpu\n")
    monitor.cycle()
    monitor.close()
    usage = store.current.usage.value.collectors[0]
    assert (usage.success, usage.last_success_s) == (False, first_s)
