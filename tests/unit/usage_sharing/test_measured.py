"""Regions on the host become part of the snapshot and of what is exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.clock import ManualClock
from agent.config.sources import decode_settings
from agent.metrics.exposition import MetricsRenderer
from agent.recording.host_source import HostSource
from agent.snapshot.node import DeviceView, NodeIdentity, NodeSnapshot, SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.usage.hami_regions import LAYOUT_A
from agent.usage.monitor import UsageMonitor
from agent.wire_formats.snapshot_json import snapshot_json
from tests.cgroups import CgroupHost
from tests.factory import gpu
from tests.unit.usage_sharing.made import Region


def measured(folder: Path, setting: str) -> NodeSnapshot:
    """Return the snapshot after one cycle on a host whose only pod has a region."""
    host = CgroupHost(folder)
    host.group("/poda", cpu_ns=10**9, anon=3)
    regions = folder / "usr/local/vgpu/containers/a_worker"
    regions.mkdir(parents=True)
    region = Region(LAYOUT_A).slots(1).process(0, (0, 0, 0, 0, 500))
    (regions / "x.cache").write_bytes(region.data)
    view = DeviceView(devices=(gpu(0),))
    store = SnapshotStore(
        NodeSnapshot(node=NodeIdentity(name="n"), devices=SnapshotPart(view, 0.0))
    )
    settings = decode_settings({"collect": {"hami_regions": setting}})
    measuring = UsageMonitor(HostSource(files=host.files), settings, store, ManualClock())
    measuring.cycle()
    measuring.close()
    return store.current


@pytest.mark.parametrize(("setting", "used"), [("/usr/local/vgpu/containers", [500]), ("", [])])
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
