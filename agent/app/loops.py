"""The periodic work of the agent: what runs, how often, and what it fills."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from agent.app.host_reader import HostReader
from agent.app.pipeline import DevicePipeline
from agent.app.publishing import WRITE_DEADLINE_S, PublisherRunner, PublishSink
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
    """Builds all loops: those of the collector thread, and those of the devices' thread."""

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
        self._report_loop: Loop | None = None
        if settings.publish.node_metric:
            self._report_publisher = NodeMetricPublisher(settings.publish.report_interval_s)
            self._report_runner = sink.runner(self._report_publisher)
            self.publisher_runners.append(self._report_runner)
            self._report_loop = Loop(
                f"publish-{self._report_publisher.name}",
                self._report_publisher.interval_s,
                self._report_usage,
            )
        self.scheduled_loops = tuple(self._build_scheduled_loops())

    def flush(self) -> None:
        """Wait until the last objects and events are in their files, or for a short time."""
        end_s = time.monotonic() + WRITE_DEADLINE_S
        for runner in self.publisher_runners:
            runner.flush(max(0.0, end_s - time.monotonic()))
        self._pipeline.events.flush(max(0.0, end_s - time.monotonic()))

    def check_events(self) -> SelfCheck:
        """Return whether events can be written."""
        return self._pipeline.events.check()

    @property
    def recent_events(self) -> deque[EventLine]:
        """Return the last events, for the page."""
        return self._pipeline.events.recent_events

    def read_host(self) -> None:
        """Read the host again; the pipeline then joins the devices with it."""
        self._host_reader.read_host()
        self._messages.put(HostRead())

    def _report_usage(self) -> None:
        """Report usage, and again after the report interval of that time.

        If the first cycle takes long, the first report precedes the second cycle. It then has no
        rates, and consumers would take the node's usage as unknown until the next report.
        """
        if self._report_loop is None:
            return
        if self._usage_monitor.cycle_count < CYCLES_FOR_RATES:
            self._report_loop.interval_s = self._settings.collect.interval_s
            return
        self._usage_monitor.report()
        self._report_runner.run_once()
        self._report_loop.interval_s = self._report_publisher.period_s(self._store.current)

    def _build_scheduled_loops(self) -> Iterator[ScheduledLoop]:
        """Return all loops, in the order in which they first run."""
        settings = self._settings
        cycle_s = settings.collect.interval_s
        yield ScheduledLoop(Loop("collect", cycle_s, self._usage_monitor.cycle))
        for runner in self._pipeline.publisher_runners:
            publisher = runner.publisher
            loop = Loop(f"publish-{publisher.name}", publisher.interval_s, runner.run_once)
            yield ScheduledLoop(loop, is_on_devices_thread=True)
        if self._report_loop is not None:
            yield ScheduledLoop(self._report_loop, cycle_s + REPORT_DELAY_S)
        yield ScheduledLoop(
            Loop("events", EVENTS_INTERVAL_S, self._pipeline.events.record_changes),
            is_on_devices_thread=True,
        )
        host_s = settings.discovery.host_interval_s
        yield ScheduledLoop(Loop("host", host_s, self.read_host), host_s)
