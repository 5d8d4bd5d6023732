"""One life of a vendor's session, how long it may take, and what may be asked in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from agent.errors import WorkerError
from agent.model.inventory import DeviceEvent, DeviceSample, Inventory
from agent.model.runtime.slices import SlicesKept, SliceWish
from agent.probe.process.launch import Launched
from agent.probe.process.spec import WorkerSpec
from agent.probe.restart import RestartPolicy

T_co = TypeVar("T_co", covariant=True)

CLEAR_DEADLINE_S = 10.0
SLICES_DEADLINE_S = 30.0  # a driver that is busy is asked five times for each slice


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Periods, deadlines and limits."""

    discover_every_s: float = 300.0
    sample_every_s: float = 1.0
    open_deadline_s: float = 30.0  # until the first answer of a fresh process
    discover_deadline_s: float = 30.0
    sample_deadline_s: float = 5.0
    hung_call_s: float = 2.0  # a call of a late process that took so long is what it hangs in
    restart: RestartPolicy = RestartPolicy()
    memory_limit_bytes: int = 0  # resident; a process beyond it is replaced; 0: no limit


TIMING = Timing()


class Worker(Protocol):
    """One life of a vendor's session: a process (`WorkerProcess`), or inside the agent."""

    vendor: str
    lost: asyncio.Future[WorkerError]  # done when it is of no more use

    @property
    def pid(self) -> int | None:
        """The process's id, if it is one."""
        ...

    @property
    def alive(self) -> bool:
        """Say whether something of it is still running."""
        ...

    @property
    def crashed(self) -> bool:
        """Return whether it ended by a fault of its own, inside a call."""
        ...

    async def opened(self, deadline_s: float) -> None:
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
        self, wishes: tuple[SliceWish, ...], pods: tuple[str, ...] | None, deadline_s: float
    ) -> SlicesKept:
        """Have the vendor cut slices for pods and take back those of pods that are gone."""
        ...

    async def close(self, grace_s: float) -> None:
        """Let the vendor close its library."""
        ...

    async def kill(self) -> bool:
        """End it; `False` if that is not possible, which leaves it behind."""
        ...


Heard = Callable[[tuple[DeviceEvent, ...]], None]
Start = Callable[[WorkerSpec, Heard, Launched | None], Worker]


class Errand(Protocol[T_co]):
    """Something to be done by the worker in its turn, between the periodic questions."""

    @property
    def changed(self) -> bool:
        """Say, once it is done, whether the devices may look different."""
        ...

    async def run(self, worker: Worker) -> T_co:
        """Do it; `WorkerError` if the worker cannot."""
        ...


class Clear:
    """Have a device's lasting fault forgotten."""

    def __init__(self, key: str) -> None:
        self._key = key
        self.changed = True  # whoever asked looks for a difference

    async def run(self, worker: Worker) -> bool:
        """Say whether there was one."""
        return await worker.clear(self._key, CLEAR_DEADLINE_S)


class Cut:
    """Have slices cut for pods, and others taken back."""

    def __init__(self, wishes: tuple[SliceWish, ...], pods: tuple[str, ...] | None) -> None:
        self._wishes = wishes
        self._pods = pods
        self.changed = False

    async def run(self, worker: Worker) -> SlicesKept:
        """Return what stands after it."""
        kept = await worker.slices(self._wishes, self._pods, SLICES_DEADLINE_S)
        self.changed = kept.changed
        return kept
