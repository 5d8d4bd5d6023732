"""Keeps the kubelet's pods and settings known: asks in turn and when poked, forgets nothing."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import msgspec

from agent.clock import Clock
from agent.config.cluster import KubeletSettings
from agent.kube.backoff import Backoff
from agent.kube.bucket import Bucket
from agent.kube.errors import ApiError, Unreachable
from agent.kubelet.base import (
    ABSENT,
    EMPTY,
    HANGING,
    OK,
    Kubelet,
    KubeletState,
    PodList,
    state_of,
)
from agent.kubelet.facts import FactsSource
from agent.model.cluster.facts import KubeletFacts
from agent.model.part import Part
from agent.model.pod import PodView

log = logging.getLogger(__name__)

Sleep = Callable[[float], Awaitable[None]]
Uniform = Callable[[float, float], float]
OnPods = Callable[[Part[tuple[PodView, ...]]], None]
OnFacts = Callable[[Part[KubeletFacts | None]], None]

MAX_BACKOFF_S = 30.0
POKES_BURST, POKE_REFILL_S = 10, 0.2  # looks out of turn, as many as koordlet makes


class KubeletPoller:
    """Belongs to the loop thread. `on_pods` and `on_facts` are called after every look.

    A look that fails, or finds no pods at all, leaves the pods and their time as they were, with
    the reason in `error`: a node without pods cannot run this agent, so an empty list is a kubelet
    that does not know yet.
    """

    def __init__(
        self,
        client: Kubelet,
        clock: Clock,
        kubelet: KubeletSettings,
        *,
        facts: FactsSource,
        on_pods: OnPods,
        on_facts: OnFacts,
        sleep: Sleep = asyncio.sleep,
        uniform: Uniform = random.uniform,
    ) -> None:
        """`kubelet` says how often it is asked; `facts` asks the same one for its settings."""
        self.state = KubeletState()
        self._client = client
        self._clock = clock
        self._interval_s = kubelet.interval_s
        self._backoff = Backoff(max_s=max(MAX_BACKOFF_S, kubelet.interval_s))
        self._facts = facts
        self._on_pods = on_pods
        self._on_facts = on_facts
        self._sleep = sleep
        self._uniform = uniform
        self._pods: Part[tuple[PodView, ...]] = Part(())
        self._poked = asyncio.Event()
        self._bucket = Bucket(POKES_BURST, POKE_REFILL_S)
        self._looks: Counter[str] = Counter()
        self._connections = 0

    def poke(self) -> None:
        """Look soon: something changed on this node. Pokes before that look are one."""
        if not self._poked.is_set():
            self.state = msgspec.structs.replace(self.state, pokes=self.state.pokes + 1)
            self._poked.set()

    async def run(self) -> None:
        """Look for ever; ends when cancelled."""
        while True:
            await self._pause(await self.look())

    async def look(self) -> float:
        """Ask once; return the seconds until the next look, if nobody pokes."""
        self._poked.clear()
        started_s = self._clock.monotonic()
        answered = True
        try:
            self._listed(await self._client.pods())
        except ApiError as error:
            answered = not isinstance(error, Unreachable)
            self._unknown(state_of(error), str(error))
        self.state = msgspec.structs.replace(self.state, took_s=self._clock.monotonic() - started_s)
        self._on_pods(self._pods)
        facts = await self._facts.look(ask=answered)
        self._settings_seen(facts)
        self._on_facts(facts)
        if not self.state.failures:
            return self._interval_s
        return self._backoff.wait_s(self.state.failures, None, self._uniform)

    def _listed(self, found: PodList) -> None:
        back = self.state.pods in (ABSENT, HANGING)
        moved = self._client.connections != self._connections
        self._connections = self._client.connections
        if back or (moved and self._facts.state == OK):
            self._facts.expire()  # it may have come back with other settings
        if back:
            restarts = self.state.restarts + 1
            self.state = msgspec.structs.replace(self.state, restarts=restarts)
        if not found.pods:
            odd = f", {found.left_out} malformed ones beside" if found.left_out else ""
            self._unknown(EMPTY, f"the kubelet lists no pods{odd}")
            return
        before = self._pods.value
        # equal pods stay the same object: who compares them need not look inside
        same = before == found.pods
        self._pods = Part(before if same else found.pods, self._clock.monotonic())
        self._enter(OK, "", failures=0, left_out=found.left_out)

    def _unknown(self, state: str, detail: str) -> None:
        if self.state.pods != state:
            log.warning("kubelet_pods_unknown", extra={"state": state, "error": detail})
        self._pods = Part(self._pods.value, self._pods.taken_s, detail)
        self._enter(state, detail, failures=self.state.failures + 1, left_out=self.state.left_out)

    def _enter(self, state: str, detail: str, failures: int, left_out: int) -> None:
        self._looks[state] += 1
        changed = self.state.pods != state
        self.state = msgspec.structs.replace(
            self.state,
            pods=state,
            detail=detail,
            failures=failures,
            left_out=left_out,
            since_s=self._clock.monotonic() if changed else self.state.since_s,
            looks=tuple(sorted(self._looks.items())),
        )

    def _settings_seen(self, facts: Part[KubeletFacts | None]) -> None:
        detail = self.state.detail or facts.error
        self.state = msgspec.structs.replace(self.state, config=self._facts.state, detail=detail)

    async def _pause(self, wait_s: float) -> None:
        """Wait so long, or until a poke that the limiter lets through."""
        sleeper = asyncio.ensure_future(self._sleep(wait_s))
        poked = asyncio.ensure_future(self._poked.wait())
        try:
            await asyncio.wait((sleeper, poked), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeper.cancel()
            poked.cancel()
        if self._poked.is_set():
            held_s = self._bucket.reserve(self._clock.monotonic())
            if held_s:
                await self._sleep(held_s)
