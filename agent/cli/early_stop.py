"""A stop before the daemon serves: wanted, as any other, and marked so at the node's lock."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType
from typing import TYPE_CHECKING

from agent.errors import AgentError
from agent.node.lock import stop_signals

if TYPE_CHECKING:
    from agent.node.lock import NodeLock

DONE = 0


class EarlyStop:
    """Ends this process with status 0 at a signal of `STOP`, until the daemon handles them.

    In process 1 of a container, a signal that nobody handles would not be noticed at all.
    """

    def __init__(self) -> None:
        """Handle them from now on."""
        self._lock: NodeLock | None = None
        for number in stop_signals():
            signal.signal(number, self._end)

    def holds(self, lock: NodeLock) -> None:
        """Take the lock that is marked from now on."""
        self._lock = lock

    def mark(self) -> None:
        """Have whoever takes the lock next know that this end was no crash."""
        if self._lock is not None:
            with contextlib.suppress(AgentError):  # it is told of a crash that was none
                self._lock.leave()

    def _end(self, _: int, __: FrameType | None) -> None:
        self.mark()
        os._exit(DONE)  # an exception can be lost in the middle of an import
