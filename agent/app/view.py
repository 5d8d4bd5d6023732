"""The agent as its HTTP server sees it: the snapshot with the state of the agent's services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from agent.app.loops import PeriodicLoops
from agent.clock import Clock
from agent.loop import Loop
from agent.metrics.exposition import MetricsRenderer
from agent.snapshot.node import NodeSnapshot, SnapshotStore
from agent.snapshot.self_check import LoopStatus, SelfCheck

if TYPE_CHECKING:
    from agent.app.cluster import ClusterService
    from agent.app.containers import ContainerService
    from agent.metrics.process_metrics import ProcessMetrics

T = TypeVar("T")

COLLECTOR_DEADLINE_S = 8.0  # a scrape gives up after ten


class CheckedComponent(Protocol):
    """A part of the agent whose state no part of the snapshot shows."""

    def check(self) -> SelfCheck:
        """Return its state. For any thread."""
        ...


@dataclass(slots=True, kw_only=True)
class StatusCollector:
    """Adds the state of the agent's services to a snapshot.

    Counters change with every request. They are read for a page or a scrape, and not put into the
    store at each change. For any thread.
    """

    periodic: PeriodicLoops
    loops: tuple[Loop, ...]
    components: tuple[CheckedComponent, ...] = ()
    cluster: ClusterService | None = None  # None: standalone mode
    containers: ContainerService | None = None

    def complete(self, snapshot: NodeSnapshot) -> NodeSnapshot:
        """Return the snapshot with the present state of every service."""
        runners = self.periodic.publisher_runners
        return msgspec.structs.replace(
            snapshot,
            cluster_service=self.cluster.status() if self.cluster is not None else None,
            container_service=self.containers.status() if self.containers is not None else None,
            publishers=tuple(runner.status for runner in runners),
            publications=tuple(one for runner in runners for one in runner.publications()),
            events=tuple(self.periodic.recent_events),
            audit=self.containers.audit() if self.containers is not None else (),
            loops=tuple(_loop_status(loop) for loop in self.loops),
            checks=self._checks(),
        )

    def _checks(self) -> tuple[SelfCheck, ...]:
        return (
            *(runner.check() for runner in self.periodic.publisher_runners),
            self.periodic.check_events(),
            *(component.check() for component in self.components),
        )


@dataclass(slots=True, kw_only=True)
class ApplicationView:
    """Answers from memory; implements `agent.web.view.AgentView`."""

    store: SnapshotStore
    clock: Clock
    executor: Executor
    renderer: MetricsRenderer
    process_metrics: ProcessMetrics
    notice: str
    status: StatusCollector

    def snapshot(self) -> NodeSnapshot:
        """Return the current snapshot with the state of the agent's services."""
        return self.status.complete(self.store.current)

    def now_s(self) -> tuple[float, float]:
        """Return monotonic and wall time."""
        return self.clock.monotonic(), self.clock.wall()

    def metrics(self, *, openmetrics: bool) -> bytes:
        """Render the exposition: the agent's own processes, then the snapshot."""
        snapshot = self.snapshot()
        own = self.process_metrics.text(snapshot, openmetrics=openmetrics)
        return own + self.renderer.render(snapshot, self.clock.monotonic(), openmetrics=openmetrics)

    async def offload(self, work: Callable[[], T]) -> T:
        """Run `work` on the collector thread; raises `TimeoutError` when that is stuck."""
        event_loop = asyncio.get_running_loop()
        return await asyncio.wait_for(
            event_loop.run_in_executor(self.executor, work), COLLECTOR_DEADLINE_S
        )


def _loop_status(loop: Loop) -> LoopStatus:
    return LoopStatus(
        name=loop.name,
        interval_s=loop.interval_s,
        failures=loop.failures,
        last_error=loop.last_error,
        last_success_s=loop.last_success_s,
        due_s=loop.due_s,
    )
