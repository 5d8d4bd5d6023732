"""Events told of snapshots that follow each other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec.structs import replace

from agent.clock import ManualClock
from agent.daemon.telling.recounting import EventQueue, Recounting
from agent.model.device import Health, HealthState
from agent.model.part import Part
from agent.model.snapshot import DeviceView
from agent.node.store import SnapshotStore
from agent.publish.event_log import EventLog
from tests.factory import NOW_S, gpu, nic, snapshot
from tests.patience import PATIENCE_S


def test_the_check_holds_again_when_the_folder_can_be_written_though_nothing_new_happens(
    tmp_path: Path,
) -> None:
    blocked = tmp_path / "out"
    blocked.write_text("a file where the folder should be")
    store = SnapshotStore(snapshot((gpu(0),)))
    recounting = Recounting(store, ManualClock(), EventLog(str(blocked)))
    recounting.run_once()
    bad = gpu(0, health=Health(state=HealthState.FAILED, reason="Xid79"))
    store.change(lambda now: replace(now, devices=Part(DeviceView(devices=(bad,)), NOW_S)))
    recounting.run_once()
    assert not recounting.check().ok
    blocked.unlink()
    recounting.run_once()
    assert recounting.check().ok
    assert "Xid79" in (blocked / "events.jsonl").read_text()


def test_what_is_only_seen_in_sysfs_is_no_news_before_its_vendor_answers(tmp_path: Path) -> None:
    seen = gpu(0, health=Health(state=HealthState.SUSPECT, reason="NotYetAsked"))
    views = (
        DeviceView(devices=(seen,), awaited=("nvidia",)),
        DeviceView(devices=(gpu(0),)),
        DeviceView(devices=(gpu(0), nic(0, health=seen.info.health)), awaited=("rdma",)),
        DeviceView(devices=(gpu(0), nic(0))),
        DeviceView(devices=(nic(0),)),
    )
    store = SnapshotStore(snapshot(()))
    recounting = Recounting(store, ManualClock(), EventLog(str(tmp_path)))
    told = []
    for view in views:
        store.put(devices=Part(view, NOW_S))
        recounting.run_once()
        told.append([event.reason for event in recounting.recent])
        recounting.recent.clear()
    assert told == [[], [], [], ["DeviceAppeared"], ["DeviceGone"]]


def test_events_beyond_the_bound_are_dropped_and_counted_while_the_thread_is_held_up(
    tmp_path: Path,
) -> None:
    recounting = Recounting(SnapshotStore(snapshot(())), ManualClock(), EventLog(str(tmp_path)))
    may_go_on = threading.Event()
    executor = ThreadPoolExecutor(1)
    executor.submit(may_go_on.wait, PATIENCE_S)
    queue = EventQueue(executor, recounting, max_waiting=3)
    for number in range(5):
        queue.put(f"Reason{number}", "m")
    message = recounting.check().message
    may_go_on.set()
    assert message == "2 events were dropped: too many waited"
    executor.submit(int).result(PATIENCE_S)  # after those that waited
    queue.put("Late", "m")  # there is room again
    executor.shutdown()
    queue.put("AfterTheEnd", "m")  # the agent stops
    reasons = [event.reason for event in recounting.recent]
    assert reasons == ["Reason0", "Reason1", "Reason2", "Late"]
