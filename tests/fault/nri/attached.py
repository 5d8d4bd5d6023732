"""The agent's plug-in beside the strict runtime, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from agent.clock import SystemClock
from agent.config.containers import NriSettings
from agent.nri.plugin import NriPlugin
from agent.snapshot.container import NO_ADJUSTMENT, Adjustment, HookRequest, HookStage, RuntimeView
from agent.snapshot.edits import ContainerEdits
from tests.patience import PATIENCE_S
from tests.runtime import CONTAINERD_2_3, CreatedContainer, Runtime, Version
from tests.runtime.handler import FunctionHandler

Hook = Callable[[HookRequest], Awaitable[Adjustment]]
ALLOCATED = Adjustment(edits=ContainerEdits(env=(("GRANTED", "yes"),)))


async def granting(request: HookRequest) -> Adjustment:
    """Grant each new container one variable."""
    return ALLOCATED if request.stage is HookStage.CREATE else NO_ADJUSTMENT


class Agent:
    """The plug-in with what it asked, showed and slept."""

    def __init__(
        self, socket: Path, hook: Hook, *, budget_ms: int = 500, lock: str = "", name: str = "xpu"
    ) -> None:
        self.hook = hook
        self.asked: list[HookRequest] = []
        self.views: list[RuntimeView] = []
        self.slept: list[float] = []
        self.plugin = NriPlugin(
            NriSettings(attach="on", socket=str(socket), name=name, budget_ms=budget_ms),
            handler=FunctionHandler(self._ask, self.views.append),
            clock=SystemClock(),
            sleep=self._sleep,
            uniform=lambda low, high: (low + high) / 2,
            lock_path=lock,
        )
        self.task = asyncio.ensure_future(self.plugin.run())

    @property
    def view(self) -> RuntimeView:
        """The last picture that was shown."""
        return self.views[-1] if self.views else RuntimeView()

    async def until(self, good: Callable[[RuntimeView], bool]) -> RuntimeView:
        """Wait for a picture."""
        async with asyncio.timeout(PATIENCE_S):
            while not good(self.view):
                self.alive()
                await asyncio.sleep(0.002)
        return self.view

    async def synchronized(self) -> RuntimeView:
        """Wait until the runtime is in step."""
        return await self.until(lambda view: view.is_synchronized)

    def alive(self) -> None:
        """Raise what ended the plug-in, if something did."""
        if self.task.done():
            self.task.result()
            raise AssertionError("the plug-in returned")

    async def end(self) -> None:
        """Stop it; `TimeoutError` if it does not."""
        async with asyncio.timeout(PATIENCE_S):
            await self.plugin.stop()
            await self.task

    async def _ask(self, request: HookRequest) -> Adjustment:
        self.asked.append(request)
        return await self.hook(request)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(min(seconds, 0.005))


@contextlib.asynccontextmanager
async def attached(
    folder: Path,
    version: Version = CONTAINERD_2_3,
    *,
    hook: Hook = granting,
    budget_ms: int = 500,
    request_s: float = 2.0,
    registration_s: float = 5.0,
    pods: int = 0,
) -> AsyncIterator[tuple[Runtime, Agent]]:
    """Run both until the end of the block; the plug-in must have lived through it."""
    limits = {"request_s": request_s, "registration_s": registration_s}
    async with Runtime(folder, version, **limits) as runtime:  # type: ignore[arg-type]  # seconds
        runtime.populate(pods=pods)
        agent = Agent(runtime.socket, hook, budget_ms=budget_ms)
        try:
            yield runtime, agent
            agent.alive()
        finally:
            await agent.end()


async def gets_its_grant(runtime: Runtime, name: str = "p") -> CreatedContainer:
    """Make a pod with a container, which must have what hooks say."""
    pod = runtime.pod(name)
    await runtime.run_pod(pod)
    container = await runtime.create(pod, "main")
    assert container.missed == []
    assert container.spec.env["GRANTED"] == "yes"
    return container
