"""Writes the objects that publishers offer to the API server, one call at a time per object."""

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

RESTART_S = 1.0  # after an unexpected exception, doubled each time


class ApiWriter:
    """Keeps objects at the server as they were last offered. Belongs to the loop thread.

    There is one call at a time for each object; a newer content replaces an unsent one, so nothing
    piles up. Nothing is stored on disk: a process that is killed leaves the old object or the new
    one at the server.
    """

    def __init__(self, context: WriterContext) -> None:
        self._context = context
        self._writers: dict[SlotKey, ObjectWriter] = {}
        self._offered: dict[str, frozenset[SlotKey]] = {}  # by publisher
        self._tasks: dict[SlotKey, asyncio.Task[None]] = {}
        self._running = False
        self._closed = asyncio.Event()

    def offer(self, publisher: str, desired: tuple[DesiredObject, ...]) -> None:
        """Take all objects that a publisher wants to exist now; equal content causes no call.

        An object that the publisher no longer names stays at the server: only an `absent` object is
        removed. An unknown kind raises `ValueError`.
        """
        keys = set()
        for item in desired:
            key = slot_of(item)
            keys.add(key)
            if key not in self._writers:
                self._writers[key] = ObjectWriter(publisher, item, self._context)
                self._start(key)
            self._writers[key].set_desired(item)
        for key in self._offered.get(publisher, frozenset()) - keys:
            self._writers[key].set_desired(None)
        self._offered[publisher] = frozenset(keys)

    def recheck(self, kind: str) -> None:
        """Read the missing objects of a kind at once: a watch reported one.

        Without a missing object this costs nothing, so it may be called for every event of a watch.
        """
        for key, writer in self._writers.items():
            if key[1] == kind:
                writer.recheck()

    def note_version(self, kind: str, version: str | None) -> None:
        """Take the version of the node's object that a watch reports; `None` if there is no object.

        A writer reads the object if the version is not that of the last response.
        """
        for key, writer in self._writers.items():
            if key[1] == kind:
                writer.note_version(version)

    def states(self) -> tuple[WriterState, ...]:
        """Return the state of each object, in the order of the first offers.

        Any thread may call this. An object whose API version changed is returned once, with the
        state in its current version.
        """
        writers: dict[tuple[str, str, bool], ObjectWriter] = {}
        for (_, kind, name, status_only), writer in list(self._writers.items()):
            slot = (kind, name, status_only)
            if writer.has_desired or slot not in writers:
                writers[slot] = writer
        return tuple(writer.state for writer in writers.values())

    def uid(self, kind: str) -> str:
        """Return the uid of the object of a kind; empty while it is unknown. For any thread."""
        return next((state.uid for state in self.states() if state.kind == kind), "")

    async def run(self) -> None:
        """Write until `close`. Cancelling ends it and deletes no object."""
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
        """Give all pending objects one more try within the deadline; then `run` ends."""
        for writer in self._writers.values():
            writer.finish()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=deadline_s)
        self._closed.set()

    def _start(self, key: SlotKey) -> None:
        if self._running and key not in self._tasks:
            name, writer, context = f"write {key[1]}", self._writers[key], self._context
            # an unexpected exception for one object must not stop the others
            work = run_forever(
                name,
                writer.run,
                again_s=RESTART_S,
                monotonic=context.clock.monotonic,
                sleep=context.sleep,
                failed=writer.record_crash,
            )
            self._tasks[key] = asyncio.create_task(work, name=name)


MAX_REQUESTS_PER_TURN = (
    6  # requests of one turn: read, repair the owner, write, read after a conflict
)


class ObjectWriter:
    """Writes one object. Belongs to the loop thread."""

    def __init__(self, publisher: str, first: DesiredObject, context: WriterContext) -> None:
        self._context = context
        self._reconciler = ObjectReconciler(publisher, first, context)
        self._desired: DesiredObject | None = None
        self._offered_s: float | None = None  # monotonic, of the oldest content not acknowledged
        self._last_offer_s = 0.0
        self._content_event, self._recheck_event = asyncio.Event(), asyncio.Event()
        self._closing = False

    @property
    def state(self) -> WriterState:
        """Return the public state of the object."""
        return self._reconciler.state

    @property
    def has_desired(self) -> bool:
        """Return whether the publisher currently wants anything of the object."""
        return self._desired is not None

    @property
    def _pending(self) -> bool:
        return self._desired is not None and self._desired is not self._reconciler.last_confirmed

    def set_desired(self, desired: DesiredObject | None) -> None:
        """Replace the desired content; `None`: the publisher does not name the object."""
        if desired == self._desired:
            return
        self._desired = desired
        self._last_offer_s = self._context.clock.monotonic()
        if desired is None:
            self._offered_s = None
            self._reconciler.reporter.update(
                pending_since_s=None, phase=WriterPhase.IDLE, error="", conflicts=()
            )
        elif self._offered_s is None:
            self._offered_s = self._last_offer_s
            self._reconciler.reporter.update(pending_since_s=self._context.clock.wall())
        if desired is not None and self.state.phase is WriterPhase.IDLE:
            self._reconciler.reporter.update(phase=WriterPhase.PENDING)
        self._content_event.set()

    def recheck(self) -> None:
        """Read at once what is missing: a permission, a CRD, an object that others create.

        This applies without desired content too: later content must not be compared with a missing
        object.
        """
        waited_for = (WriterPhase.WAITING, WriterPhase.ABSENT, WriterPhase.FORBIDDEN)
        if self.state.phase in waited_for or self._reconciler.cache.is_object_missing:
            self._reconciler.cache.clear()
            self._recheck_event.set()

    def note_version(self, version: str | None) -> None:
        """Take the version of the object that a watch reports; `None` if there is no object."""
        if self.state.phase is WriterPhase.ABSENT:
            self.recheck()
            return
        self._reconciler.cache.note_version(version)
        if self._reconciler.cache.is_outdated:
            self._recheck_event.set()

    def finish(self) -> None:
        """End `run`, after one more try if a change is pending."""
        self._closing = True
        self._recheck_event.set()

    def record_crash(self, error: str) -> None:
        """Record that `run` ended with an unexpected exception; it is started again later."""
        self._reconciler.cache.clear()
        self._reconciler.reporter.update(phase=WriterPhase.PENDING, error=error[:200])

    async def run(self) -> None:
        """Write until `finish`."""
        while True:
            self._content_event.clear()
            self._recheck_event.clear()
            last = self._closing
            pause = await self._turn()
            if last or (self._closing and not self._pending):
                return
            await self._wait(pause)

    async def _turn(self) -> WriterPause:
        written = self.state.written
        pause: WriterPause | None = None
        for _ in range(MAX_REQUESTS_PER_TURN):
            if self._desired is None:
                return WriterPause(self._context.timing.resync_s)
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
            await asyncio.sleep(0)  # decoding the response took its time
        else:
            pause = self._reconciler.back_off()
        self._record_latency(self.state.written > written)
        return pause

    def _record_latency(self, wrote: bool) -> None:
        """Report how long the newest acknowledged content took."""
        if self._offered_s is None or self._pending:
            return
        latency_s = self._context.clock.monotonic() - self._offered_s
        self._offered_s = None
        self._reconciler.reporter.update(pending_since_s=None)
        if wrote:
            self._reconciler.reporter.update(ack_latency_s=latency_s)

    async def _wait(self, pause: WriterPause) -> None:
        events = (
            (self._recheck_event, self._content_event)
            if pause.ends_on_content
            else (self._recheck_event,)
        )
        waits: list[asyncio.Task[object]] = [
            asyncio.create_task(_as_coroutine(event.wait())) for event in events
        ]
        waits.append(asyncio.create_task(_as_coroutine(self._context.sleep(pause.seconds))))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


async def _as_coroutine(work: Awaitable[object]) -> object:
    return await work
