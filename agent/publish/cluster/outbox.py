"""Everything that is written to the API server of our objects, each in a slot of its own."""

from __future__ import annotations

import asyncio

from agent.loop import keep
from agent.publish.base import Desired
from agent.publish.cluster.intent import Key, key_of
from agent.publish.cluster.site import Site
from agent.publish.cluster.state import WriterState
from agent.publish.cluster.writer import Writer

AGAIN_S = 1.0  # after a bug, doubled each time


class Outbox:
    """Keeps objects at the server as they were last offered. Belongs to the loop thread.

    One call at a time for each object; what is offered meanwhile replaces what was offered
    before, so nothing piles up. Nothing is kept on disk: the server is the truth, and a process
    that is killed anywhere leaves the old object or the new one.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._writers: dict[Key, Writer] = {}
        self._offered: dict[str, frozenset[Key]] = {}  # by publisher
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._running = False
        self._closed = asyncio.Event()

    def offer(self, publisher: str, desired: tuple[Desired, ...]) -> None:
        """Take all that a publisher wants to exist now; equal content costs nothing.

        What it wanted before and no longer names is left as it is at the server: only an
        `absent` object is removed. A kind that is not known is a `ValueError`.
        """
        keys = set()
        for item in desired:
            key = key_of(item)
            keys.add(key)
            if key not in self._writers:
                self._writers[key] = Writer(publisher, item, self._site)
                self._start(key)
            self._writers[key].want(item)
        for key in self._offered.get(publisher, frozenset()) - keys:
            self._writers[key].want(None)
        self._offered[publisher] = frozenset(keys)

    def look_again(self, kind: str) -> None:
        """Look at once for objects of a kind that are waited for: a watch says that one came.

        Costs nothing where nothing is waited for, so that every event of a watch may call it.
        """
        for key, writer in self._writers.items():
            if key[1] == kind:
                writer.look_again()

    def observe(self, kind: str, version: str | None) -> None:
        """Take the version that a watch reports of the node's object; `None`: there is none.

        A writer reads the object if the version is not that of the last answer.
        """
        for key, writer in self._writers.items():
            if key[1] == kind:
                writer.observe(version)

    def states(self) -> tuple[WriterState, ...]:
        """Tell how each object stands, in the order of their first offers; any thread may ask.

        An object that is written in another version now is told once, as it stands in that.
        """
        told: dict[tuple[str, str, bool], Writer] = {}
        for (_, kind, name, status_only), writer in list(self._writers.items()):
            slot = (kind, name, status_only)
            if writer.wanted or slot not in told:
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

    def _start(self, key: Key) -> None:
        if self._running and key not in self._tasks:
            name, writer, site = f"write {key[1]}", self._writers[key], self._site
            # a bug in writing one object must not stop the others
            kept = keep(
                name,
                writer.run,
                again_s=AGAIN_S,
                monotonic=site.clock.monotonic,
                sleep=site.sleep,
                failed=writer.broke,
            )
            self._tasks[key] = asyncio.create_task(kept, name=name)
