"""A message queue that hands each message over at once."""

from __future__ import annotations

from collections.abc import Callable

from agent.messages import DevicesReported, Message, MessageQueue, VendorStateChanged
from agent.snapshot.inventory import DeviceEvent
from agent.snapshot.node import VendorState


class DirectMessages(MessageQueue):
    """Calls functions of a test with the states and events of vendors."""

    def __init__(
        self,
        on_state: Callable[[VendorState], None],
        on_events: Callable[[str, tuple[DeviceEvent, ...]], None],
    ) -> None:
        super().__init__()
        self._on_state = on_state
        self._on_events = on_events

    def put(self, message: Message) -> None:
        """Call the function for this kind of message."""
        match message:
            case VendorStateChanged():
                self._on_state(message.state)
            case DevicesReported():
                self._on_events(message.vendor, message.events)
            case _:
                super().put(message)
