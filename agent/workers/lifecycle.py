"""The interface of a worker: deadlines, requests, restart policy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from agent.errors import WorkerError
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory, SliceReport, SliceRequest
from agent.workers.process import LaunchedProcess, WorkerSpec


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The pause doubles from death to death; too many deaths within the window are a quarantine."""

    first_s: float = 1.0
    longest_s: float = 60.0
    deaths: int = 5
    window_s: float = 600.0
    quarantine_s: float = 600.0  # between attempts while in quarantine


T_co = TypeVar("T_co", covariant=True)

CLEAR_DEADLINE_S = 10.0

SLICES_DEADLINE_S = 30.0  # a busy driver is tried five times for each slice


class WorkerTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Periods, deadlines and limits."""

    discover_every_s: float = 300.0
    sample_every_s: float = 1.0
    open_deadline_s: float = 30.0  # until the first answer of a fresh process
    discover_deadline_s: float = 30.0
    sample_deadline_s: float = 5.0
    hung_call_s: float = 2.0  # a late process hangs in a call that has taken at least this long
    restart: RestartPolicy = RestartPolicy()
    memory_limit_bytes: int = 0  # resident; a process above the limit is replaced; 0: no limit


DEFAULT_TIMING = WorkerTiming()


class Worker(Protocol):
    """One worker of a vendor's session: a process (`WorkerProcess`), or inside the agent."""

    vendor: str
    failure: asyncio.Future[WorkerError]  # done when the worker cannot be used any more

    @property
    def pid(self) -> int | None:
        """The id of the process, if there is one."""
        ...

    @property
    def is_alive(self) -> bool:
        """Return whether a part of the worker is still running."""
        ...

    @property
    def has_crashed(self) -> bool:
        """Return whether the worker crashed inside a call."""
        ...

    async def wait_open(self, deadline_s: float) -> None:
        """Wait until the vendor is open; raises `WorkerError` if it cannot be opened."""
        ...

    async def discover(self, deadline_s: float) -> Inventory:
        """Return the vendor's inventory."""
        ...

    async def sample(self, deadline_s: float) -> tuple[DeviceSample, ...]:
        """Return the current samples of the devices."""
        ...

    async def clear(self, key: str, deadline_s: float) -> bool:
        """Clear a device's lasting fault; return `False` if there was none."""
        ...

    async def slices(
        self, requests: tuple[SliceRequest, ...], pods: tuple[str, ...] | None, deadline_s: float
    ) -> SliceReport:
        """Create slices for pods, and delete those of pods that do not exist any more."""
        ...

    async def close(self, grace_s: float) -> None:
        """Close the vendor's library."""
        ...

    async def kill(self) -> bool:
        """End the worker; return `False` if that is not possible and it is abandoned."""
        ...


EventCallback = Callable[[tuple[DeviceEvent, ...]], None]

WorkerStarter = Callable[[WorkerSpec, EventCallback, LaunchedProcess | None], Worker]


class WorkerRequest(Protocol[T_co]):
    """A request that the worker runs in its turn, between discoveries and samples."""

    @property
    def has_changed(self) -> bool:
        """Return, after `run`, whether the devices may have changed."""
        ...

    async def run(self, worker: Worker) -> T_co:
        """Run the request; raises `WorkerError` if the worker cannot."""
        ...


class ClearFaultRequest:
    """Clears a device's lasting fault."""

    def __init__(self, key: str) -> None:
        self._key = key
        self.has_changed = True  # the caller expects a new inventory

    async def run(self, worker: Worker) -> bool:
        """Return whether there was a fault."""
        return await worker.clear(self._key, CLEAR_DEADLINE_S)


class CutSlicesRequest:
    """Creates slices for pods, and deletes others."""

    def __init__(self, requests: tuple[SliceRequest, ...], pods: tuple[str, ...] | None) -> None:
        self._requests = requests
        self._pods = pods
        self.has_changed = False

    async def run(self, worker: Worker) -> SliceReport:
        """Return the slices that exist afterwards."""
        report = await worker.slices(self._requests, self._pods, SLICES_DEADLINE_S)
        self.has_changed = report.changed
        return report
