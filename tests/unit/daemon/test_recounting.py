"""Events told of snapshots that follow each other."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from agent.clock import ManualClock
from agent.daemon.recounting import Recounting
from agent.model.device import Health, HealthState
from agent.model.snapshot import DeviceView, Part
from agent.node.store import SnapshotStore
from tests.factory import NOW_S, gpu, snapshot


def test_the_check_holds_again_when_the_folder_can_be_written_though_nothing_new_happens(
    tmp_path: Path,
) -> None:
    blocked = tmp_path / "out"
    blocked.write_text("a file where the folder should be")
    store = SnapshotStore(snapshot((gpu(0),)))
    recounting = Recounting(store, ManualClock(), str(blocked))
    recounting.run_once()
    bad = gpu(0, health=Health(state=HealthState.FAILED, reason="Xid79"))
    store.change(lambda now: replace(now, devices=Part(DeviceView(devices=(bad,)), NOW_S)))
    recounting.run_once()
    assert not recounting.check().ok
    blocked.unlink()
    recounting.run_once()
    assert recounting.check().ok
    assert "Xid79" in (blocked / "events.jsonl").read_text()
