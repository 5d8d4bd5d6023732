"""How an object stands, and what people were told of it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from agent.publish.cluster.setbacks import PASSING
from agent.publish.cluster.state import WriterState

log = logging.getLogger(__name__)


class Standing:
    """The state that others see. People are told of a thing once, as long as it is the same."""

    def __init__(self, state: WriterState, tell: Callable[[str, str], None]) -> None:
        self.state = state
        self._tell = tell
        self._told: dict[str, str] = {}  # by reason, of which there are few

    def set(self, **changes: object) -> None:
        """Change what is seen."""
        self.state = msgspec.structs.replace(self.state, **changes)

    def say(self, reason: str, message: str, key: str = "") -> None:
        """Tell people; equal keys (of none: equal messages) are one thing."""
        key = key or message
        if self._told.get(reason) != key:
            self._told[reason] = key
            self._tell(reason, f"{self.state.kind} {self.state.name}: {message}")

    def recover(self) -> None:
        """Take it that what passes has passed: should it come back, it is told again."""
        for reason in PASSING:
            if self._told.pop(reason, None) is not None:
                self.note("write_recovered")

    def note(self, event: str, error: str = "") -> None:
        """Log what needs nobody's attention yet."""
        fields = {"kind": self.state.kind, "object": self.state.name}
        log.info(event, extra=fields | ({"error": error} if error else {}))
