"""Events as they are heard, answered and lost; played into a pipe instead of a kernel's socket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent.app import hotplug
from agent.app.hotplug import HotplugListener
from agent.clock import SystemClock
from agent.host.hotplug import ALL_SCOPES
from agent.host.uevents import RescanScope, Uevent, UeventsLost, UeventsUnavailable
from agent.messages import FunctionRemoved, Message, MessageQueue
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore
from tests.patience import PATIENCE_S

CARD = "0000:26:00.0"
REMOVAL = Uevent(action="remove", subsystem="pci", devpath="/devices/x", address=CARD)
DEADLINE_S = PATIENCE_S


class Played:
    """A monitor that hears what a test says, an error included."""

    def __init__(self) -> None:
        self._said: list[Uevent | str | Exception] = []
        self.open()

    def open(self) -> None:
        self._read, self._write = os.pipe()
        self.closed = False

    def say(self, *what: Uevent | str | Exception) -> None:
        self._said += what
        os.write(self._write, b"x")

    def fileno(self) -> int:
        return self._read

    def read_events(self) -> list[Uevent | str]:
        os.read(self._read, 1)
        output, self._said = self._said, []
        for item in output:
            if isinstance(item, Exception):
                raise item
        return [item for item in output if not isinstance(item, Exception)]

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)
        self.closed = True


class Reactions:
    """What was done about events, in order."""

    def __init__(self) -> None:
        self.did: list[object] = []
        self.messages = Messages(self)
        self.changed = asyncio.Event()
        self.bugs: list[Exception] = []  # each ends one rescan

    def note(self, what: object) -> None:
        self.did.append(what)
        self.changed.set()

    async def rescan(self, parts: frozenset[RescanScope]) -> None:
        self.note(parts)
        if self.bugs:
            raise self.bugs.pop()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.changed.clear()
            await self.changed.wait()


class Messages(MessageQueue):
    """Notes which function was removed."""

    def __init__(self, observations: Reactions) -> None:
        super().__init__()
        self._seen = observations

    def put(self, message: Message) -> None:
        assert isinstance(message, FunctionRemoved)
        self._seen.note(message.address)


def run(
    test: Callable[[Reactions, Played, SnapshotStore], Coroutine[None, None, None]],
    *first: Exception,
) -> None:
    """Run a test against a listening `Uevents`; the first attempts to listen fail so."""

    async def bounded() -> None:
        observations, played = Reactions(), Played()
        refusals = list(first)
        store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))

        def listen() -> Played:
            if refusals:
                raise refusals.pop(0)
            if played.closed:
                played.open()
            return played

        with ThreadPoolExecutor(1) as thread:
            task = asyncio.create_task(
                HotplugListener(
                    store,
                    SystemClock(),
                    observations,
                    thread,
                    messages=observations.messages,
                    on_listening_changed=lambda heard: observations.note(
                        "heard" if heard else "deaf"
                    ),
                    open_monitor=listen,
                ).run()
            )
            async with asyncio.timeout(DEADLINE_S):
                await test(observations, played, store)
            task.cancel()
            await asyncio.wait({task})
        assert played.closed

    asyncio.run(bounded())


def test_the_host_is_read_once_when_listening_begins() -> None:
    async def test(observations: Reactions, _: Played, store: SnapshotStore) -> None:
        await observations.until(lambda: len(observations.did) == 2)
        assert observations.did == ["heard", {RescanScope.HOST}]
        assert store.current.hotplug.state == "listening"
        assert store.current.hotplug.scans == (("start", 1),)

    run(test)


def test_a_removed_function_is_reported_before_anything_is_read() -> None:
    async def test(observations: Reactions, played: Played, store: SnapshotStore) -> None:
        await observations.until(lambda: len(observations.did) == 2)
        played.say(REMOVAL, "refused")
        await observations.until(lambda: len(observations.did) == 4)
        assert observations.did[2:] == [CARD, ALL_SCOPES]
        assert store.current.hotplug.seen == (("pci", 1),)
        assert store.current.hotplug.dropped == (("refused", 1),)

    run(test)


def test_lost_events_make_a_full_look() -> None:
    async def test(observations: Reactions, played: Played, store: SnapshotStore) -> None:
        await observations.until(lambda: len(observations.did) == 2)
        played.say(UeventsLost("too many"))
        await observations.until(lambda: len(observations.did) == 3)
        assert observations.did[2] == ALL_SCOPES
        assert store.current.hotplug.scans == (("lost", 1), ("start", 1))

    run(test)


def test_a_machine_without_events_says_so_and_is_polled_until_there_are_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hotplug, "LISTEN_RETRY_S", 0.05)

    async def test(observations: Reactions, _: Played, store: SnapshotStore) -> None:
        await observations.until(lambda: observations.did[:1] == ["deaf"])
        assert store.current.hotplug.state == "polling"
        assert store.current.hotplug.problem == "no libudev"
        await observations.until(lambda: "heard" in observations.did)
        assert observations.did[:3] == ["deaf", ALL_SCOPES, "heard"]
        assert (store.current.hotplug.state, store.current.hotplug.problem) == ("listening", "")

    run(test, UeventsUnavailable("no libudev"))


def test_a_socket_that_ends_is_opened_again_and_everything_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hotplug, "LISTEN_RETRY_S", 3600.0)

    async def test(observations: Reactions, played: Played, store: SnapshotStore) -> None:
        await observations.until(lambda: len(observations.did) == 2)
        played.say(UeventsUnavailable("the socket was closed"))
        await observations.until(lambda: "deaf" in observations.did)
        assert store.current.hotplug.problem == "the socket was closed"
        assert played.closed

    run(test)


def test_a_rescan_that_fails_with_a_bug_does_not_end_the_listening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hotplug, "RESTART_S", 0.01)

    async def test(observations: Reactions, played: Played, store: SnapshotStore) -> None:
        await observations.until(lambda: len(observations.did) == 2)
        observations.bugs.append(ZeroDivisionError("a bug"))
        played.say(UeventsLost("too many"))
        await observations.until(lambda: "deaf" in observations.did)
        assert store.current.hotplug.problem == "ZeroDivisionError: a bug"
        await observations.until(lambda: observations.did[-2:] == ["heard", ALL_SCOPES])
        assert (store.current.hotplug.state, store.current.hotplug.problem) == ("listening", "")

    run(test)
