"""Device pipelines, and their first step alone, for tests."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor

from agent.app.context import AppContext
from agent.app.events import EventRecorder
from agent.app.host_reader import HostReader
from agent.app.pipeline import DevicePipeline, HealthUpdater, device_runners
from agent.app.publishing import PublishSink
from agent.clock import Clock
from agent.config.settings import Settings
from agent.devices.health_file import HealthFile
from agent.devices.joiner import DeviceJoiner, JoinedDevices
from agent.devices.published_minors import PublishedMinorStore
from agent.messages import MessageQueue
from agent.recording.host_source import HostSource
from agent.snapshot.node import SnapshotStore
from agent.workers.manager import VendorManager


def build_pipeline(
    context: AppContext,
    sink: PublishSink,
    vendors: VendorManager | None = None,
    messages: MessageQueue | None = None,
    executor: Executor | None = None,
) -> DevicePipeline:
    """Return the pipeline of a context, whose health does not outlive it."""
    messages = messages or MessageQueue()
    vendors = vendors or VendorManager((), context.settings, context.clock, messages)
    health = HealthUpdater(
        context.settings.health, context.store, context.clock, vendors, HealthFile("", "")
    )
    return DevicePipeline(
        health,
        messages,
        executor or ThreadPoolExecutor(1),
        context.store,
        context.clock,
        context.device_joiner(PublishedMinorStore()),
        device_runners(context.settings, context.store, context.clock, sink),
        EventRecorder(context.store, context.clock, sink.event_output(), messages),
    )


class JoinedHost:
    """Reads a host into a store and joins the devices there, as the pipeline does."""

    def __init__(
        self,
        source: HostSource,
        settings: Settings,
        store: SnapshotStore,
        clock: Clock,
        minors: PublishedMinorStore | None = None,
    ) -> None:
        self._reader = HostReader(source, settings, store, clock)
        self._joiner = DeviceJoiner(settings, minors)
        self._store = store
        self._clock = clock

    def read_host(self) -> None:
        """Read the host."""
        self._reader.read_host()

    def join_devices(self) -> JoinedDevices:
        """Join the devices in the store."""
        return self._joiner.update(self._store, self._clock.monotonic())
