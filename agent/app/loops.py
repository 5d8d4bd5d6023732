"""The periodic work of the agent: what runs, how often, and what it fills."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial

from agent.app.host_reader import HostReader
from agent.app.pipeline import DevicePipeline
from agent.app.publishing import PublisherRunner, PublishSink
from agent.app.threads import ScheduledLoop
from agent.config.settings import Settings
from agent.loop import Loop
from agent.messages import HostRead, MessageQueue
from agent.objects.node_metric import NodeMetricPublisher
from agent.snapshot.node import SnapshotStore
from agent.snapshot.publications import EventLine
from agent.snapshot.self_check import SelfCheck
from agent.usage.monitor import UsageMonitor

REPORT_DELAY_S = 0.5  # after the second cycle: rates are known then
CYCLES_FOR_RATES = 2
EVENTS_INTERVAL_S = 1.0


class PeriodicLoops:
    """Builds every loop: those of the collector thread, and those of the devices' thread."""

    def __init__(
        self,
        settings: Settings,
        store: SnapshotStore,
        usage_monitor: UsageMonitor,
        host_reader: HostReader,
        pipeline: DevicePipeline,
        sink: PublishSink,
        messages: MessageQueue,
    ) -> None:
        self._settings = settings
        self._store = store
        self._usage_monitor = usage_monitor
        self._host_reader = host_reader
        self._pipeline = pipeline
        self._messages = messages
        self.publisher_runners: list[PublisherRunner] = list(pipeline.publisher_runners)
        if settings.publish.node_metric:
            self._reports = NodeMetricPublisher(settings.publish.report_interval_s)
            self.publisher_runners.append(sink.runner(self._reports, before=usage_monitor.report))
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
        if self._usage_monitor.cycle_count < CYCLES_FOR_RATES:
            loop.interval_s = self._settings.collect.interval_s
            return
        run.run_once()
        loop.interval_s = self._reports.period_s(self._store.current)

    def _build_scheduled_loops(self) -> Iterator[ScheduledLoop]:
        """Return all loops, in the order in which they first run."""
        settings = self._settings
        cycle_s = settings.collect.interval_s
        yield ScheduledLoop(Loop("collect", cycle_s, self._usage_monitor.cycle))
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
