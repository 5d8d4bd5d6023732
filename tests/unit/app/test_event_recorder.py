"""Events told of snapshots that follow each other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.app.events import EventRecorder
from agent.app.publishing import FolderEventOutput
from agent.clock import ManualClock
from agent.messages import EventReported, MessageQueue
from agent.snapshot.device import Health, HealthState
from agent.snapshot.node import DeviceView, NodeSnapshot, SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.state_writer import StateWriter
from agent.wire_formats.event import Event
from tests.factory import NOW_S, gpu, nic, snapshot
from tests.patience import PATIENCE_S


def output(folder: Path) -> FolderEventOutput:
    return FolderEventOutput(str(folder), StateWriter(), ManualClock())


def test_the_check_holds_again_when_the_folder_can_be_written_though_nothing_new_happens(
    tmp_path: Path,
) -> None:
    blocked = tmp_path / "out"
    blocked.write_text("a file where the folder should be")
    store = SnapshotStore(snapshot((gpu(0),)))
    recounting = EventRecorder(store, ManualClock(), output(blocked))
    recounting.record_changes()
    bad = gpu(0, health=Health(state=HealthState.FAILED, reason="Xid79"))
    store.change(lambda now: replace(now, devices=SnapshotPart(DeviceView(devices=(bad,)), NOW_S)))
    recounting.record_changes()
    assert recounting.flush(PATIENCE_S)
    assert not recounting.check().ok
    blocked.unlink()
    recounting.record_changes()
    assert recounting.flush(PATIENCE_S)
    assert recounting.check().ok
    assert "Xid79" in (blocked / "events.jsonl").read_text()


def test_devices_that_only_sysfs_shows_cause_no_event_before_the_vendor_answers(
    tmp_path: Path,
) -> None:
    observations = gpu(0, health=Health(state=HealthState.SUSPECT, reason="NotYetAsked"))
    views = (
        DeviceView(devices=(observations,), awaited=("nvidia",)),
        DeviceView(devices=(gpu(0),)),
        DeviceView(devices=(gpu(0), nic(0, health=observations.info.health)), awaited=("rdma",)),
        DeviceView(devices=(gpu(0), nic(0))),
        DeviceView(devices=(nic(0),)),
    )
    store = SnapshotStore(snapshot(()))
    recounting = EventRecorder(store, ManualClock(), output(tmp_path))
    reports = []
    for view in views:
        store.put(devices=SnapshotPart(view, NOW_S))
        recounting.record_changes()
        reports.append([event.reason for event in recounting.recent_events])
        recounting.recent_events.clear()
    assert reports == [[], [], [], ["DeviceAppeared"], ["DeviceGone"]]


class RefusingOutput(FolderEventOutput):
    """An output that cannot take its first event: the system has no thread left for it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), StateWriter(), ManualClock())
        self._refuses = True

    def offer(self, events: Iterable[Event], snapshot: NodeSnapshot) -> None:
        if self._refuses:
            self._refuses = False
            raise RuntimeError("can't start new thread")
        super().offer(events, snapshot)


def test_a_reported_event_that_cannot_be_recorded_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    messages, refusing = MessageQueue(), RefusingOutput(tmp_path)
    recorder = EventRecorder(SnapshotStore(snapshot(())), ManualClock(), refusing, messages)
    messages.put(EventReported("First", "m"))
    messages.put(EventReported("Second", "m"))
    recorder.record_reported()
    assert recorder.flush(PATIENCE_S)
    assert "Second" in (tmp_path / "events.jsonl").read_text()
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == [
        "event_not_recorded"
    ]


def test_reported_events_are_recorded_on_the_thread_once_it_is_free(tmp_path: Path) -> None:
    messages = MessageQueue(max_events=3)
    recorder = EventRecorder(SnapshotStore(snapshot(())), ManualClock(), output(tmp_path), messages)

    async def run() -> None:
        may_go_on = threading.Event()
        with ThreadPoolExecutor(1) as executor:
            executor.submit(may_go_on.wait, PATIENCE_S)
            task = asyncio.create_task(recorder.run(executor))
            for number in range(5):
                messages.put(EventReported(f"Reason{number}", "m"))
            message = recorder.check().message
            may_go_on.set()
            assert message == "2 events were dropped: too many waited"
            await until(lambda: len(recorder.recent_events) == 3)
            messages.put(EventReported("Late", "m"))  # there is room again
            await until(lambda: len(recorder.recent_events) == 4)
            task.cancel()

    async def until(holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                await asyncio.sleep(0.01)

    asyncio.run(run())
    reasons = [event.reason for event in recorder.recent_events]
    assert reasons == ["Reason0", "Reason1", "Reason2", "Late"]
