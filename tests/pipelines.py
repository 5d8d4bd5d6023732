"""Device pipelines, and their first step alone, for tests."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor

from agent.app.composition import AgentInputs, build_device_joiner
from agent.app.events import EventRecorder
from agent.app.host_reader import HostReader
from agent.app.pipeline import DevicePipeline, HealthUpdater
from agent.app.publishing import PublishSink, device_runners
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
    inputs: AgentInputs,
    sink: PublishSink,
    vendors: VendorManager | None = None,
    messages: MessageQueue | None = None,
    executor: Executor | None = None,
) -> DevicePipeline:
    """Return a pipeline whose health is not saved."""
    messages = messages or MessageQueue()
    vendors = vendors or VendorManager((), inputs.settings, inputs.clock, messages)
    health = HealthUpdater(
        inputs.settings.health, inputs.store, inputs.clock, vendors, HealthFile("", "")
    )
    return DevicePipeline(
        health,
        messages,
        executor or ThreadPoolExecutor(1),
        inputs.store,
        inputs.clock,
        build_device_joiner(inputs, PublishedMinorStore()),
        device_runners(inputs.settings, inputs.store, inputs.clock, sink, inputs.runbook),
        EventRecorder(inputs.store, inputs.clock, sink.event_output(), messages),
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
