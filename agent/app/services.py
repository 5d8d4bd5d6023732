"""Services that start after the first Device object: usage, containers, hotplug, people, HTTP.

`Application` imports this module when that object is published: loading the HTTP server, the
metrics and the hooks takes longer than all steps before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from agent.app.admin import AdminActions, AdminService
from agent.app.composition import (
    AgentInputs,
    DeviceServices,
    ServeOptions,
    alias_tables,
    metric_families,
)
from agent.app.containers import ContainerService, ContainerServiceBuilder
from agent.app.hotplug import HardwareScanner, HotplugListener, VendorSearch
from agent.app.loops import PeriodicLoops
from agent.app.oneshot import build_usage_monitor
from agent.app.threads import (
    DEVICES_RETRY_S,
    AgentThreads,
    BackgroundTasks,
    EventLoopMonitor,
    ScheduledLoop,
    run_periodically,
    tune_interpreter,
)
from agent.clock import Clock
from agent.command_line import raise_open_file_limit
from agent.config.sources import LoadedSettings
from agent.devices.presence import PLACE_WAIT_S
from agent.kube.access_reviews import AccessReviews
from agent.loop import Loop
from agent.messages import EventReported
from agent.metrics.exposition import MetricsRenderer
from agent.metrics.process_metrics import ProcessMetrics
from agent.runbook.runbook import Runbook
from agent.snapshot.node import NodeSnapshot, SnapshotStore
from agent.snapshot.self_check import LoopStatus, SelfCheck
from agent.usage.monitor import UsageMonitor
from agent.usage.peak_monitor import PeakMonitor
from agent.web.http_server import HttpServer
from agent.web.server import Gate
from agent.web.view import ExplanationSource
from agent.workers.load import driver_modules

if TYPE_CHECKING:
    from agent.app.cluster import ClusterService

log = logging.getLogger(__name__)
T = TypeVar("T")

HOST_LOOPS = ("host", "vendors")  # they run less often while the kernel reports changes

LISTENING_INTERVAL_FACTOR = 5.0


class CheckedComponent(Protocol):
    """A component whose state is not a part of the snapshot."""

    def check(self) -> SelfCheck:
        """Return its state. May be called from any thread."""
        ...


@dataclass(slots=True, kw_only=True)
class StatusCollector:
    """Adds the state of the agent's services to a snapshot.

    Counters change with every request. They are read for a page or a scrape, and not stored at each
    change. May be called from any thread.
    """

    periodic: PeriodicLoops
    loops: tuple[Loop, ...]
    components: tuple[CheckedComponent, ...]
    containers: ContainerService
    cluster: ClusterService | None = None  # None: standalone mode

    def complete(self, snapshot: NodeSnapshot) -> NodeSnapshot:
        """Return the snapshot with the present state of every service."""
        runners = self.periodic.publisher_runners
        return msgspec.structs.replace(
            snapshot,
            cluster_service=self.cluster.status() if self.cluster is not None else None,
            container_service=self.containers.status(),
            publishers=tuple(runner.status for runner in runners),
            publications=tuple(
                publication for runner in runners for publication in runner.publications()
            ),
            events=tuple(self.periodic.recent_events),
            audit=self.containers.audit(),
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
    settings: LoadedSettings
    status: StatusCollector
    explanations: ExplanationSource
    runbook: Runbook

    def snapshot(self) -> NodeSnapshot:
        """Return the current snapshot with the state of the agent's services."""
        return self.status.complete(self.store.current)

    def now_s(self) -> tuple[float, float]:
        """Return monotonic and wall time."""
        return self.clock.monotonic(), self.clock.wall()

    def metrics(self, *, openmetrics: bool) -> Iterator[bytes]:
        """Render the exposition in chunks: the agent's own processes, then the snapshot."""
        snapshot = self.snapshot()
        yield self.process_metrics.text(snapshot, openmetrics=openmetrics)
        yield from self.renderer.render_chunks(
            snapshot, self.clock.monotonic(), openmetrics=openmetrics
        )

    async def offload(self, work: Callable[[], T]) -> T:
        """Run `work` on the collector thread."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, work)


def _loop_status(loop: Loop) -> LoopStatus:
    return LoopStatus(
        name=loop.name,
        interval_s=loop.interval_s,
        failures=loop.failures,
        last_error=loop.last_error,
        last_success_s=loop.last_success_s,
        due_s=loop.due_s,
    )


class Services:
    """Builds, starts and stops the services that the first Device object does not need."""

    def __init__(
        self,
        inputs: AgentInputs,
        options: ServeOptions,
        threads: AgentThreads,
        devices: DeviceServices,
        cluster: ClusterService | None,
    ) -> None:
        """Build what needs no event loop; belongs to the collector thread."""
        self._inputs = inputs
        self._options = options
        self._threads = threads
        self._devices = devices
        self._cluster = cluster
        self._process_metrics = ProcessMetrics(inputs.store.current.node.name)
        self._renderer = _metrics_renderer(inputs)
        self._usage_monitor = open_usage_monitor(inputs)
        self._loops = PeriodicLoops(
            inputs.settings,
            inputs.store,
            self._usage_monitor,
            devices.host_reader,
            devices.pipeline,
            devices.sink,
            devices.messages,
        )
        self._scheduled_loops: tuple[ScheduledLoop, ...] = ()
        self._event_loop_monitor = EventLoopMonitor(inputs.clock)
        access = options.access
        self._http_server = (
            HttpServer(options.listen)
            if access is None
            else HttpServer(options.listen, lambda: access.context)
        )
        self._containers: ContainerService | None = None
        self._admin: AdminService | None = None
        self._view: ApplicationView | None = None
        self._scanner: HardwareScanner | None = None

    async def start(self) -> str:
        """Start the services for containers and the HTTP server; return the address of the page."""
        event_loop = asyncio.get_running_loop()
        await event_loop.run_in_executor(self._threads.collector, tune_interpreter)
        if self._cluster is not None:
            self._cluster.start_rest()
        self._report_crash()
        vendor_search = self._build_vendor_search()
        self._scanner = self._build_scanner(vendor_search)
        admin = self._admin = self._build_admin(self._scanner)
        containers = self._containers = self._build_containers()
        await containers.start()
        if self._cluster is not None:
            self._cluster.start_evictions(containers.evictions)
        interval_s = self._inputs.settings.discovery.host_interval_s
        self._scheduled_loops = (
            *self._loops.scheduled_loops,
            *containers.scheduled_loops(),
            ScheduledLoop(Loop("vendors", interval_s, vendor_search.run), interval_s),
        )
        self._view = self._build_view(containers, admin)
        return await self._http_server.open(self._view, self._build_gate())

    async def start_loops(self, tasks: BackgroundTasks) -> None:
        """Start all loops as `tasks`, then the admin socket and the listener to uevents."""
        inputs, pipeline = self._inputs, self._devices.pipeline
        window_s = inputs.settings.publish.coalesce_ms / 1000
        tasks.start(pipeline.refresh_when_changed(window_s), "devices")
        tasks.start(self._find_places(), "places")
        tasks.start(self._event_loop_monitor.run(self._process_metrics.lateness), "heartbeat")
        if self._options.access is not None:
            tasks.start_forever(self._options.access.run, "access rules", inputs.clock)
        threads = self._threads
        for scheduled_loop in self._scheduled_loops:
            executor = threads.devices if scheduled_loop.is_on_devices_thread else threads.collector
            change = (
                inputs.store.subscribe(*scheduled_loop.wakes_on)
                if scheduled_loop.wakes_on
                else None
            )
            work = run_periodically(
                scheduled_loop.loop, executor, inputs.clock, scheduled_loop.first_run_in_s, change
            )
            tasks.start(work, scheduled_loop.loop.name)
        if self._admin is not None and self._view is not None:
            await self._admin.start(self._options.out, self._view)
        if inputs.is_live and inputs.settings.discovery.hotplug and self._scanner is not None:
            listener = HotplugListener(
                inputs.store,
                inputs.clock,
                self._scanner,
                threads.collector,
                messages=self._devices.messages,
                on_listening_changed=self._adjust_host_intervals,
                driver_modules=driver_modules(),
            )
            tasks.start(listener.run(), "hotplug")

    async def stop(self) -> None:
        """Stop the HTTP server, the services for containers and the admin socket."""
        await self._http_server.close()
        if self._containers is not None:
            await self._containers.stop()
        if self._admin is not None:
            await self._admin.stop()

    def close(self) -> None:
        """Finish and close all files; call it when the threads have ended."""
        self._loops.flush()
        if self._containers is not None:
            self._containers.close()
        self._usage_monitor.close()

    def _report_crash(self) -> None:
        """Report that the agent before this one ended without a clean stop."""
        lock = self._options.lock
        message = lock.crash_message() if lock is not None else None
        if message is not None:
            self._devices.messages.put(EventReported("AgentEndedUnexpectedly", message))

    def _build_vendor_search(self) -> VendorSearch:
        inputs = self._inputs
        return VendorSearch(
            inputs.vendors.values(), inputs.host_source, inputs.settings, self._devices.vendors
        )

    def _build_scanner(self, vendor_search: VendorSearch) -> HardwareScanner:
        return HardwareScanner(
            self._inputs.store,
            self._inputs.clock,
            self._devices.vendors,
            vendor_search,
            self._threads.collector,
            self._loops.read_host,
        )

    def _build_admin(self, scanner: HardwareScanner) -> AdminService:
        devices = self._devices
        actions = AdminActions(
            self._inputs.store, devices.vendors, scanner, devices.pipeline, devices.messages
        )
        return AdminService(self._inputs.settings.admin.socket, actions)

    def _adjust_host_intervals(self, is_listening: bool) -> None:
        """Read the host less often while the kernel reports changes."""
        interval_s = self._inputs.settings.discovery.host_interval_s
        if is_listening:
            interval_s *= LISTENING_INTERVAL_FACTOR
        for scheduled_loop in self._scheduled_loops:
            if scheduled_loop.loop.name in HOST_LOOPS:
                scheduled_loop.loop.interval_s = interval_s

    def _build_containers(self) -> ContainerService:
        builder = ContainerServiceBuilder(
            self._inputs, self._devices.vendors, self._threads.collector, self._devices.messages
        )
        return builder.build(self._cluster.pods_wanted if self._cluster is not None else None)

    def _build_view(self, containers: ContainerService, admin: AdminService) -> ApplicationView:
        devices = self._devices
        components = (
            devices.pipeline,
            devices.health_file,
            devices.minors,
            self._event_loop_monitor,
            admin,
            self._options.lock,
            self._options.access,
        )
        return ApplicationView(
            store=self._inputs.store,
            clock=self._inputs.clock,
            executor=self._threads.collector,
            renderer=self._renderer,
            process_metrics=self._process_metrics,
            notice=self._options.notice,
            settings=LoadedSettings(self._inputs.settings, self._inputs.origins),
            explanations=containers.explanations,
            runbook=self._inputs.runbook,
            status=StatusCollector(
                periodic=self._loops,
                loops=(
                    *(scheduled_loop.loop for scheduled_loop in self._scheduled_loops),
                    devices.pipeline.health_loop,
                ),
                components=tuple(component for component in components if component is not None),
                cluster=self._cluster,
                containers=containers,
            ),
        )

    def _build_gate(self) -> Gate | None:
        """Return who may read the metrics; `None`: everybody."""
        if self._options.access is None:
            return None
        from agent.access.gate import AccessGate  # noqa: PLC0415 - bcrypt, where it is used

        api = self._cluster.session if self._cluster is not None else None
        auth = self._inputs.settings.metrics.auth
        reviews = AccessReviews(api, auth.audiences) if api is not None and auth.tokens else None
        gate = AccessGate(self._options.access, reviews)
        self._process_metrics.set_access(gate.status)
        return gate

    async def _find_places(self) -> None:
        """Read the host when a new device waits for its place, on the collector thread.

        Devices are joined again after the read, or after `PLACE_WAIT_S` if it hangs: a device that
        has waited that long is published without a place.
        """
        event_loop, pipeline = asyncio.get_running_loop(), self._devices.pipeline
        loop = Loop("places", PLACE_WAIT_S, self._loops.read_host)
        read: asyncio.Future[float] | None = None
        while True:
            await pipeline.wait_unplaced()
            if read is None or read.done():
                now_s = self._inputs.clock.monotonic()
                read = event_loop.run_in_executor(self._threads.collector, loop.step, now_s)
            await asyncio.wait({read}, timeout=PLACE_WAIT_S)
            await asyncio.sleep(DEVICES_RETRY_S)
            pipeline.request_refresh()


def open_usage_monitor(inputs: AgentInputs) -> UsageMonitor:
    """Return the monitor of usage; it keeps as many files open as the hard limit allows.

    The workers were started before: they need few files, and do not inherit the limit.
    """
    raise_open_file_limit()
    return build_usage_monitor(inputs, _peak_monitor(inputs))


def _peak_monitor(inputs: AgentInputs) -> PeakMonitor | None:
    """Return the monitor of peaks; `None` for a recorded host, whose usage does not change."""
    prediction = inputs.settings.collect.prediction
    if not prediction.enabled or not inputs.is_live:
        return None
    folder, node = inputs.settings.node.state_dir, inputs.store.current.node.name
    return PeakMonitor(prediction, folder, inputs.state_writer, node)


def _metrics_renderer(inputs: AgentInputs) -> MetricsRenderer:
    settings = inputs.settings.metrics
    renderer = MetricsRenderer(
        metric_families(inputs.vendors),
        pods=settings.pods,
        aliases=settings.aliases,
        alias_tables=alias_tables(inputs.vendors),
        max_series=settings.max_series,
        runbook=inputs.runbook,
    )
    for error in renderer.errors:
        log.warning("metric_family_refused", extra={"family": error})
    return renderer
