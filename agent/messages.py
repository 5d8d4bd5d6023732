"""Messages of the agent's services to the device pipeline, and the queue that carries them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque

import msgspec

from agent.snapshot.inventory import DeviceEvent
from agent.snapshot.node import VendorState
from agent.snapshot.pod import PodRef

MAX_EVENTS = 1024  # Kubernetes events that wait for the event recorder


class VendorStateChanged(msgspec.Struct, frozen=True):
    """A vendor's client has another state, inventory or samples."""

    state: VendorState


class DevicesReported(msgspec.Struct, frozen=True):
    """A vendor's worker reports events of its devices, such as an Xid."""

    vendor: str
    events: tuple[DeviceEvent, ...]


class FunctionRemoved(msgspec.Struct, frozen=True):
    """The kernel removed a PCI function."""

    address: str


class HostRead(msgspec.Struct, frozen=True):
    """The facts of the host were read again."""


class DevicesUnplaced(msgspec.Struct, frozen=True):
    """A new device is left out of the snapshot until the host is read and shows its function."""


class MinorsRead(msgspec.Struct, frozen=True):
    """The published Device object was read; `body` is JSON data, `None` if there is no object."""

    body: object


class EventReported(msgspec.Struct, frozen=True):
    """A Kubernetes event that does not follow from two snapshots.

    Without a pod it is the node's.
    """

    reason: str  # CamelCase
    message: str
    pod: PodRef | None = None


class ClusterFactsChanged(msgspec.Struct, frozen=True):
    """A fact of the cluster that is published may differ: the Node, the kubelet, API versions."""


DeviceMessage = (
    VendorStateChanged
    | DevicesReported
    | FunctionRemoved
    | HostRead
    | DevicesUnplaced
    | MinorsRead
    | ClusterFactsChanged
)
Message = DeviceMessage | EventReported


class MessageQueue:
    """Carries messages from any thread to the loop thread; `put` never waits.

    Messages about devices are never dropped. Of `EventReported` at most `max_events` wait.
    """

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self.dropped_events = 0
        self._max_events = max_events
        self._lock = threading.Lock()
        self._messages: deque[DeviceMessage] = deque()
        self._events: deque[EventReported] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None  # loop of the task that waits
        self._has_messages = asyncio.Event()
        self._has_events = asyncio.Event()

    def put(self, message: Message) -> None:
        """Append a message and wake the task that waits for its kind."""
        with self._lock:
            if not isinstance(message, EventReported):
                self._messages.append(message)
            elif len(self._events) < self._max_events:
                self._events.append(message)
            else:
                self.dropped_events += 1
                return
            loop = self._loop
        if loop is not None:
            is_event = isinstance(message, EventReported)
            wake = self._has_events if is_event else self._has_messages
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(wake.set)

    def drain(self) -> tuple[DeviceMessage, ...]:
        """Remove and return all messages about devices, oldest first."""
        with self._lock:
            messages = tuple(self._messages)
            self._messages.clear()
        return messages

    def drain_events(self) -> tuple[EventReported, ...]:
        """Remove and return all reported events, oldest first."""
        with self._lock:
            events = tuple(self._events)
            self._events.clear()
        return events

    async def wait_messages(self) -> None:
        """Wait until a message about devices is in the queue."""
        await self._wait(self._messages, self._has_messages)

    async def wait_events(self) -> None:
        """Wait until an `EventReported` is in the queue."""
        await self._wait(self._events, self._has_events)

    async def _wait(
        self, messages: deque[DeviceMessage] | deque[EventReported], wake: asyncio.Event
    ) -> None:
        with self._lock:
            self._loop = asyncio.get_running_loop()
            wake.clear()
            if messages:
                return
        await wake.wait()
