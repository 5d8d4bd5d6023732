"""The queue of messages, and subscriptions to values of the snapshot."""

from __future__ import annotations

import asyncio
import threading

import pytest
from msgspec.structs import replace

from agent.messages import EventReported, FunctionRemoved, HostRead, MessageQueue
from agent.snapshot.node import DeviceView, NodeIdentity, NodeSnapshot, SnapshotStore
from agent.snapshot.part import SnapshotPart
from tests.patience import PATIENCE_S

TURNS = 5  # of the event loop, more than a wake-up needs


def test_messages_come_in_order_and_once() -> None:
    queue = MessageQueue()
    queue.put(HostRead())
    queue.put(EventReported("Reason", "text"))
    queue.put(FunctionRemoved("0000:01:00.0"))
    assert queue.drain() == (HostRead(), FunctionRemoved("0000:01:00.0"))
    assert queue.drain() == ()
    assert queue.drain_events() == (EventReported("Reason", "text"),)
    assert queue.drain_events() == ()


def test_events_beyond_the_bound_are_dropped_and_counted_but_no_message_is() -> None:
    queue = MessageQueue(max_events=2)
    for number in range(5):
        queue.put(EventReported(f"Reason{number}", "text"))
        queue.put(HostRead())
    assert [event.reason for event in queue.drain_events()] == ["Reason0", "Reason1"]
    assert queue.dropped_events == 3
    assert len(queue.drain()) == 5
    queue.put(EventReported("Late", "text"))
    assert len(queue.drain_events()) == 1


@pytest.mark.parametrize("message", [HostRead(), EventReported("Reason", "text")])
def test_a_message_of_another_thread_wakes_the_task_that_waits_for_its_kind(
    message: HostRead | EventReported,
) -> None:
    queue = MessageQueue()

    async def run() -> None:
        is_event = isinstance(message, EventReported)
        mine, other = queue.wait_events, queue.wait_messages
        if not is_event:
            mine, other = other, mine
        waits, idle = asyncio.create_task(mine()), asyncio.create_task(other())
        await asyncio.sleep(0)
        threading.Thread(target=queue.put, args=(message,)).start()
        await asyncio.wait_for(waits, PATIENCE_S)
        assert not idle.done()
        await asyncio.wait_for(mine(), PATIENCE_S)  # it is still in the queue
        assert queue.drain_events() if is_event else queue.drain()
        again = asyncio.create_task(mine())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert not again.done()
        again.cancel()
        idle.cancel()

    asyncio.run(run())
    queue.put(message)  # the event loop is closed


def test_a_subscription_wakes_for_another_value_and_not_for_its_age() -> None:
    async def run() -> None:
        store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))
        with store.subscribe("devices.value", "cluster.pods") as changes:
            waits = asyncio.create_task(changes.wait())
            view = store.current.devices.value
            store.put(devices=SnapshotPart(view, 7.0))
            store.put(hotplug=replace(store.current.hotplug, problem="p"))
            for _ in range(TURNS):
                await asyncio.sleep(0)
            assert not waits.done()
            changed = SnapshotPart(DeviceView(awaited=("v",)), 8.0)
            threading.Thread(target=store.put, kwargs={"devices": changed}).start()
            await asyncio.wait_for(waits, PATIENCE_S)
            again = asyncio.create_task(changes.wait())
            for _ in range(TURNS):
                await asyncio.sleep(0)
            assert not again.done()
        store.put(devices=SnapshotPart(DeviceView(), 9.0))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert not again.done()
        again.cancel()

    asyncio.run(run())
