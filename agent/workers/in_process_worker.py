"""A worker inside the agent, for a vendor that only reads files.

To its client it is like a worker process: state, deadlines, restarts and ages are the same. It
cannot be killed: a read that hangs is abandoned and counted, like a process that the kernel does
not end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from agent.errors import AgentError, WorkerError
from agent.loop import log_failure
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory, SliceReport, SliceRequest
from agent.snapshot.vendor import VendorSession
from agent.workers.abilities import apply_slices, clear_fault
from agent.workers.process import InProcessSpec
from agent.workers.protocol import CLOSED, NOT_SUPPORTED, drop_non_finite, error_kind
from agent.workers.worker_process import LATE

log = logging.getLogger(__name__)

POLL_S = 1.0  # between two questions for events, which never wait here
EVENTS_RETRY_S = 30.0
UNEXPECTED = "UnexpectedError"  # as a worker calls what its vendor should not have raised
KILL_S = 0.8  # for the call in progress, as a killed process has to be reaped

T = TypeVar("T")
EventCallback = Callable[[tuple[DeviceEvent, ...]], None]


class InProcessWorker:
    """One session from its opening to its end, with the methods of `WorkerProcess`.

    Its calls run on `executor`, by default on the loop's own threads.
    """

    pid: int | None = None  # it is none

    def __init__(
        self, inside: InProcessSpec, on_events: EventCallback, executor: Executor | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.vendor = inside.vendor.description.name
        self.failure: asyncio.Future[WorkerError] = self._loop.create_future()
        self._inside = inside
        self._on_events = on_events
        self._executor = executor
        self._session: VendorSession | None = None
        self._calls: set[asyncio.Future[Any]] = set()
        self._polling: asyncio.Task[None] | None = None

    async def wait_open(self, deadline_s: float) -> None:
        """Open the session; raises why it cannot be."""
        inside = self._inside
        opening = partial(inside.vendor.open, inside.host, inside.settings, inside.context)
        self._session = await self._ask("opening", opening, deadline_s)
        if inside.events:
            self._polling = asyncio.create_task(self._poll(self._session, deadline_s))
            # a bug: discoveries continue without events
            self._polling.add_done_callback(
                lambda done: log_failure(done, log, "vendor_events_lost", vendor=self.vendor)
            )

    async def discover(self, deadline_s: float) -> Inventory:
        """Return the vendor's inventory; a `WorkerError` tells why there is none."""
        return await self._ask("discover", self._opened().discover, deadline_s)

    async def sample(self, deadline_s: float) -> tuple[DeviceSample, ...]:
        """Return what the devices do now; raises as `discover`."""
        return drop_non_finite(await self._ask("sample", self._opened().sample, deadline_s))

    async def clear(self, key: str, deadline_s: float) -> bool:
        """Have the vendor forget a device's lasting fault; raises as `discover`."""
        return await self._ask("clear", partial(clear_fault, self._opened(), key), deadline_s)

    async def slices(
        self, wishes: tuple[SliceRequest, ...], pods: tuple[str, ...] | None, deadline_s: float
    ) -> SliceReport:
        """Have the vendor cut slices and take others back; raises as `discover`."""
        work = partial(apply_slices, self._opened(), wishes, pods)
        return await self._ask("slices", work, deadline_s)

    async def close(self, grace_s: float) -> None:
        """Let the session close its files."""
        await self._ask("close", self._opened().close, grace_s)

    async def kill(self) -> bool:
        """Ask no more; `False` if a call does not return, which is left behind."""
        self._fail(WorkerError(self.vendor, CLOSED, "ended by the agent"))
        if self._polling is not None:
            self._polling.cancel()
        if self._calls:
            await asyncio.wait(self._calls, timeout=KILL_S)
        return not self.is_alive

    @property
    def is_alive(self) -> bool:
        """Say whether a call has not returned yet."""
        return bool(self._calls)

    @property
    def has_crashed(self) -> bool:
        """Return whether it ended by a fault of its own: then the agent would have, too."""
        return False

    def _opened(self) -> VendorSession:
        assert self._session is not None  # noqa: S101 - the client opens first
        return self._session

    async def _poll(self, session: VendorSession, deadline_s: float) -> None:
        """Ask for events until there can be none."""
        while not self.failure.done():
            pause_s = POLL_S
            try:
                events = await self._ask("events", partial(session.events, 0.0), deadline_s)
                if events and not self.failure.done():
                    self._on_events(events)
            except WorkerError as error:
                if error.reason == NOT_SUPPORTED or self.failure.done():
                    return
                fields = {"vendor": self.vendor, "reason": error.reason, "error": str(error)}
                log.warning("worker_events_failed", extra=fields)
                pause_s = EVENTS_RETRY_S
            await asyncio.sleep(pause_s)

    async def _ask(self, what: str, work: Callable[[], T], deadline_s: float) -> T:
        if self.failure.done():
            raise self.failure.result()
        call = self._loop.run_in_executor(self._executor, work)
        self._keep(call)
        done, _ = await asyncio.wait({call}, timeout=deadline_s)
        if not done:
            error = WorkerError(self.vendor, LATE, f"no answer to {what} within {deadline_s:g} s")
            self._fail(error)
            raise error
        try:
            return call.result()
        except AgentError as error:
            raise WorkerError(self.vendor, error_kind(error), str(error)) from error
        except Exception as error:  # a vendor's faults end here, as in a worker
            log.error("vendor_failed", extra={"vendor": self.vendor, "asked": what}, exc_info=error)
            raise WorkerError(self.vendor, UNEXPECTED, repr(error)) from error

    def _keep(self, call: asyncio.Future[T]) -> None:
        """Remember a call until it returns; nobody may be left to hear what it raises then."""
        self._calls.add(call)

        def ended(_: asyncio.Future[T]) -> None:
            self._calls.discard(call)
            if not call.cancelled():
                call.exception()

        call.add_done_callback(ended)

    def _fail(self, error: WorkerError) -> None:
        if not self.failure.done():
            self.failure.set_result(error)
