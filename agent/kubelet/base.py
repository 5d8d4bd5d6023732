"""What the parts of the kubelet's side share: what it answers, and how it is doing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from agent.kube.errors import ApiError, Forbidden, Unauthorized, Unreachable
from agent.model.device import Pairs
from agent.model.pod import PodView
from agent.model.snapshot import Counts

T = TypeVar("T")

STARTING = "starting"  # nothing was asked yet
OK = "ok"
EMPTY = "empty"  # it answers, and lists no pods: it has not read them itself yet
ABSENT = "absent"  # nobody listens, or no way there
HANGING = "hanging"  # a connection, and no answer within the deadline
UNAUTHORISED = "unauthorised"
FORBIDDEN = "forbidden"
FAILING = "failing"  # an answer that is none: 5xx, not JSON, too large

TIMEOUT = "Timeout"  # reason of an `Unreachable` whose deadline passed


class Offload(Protocol):
    """Runs work that takes longer than the loop thread may be held."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise what it raises."""
        ...


async def in_thread(work: Callable[[], T]) -> T:
    """Run the work on a thread of the event loop's own pool."""
    return await asyncio.to_thread(work)


class PodList(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to `GET /pods/`."""

    pods: tuple[PodView, ...]  # by uid
    left_out: int = 0  # malformed ones


class KubeletConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What `/configz` says, as far as we read it; `None` is what it does not say."""

    cpu_manager_policy: str | None = None
    cpu_manager_options: Pairs = ()
    reserved_system_cpus: frozenset[int] | None = None
    reserved_milli: int | None = None  # CPU of kubeReserved and systemReserved together
    topology_policy: str | None = None
    topology_scope: str | None = None
    cgroup_driver: str | None = None
    cgroup_root: str | None = None
    odd: tuple[str, ...] = ()  # keys whose type we do not know


class Kubelet(Protocol):
    """The kubelet's HTTP server. Both calls raise an `ApiError` of the class that says why."""

    @property
    def connections(self) -> int:
        """Count the connections opened so far: behind a new one there may be a new kubelet."""
        ...

    async def pods(self) -> PodList:
        """Return the pods that the kubelet runs."""
        ...

    async def config(self) -> KubeletConfig | None:
        """Return its settings; `None` where they are not to be had."""
        ...


class KubeletState(msgspec.Struct, frozen=True, kw_only=True):
    """How the kubelet does, for metrics and people. Counts are since the agent's start."""

    pods: str = STARTING  # one of the states above
    config: str = STARTING  # the same, of `/configz`; absent too on a port that has none
    detail: str = ""  # the last error of either; empty while both are well
    since_s: float | None = None  # monotonic, of the last change of `pods`
    failures: int = 0  # in a row
    looks: Counts = ()  # by state
    pokes: int = 0
    restarts: int = 0  # times that it came back after having been out of reach
    left_out: int = 0  # malformed pods of the last list
    took_s: float | None = None  # the last look


def state_of(error: ApiError) -> str:
    """Return the state that an error means."""
    if isinstance(error, Unreachable):
        return HANGING if error.reason == TIMEOUT else ABSENT
    if isinstance(error, Unauthorized):
        return UNAUTHORISED
    return FORBIDDEN if isinstance(error, Forbidden) else FAILING
