"""Keeps the agent's objects at the API server as the publishers last offered them.

Keeps one object at the server as it is wanted: the newest content, one call at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from agent.errors import ParseError
from agent.kube.errors import ApiError, BadResponse
from agent.kube.writer.context import WriterContext, WriterPause
from agent.kube.writer.decision import SlotKey, slot_of
from agent.kube.writer.reconciler import ObjectReconciler
from agent.loop import run_forever
from agent.snapshot.publications import DesiredObject, WriterPhase, WriterState

RESTART_S = 1.0  # after a bug, doubled each time


class ApiWriter:
    """Keeps objects at the server as they were last offered. Belongs to the loop thread.

    One call at a time for each object; what is offered meanwhile replaces what was offered
    before, so nothing piles up. Nothing is kept on disk: the server is the truth, and a process
    that is killed anywhere leaves the old object or the new one.
    """

    def __init__(self, site: WriterContext) -> None:
        self._site = site
        self._writers: dict[SlotKey, ObjectWriter] = {}
        self._offered: dict[str, frozenset[SlotKey]] = {}  # by publisher
        self._tasks: dict[SlotKey, asyncio.Task[None]] = {}
        self._running = False
        self._closed = asyncio.Event()

    def offer(self, publisher: str, desired: tuple[DesiredObject, ...]) -> None:
        """Take all that a publisher wants to exist now; equal content costs nothing.

        What it wanted before and no longer names is left as it is at the server: only an
        `absent` object is removed. A kind that is not known is a `ValueError`.
        """
        keys = set()
        for item in desired:
            key = slot_of(item)
            keys.add(key)
            if key not in self._writers:
                self._writers[key] = ObjectWriter(publisher, item, self._site)
                self._start(key)
            self._writers[key].set_desired(item)
        for key in self._offered.get(publisher, frozenset()) - keys:
            self._writers[key].set_desired(None)
        self._offered[publisher] = frozenset(keys)

    def recheck(self, kind: str) -> None:
        """Look at once for objects of a kind that are waited for: a watch says that one came.

        Costs nothing where nothing is waited for, so that every event of a watch may call it.
        """
        for key, writer in self._writers.items():
            if key[1] == kind:
                writer.recheck()

    def note_version(self, kind: str, version: str | None) -> None:
        """Take the version that a watch reports of the node's object; `None`: there is none.

        A writer reads the object if the version is not that of the last answer.
        """
        for key, writer in self._writers.items():
            if key[1] == kind:
                writer.note_version(version)

    def states(self) -> tuple[WriterState, ...]:
        """Tell how each object stands, in the order of their first offers; any thread may ask.

        An object that is written in another version now is told once, as it stands in that.
        """
        told: dict[tuple[str, str, bool], ObjectWriter] = {}
        for (_, kind, name, status_only), writer in list(self._writers.items()):
            slot = (kind, name, status_only)
            if writer.is_wanted or slot not in told:
                told[slot] = writer
        return tuple(writer.state for writer in told.values())

    async def run(self) -> None:
        """Write until `close`; ends when cancelled, and never deletes anything by that."""
        self._running = True
        for key in self._writers:
            self._start(key)
        try:
            await self._closed.wait()
        finally:
            self._running = False
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def close(self, deadline_s: float) -> None:
        """Give what is pending one more try, all together for so long; then `run` ends."""
        for writer in self._writers.values():
            writer.finish()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=deadline_s)
        self._closed.set()

    def _start(self, key: SlotKey) -> None:
        if self._running and key not in self._tasks:
            name, writer, site = f"write {key[1]}", self._writers[key], self._site
            # a bug in writing one object must not stop the others
            kept = run_forever(
                name,
                writer.run,
                again_s=RESTART_S,
                monotonic=site.clock.monotonic,
                sleep=site.sleep,
                failed=writer.record_crash,
            )
            self._tasks[key] = asyncio.create_task(kept, name=name)


MAX_REQUESTS_PER_TURN = (
    6  # requests of one turn: read, own anew, write, look again after a conflict
)


class ObjectWriter:
    """One object. Everything here belongs to the loop thread."""

    def __init__(self, publisher: str, first: DesiredObject, site: WriterContext) -> None:
        self._site = site
        self._reconciler = ObjectReconciler(publisher, first, site)
        self._desired: DesiredObject | None = None
        self._offered_s: float | None = None  # monotonic, of the oldest content not acknowledged
        self._last_offer_s = 0.0
        self._wake, self._nudge = asyncio.Event(), asyncio.Event()
        self._closing = False

    @property
    def state(self) -> WriterState:
        """Say how it stands."""
        return self._reconciler.state

    @property
    def is_wanted(self) -> bool:
        """Say whether anything is wanted of the object now."""
        return self._desired is not None

    @property
    def _pending(self) -> bool:
        return self._desired is not None and self._desired is not self._reconciler.last_confirmed

    def set_desired(self, desired: DesiredObject | None) -> None:
        """Take what is wanted now in the place of what was; `None`: nothing is known of it."""
        if desired == self._desired:
            return
        self._desired = desired
        self._last_offer_s = self._site.clock.monotonic()
        if desired is None:
            self._offered_s = None
            self._reconciler.reporter.update(
                pending_since_s=None, phase=WriterPhase.IDLE, error="", conflicts=()
            )
        elif self._offered_s is None:
            self._offered_s = self._last_offer_s
            self._reconciler.reporter.update(pending_since_s=self._site.clock.wall())
        if desired is not None and self.state.phase is WriterPhase.IDLE:
            self._reconciler.reporter.update(phase=WriterPhase.PENDING)
        self._wake.set()

    def recheck(self) -> None:
        """Look at once for what is waited for: a right, a CRD, an object that others make.

        Also where nothing is wanted now: what will be would be judged by an object that lacked.
        """
        waited_for = (WriterPhase.WAITING, WriterPhase.ABSENT, WriterPhase.FORBIDDEN)
        if self.state.phase in waited_for or self._reconciler.cache.is_object_missing:
            self._reconciler.cache.clear()
            self._nudge.set()

    def note_version(self, version: str | None) -> None:
        """Take the version that a watch reports of the object; `None`: there is none."""
        if self.state.phase is WriterPhase.ABSENT:
            self.recheck()
            return
        self._reconciler.cache.note_version(version)
        if self._reconciler.cache.is_outdated:
            self._nudge.set()

    def finish(self) -> None:
        """End `run`, after one more try if anything is pending."""
        self._closing = True
        self._nudge.set()

    def record_crash(self, error: str) -> None:
        """Take in that `run` ended by a bug; it is to be started again after a pause."""
        self._reconciler.cache.clear()
        self._reconciler.reporter.update(phase=WriterPhase.PENDING, error=error[:200])

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

    async def _turn(self) -> WriterPause:
        written = self.state.written
        pause: WriterPause | None = None
        for _ in range(MAX_REQUESTS_PER_TURN):
            if self._desired is None:
                return WriterPause(self._site.timing.resync_s)
            try:
                pause = await self._reconciler.step(self._desired)
            except ApiError as error:
                pause = self._reconciler.handle_error(error)
            except ParseError as error:
                pause = self._reconciler.handle_error(
                    BadResponse(f"write {self.state.kind}", str(error))
                )
            if pause is not None:
                break
            await asyncio.sleep(0)  # the answer was decoded just now
        else:
            pause = self._reconciler.back_off()
        self._account(self.state.written > written)
        return pause

    def _account(self, wrote: bool) -> None:
        """Tell how long the newest acknowledged content took."""
        if self._offered_s is None or self._pending:
            return
        latency_s = self._site.clock.monotonic() - self._offered_s
        self._offered_s = None
        self._reconciler.reporter.update(pending_since_s=None)
        if wrote:
            self._reconciler.reporter.update(ack_latency_s=latency_s)

    async def _rest(self, pause: WriterPause) -> None:
        events = (self._nudge, self._wake) if pause.ends_on_content else (self._nudge,)
        waits: list[asyncio.Task[object]] = [
            asyncio.create_task(_as_coroutine(event.wait())) for event in events
        ]
        waits.append(asyncio.create_task(_as_coroutine(self._site.sleep(pause.seconds))))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


async def _as_coroutine(work: Awaitable[object]) -> object:
    return await work
