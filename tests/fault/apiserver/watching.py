"""Watches at the strict API server, over real HTTPS. Waits are noted and cut short."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from agent.clock import SystemClock
from agent.kube.endpoint import InClusterTarget
from agent.kube.resources import OWN_PODS
from agent.kube.session import open_session
from agent.kube.watch.decoder import WatchedKind
from agent.kube.watch.reflector import Reflector, WatchScope
from tests.apiserver.server import ApiServer
from tests.patience import PATIENCE_S

NODE = "node-a"
WAIT_S = 0.01  # what each wait becomes

Object = dict[str, Any]


class Watching:
    """One watch that runs. `waits` are the seconds that it wanted to wait."""

    def __init__(self, api: ApiServer, watch: Reflector[Any, Any], waits: list[float]) -> None:
        self.api = api
        self.watch = watch
        self.waits = waits
        self.views: list[Mapping[str, Any]] = []

    @property
    def names(self) -> list[str]:
        return sorted(self.watch.view)

    async def until(self, good: Callable[[], bool]) -> None:
        """Return when it is so; whoever waits in vain is told what there is."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not good():
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"{self.names} {self.watch.state}") from None

    async def shows(self, *names: str) -> None:
        await self.until(lambda: self.names == sorted(names))

    def requests(self, verb: str) -> int:
        plural = self.watch.state.resource
        return sum(
            request.verb == verb and request.resource == plural for request in self.api.requests()
        )


@contextlib.asynccontextmanager
async def watching(
    api: ApiServer, kind: WatchedKind[Any, Any] = OWN_PODS, idle_s: float = 30.0
) -> AsyncIterator[Watching]:
    """Follow one kind of the node's objects until the block ends."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(min(seconds, WAIT_S))

    clock = SystemClock()
    session = await open_session(
        InClusterTarget(url=api.url, folder=str(api.serviceaccount_dir)), clock, {}
    )
    views: list[Mapping[str, Any]] = []
    watch = Reflector(
        kind,
        session,
        on_change=views.append,
        clock=clock,
        scope=WatchScope(field_selector=kind.node_selector(NODE), idle_s=idle_s),
        sleep=sleep,
    )
    watcher = Watching(api, watch, waits)
    watcher.views = views
    work = asyncio.create_task(watch.run())
    try:
        yield watcher
        assert not work.done() or work.exception() is None
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await session.close()


def pod(name: str, node: str = NODE, **annotations: str) -> Object:
    """Return a pod as an administrator would create it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "example/app:1"}]},
    }
