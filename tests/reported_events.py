"""Events that the code under test reports, collected from its message queue."""

from __future__ import annotations

from agent.messages import EventReported, MessageQueue


class ReportedEvents:
    """A queue for the code under test, and all events that it put there."""

    def __init__(self) -> None:
        self.messages = MessageQueue()
        self._events: list[EventReported] = []

    def all(self) -> list[EventReported]:
        """Return all events so far, oldest first."""
        self._events += self.messages.drain_events()
        return self._events

    def pairs(self) -> list[tuple[str, str]]:
        """Return reason and message of all events so far."""
        return [(event.reason, event.message) for event in self.all()]
