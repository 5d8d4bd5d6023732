"""Waiting for something that several things may bring about, in one thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Bell:
    """Wakes all who wait, each time it is rung. Belongs to the loop thread."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Have everybody look again."""
        rung, self._rung = self._rung, asyncio.Event()
        rung.set()

    async def until(self, holds: Callable[[], bool], limit_s: float | None = None) -> bool:
        """Return true as soon as it holds, which is looked at whenever rung; false at the limit."""
        try:
            async with asyncio.timeout(limit_s):
                while not holds():
                    await self._rung.wait()
        except TimeoutError:
            return holds()
        return True
