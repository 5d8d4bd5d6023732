"""An event loop with real sockets and threads whose clock only the test moves.

A limit in seconds then says nothing about the machine's speed: it is reached when the test says so,
however busy the machine is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

TURNS = 25  # of the loop, in which whoever was just woken comes to wait again


class SteppedLoop(asyncio.SelectorEventLoop):
    """Time stands still between two calls of `advance`."""

    def __init__(self) -> None:
        self._now_s = 1000.0
        super().__init__()

    def time(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let time pass at once; what is due then runs in the next turn of the loop."""
        self._now_s += seconds


def stepped_loop() -> SteppedLoop:
    """Return the running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SteppedLoop)
    return loop


async def turns() -> None:
    """Let everybody run who can."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def pass_time_until(outcome: Callable[[], bool], step_s: float) -> None:
    """Let time pass in steps, with turns of the loop between, until it is so."""
    while not outcome():
        stepped_loop().advance(step_s)
        await turns()


def run_stepped(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a stepped loop of its own to its end."""
    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        return runner.run(work)
