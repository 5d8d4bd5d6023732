"""The plug-in of the container runtime for as long as the agent lives: one connection at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from agent.clock import Clock
from agent.config.containers import NriSettings
from agent.model.runtime.adjustment import Adjustment
from agent.model.runtime.request import HookRequest
from agent.model.runtime.seen import RuntimeView
from agent.nri.figures import Figures, NriState

Ask = Callable[[HookRequest], Awaitable[Adjustment]]
Seen = Callable[[RuntimeView], None]


class NriPlugin:
    """Registers with the runtime, again whenever it must, and answers it. Of the loop thread.

    Nothing that the runtime or a hook does ends it; every request is answered within the budget,
    late ones with no change, and these containers are in the view's `missed`.
    """

    def __init__(
        self,
        settings: NriSettings,
        *,
        ask: Ask,
        seen: Seen,
        clock: Clock,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
        protected: frozenset[str] = frozenset(),
        own_pod_uid: str = "",
        lock_path: str = "",
    ) -> None:
        """`ask` says what is changed; `seen`, which is quick, gets each new picture.

        Containers of the namespaces `protected` and of the agent's own pod are marked so.
        `lock_path` is a file of this machine, in a folder that is there: who holds its lock has
        the one connection; empty: no lock.
        """
        self._figures = Figures()
        self._view = RuntimeView(state="waiting")

    @property
    def state(self) -> NriState:
        """Return the figures as they are now."""
        return self._figures.state

    @property
    def view(self) -> RuntimeView:
        """Return the picture as it was last given to `seen`."""
        return self._view

    async def run(self) -> None:
        """Be the plug-in until cancelled; then the connection is closed."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Close the connection and have `run` return."""
        raise NotImplementedError
