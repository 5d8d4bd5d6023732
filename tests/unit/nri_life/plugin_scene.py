"""A plug-in that runs beside the strict runtime, with its waits in the test's hands."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from agent.clock import ManualClock
from agent.config.containers import NriSettings
from agent.nri.plugin import NriPlugin
from agent.snapshot.container import RuntimeView
from tests.patience import PATIENCE_S
from tests.runtime.handler import FunctionHandler
from tests.unit.nri.talk import nothing


class Life:
    """A plug-in whose waits are written down, and take no time unless `gate` is cleared."""

    def __init__(self, folder: Path, *, lock: str = "", answer: Any = nothing) -> None:
        self.views: list[RuntimeView] = []
        self.waits: list[float] = []
        self.paused = 0  # waits that have begun while the gate was closed
        self.gate = asyncio.Event()
        self.gate.set()
        self.plugin = NriPlugin(
            NriSettings(socket=str(folder / "nri.sock")),
            handler=FunctionHandler(answer, self.views.append),
            clock=ManualClock(),
            sleep=self._sleep,
            uniform=lambda low, high: (low + high) / 2,
            lock_path=lock,
        )
        self.running = asyncio.create_task(self.plugin.run())

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.paused += not self.gate.is_set()
        await self.gate.wait()
        await asyncio.sleep(0.001)

    async def until(self, state: str, reason: str = "") -> RuntimeView:
        """Wait until it stands so."""
        async with asyncio.timeout(PATIENCE_S):
            while (self.plugin.view.state, self.plugin.view.reason) != (state, reason):
                assert not self.running.done()
                await asyncio.sleep(0.001)
        return self.plugin.view

    async def end(self) -> None:
        """End it as the daemon does."""
        self.running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.running


@contextlib.asynccontextmanager
async def life(folder: Path, **how: Any) -> AsyncIterator[Life]:
    """Give a plug-in that runs."""
    own_life = Life(folder, **how)
    try:
        yield own_life
    finally:
        await own_life.end()


def play(through: Callable[[Path], Coroutine[Any, Any, None]]) -> None:
    """Run a test in a folder whose name is short enough for a socket's."""
    with tempfile.TemporaryDirectory(prefix="nri") as folder:
        asyncio.run(through(Path(folder)))
