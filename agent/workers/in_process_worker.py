"""A worker inside the agent, for a vendor that only reads files.

Its client treats it like a worker process: state, deadlines, restarts and ages are the same. It
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
from agent.workers.protocol import (
    CLOSED,
    NOT_SUPPORTED,
    UNEXPECTED,
    error_kind,
    reject_non_finite,
)
from agent.workers.worker_process import LATE

log = logging.getLogger(__name__)

POLL_S = 1.0  # between two requests for events, which return at once
EVENTS_RETRY_S = 30.0
KILL_S = 0.8  # for the call in progress; a process gets the same to be killed and reaped

T = TypeVar("T")
EventCallback = Callable[[tuple[DeviceEvent, ...]], None]


class InProcessWorker:
    """One session from its opening to its end, with the methods of `WorkerProcess`.

    Its calls run on `executor`, by default on the loop's own threads.
    """

    pid: int | None = None  # there is no process

    def __init__(
        self, spec: InProcessSpec, on_events: EventCallback, executor: Executor | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.vendor = spec.vendor.description.name
        self.failure: asyncio.Future[WorkerError] = self._loop.create_future()
        self._spec = spec
        self._on_events = on_events
        self._executor = executor
        self._session: VendorSession | None = None
        self._calls: set[asyncio.Future[Any]] = set()
        self._event_task: asyncio.Task[None] | None = None

    async def wait_open(self, deadline_s: float) -> None:
        """Open the session; raises `WorkerError` if it cannot be opened."""
        spec = self._spec
        open_session = partial(spec.vendor.open, spec.host, spec.settings, spec.context)
        self._session = await self._call("opening", open_session, deadline_s)
        if spec.events:
            self._event_task = asyncio.create_task(self._poll(self._session, deadline_s))
            # a bug: discoveries continue without events
            self._event_task.add_done_callback(
                lambda done: log_failure(done, log, "vendor_events_lost", vendor=self.vendor)
            )

    async def discover(self, deadline_s: float) -> Inventory:
        """Return the vendor's inventory; raises `WorkerError` if there is none."""
        return await self._call("discover", self._open_session().discover, deadline_s)

    async def sample(self, deadline_s: float) -> tuple[DeviceSample, ...]:
        """Return the current samples of the devices; raises as `discover`."""
        return reject_non_finite(
            await self._call("sample", self._open_session().sample, deadline_s)
        )

    async def clear(self, key: str, deadline_s: float) -> bool:
        """Clear a device's lasting fault; raises as `discover`."""
        return await self._call(
            "clear", partial(clear_fault, self._open_session(), key), deadline_s
        )

    async def slices(
        self, requests: tuple[SliceRequest, ...], pods: tuple[str, ...] | None, deadline_s: float
    ) -> SliceReport:
        """Create slices and delete others; raises as `discover`."""
        work = partial(apply_slices, self._open_session(), requests, pods)
        return await self._call("slices", work, deadline_s)

    async def close(self, grace_s: float) -> None:
        """Close the session."""
        await self._call("close", self._open_session().close, grace_s)

    async def kill(self) -> bool:
        """Make no more calls; return `False` if a call does not return, which is abandoned."""
        self._fail(WorkerError(self.vendor, CLOSED, "ended by the agent"))
        if self._event_task is not None:
            self._event_task.cancel()
        if self._calls:
            await asyncio.wait(self._calls, timeout=KILL_S)
        return not self.is_alive

    @property
    def is_alive(self) -> bool:
        """Return whether a call has not returned yet."""
        return bool(self._calls)

    @property
    def has_crashed(self) -> bool:
        """Return whether the worker crashed, which would end the agent as well."""
        return False

    def _open_session(self) -> VendorSession:
        assert self._session is not None  # noqa: S101 - the client opens first
        return self._session

    async def _poll(self, session: VendorSession, deadline_s: float) -> None:
        """Request events until the worker ends or has none."""
        while not self.failure.done():
            pause_s = POLL_S
            try:
                events = await self._call("events", partial(session.events, 0.0), deadline_s)
                if events and not self.failure.done():
                    self._on_events(events)
            except WorkerError as error:
                if error.reason == NOT_SUPPORTED or self.failure.done():
                    return
                fields = {"vendor": self.vendor, "reason": error.reason, "error": str(error)}
                log.warning("worker_events_failed", extra=fields)
                pause_s = EVENTS_RETRY_S
            await asyncio.sleep(pause_s)

    async def _call(self, method: str, work: Callable[[], T], deadline_s: float) -> T:
        if self.failure.done():
            raise self.failure.result()
        call = self._loop.run_in_executor(self._executor, work)
        self._track(call)
        done, _ = await asyncio.wait({call}, timeout=deadline_s)
        if not done:
            error = WorkerError(self.vendor, LATE, f"no answer to {method} within {deadline_s:g} s")
            self._fail(error)
            raise error
        try:
            return call.result()
        except AgentError as error:
            raise WorkerError(self.vendor, error_kind(error), str(error)) from error
        except Exception as error:  # a vendor's errors end here, as in a worker process
            log.error(
                "vendor_failed", extra={"vendor": self.vendor, "asked": method}, exc_info=error
            )
            raise WorkerError(self.vendor, UNEXPECTED, repr(error)) from error

    def _track(self, call: asyncio.Future[T]) -> None:
        """Track a call until it returns; its late exception is retrieved and dropped."""
        self._calls.add(call)

        def remove(_: asyncio.Future[T]) -> None:
            self._calls.discard(call)
            if not call.cancelled():
                call.exception()

        call.add_done_callback(remove)

    def _fail(self, error: WorkerError) -> None:
        if not self.failure.done():
            self.failure.set_result(error)
