"""The plug-in alone, with one fixed answer: `python -m bench.containers.beside.plugin SOCKET`."""

from __future__ import annotations

import asyncio
import sys

from agent.clock import SystemClock
from agent.config.containers import NriSettings
from agent.daemon.runtime import settle
from agent.model.runtime.adjustment import NOTHING, Adjustment
from agent.model.runtime.request import HookRequest, Stage
from agent.nri.plugin import NriPlugin
from bench.containers.beside.answer import GIVEN


async def fixed(request: HookRequest) -> Adjustment:
    """Give each new container the same."""
    return GIVEN if request.stage is Stage.CREATE else NOTHING


async def run(socket: str) -> None:
    """Be connected until killed."""
    settings = NriSettings(attach="on", socket=socket)
    plugin = NriPlugin(settings, ask=fixed, seen=lambda _: None, clock=SystemClock())
    settle()
    await plugin.run()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
