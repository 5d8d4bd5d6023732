"""The vendor workers of this node: starts, stops and calls them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import TypeVar

import msgspec

from agent.clock import Clock
from agent.config.settings import Settings
from agent.errors import WorkerError
from agent.loop import log_failure
from agent.messages import MessageQueue, VendorStateChanged
from agent.snapshot.node import NodeSnapshot, VendorState
from agent.snapshot.settings import HealthOverrides
from agent.workers.client import NOT_RUNNING, VendorClient
from agent.workers.in_process_worker import InProcessWorker
from agent.workers.lifecycle import (
    EventCallback,
    Worker,
    WorkerRequest,
    WorkerStarter,
    WorkerTiming,
)
from agent.workers.process import InProcessSpec, LaunchedProcess, WorkerSpec
from agent.workers.selection import SelectedVendor

log = logging.getLogger(__name__)

T = TypeVar("T")


def replace_vendor(snapshot: NodeSnapshot, state: VendorState) -> NodeSnapshot:
    """Return the snapshot with one vendor's state replaced; vendors stay in order of name."""
    other_vendors = [vendor for vendor in snapshot.vendors if vendor.vendor != state.vendor]
    vendors = tuple(sorted([*other_vendors, state], key=lambda vendor: vendor.vendor))
    return msgspec.structs.replace(snapshot, vendors=vendors)


class VendorManager:
    """Starts one client for each vendor that has devices here. Belongs to the loop thread."""

    def __init__(
        self,
        selected_vendors: Iterable[SelectedVendor],
        settings: Settings,
        clock: Clock,
        messages: MessageQueue,
        executor: Executor | None = None,
    ) -> None:
        """Create the clients; states and events of the vendors go into `messages`.

        Vendors that need no process run on `executor`.
        """
        self._executor = executor
        self._clock = clock
        self._messages = messages
        discovery = settings.discovery
        self._timing = WorkerTiming(
            discover_every_s=discovery.interval_s,
            sample_every_s=settings.collect.device_interval_s,
            discover_deadline_s=discovery.discover_deadline_s,
            sample_deadline_s=discovery.sample_deadline_s,
            memory_limit_bytes=discovery.worker_memory_bytes,
        )
        self.clients: list[VendorClient] = []
        self._health_overrides: dict[str, HealthOverrides] = {}  # by vendor
        for selected in selected_vendors:
            self._create_client(selected)
        self._is_stopped = False
        self._tasks: list[asyncio.Task[None]] = []

    def health_overrides(self, vendor: str) -> HealthOverrides:
        """Return the values of the health policy that a vendor's driver requires."""
        return self._health_overrides.get(vendor, HealthOverrides())

    def start(self) -> None:
        """Start all workers; their first answers arrive later."""
        for client in self.clients:
            self._run(client)

    def add(self, selected: SelectedVendor) -> None:
        """Start a worker for a vendor whose hardware or driver appeared after the agent's start."""
        running_vendors = {client.state.vendor for client in self.clients}
        if selected.spec.vendor not in running_vendors and not self._is_stopped:
            log.info("vendor_came", extra={"vendor": selected.spec.vendor})
            self._run(self._create_client(selected))

    def _create_client(self, selected: SelectedVendor) -> VendorClient:
        client = VendorClient(
            selected.spec,
            selected.detected_devices,
            messages=self._messages,
            families=selected.families,
            timing=self._timing,
            clock=self._clock,
        )
        if selected.in_process_spec is not None:
            client.set_starter(self._in_process_start(selected.in_process_spec))
        if selected.launched is not None:
            client.adopt(selected.launched)
        self.clients.append(client)
        self._health_overrides[selected.spec.vendor] = selected.health
        return client

    def _in_process_start(self, spec: InProcessSpec) -> WorkerStarter:
        """Return what starts the worker of a vendor that needs no process."""

        def start(_: WorkerSpec, on_events: EventCallback, __: LaunchedProcess | None) -> Worker:
            return InProcessWorker(spec, on_events, self._executor)

        return start

    def _run(self, client: VendorClient) -> None:
        self._messages.put(VendorStateChanged(client.state))
        task = asyncio.create_task(client.run(), name=f"vendor {client.state.vendor}")
        # a bug: no more requests to this vendor
        task.add_done_callback(
            lambda done: log_failure(done, log, "vendor_lost", task=done.get_name())
        )
        self._tasks.append(task)

    async def stop(self) -> None:
        """End all workers; takes two seconds at most."""
        self._is_stopped = True
        await asyncio.gather(*(client.stop() for client in self.clients))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def rediscover(self, vendor: str) -> None:
        """Request a discovery of a vendor soon."""
        for client in self.clients:
            if client.state.vendor == vendor:
                client.rediscover()

    async def request(self, vendor: str, request: WorkerRequest[T]) -> T:
        """Run a request of a vendor in its turn; raises `WorkerError` if no worker can answer."""
        for client in self.clients:
            if client.state.vendor == vendor:
                return await client.request(request)
        raise WorkerError(vendor, NOT_RUNNING, "no worker of this vendor was started")
