"""Regions on the host become part of the snapshot and of what is exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.clock import ManualClock
from agent.config.decode import settings_from
from agent.model.part import Part
from agent.model.snapshot import DeviceView, NodeIdentity, NodeSnapshot
from agent.node.measuring import Measuring
from agent.node.store import SnapshotStore
from agent.publish.exposition import MetricsRenderer
from agent.publish.snapshot_json import snapshot_json
from agent.recording.open import OpenedHost
from agent.sharing.layouts import A
from tests.cgroups import CgroupHost
from tests.factory import gpu
from tests.unit.sharing.made import Region


def measured(folder: Path, setting: str) -> NodeSnapshot:
    """Return the snapshot after one cycle on a host whose only pod has a region."""
    host = CgroupHost(folder)
    host.group("/poda", cpu_ns=10**9, anon=3)
    regions = folder / "usr/local/vgpu/containers/a_worker"
    regions.mkdir(parents=True)
    region = Region(A).slots(1).process(0, (0, 0, 0, 0, 500))
    (regions / "x.cache").write_bytes(region.data)
    view = DeviceView(devices=(gpu(0),))
    store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n"), devices=Part(view, 0.0)))
    settings = settings_from({"collect": {"hami_regions": setting}})
    measuring = Measuring(OpenedHost(files=host.files), settings, store, ManualClock())
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
