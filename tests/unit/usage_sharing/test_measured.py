"""Regions on the host become part of the snapshot and of what is exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.clock import ManualClock
from agent.config.sources import decode_settings
from agent.metrics.exposition import MetricsRenderer
from agent.recording.host_source import HostSource
from agent.snapshot.inventory import DeviceSample, ProcessSample
from agent.snapshot.node import (
    DeviceView,
    NodeIdentity,
    NodeSnapshot,
    SnapshotStore,
    VendorState,
)
from agent.snapshot.part import SnapshotPart
from agent.usage.hami_regions import LAYOUT_A
from agent.usage.monitor import UsageMonitor
from agent.wire_formats.snapshot_json import snapshot_json
from tests.cgroups import CgroupHost
from tests.factory import gpu
from tests.unit.usage_sharing.made import Region

CONTAINERS = "/usr/local/vgpu/containers"


def measured(
    folder: Path, setting: str = CONTAINERS, seconds: int = 1, vendors: tuple[VendorState, ...] = ()
) -> NodeSnapshot:
    """Return the snapshot after some cycles on a host whose only pod has a region."""
    host, clock = CgroupHost(folder), ManualClock()
    host.group("/poda", cpu_ns=10**9, anon=3)
    regions = folder / "usr/local/vgpu/containers/a_worker"
    regions.mkdir(parents=True)
    card = gpu(0)
    region = Region(LAYOUT_A, cards=[card.info.uuid or ""]).slots(1)
    (regions / "x.cache").write_bytes(region.process(0, (0, 0, 0, 0, 500), host_pid=7).data)
    view = SnapshotPart(DeviceView(devices=(card,)), 0.0)
    store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n"), devices=view, vendors=vendors))
    settings = decode_settings({"collect": {"hami_regions": setting}})
    measuring = UsageMonitor(HostSource(files=host.files), settings, store, clock)
    for _ in range(seconds):
        measuring.cycle()
        clock.advance(1.0)
    measuring.close()
    return store.current


@pytest.mark.parametrize(("error", "reasons"), [("", ["RegionDrift"]), ("the worker hangs", [])])
def test_a_count_is_not_compared_with_samples_of_a_vendor_that_answers_no_more(
    tmp_path: Path, error: str, reasons: list[str]
) -> None:
    process = ProcessSample(pid=7, memory_bytes=4 << 30)
    sample = DeviceSample(key=gpu(0).key, processes=(process,))
    vendor = VendorState(vendor="nvidia", samples=SnapshotPart((sample,), 0.0, error))
    snapshot = measured(tmp_path, seconds=72, vendors=(vendor,))
    assert [problem.reason for problem in snapshot.sharing.value.problems] == reasons


@pytest.mark.parametrize(("setting", "used"), [(CONTAINERS, [500]), ("", [])])
def test_regions_are_read_from_the_folder_of_the_setting(
    tmp_path: Path, setting: str, used: list[int]
) -> None:
    snapshot = measured(tmp_path, setting)
    view = snapshot.sharing.value
    assert [card.used_bytes for region in view.regions for card in region.cards] == used
    assert snapshot.sharing.taken_s is not None
    page = MetricsRenderer({}, aliases=("hami",)).render(snapshot, 0.0).decode()
    assert ("hami_vgpu_memory_used_bytes" in page) is bool(used)
    parts = snapshot_json(snapshot, 0.0)["parts"]
    assert isinstance(parts, dict)
    assert parts["sharing"]["error"] is None
