"""Keeps the slices that pods are to have: asks the vendors' workers, and tells what came of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from agent.clock import Clock
from agent.errors import WorkerError
from agent.model.runtime.slices import SlicesKept, SliceWish
from agent.model.snapshot import NodeSnapshot
from agent.probe.process.worker_process import LATE
from agent.probe.wire import CLOSED
from agent.slicing.wanted import living, owners, wishes

log = logging.getLogger(__name__)

TICK_S = 1.0
AGAIN_S, MAX_AGAIN_S = 1.0, 60.0  # between two tries that did not do all that is wished for
# between two that each cost the worker: so few that they alone do not put it into quarantine
DEADLY_S, MAX_DEADLY_S = 60.0, 300.0
DEADLY = (LATE, CLOSED)  # why nobody answers any more

Cut = Callable[[str, tuple[SliceWish, ...], tuple[str, ...] | None], Awaitable[SlicesKept]]
Tell = Callable[[str, str, str], None]  # uid of the pod, "" for the node; reason; message


class _Standing(msgspec.Struct):
    """How it stands with one vendor."""

    asked: bool = False  # since the agent's start: what an earlier one left is tidied up
    failures: int = 0
    next_s: float = 0.0  # monotonic, when what failed may be tried again
    deaths: int = 0  # of workers that were asked, in a row
    alive_s: float = 0.0  # monotonic, when one may be asked again, whatever is wished for
    tried: frozenset[SliceWish] = frozenset()  # with the last try
    told: frozenset[tuple[str, str, str]] = frozenset()  # pod, device, reason


class Slicer:
    """Belongs to the loop thread. Asked again it does nothing that is done already."""

    def __init__(
        self,
        current: Callable[[], NodeSnapshot],
        cut: Cut,
        tell: Tell,
        clock: Clock,
        *,
        grace_s: float,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`cut` has one vendor's worker do it; `grace_s` is for pods that nobody lists any more."""
        self._current = current
        self._cut = cut
        self._tell = tell
        self._clock = clock
        self._grace_s = grace_s
        self._sleep = sleep
        self._vendors: dict[str, _Standing] = {}
        self._missing: dict[str, float] = {}  # uid, monotonic second since when nobody lists it
        self.reclaimed = 0

    async def run(self) -> None:
        """Look each second, for ever."""
        while True:
            await self.step()
            await self._sleep(TICK_S)

    async def step(self) -> None:
        """Look once at every vendor whose worker answers."""
        snapshot = self._current()
        wanted, pods = wishes(snapshot), self._with_grace(snapshot)
        for state in snapshot.vendors:
            if state.state == "ready":
                mine = wanted.get(state.vendor, ())
                if pods is not None:  # a grant is known for a while after its pod
                    mine = tuple(wish for wish in mine if wish.pod in pods)
                await self._keep(snapshot, state.vendor, mine, pods)

    def _with_grace(self, snapshot: NodeSnapshot) -> frozenset[str] | None:
        """Return the pods that count as there: also those that are missing for a short while."""
        pods, now_s = living(snapshot), self._clock.monotonic()
        if pods is None:
            self._missing.clear()  # who was missing may have been all along: nobody could tell
            return None
        held = {pod for state in snapshot.vendors for pod, _ in owners(snapshot, state.vendor)}
        self._missing = {uid: self._missing.get(uid, now_s) for uid in held - pods}
        lately = {u for u, since_s in self._missing.items() if now_s - since_s < self._grace_s}
        return pods | lately

    async def _keep(
        self,
        snapshot: NodeSnapshot,
        vendor: str,
        wanted: tuple[SliceWish, ...],
        pods: frozenset[str] | None,
    ) -> None:
        standing = self._vendors.setdefault(vendor, _Standing())
        have = owners(snapshot, vendor)
        lacking = frozenset(wish for wish in wanted if (wish.pod, wish.device) not in have)
        orphaned = pods is not None and any(pod not in pods for pod, _ in have)
        # before the first answer of the lists there is nothing to take back by
        fresh = not standing.asked and pods is not None
        now_s = self._clock.monotonic()
        early = now_s < standing.next_s and lacking <= standing.tried
        if not (lacking or orphaned or fresh) or early or now_s < standing.alive_s:
            return
        standing.tried = lacking
        listed = None if pods is None else tuple(sorted(pods))
        try:
            kept = await self._cut(vendor, wanted, listed)
        except WorkerError as error:
            self._failed(vendor, standing, wanted, error)
            return
        standing.asked = standing.asked or pods is not None
        standing.deaths = 0
        # what it says is done and does not show is not asked for each second
        idle = bool(lacking or orphaned) and not kept.changed
        self._heard(standing, kept, done=not (kept.unmade or kept.failed or idle))

    def _failed(
        self,
        vendor: str,
        standing: _Standing,
        wanted: tuple[SliceWish, ...],
        error: WorkerError,
    ) -> None:
        self._wait(standing)
        if error.reason in DEADLY:
            standing.deaths += 1
            wait_s = min(MAX_DEADLY_S, DEADLY_S * 2.0 ** min(standing.deaths - 1, 10))
            standing.alive_s = self._clock.monotonic() + wait_s
        if error.reason == "NotSupported":
            standing.asked = True
        else:
            fields = {"vendor": vendor, "error": str(error)}
            log.warning("slices_not_kept", extra=fields)
        troubles = {(w.pod, w.device, error.reason): str(error) for w in wanted}
        self._tell_new(standing, troubles)

    def _heard(self, standing: _Standing, kept: SlicesKept, *, done: bool) -> None:
        if done:
            standing.failures, standing.next_s = 0, 0.0
        else:
            self._wait(standing)
        self.reclaimed += len(kept.reclaimed)
        for words in kept.reclaimed:
            self._tell("", "SliceReclaimed", f"{words} was taken back: the pod is gone")
        for pod in kept.lost:
            self._tell(pod, "SliceLost", "a reset of the card took the slice that the pod uses")
        troubles = {(one.pod, one.device, one.reason): one.message for one in kept.unmade}
        troubles.update({("", words, "SliceNotReclaimed"): words for words in kept.failed})
        self._tell_new(standing, troubles)

    def _tell_new(self, standing: _Standing, troubles: Mapping[tuple[str, str, str], str]) -> None:
        """Tell of each trouble once for as long as it lasts."""
        for (pod, device, reason), message in troubles.items():
            if (pod, device, reason) not in standing.told:
                self._tell(pod, reason, message)
        standing.told = frozenset(troubles)

    def _wait(self, standing: _Standing) -> None:
        standing.failures += 1
        wait_s = min(MAX_AGAIN_S, AGAIN_S * 2.0 ** min(standing.failures - 1, 10))
        standing.next_s = self._clock.monotonic() + wait_s
