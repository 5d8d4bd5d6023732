"""An event loop on which hours pass in seconds: time moves only while everybody waits."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

BEGAN_WALL_S = 1_767_323_045.0


class _Skipping(selectors.DefaultSelector):
    """Waits for nothing: what it should have waited has passed."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everybody waits for something that nobody will do"
            self.now_s += max(0.0, timeout)
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Runs coroutines that do no I/O and use no threads; a clock, too."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now_s

    def monotonic(self) -> float:
        """Return the seconds since the start, as `agent.clock.Clock` has it."""
        return self.time()

    def wall(self) -> float:
        """Return the wall clock, as `agent.clock.Clock` has it."""
        return BEGAN_WALL_S + self.time()


def clock() -> SimulatedLoop:
    """Return the running loop, which is the clock."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return loop


def simulate(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own to its end."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(work)
