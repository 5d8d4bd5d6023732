"""The periodic work of the agent: what runs, how often, and what it fills."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial

from agent.daemon.runtime import allow_files
from agent.daemon.schedule import DEVICES_AGAIN_S, Timed
from agent.daemon.telling.device_changes import DeviceChanges
from agent.daemon.telling.outlet import Outlet, Run
from agent.daemon.telling.recounting import EventQueue, Recounting
from agent.loop import Loop
from agent.model.selfcheck import Check
from agent.node.parts import Parts
from agent.publish.exposition import MetricsRenderer
from agent.publish.node_metric import NodeMetricPublisher
from agent.publish.own_metrics import OwnMetrics
from agent.web.base import EventLine

log = logging.getLogger(__name__)

REPORT_DELAY_S = 0.5  # after the second cycle: rates are known then
CYCLES_OF_A_RATE = 2
EVENTS_INTERVAL_S = 1.0


class Loops:
    """Builds every loop: those of the collector thread, and those of the devices' thread."""

    def __init__(
        self,
        parts: Parts,
        changes: DeviceChanges,
        outlet: Outlet,
        on_host: Callable[[], None],
    ) -> None:
        """`on_host` is called on the collector thread when the host was read again."""
        self._parts = parts
        self._changes = changes
        self._on_host = on_host
        allow_files()
        self.measuring = parts.measuring()
        metrics = parts.settings.metrics
        self.renderer = MetricsRenderer(
            parts.families(), pods=metrics.pods, aliases=metrics.aliases
        )
        self.own = OwnMetrics(parts.store.current.node.name)
        for refused in self.renderer.refused:
            log.warning("metric_family_refused", extra={"family": refused})
        self.runs: list[Run] = list(changes.runs)
        if parts.settings.publish.node_metric:
            self._reports = NodeMetricPublisher(parts.settings.publish.report_interval_s)
            self.runs.append(outlet.run(self._reports, before=self.measuring.report))
        self._recounting = Recounting(parts.store, parts.clock, outlet.events())
        self.devices = Loop("devices", DEVICES_AGAIN_S, self._devices_changed)
        self.timed = tuple(self._timed())

    def check_events(self) -> Check:
        """Return whether events can be written."""
        return self._recounting.check()

    @property
    def recent(self) -> deque[EventLine]:
        """The last events, for the page."""
        return self._recounting.recent

    def check_devices(self) -> Check:
        """Return whether the last change of devices could be joined and told."""
        return Check(name="devices", ok=not self.devices.failures, message=self.devices.last_error)

    def _devices_changed(self) -> None:
        """Publish the devices as they are now, and tell what changed."""
        self._changes.publish()
        self._recounting.run_once()

    def event_queue(self, executor: Executor) -> EventQueue:
        """Return where other threads put events; `executor` is the devices' thread."""
        return EventQueue(executor, self._recounting)

    def host_changed(self) -> None:
        """Read the host again; whoever joins the devices with it is told."""
        self._changes.facts.read()
        self._on_host()

    def _report(self, run: Run, loop: Loop) -> None:
        """Report usage, and again after the time that stands by then.

        Where a first cycle takes long, this comes before the second: without rates the node would
        count as one whose usage is not known, until the next report.
        """
        if self.measuring.cycles < CYCLES_OF_A_RATE:
            loop.interval_s = self._parts.settings.collect.interval_s
            return
        run.run_once()
        loop.interval_s = self._reports.period_s(self._parts.store.current)

    def _timed(self) -> Iterator[Timed]:
        """Return all loops, in the order in which they first run."""
        settings = self._parts.settings
        cycle_s = settings.collect.interval_s
        yield Timed(Loop("collect", cycle_s, self.measuring.cycle))
        for run in self.runs:
            loop = Loop(f"publish-{run.publisher.name}", run.publisher.interval_s, run.run_once)
            if run.reports:
                loop.run_once = partial(self._report, run, loop)
            first_in_s = cycle_s + REPORT_DELAY_S if run.reports else 0.0
            yield Timed(loop, first_in_s, devices=not run.reports)
        yield Timed(Loop("events", EVENTS_INTERVAL_S, self._recounting.run_once), devices=True)
        host_s = settings.discovery.host_interval_s
        yield Timed(Loop("host", host_s, self.host_changed), host_s)
