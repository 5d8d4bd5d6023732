"""Keeps one object at the server as it is wanted: the newest content, one call at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from agent.errors import ParseError
from agent.kube.errors import ApiError, BadAnswer
from agent.publish.base import Desired
from agent.publish.cluster.exchange import Exchange
from agent.publish.cluster.site import Pause, Site
from agent.publish.cluster.state import Phase, WriterState

ROUNDS = 6  # requests of one turn: read, own anew, write, look again after a conflict


class Writer:
    """One object. Everything here belongs to the loop thread."""

    def __init__(self, publisher: str, first: Desired, site: Site) -> None:
        self._site = site
        self._exchange = Exchange(publisher, first, site)
        self._desired: Desired | None = None
        self._offered_s: float | None = None  # monotonic, of the oldest content not acknowledged
        self._last_offer_s = 0.0
        self._wake, self._nudge = asyncio.Event(), asyncio.Event()
        self._closing = False

    @property
    def state(self) -> WriterState:
        """Say how it stands."""
        return self._exchange.state

    @property
    def wanted(self) -> bool:
        """Say whether anything is wanted of the object now."""
        return self._desired is not None

    @property
    def _pending(self) -> bool:
        return self._desired is not None and self._desired is not self._exchange.acked

    def want(self, desired: Desired | None) -> None:
        """Take what is wanted now in the place of what was; `None`: nothing is known of it."""
        if desired == self._desired:
            return
        self._desired = desired
        self._last_offer_s = self._site.clock.monotonic()
        if desired is None:
            self._offered_s = None
            self._exchange.standing.set(pending_since_s=None, phase=Phase.IDLE, error="", rivals=())
        elif self._offered_s is None:
            self._offered_s = self._last_offer_s
            self._exchange.standing.set(pending_since_s=self._site.clock.wall())
        if desired is not None and self.state.phase is Phase.IDLE:
            self._exchange.standing.set(phase=Phase.PENDING)
        self._wake.set()

    def look_again(self) -> None:
        """Look at once for what is waited for: a right, a CRD, an object that others make.

        Also where nothing is wanted now: what will be would be judged by an object that lacked.
        """
        waited_for = (Phase.WAITING, Phase.ABSENT, Phase.FORBIDDEN)
        if self.state.phase in waited_for or self._exchange.known.lacks_object:
            self._exchange.known.forget()
            self._nudge.set()

    def observe(self, version: str | None) -> None:
        """Take the version that a watch reports of the object; `None`: there is none."""
        if self.state.phase is Phase.ABSENT:
            self.look_again()
            return
        self._exchange.known.observe(version)
        if self._exchange.known.is_outdated:
            self._nudge.set()

    def finish(self) -> None:
        """End `run`, after one more try if anything is pending."""
        self._closing = True
        self._nudge.set()

    def broke(self, error: str) -> None:
        """Take in that `run` ended by a bug; it is to be started again after a pause."""
        self._exchange.known.forget()
        self._exchange.standing.set(phase=Phase.PENDING, error=error[:200])

    async def run(self) -> None:
        """Write for ever, or until `finish`."""
        while True:
            self._wake.clear()
            self._nudge.clear()
            last = self._closing
            pause = await self._turn()
            if last or (self._closing and not self._pending):
                return
            await self._rest(pause)

    async def _turn(self) -> Pause:
        written = self.state.written
        pause: Pause | None = None
        for _ in range(ROUNDS):
            if self._desired is None:
                return Pause(self._site.pace.resync_s)
            try:
                pause = await self._exchange.step(self._desired)
            except ApiError as error:
                pause = self._exchange.failed(error)
            except ParseError as error:
                pause = self._exchange.failed(BadAnswer(f"write {self.state.kind}", str(error)))
            if pause is not None:
                break
            await asyncio.sleep(0)  # the answer was decoded just now
        else:
            pause = self._exchange.crowded()
        self._account(self.state.written > written)
        return pause

    def _account(self, wrote: bool) -> None:
        """Tell how long the newest acknowledged content took."""
        if self._offered_s is None or self._pending:
            return
        latency_s = self._site.clock.monotonic() - self._offered_s
        self._offered_s = None
        self._exchange.standing.set(pending_since_s=None)
        if wrote:
            self._exchange.standing.set(ack_latency_s=latency_s)

    async def _rest(self, pause: Pause) -> None:
        events = (self._nudge, self._wake) if pause.wakes else (self._nudge,)
        waits: list[asyncio.Task[object]] = [
            asyncio.create_task(_whole(event.wait())) for event in events
        ]
        waits.append(asyncio.create_task(_whole(self._site.sleep(pause.seconds))))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


async def _whole(work: Awaitable[object]) -> object:
    return await work
