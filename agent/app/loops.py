"""The periodic work of the agent: what runs, how often, and what it fills."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from functools import partial

from agent.app.context import AppContext
from agent.app.host_reader import HostReader
from agent.app.pipeline import DevicePipeline
from agent.app.publishing import PublisherRunner, PublishSink
from agent.app.threads import ScheduledLoop, raise_open_file_limit
from agent.loop import Loop
from agent.messages import HostRead, MessageQueue
from agent.metrics.exposition import MetricsRenderer
from agent.objects.node_metric import NodeMetricPublisher
from agent.snapshot.publications import EventLine
from agent.snapshot.self_check import SelfCheck

log = logging.getLogger(__name__)

REPORT_DELAY_S = 0.5  # after the second cycle: rates are known then
CYCLES_FOR_RATES = 2
EVENTS_INTERVAL_S = 1.0


class PeriodicLoops:
    """Builds every loop: those of the collector thread, and those of the devices' thread."""

    def __init__(
        self,
        parts: AppContext,
        changes: DevicePipeline,
        host: HostReader,
        outlet: PublishSink,
        messages: MessageQueue,
    ) -> None:
        self._context = parts
        self._pipeline = changes
        self._host_reader = host
        self._messages = messages
        raise_open_file_limit()
        self.usage_monitor = parts.usage_monitor()
        metrics = parts.settings.metrics
        self.renderer = MetricsRenderer(
            parts.metric_families(), pods=metrics.pods, aliases=metrics.aliases
        )
        for refused in self.renderer.errors:
            log.warning("metric_family_refused", extra={"family": refused})
        self.publisher_runners: list[PublisherRunner] = list(changes.publisher_runners)
        if parts.settings.publish.node_metric:
            self._reports = NodeMetricPublisher(parts.settings.publish.report_interval_s)
            self.publisher_runners.append(
                outlet.runner(self._reports, before=self.usage_monitor.report)
            )
        self.scheduled_loops = tuple(self._build_scheduled_loops())

    def check_events(self) -> SelfCheck:
        """Return whether events can be written."""
        return self._pipeline.events.check()

    @property
    def recent_events(self) -> deque[EventLine]:
        """The last events, for the page."""
        return self._pipeline.events.recent_events

    def read_host(self) -> None:
        """Read the host again; whoever joins the devices with it is told."""
        self._host_reader.read_host()
        self._messages.put(HostRead())

    def _report(self, run: PublisherRunner, loop: Loop) -> None:
        """Report usage, and again after the time that stands by then.

        Where a first cycle takes long, this comes before the second: without rates the node would
        count as one whose usage is not known, until the next report.
        """
        if self.usage_monitor.cycle_count < CYCLES_FOR_RATES:
            loop.interval_s = self._context.settings.collect.interval_s
            return
        run.run_once()
        loop.interval_s = self._reports.period_s(self._context.store.current)

    def _build_scheduled_loops(self) -> Iterator[ScheduledLoop]:
        """Return all loops, in the order in which they first run."""
        settings = self._context.settings
        cycle_s = settings.collect.interval_s
        yield ScheduledLoop(Loop("collect", cycle_s, self.usage_monitor.cycle))
        for run in self.publisher_runners:
            loop = Loop(f"publish-{run.publisher.name}", run.publisher.interval_s, run.run_once)
            if run.is_usage_report:
                loop.run_once = partial(self._report, run, loop)
            first_in_s = cycle_s + REPORT_DELAY_S if run.is_usage_report else 0.0
            yield ScheduledLoop(loop, first_in_s, is_on_devices_thread=not run.is_usage_report)
        yield ScheduledLoop(
            Loop("events", EVENTS_INTERVAL_S, self._pipeline.events.record_changes),
            is_on_devices_thread=True,
        )
        host_s = settings.discovery.host_interval_s
        yield ScheduledLoop(Loop("host", host_s, self.read_host), host_s)
