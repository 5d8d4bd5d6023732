"""The agent process: publishes the first Device object, starts all services, stops in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from agent.app.composition import (
    AgentInputs,
    DeviceServices,
    ServeOptions,
    build_device_joiner,
    build_health_file,
    build_host_reader,
    build_minor_store,
)
from agent.app.events import EventRecorder
from agent.app.host_reader import HostReader
from agent.app.lock import stop_signals
from agent.app.pipeline import DevicePipeline, HealthUpdater
from agent.app.publishing import FolderPublishSink, PublishSink, device_runners
from agent.app.threads import (
    AgentThreads,
    BackgroundTasks,
    exit_with_hung_thread,
    run_with_deadline,
)
from agent.errors import AgentError
from agent.kube.endpoint import disable_system_authorities
from agent.messages import MessageQueue
from agent.objects.device import DEVICE_FILE_NAME
from agent.objects.files import read_object
from agent.workers.driver_release import DriverReleaser
from agent.workers.manager import VendorManager
from agent.workers.selection import SelectedVendor

if TYPE_CHECKING:
    from agent.app.cluster import ClusterService
    from agent.app.services import Services

log = logging.getLogger(__name__)

EXIT_FAILED = 3  # exit status

THREADS_STOP_S = 3.0  # for the jobs in progress on the threads; the workers get two more

# Then the agent serves without them: until then, containers are created without its hooks and the
# kubelet has no devices. The Device object still waits for all vendors.
FIRST_ANSWERS_DEADLINE_S = 1.0


class Application:
    """One run of the agent. `run` returns the exit status."""

    def __init__(
        self, inputs: AgentInputs, vendors: Iterable[SelectedVendor], options: ServeOptions
    ) -> None:
        """Start nothing yet; the workers of `vendors` run already."""
        self._inputs = inputs
        self._options = options
        self._threads = AgentThreads()
        self._tasks = BackgroundTasks()
        self._messages = MessageQueue()
        self._is_stopping = asyncio.Event()
        self._minors = build_minor_store(inputs, stores=True, adopts=inputs.settings.publish.device)
        self._vendors = VendorManager(
            vendors, inputs.settings, inputs.clock, self._messages, self._threads.collector
        )
        self._cluster: ClusterService | None = None
        self._services: Services | None = None

    async def run(self) -> int:
        """Serve until a stop signal; then stop everything in less than ten seconds."""
        event_loop = asyncio.get_running_loop()
        event_loop.set_default_executor(self._threads.pool)
        for number in stop_signals():
            event_loop.add_signal_handler(number, self._request_stop)
        start = asyncio.create_task(self._start(), name="start")
        stop = asyncio.create_task(self._is_stopping.wait(), name="stop")
        failure: BaseException | None = None
        try:
            # the start may hang in a read of the host: a stop signal must not wait for it
            await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                await start
            await stop
        except BaseException as error:
            failure = error
            raise
        finally:
            stop.cancel()
            if not await self._stop(start):
                exit_with_hung_thread(EXIT_FAILED if failure else 0, failure)
        return 0

    def _request_stop(self) -> None:
        """Begin to stop; the lock file records that this is no crash."""
        if self._options.lock is not None:
            try:
                self._options.lock.mark_leaving()
            except AgentError as error:
                log.warning("leaving_not_marked", extra={"error": str(error)})
        self._is_stopping.set()

    async def _start(self) -> None:
        """Publish the first Device object, then start all other services."""
        event_loop, collector = asyncio.get_running_loop(), self._threads.collector
        self._vendors.start()
        devices = await self._build_devices()
        self._tasks.start(devices.pipeline.run(), "messages")
        if self._cluster is not None and self._inputs.settings.discovery.release_by_label:
            releaser = DriverReleaser(self._inputs.store, self._vendors, self._inputs.vendors)
            self._tasks.start_forever(releaser.run, "driver releases", self._inputs.clock)
        await self._wait_for_first_answers(devices.pipeline)
        await devices.pipeline.refresh_first()
        services = await event_loop.run_in_executor(collector, self._build_services, devices)
        url = await services.start()
        print(f"xpu-agent serves {url}", flush=True)  # noqa: T201 - a person reads it
        await services.start_loops(self._tasks)

    async def _build_devices(self) -> DeviceServices:
        """Read the host and open the sink at the same time; build the pipeline between them."""
        event_loop, collector = asyncio.get_running_loop(), self._threads.collector
        opening = self._tasks.start(self._open_sink(), "sink")
        try:
            host_reader = await event_loop.run_in_executor(collector, self._read_host)
            sink = await opening
        finally:
            opening.cancel()  # has no effect on a sink that is open
        return await event_loop.run_in_executor(collector, self._build_pipeline, host_reader, sink)

    async def _open_sink(self) -> PublishSink:
        """Open the sink of all publishers; waits for no answer of the API server."""
        inputs, target = self._inputs, self._options.cluster
        if target is None:
            return FolderPublishSink(self._options.out, inputs.store, inputs.clock)
        event_loop = asyncio.get_running_loop()
        create = await event_loop.run_in_executor(None, load_cluster_service)
        self._cluster = create(
            inputs.settings,
            inputs.host_source.files,
            inputs.store,
            inputs.clock,
            target,
            self._messages,
            self._minors,
            inputs.pod_file,
        )
        return await self._cluster.open()

    def _read_host(self) -> HostReader:
        if self._options.cluster is None and not self._minors.is_complete:
            self._minors.adopt(read_object(Path(self._options.out, DEVICE_FILE_NAME)))
        reader = build_host_reader(self._inputs)
        reader.read_host()
        return reader

    def _build_pipeline(self, host_reader: HostReader, sink: PublishSink) -> DeviceServices:
        inputs = self._inputs
        settings, store, clock = inputs.settings, inputs.store, inputs.clock
        health_file = build_health_file(inputs)
        pipeline = DevicePipeline(
            HealthUpdater(settings.health, store, clock, self._vendors, health_file),
            self._messages,
            self._threads.devices,
            store,
            clock,
            build_device_joiner(inputs, self._minors),
            device_runners(settings, store, clock, sink, inputs.runbook),
            EventRecorder(store, clock, sink.event_output(), self._messages),
        )
        return DeviceServices(
            messages=self._messages,
            vendors=self._vendors,
            minors=self._minors,
            health_file=health_file,
            host_reader=host_reader,
            sink=sink,
            pipeline=pipeline,
        )

    def _build_services(self, devices: DeviceServices) -> Services:
        from agent.app.services import Services  # noqa: PLC0415 - the HTTP server

        self._services = Services(
            self._inputs, self._options, self._threads, devices, self._cluster
        )
        return self._services

    async def _wait_for_first_answers(self, pipeline: DevicePipeline) -> None:
        """Wait until every vendor and the API server have answered or failed, or for a second."""
        node = [self._cluster.wait_for_node()] if self._cluster is not None else []
        await asyncio.gather(self._wait_for_vendors(pipeline), *node)

    async def _wait_for_vendors(self, pipeline: DevicePipeline) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ANSWERS_DEADLINE_S):
                await pipeline.wait_settled()

    async def _stop(self, start: asyncio.Task[None]) -> bool:
        """Stop the start, the services, the tasks, the workers and the threads, in that order.

        Return whether all threads have ended.
        """
        if self._is_stopping.is_set():
            log.info("stopping")
        start.cancel()
        await asyncio.wait({start})
        if self._services is not None:
            await self._services.stop()
        if self._cluster is not None:
            await self._cluster.stop()
        await self._tasks.stop()
        await self._vendors.stop()
        self._threads.cancel_jobs()
        return await run_with_deadline(THREADS_STOP_S, self._close_threads)

    def _close_threads(self) -> None:
        """Wait for all threads; write and close the files that belong to them."""
        self._threads.devices.shutdown()
        self._inputs.state_writer.close()
        self._threads.collector.shutdown()
        if self._services is not None:
            self._services.close()
        self._threads.pool.shutdown()


def run_application(
    inputs: AgentInputs, vendors: Iterable[SelectedVendor], options: ServeOptions
) -> int:
    """Run the agent on this thread, which must be the one that launched the workers."""
    if options.cluster is not None:
        disable_system_authorities(options.cluster, os.environ)

    async def run() -> int:
        return await Application(inputs, vendors, options).run()

    return asyncio.run(run())


def load_cluster_service() -> type[ClusterService]:
    """Import the API session with aiohttp: 180 ms, so on a thread while the host is read."""
    from agent.app.cluster import ClusterService  # noqa: PLC0415 - aiohttp, in a cluster only

    return ClusterService
