"""The plug-in alone, with one fixed answer: `python -m bench.containers.beside.plugin SOCKET`."""

from __future__ import annotations

import asyncio
import sys

from agent.app.threads import tune_interpreter
from agent.clock import SystemClock
from agent.config.containers import NriSettings
from agent.nri.plugin import NriPlugin
from agent.snapshot.container import NO_ADJUSTMENT, Adjustment, HookRequest, HookStage
from bench.containers.beside.answer import GIVEN
from tests.runtime.handler import FunctionHandler


async def fixed(request: HookRequest) -> Adjustment:
    """Give each new container the same."""
    return GIVEN if request.stage is HookStage.CREATE else NO_ADJUSTMENT


async def run(socket: str) -> None:
    """Be connected until killed."""
    settings = NriSettings(attach="on", socket=socket)
    plugin = NriPlugin(settings, handler=FunctionHandler(fixed), clock=SystemClock())
    tune_interpreter()
    await plugin.run()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
