"""The agent process: starts every service, serves, and stops in order.

Parts of the daemon that are loaded and built once the first Device is out.

How one run of the daemon serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent.app.context import AppContext
from agent.app.events import EventRecorder
from agent.app.host_reader import HostReader
from agent.app.lock import NodeLock, stop_signals
from agent.app.loops import PeriodicLoops
from agent.app.pipeline import DevicePipeline, HealthUpdater, device_runners
from agent.app.publishing import FolderPublishSink, PublishSink
from agent.app.threads import (
    DEVICES_RETRY_S,
    EventLoopMonitor,
    collector_thread,
    devices_thread,
    exit_with_hung_thread,
    run_periodically,
    run_with_deadline,
    tune_interpreter,
)
from agent.app.view import ApplicationView, StatusCollector
from agent.config.address import ListenAddress
from agent.devices.presence import PLACE_WAIT_S
from agent.errors import AgentError
from agent.kube.endpoint import ApiTarget
from agent.kube.session import disable_system_authorities
from agent.loop import Loop
from agent.messages import EventReported, MessageQueue
from agent.objects.device import DEVICE_FILE_NAME
from agent.objects.files import read_object
from agent.web.http_server import HttpServer
from agent.workers.manager import VendorManager
from agent.workers.selection import SelectedVendor

if TYPE_CHECKING:
    from agent.app.admin import AdminService
    from agent.app.cluster import ClusterService
    from agent.app.containers import ContainerService
    from agent.metrics.process_metrics import ProcessMetrics

log = logging.getLogger(__name__)

EXIT_FAILED = 3  # exit status

THREADS_STOP_S = 3.0  # for the runs in progress on the threads; the vendors get two more

# then it serves: until then the runtime makes containers without us, and the kubelet has no
# devices; the Device object still waits for all vendors
FIRST_ANSWERS_DEADLINE_S = 1.0


class Application:
    """One run of the agent. `run` returns the exit status."""

    def __init__(
        self, parts: AppContext, crew: Iterable[SelectedVendor], options: ServeOptions
    ) -> None:
        self._context = parts
        self._options = options
        self._collector: ThreadPoolExecutor = collector_thread()
        self._devices_executor: ThreadPoolExecutor = devices_thread()
        self._default_executor = ThreadPoolExecutor(
            thread_name_prefix="pool"
        )  # the event loop's own
        self._event_loop_monitor = EventLoopMonitor(parts.clock)
        self._messages = MessageQueue()
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[object]] = []
        self._http_server = HttpServer(options.listen)
        self._loops: PeriodicLoops | None = None
        self._admin: AdminService | None = None
        self._cluster: ClusterService | None = None
        self._containers: ContainerService | None = None
        self._minor_store = parts.published_minors(
            stores=True, adopts=parts.settings.publish.device
        )
        self._vendor_manager = VendorManager(
            crew,
            parts.settings,
            parts.clock,
            self._messages,
            self._collector,
        )

    async def run(self) -> int:
        """Serve until a signal of `STOP`; then stop everything in less than ten seconds."""
        event_loop = asyncio.get_running_loop()
        event_loop.set_default_executor(self._default_executor)
        for number in stop_signals():
            event_loop.add_signal_handler(number, self._request_stop)
        start = asyncio.create_task(self._start(), name="start")
        stop = asyncio.create_task(self._stop.wait(), name="stop")
        failed: BaseException | None = None
        try:
            # a start may hang in a read of the host; whoever wants it to end must not wait for it
            await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                await start
            await stop
        except BaseException as error:
            failed = error
            raise
        finally:
            stop.cancel()
            if not await self._stop_services(start):
                exit_with_hung_thread(EXIT_FAILED if failed else 0, failed)
        return 0

    def _request_stop(self) -> None:
        """Stop; who looks at the lock sees that this stop was wanted."""
        if self._options.lock is not None:
            try:
                self._options.lock.mark_leaving()
            except AgentError as error:
                log.warning("leaving_not_marked", extra={"error": str(error)})
        self._stop.set()

    async def _start(self) -> None:
        event_loop = asyncio.get_running_loop()
        self._vendor_manager.start()
        opening = asyncio.create_task(self._open_sink(), name="outlet")
        self._tasks.append(opening)
        try:
            host = await event_loop.run_in_executor(self._collector, self._read_host)
            sink = await opening
        finally:
            opening.cancel()  # where it is of no use any more
        pipeline = await event_loop.run_in_executor(self._collector, self._build_pipeline, sink)
        self._spawn(pipeline.run(), "messages")
        await self._wait_for_first_answers(pipeline)
        await pipeline.refresh_first()
        loops = await event_loop.run_in_executor(
            self._collector, self._build_loops, pipeline, host, sink
        )
        process_metrics = await event_loop.run_in_executor(
            self._collector, load_http_and_metrics, self._context.store.current.node.name
        )
        await event_loop.run_in_executor(self._collector, tune_interpreter)
        reactions = self._admin = self._build_admin(loops, pipeline)
        containers = self._containers = build_container_service(
            self._context,
            self._vendor_manager,
            self._collector,
            self._messages,
            self._cluster,
        )
        await containers.start()
        periodic = (
            *loops.scheduled_loops,
            *containers.scheduled_loops(),
            reactions.vendor_search(),
        )
        beats = [*(timed.loop for timed in periodic), pipeline.health_loop]
        url = await self._http_server.open(
            self._build_view(loops, beats, pipeline, process_metrics)
        )
        print(f"xpu-agent serves {url}", flush=True)  # noqa: T201 - asked for
        window_s = self._context.settings.publish.coalesce_ms / 1000
        self._spawn(pipeline.refresh_when_changed(window_s), "devices")
        self._spawn(self._find_places(pipeline, loops.read_host), "places")
        self._spawn(self._event_loop_monitor.run(process_metrics.lateness), "heartbeat")
        for timed in periodic:
            thread = self._devices_executor if timed.is_on_devices_thread else self._collector
            self._spawn(
                run_periodically(timed.loop, thread, self._context.clock, timed.first_run_in_s),
                timed.loop.name,
            )
        await reactions.serve_admin(self._options.out)
        hotplug = reactions.hotplug_listener(timed.loop for timed in periodic)
        if hotplug is not None:
            self._spawn(hotplug, "hotplug")

    def _build_admin(self, loops: PeriodicLoops, pipeline: DevicePipeline) -> AdminService:

        if self._cluster is not None:
            self._cluster.start_rest()
        crash = self._options.lock.crash_message() if self._options.lock is not None else None
        if crash is not None:
            self._messages.put(EventReported("AgentEndedUnexpectedly", crash))
        from agent.app.admin import AdminService  # noqa: PLC0415 - the first Device is out

        return AdminService(
            self._context,
            self._vendor_manager,
            self._collector,
            loops.read_host,
            self._messages,
            pipeline,
        )

    def _build_view(
        self,
        loops: PeriodicLoops,
        beats: list[Loop],
        pipeline: DevicePipeline,
        process_metrics: ProcessMetrics,
    ) -> ApplicationView:
        components = (
            pipeline,
            self._health_file,
            self._minor_store,
            self._event_loop_monitor,
            self._admin,
            self._options.lock,
        )
        return ApplicationView(
            store=self._context.store,
            clock=self._context.clock,
            executor=self._collector,
            renderer=loops.renderer,
            process_metrics=process_metrics,
            notice=self._options.notice,
            status=StatusCollector(
                periodic=loops,
                loops=tuple(beats),
                components=tuple(one for one in components if one is not None),
                cluster=self._cluster,
                containers=self._containers,
            ),
        )

    async def _open_sink(self) -> PublishSink:
        """Open where everything is published to; no answer of a server is waited for."""
        if self._options.cluster is None:
            return FolderPublishSink(self._options.out, self._context.store, self._context.clock)

        from agent.app.cluster import ClusterService  # noqa: PLC0415 - in a cluster only

        self._cluster = ClusterService(
            self._context,
            self._options.cluster,
            self._messages,
            self._minor_store,
        )
        return await self._cluster.open()

    def _read_host(self) -> HostReader:
        if self._options.cluster is None and not self._minor_store.is_complete:
            self._minor_store.adopt(read_object(Path(self._options.out, DEVICE_FILE_NAME)))
        reader = self._context.host_reader()
        reader.read_host()
        return reader

    def _build_pipeline(self, sink: PublishSink) -> DevicePipeline:
        context = self._context
        self._health_file = health_file = context.health_file()
        return DevicePipeline(
            HealthUpdater(
                context.settings.health,
                context.store,
                context.clock,
                self._vendor_manager,
                health_file,
            ),
            self._messages,
            self._devices_executor,
            context.store,
            context.clock,
            context.device_joiner(self._minor_store),
            device_runners(context, sink),
            EventRecorder(context.store, context.clock, sink.event_output(), self._messages),
        )

    def _build_loops(
        self, pipeline: DevicePipeline, host: HostReader, sink: PublishSink
    ) -> PeriodicLoops:
        self._loops = PeriodicLoops(self._context, pipeline, host, sink, self._messages)
        return self._loops

    async def _wait_for_first_answers(self, pipeline: DevicePipeline) -> None:
        """Wait until every vendor, and the API server, has answered or failed to; not for long."""
        met = [self._cluster.wait_for_node()] if self._cluster is not None else []
        await asyncio.gather(self._wait_for_vendors(pipeline), *met)

    async def _wait_for_vendors(self, pipeline: DevicePipeline) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ANSWERS_DEADLINE_S):
                await pipeline.wait_settled()

    async def _find_places(self, pipeline: DevicePipeline, read_host: Callable[[], None]) -> None:
        """Read the host when a new device waits for its place, on the collector thread.

        Devices are joined again after the read, or after `PLACE_S` if it hangs: a device that has
        waited that long is published without a place.
        """
        event_loop = asyncio.get_running_loop()
        reading = Loop("places", PLACE_WAIT_S, read_host)
        read: asyncio.Future[float] | None = None
        while True:
            await pipeline.wait_unplaced()
            if read is None or read.done():
                now_s = self._context.clock.monotonic()
                read = event_loop.run_in_executor(self._collector, reading.step, now_s)
            await asyncio.wait({read}, timeout=PLACE_WAIT_S)
            await asyncio.sleep(DEVICES_RETRY_S)
            pipeline.request_refresh()

    def _close_threads(self) -> None:
        """Wait for all threads, then write and close what was theirs."""
        self._devices_executor.shutdown()
        self._context.state_writer.close()
        self._collector.shutdown()
        if self._containers is not None:
            self._containers.close()
        if self._loops is not None:
            self._loops.usage_monitor.close()
        self._default_executor.shutdown()

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _stop_services(self, start: asyncio.Task[None]) -> bool:
        """Stop what is being opened, serving, the loops, the workers, the threads, in that order.

        Say whether the threads have ended.
        """
        if self._stop.is_set():
            log.info("stopping")
        start.cancel()
        await asyncio.wait({start})
        await self._http_server.close()
        if self._containers is not None:
            await self._containers.stop()
        if self._admin is not None:
            await self._admin.stop()
        if self._cluster is not None:
            await self._cluster.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._vendor_manager.stop()
        for thread in (self._devices_executor, self._collector, self._default_executor):
            thread.shutdown(wait=False, cancel_futures=True)
        return await run_with_deadline(THREADS_STOP_S, self._close_threads)


def run_application(
    parts: AppContext, crew: Iterable[SelectedVendor], options: ServeOptions
) -> int:
    """Run the daemon on this thread, which must be the one that enlisted the crew."""
    if options.cluster is not None:
        disable_system_authorities(options.cluster, os.environ)

    async def run() -> int:
        return await Application(parts, crew, options).run()

    return asyncio.run(run())


def load_http_and_metrics(node: str) -> ProcessMetrics:
    """Load the HTTP server and prometheus-client, which no first Device waits for.

    Loading takes 0.2 s and more: call it on a thread other than the event loop's.
    """
    import agent.app.admin  # noqa: PLC0415 - see above
    import agent.app.containers  # noqa: PLC0415 - see above
    import agent.web.server  # noqa: F401, PLC0415 - the HTTP server
    from agent.metrics.process_metrics import ProcessMetrics  # noqa: PLC0415 - see above

    return ProcessMetrics(node)


def build_container_service(
    parts: AppContext,
    fleet: VendorManager,
    collector: Executor,
    messages: MessageQueue,
    clustered: ClusterService | None,
) -> ContainerService:
    """Return the service for containers; it is notified of changed pods and devices.

    `clustered` is where pods come from.
    """
    from agent.app.containers import ContainerService  # noqa: PLC0415 - the first Device is out

    side = ContainerService(
        parts,
        fleet,
        collector,
        messages,
        clustered=clustered is not None,
        wake_pods=clustered.refresh_pods if clustered is not None else lambda: None,
    )
    if clustered is not None:
        clustered.facts.on_pods_changed = side.pods_changed
    return side


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to serve."""

    listen: tuple[ListenAddress, ...]
    out: str  # folder of the objects in standalone mode, and of the admin socket
    notice: str
    cluster: ApiTarget | None = None  # `None`: standalone mode
    lock: NodeLock | None = None
