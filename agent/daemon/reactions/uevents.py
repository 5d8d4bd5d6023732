"""Hears the kernel's events, and has looked at what they are about; without them it looks often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from agent.clock import Clock
from agent.hotplug.complete import missing
from agent.hotplug.monitor import CannotListen, EventsLost, UeventMonitor
from agent.hotplug.tracker import Tracker
from agent.hotplug.uevent import Part, Uevent
from agent.hotplug.window import EVERYTHING
from agent.model.snapshot import HotplugView
from agent.node.store import SnapshotStore

log = logging.getLogger(__name__)

RETRY_S = 30.0  # without events: a look at everything, and another attempt to hear them
IDLE_S = 3600.0  # how long nothing may be due

Tell = Callable[[str, str], None]  # reason and message of an event for people; quick


class Monitor(Protocol):
    """Where events come from."""

    def fileno(self) -> int:
        """Return what becomes readable."""
        ...

    def take(self) -> list[Uevent | str]:
        """Return what has come, without waiting."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class Reaction(Protocol):
    """What can be done about events."""

    def left(self, address: str) -> None:
        """Say at once that the devices of a function are gone."""
        ...

    async def look(self, parts: frozenset[Part]) -> None:
        """Read again what may be another."""
        ...


class Uevents:
    """Lives in the loop thread; `run` ends when it is cancelled."""

    def __init__(
        self,
        store: SnapshotStore,
        clock: Clock,
        reaction: Reaction,
        executor: Executor,
        *,
        tell: Tell,
        on_pace: Callable[[bool], None],
        open_monitor: Callable[[], Monitor] = UeventMonitor,
    ) -> None:
        """`on_pace` is told whether the kernel tells of changes, or everybody has to look."""
        self._store = store
        self._clock = clock
        self._reaction = reaction
        self._executor = executor
        self._tell = tell
        self._on_pace = on_pace
        self._open_monitor = open_monitor
        self._tracker = Tracker()
        self._wake = asyncio.Event()
        self._problem = ""

    async def run(self) -> None:
        """Listen for ever; where that is not possible, look at everything every half minute."""
        loop = asyncio.get_running_loop()
        cause, parts = "start", frozenset((Part.HOST,))  # the vendors were asked just now
        while True:
            monitor: Monitor | None = None
            try:
                monitor = await loop.run_in_executor(self._executor, self._open_monitor)
                # what changed before the first event could be heard
                self._tracker.must_look(self._clock.monotonic(), cause, parts)
                self._state("")
                await self._listen(monitor)
            except CannotListen as error:
                self._state(str(error))
            finally:
                if monitor is not None:
                    monitor.close()
            cause, parts = "lost", EVERYTHING
            await asyncio.sleep(RETRY_S)
            self._tracker.must_look(self._clock.monotonic(), "poll")
            await self._due(at_once=True)

    def _state(self, problem: str) -> None:
        if problem != self._problem or self._store.current.hotplug.state == "off":
            log.log(
                logging.WARNING if problem else logging.INFO,
                "uevents_missing" if problem else "uevents_heard",
                extra={"error": problem},
            )
        self._problem = problem
        self._on_pace(not problem)
        self._show()

    async def _listen(self, monitor: Monitor) -> None:
        """Take events as they come until there can be no more."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def readable() -> None:
            try:
                self._take(monitor)
            except CannotListen as error:
                if not ended.done():
                    ended.set_exception(error)
            self._wake.set()

        loop.add_reader(monitor.fileno(), readable)
        try:
            while not ended.done():
                await self._due()
                await self._wait()
            ended.result()
        finally:
            loop.remove_reader(monitor.fileno())

    def _take(self, monitor: Monitor) -> None:
        now_s = self._clock.monotonic()
        try:
            for event in monitor.take():
                address = self._tracker.hear(event, now_s)
                if address is not None:
                    self._reaction.left(address)
        except EventsLost:
            log.warning("uevents_lost")
            self._tracker.must_look(now_s, "lost")
        self._show()

    async def _wait(self) -> None:
        next_s = self._tracker.next_s
        pause_s = IDLE_S if next_s is None else max(0.0, next_s - self._clock.monotonic())
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _due(self, *, at_once: bool = False) -> None:
        """Do what is due, or all that waits."""
        now_s = self._clock.monotonic()
        if at_once:
            now_s = max(now_s, self._tracker.next_s or now_s)
        look, due = self._tracker.take(now_s, self._missing)
        for address, lacks in due.incomplete:
            self._tell("DeviceIncomplete", f"{address}: still without {', '.join(lacks)}")
        if look is not None:
            self._show()
            await self._reaction.look(look.parts)

    def _missing(self, address: str) -> tuple[str, ...]:
        return missing(self._store.current, address)

    def _show(self) -> None:
        view = HotplugView(
            state="polling" if self._problem else "listening",
            problem=self._problem,
            seen=self._tracker.seen,
            dropped=self._tracker.dropped,
            scans=self._tracker.looks,
        )
        self._store.put(hotplug=view)
