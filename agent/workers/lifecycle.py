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
    """Waits double from death to death; too many deaths in the window are a quarantine."""

    first_s: float = 1.0
    longest_s: float = 60.0
    deaths: int = 5
    window_s: float = 600.0
    quarantine_s: float = 600.0  # between attempts while in quarantine


class RestartHistory(msgspec.Struct, frozen=True):
    """The deaths that still count. A worker in quarantine gets one attempt at a time."""

    deaths_s: tuple[float, ...] = ()  # monotonic, within the window of the last one
    is_quarantined: bool = False

    def with_death(self, now_s: float, policy: RestartPolicy) -> RestartHistory:
        """Count a death."""
        recent = (*(t for t in self.deaths_s if now_s - t < policy.window_s), now_s)
        recent = recent[-policy.deaths :]
        return RestartHistory(recent, self.is_quarantined or len(recent) >= policy.deaths)

    def with_answer(self) -> RestartHistory:
        """Leave the quarantine: the worker works. Deaths within the window still count."""
        return RestartHistory((), is_quarantined=False) if self.is_quarantined else self

    def wait_s(self, policy: RestartPolicy, spread: float) -> float:
        """Return the seconds until the next attempt.

        `spread` is a random number from 0 to 1: the wait is between half and the whole of the
        doubled time, so that the workers of many nodes do not start in step.
        """
        if self.is_quarantined:
            return policy.quarantine_s
        doubled_s = policy.first_s * 2.0 ** max(0, len(self.deaths_s) - 1)
        return min(policy.longest_s, doubled_s) * (0.5 + 0.5 * spread)


T_co = TypeVar("T_co", covariant=True)

CLEAR_DEADLINE_S = 10.0

SLICES_DEADLINE_S = 30.0  # a driver that is busy is asked five times for each slice


class WorkerTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Periods, deadlines and limits."""

    discover_every_s: float = 300.0
    sample_every_s: float = 1.0
    open_deadline_s: float = 30.0  # until the first answer of a fresh process
    discover_deadline_s: float = 30.0
    sample_deadline_s: float = 5.0
    hung_call_s: float = 2.0  # a call of a late process that took so long is what it hangs in
    restart: RestartPolicy = RestartPolicy()
    memory_limit_bytes: int = 0  # resident; a process beyond it is replaced; 0: no limit


DEFAULT_TIMING = WorkerTiming()


class Worker(Protocol):
    """One life of a vendor's session: a process (`WorkerProcess`), or inside the agent."""

    vendor: str
    failure: asyncio.Future[WorkerError]  # done when it is of no more use

    @property
    def pid(self) -> int | None:
        """The process's id, if it is one."""
        ...

    @property
    def is_alive(self) -> bool:
        """Say whether something of it is still running."""
        ...

    @property
    def has_crashed(self) -> bool:
        """Return whether it ended by a fault of its own, inside a call."""
        ...

    async def wait_open(self, deadline_s: float) -> None:
        """Wait until the vendor is open; raises why it is not."""
        ...

    async def discover(self, deadline_s: float) -> Inventory:
        """Return the vendor's inventory."""
        ...

    async def sample(self, deadline_s: float) -> tuple[DeviceSample, ...]:
        """Return what the devices do now."""
        ...

    async def clear(self, key: str, deadline_s: float) -> bool:
        """Have the vendor forget a device's lasting fault; `False` if there was none."""
        ...

    async def slices(
        self, wishes: tuple[SliceRequest, ...], pods: tuple[str, ...] | None, deadline_s: float
    ) -> SliceReport:
        """Have the vendor cut slices for pods and take back those of pods that are gone."""
        ...

    async def close(self, grace_s: float) -> None:
        """Let the vendor close its library."""
        ...

    async def kill(self) -> bool:
        """End it; `False` if that is not possible, which leaves it behind."""
        ...


EventCallback = Callable[[tuple[DeviceEvent, ...]], None]

WorkerStarter = Callable[[WorkerSpec, EventCallback, LaunchedProcess | None], Worker]


class WorkerRequest(Protocol[T_co]):
    """Something to be done by the worker in its turn, between the periodic questions."""

    @property
    def has_changed(self) -> bool:
        """Say, once it is done, whether the devices may look different."""
        ...

    async def run(self, worker: Worker) -> T_co:
        """Do it; `WorkerError` if the worker cannot."""
        ...


class ClearFaultRequest:
    """Have a device's lasting fault forgotten."""

    def __init__(self, key: str) -> None:
        self._key = key
        self.has_changed = True  # whoever asked looks for a difference

    async def run(self, worker: Worker) -> bool:
        """Say whether there was one."""
        return await worker.clear(self._key, CLEAR_DEADLINE_S)


class CutSlicesRequest:
    """Have slices cut for pods, and others taken back."""

    def __init__(self, wishes: tuple[SliceRequest, ...], pods: tuple[str, ...] | None) -> None:
        self._wishes = wishes
        self._pods = pods
        self.has_changed = False

    async def run(self, worker: Worker) -> SliceReport:
        """Return what stands after it."""
        kept = await worker.slices(self._wishes, self._pods, SLICES_DEADLINE_S)
        self.has_changed = kept.changed
        return kept
