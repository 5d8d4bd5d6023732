"""The vendor workers of this node: starts, stops and asks them."""

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
    others = [vendor for vendor in snapshot.vendors if vendor.vendor != state.vendor]
    vendors = tuple(sorted([*others, state], key=lambda vendor: vendor.vendor))
    return msgspec.structs.replace(snapshot, vendors=vendors)


class VendorManager:
    """Starts one client for each vendor that has something here. Lives in the loop thread."""

    def __init__(
        self,
        crew: Iterable[SelectedVendor],
        settings: Settings,
        clock: Clock,
        messages: MessageQueue,
        executor: Executor | None = None,
    ) -> None:
        """States and events of the vendors go into `messages`.

        Vendors that need no process are asked on `executor`.
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
        for enlisted in crew:
            self._create_client(enlisted)
        self._is_stopped = False
        self._tasks: list[asyncio.Task[None]] = []

    def health_overrides(self, vendor: str) -> HealthOverrides:
        """Return the values of the health policy that a vendor's driver asks for."""
        return self._health_overrides.get(vendor, HealthOverrides())

    def start(self) -> None:
        """Start all workers; their first answers come later."""
        for client in self.clients:
            self._run(client)

    def add(self, late: SelectedVendor) -> None:
        """Start a worker for a vendor whose hardware, or its driver, came after the agent."""
        known = {client.state.vendor for client in self.clients}
        if late.spec.vendor not in known and not self._is_stopped:
            log.info("vendor_came", extra={"vendor": late.spec.vendor})
            self._run(self._create_client(late))

    def _create_client(self, enlisted: SelectedVendor) -> VendorClient:
        client = VendorClient(
            enlisted.spec,
            enlisted.sighted,
            messages=self._messages,
            timing=self._timing,
            clock=self._clock,
        )
        if enlisted.inside is not None:
            client.set_starter(self._in_process_start(enlisted.inside))
        if enlisted.launched is not None:
            client.adopt(enlisted.launched)
        self.clients.append(client)
        self._health_overrides[enlisted.spec.vendor] = enlisted.health
        return client

    def _in_process_start(self, inside: InProcessSpec) -> WorkerStarter:
        """Return what begins a life of a vendor that needs no process."""

        def start(_: WorkerSpec, heard: EventCallback, __: LaunchedProcess | None) -> Worker:
            return InProcessWorker(inside, heard, self._executor)

        return start

    def _run(self, client: VendorClient) -> None:
        self._messages.put(VendorStateChanged(client.state))
        task = asyncio.create_task(client.run(), name=f"vendor {client.state.vendor}")
        # a bug: no more requests for this vendor
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
        """Ask a vendor's worker for a discovery soon."""
        for client in self.clients:
            if client.state.vendor == vendor:
                client.rediscover()

    async def request(self, vendor: str, errand: WorkerRequest[T]) -> T:
        """Have a vendor's worker do something in its turn; `WorkerError` if nobody can be asked."""
        for client in self.clients:
            if client.state.vendor == vendor:
                return await client.request(errand)
        raise WorkerError(vendor, NOT_RUNNING, "no worker of this vendor was started")
