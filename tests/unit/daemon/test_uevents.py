"""Events as they are heard, answered and lost; played into a pipe instead of a kernel's socket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent.clock import SystemClock
from agent.daemon.reactions import uevents
from agent.daemon.reactions.uevents import Uevents
from agent.hotplug.monitor import CannotListen, EventsLost
from agent.hotplug.uevent import Part, Uevent
from agent.hotplug.window import EVERYTHING
from agent.model.snapshot import NodeIdentity, NodeSnapshot
from agent.node.store import SnapshotStore
from tests.patience import PATIENCE_S

CARD = "0000:26:00.0"
GONE = Uevent(action="remove", subsystem="pci", devpath="/devices/x", address=CARD)
DEADLINE_S = PATIENCE_S


class Played:
    """A monitor that hears what a test says, an error included."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._said: list[Uevent | str | Exception] = []
        self.closed = False

    def say(self, *what: Uevent | str | Exception) -> None:
        self._said += what
        os.write(self._write, b"x")

    def fileno(self) -> int:
        return self._read

    def take(self) -> list[Uevent | str]:
        os.read(self._read, 1)
        said, self._said = self._said, []
        for item in said:
            if isinstance(item, Exception):
                raise item
        return [item for item in said if not isinstance(item, Exception)]

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)
        self.closed = True


class Seen:
    """What was done about events, in order."""

    def __init__(self) -> None:
        self.did: list[object] = []
        self.changed = asyncio.Event()

    def note(self, what: object) -> None:
        self.did.append(what)
        self.changed.set()

    def left(self, address: str) -> None:
        self.note(address)

    async def look(self, parts: frozenset[Part]) -> None:
        self.note(parts)

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.changed.clear()
            await self.changed.wait()


def run(
    test: Callable[[Seen, Played, SnapshotStore], Coroutine[None, None, None]],
    *first: Exception,
) -> None:
    """Run a test against a listening `Uevents`; the first attempts to listen fail so."""

    async def bounded() -> None:
        seen, played = Seen(), Played()
        refusals = list(first)
        store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))

        def listen() -> Played:
            if refusals:
                raise refusals.pop(0)
            return played

        with ThreadPoolExecutor(1) as thread:
            task = asyncio.create_task(
                Uevents(
                    store,
                    SystemClock(),
                    seen,
                    thread,
                    tell=lambda *told: seen.note(told),
                    on_pace=lambda heard: seen.note("heard" if heard else "deaf"),
                    open_monitor=listen,
                ).run()
            )
            async with asyncio.timeout(DEADLINE_S):
                await test(seen, played, store)
            task.cancel()
            await asyncio.wait({task})
        assert played.closed

    asyncio.run(bounded())


def test_the_host_is_looked_at_once_when_listening_begins() -> None:
    async def test(seen: Seen, _: Played, store: SnapshotStore) -> None:
        await seen.until(lambda: len(seen.did) == 2)
        assert seen.did == ["heard", {Part.HOST}]
        assert store.current.hotplug.state == "listening"
        assert store.current.hotplug.scans == (("start", 1),)

    run(test)


def test_a_removed_function_is_told_before_anything_is_looked_at() -> None:
    async def test(seen: Seen, played: Played, store: SnapshotStore) -> None:
        await seen.until(lambda: len(seen.did) == 2)
        played.say(GONE, "refused")
        await seen.until(lambda: len(seen.did) == 4)
        assert seen.did[2:] == [CARD, EVERYTHING]
        assert store.current.hotplug.seen == (("pci", 1),)
        assert store.current.hotplug.dropped == (("refused", 1),)

    run(test)


def test_lost_events_make_a_full_look() -> None:
    async def test(seen: Seen, played: Played, store: SnapshotStore) -> None:
        await seen.until(lambda: len(seen.did) == 2)
        played.say(EventsLost("too many"))
        await seen.until(lambda: len(seen.did) == 3)
        assert seen.did[2] == EVERYTHING
        assert store.current.hotplug.scans == (("lost", 1), ("start", 1))

    run(test)


def test_a_machine_without_events_says_so_and_is_polled_until_there_are_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uevents, "RETRY_S", 0.05)

    async def test(seen: Seen, _: Played, store: SnapshotStore) -> None:
        await seen.until(lambda: seen.did[:1] == ["deaf"])
        assert store.current.hotplug.state == "polling"
        assert store.current.hotplug.problem == "no libudev"
        await seen.until(lambda: "heard" in seen.did)
        assert seen.did[:3] == ["deaf", EVERYTHING, "heard"]
        assert (store.current.hotplug.state, store.current.hotplug.problem) == ("listening", "")

    run(test, CannotListen("no libudev"))


def test_a_socket_that_ends_is_opened_again_and_all_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uevents, "RETRY_S", 3600.0)

    async def test(seen: Seen, played: Played, store: SnapshotStore) -> None:
        await seen.until(lambda: len(seen.did) == 2)
        played.say(CannotListen("the socket was closed"))
        await seen.until(lambda: "deaf" in seen.did)
        assert store.current.hotplug.problem == "the socket was closed"
        assert played.closed

    run(test)
