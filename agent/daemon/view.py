"""The agent as its HTTP server sees it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from agent.cgroup.writing.audit import Audit
from agent.daemon.checks import loop_checks, snapshot_checks
from agent.daemon.telling.outlet import Run
from agent.loop import Loop
from agent.model.selfcheck import Check, SelfReport
from agent.model.snapshot import NodeSnapshot
from agent.node.parts import Parts
from agent.publish.exposition import MetricsRenderer
from agent.publish.own_metrics import OwnMetrics
from agent.publish.series.cluster import ClusterStatus
from agent.publish.series.containers import ContainerStatus
from agent.web.base import EventLine, PublishedObject

T = TypeVar("T")
MAX_EVENTS = 100
OFFLOAD_DEADLINE_S = 8.0  # a scrape gives up after ten


class Clustered(Protocol):
    """The cluster side, of any thread."""

    def checks(self) -> list[Check]:
        """Say how every part does."""
        ...

    def status(self) -> ClusterStatus | None:
        """Return the same in figures; `None` before it was opened."""
        ...


class Containers(Protocol):
    """The way into containers, of any thread."""

    def checks(self) -> list[Check]:
        """Say how every part does."""
        ...

    def status(self) -> ContainerStatus:
        """Return the same in figures."""
        ...

    def audit(self) -> tuple[Audit, ...]:
        """Return the last changes of files on this host."""
        ...


@dataclass(slots=True, kw_only=True)
class DaemonView:
    """Answers from memory; implements `agent.web.base.AgentView`."""

    parts: Parts
    executor: Executor
    renderer: MetricsRenderer
    own: OwnMetrics
    notice: str
    loops: list[Loop] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    more_checks: list[Callable[[], Check]] = field(default_factory=list)
    clustered: Clustered | None = None  # `None`: standalone mode
    containers: Containers | None = None
    recent: deque[EventLine] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))

    def snapshot(self) -> NodeSnapshot:
        """Return the current snapshot."""
        return self.parts.store.current

    def now_s(self) -> tuple[float, float]:
        """Return monotonic and wall time."""
        return self.parts.clock.monotonic(), self.parts.clock.wall()

    def self_report(self) -> SelfReport:
        """Return all checks: loops, parts of the snapshot, vendors, publishers."""
        checks: list[Check] = loop_checks(self.loops, self.parts.clock.monotonic())
        checks += snapshot_checks(self.parts.store.current)
        checks += [run.check() for run in self.runs]
        checks += [check() for check in self.more_checks]
        if self.clustered is not None:
            checks += self.clustered.checks()
        if self.containers is not None:
            checks += self.containers.checks()
        return SelfReport(tuple(checks))

    def objects(self) -> tuple[PublishedObject, ...]:
        """Return what is published, as text."""
        return tuple(shown for run in self.runs for shown in run.objects())

    def events(self) -> tuple[EventLine, ...]:
        """Return the last events."""
        return tuple(self.recent)

    def cluster(self) -> ClusterStatus | None:
        """Return how the cluster side does."""
        return self.clustered.status() if self.clustered is not None else None

    def audit(self) -> tuple[Audit, ...]:
        """Return the last changes of files on this host, oldest first."""
        return self.containers.audit() if self.containers is not None else ()

    def metrics(self, *, openmetrics: bool) -> bytes:
        """Render the exposition."""
        snapshot = self.parts.store.current
        return self.renderer.render(
            snapshot,
            self.parts.clock.monotonic(),
            tuple(run.status for run in self.runs),
            cluster=self.cluster(),
            containers=self.containers.status() if self.containers is not None else None,
            own=self.own.text(snapshot, openmetrics=openmetrics),
            openmetrics=openmetrics,
        )

    async def offload(self, work: Callable[[], T]) -> T:
        """Run `work` on the collector thread; raises `TimeoutError` when that is stuck."""
        event_loop = asyncio.get_running_loop()
        return await asyncio.wait_for(
            event_loop.run_in_executor(self.executor, work), OFFLOAD_DEADLINE_S
        )
