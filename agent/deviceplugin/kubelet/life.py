"""The life of one resource with the kubelet: served, registered, watched, and all of it again.

Each time begins with a new server in a file of its own, and ends with that server stopped: the
kubelet takes the end of an old stream for that of the newest server of the resource.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from agent.deviceplugin.kubelet.folder import File, FolderSeen, KubeletFolder
from agent.deviceplugin.kubelet.registering import NotRegistered, register
from agent.deviceplugin.kubelet.standing import (
    CONFLICT,
    REFUSED,
    REGISTERED,
    REGISTERING,
    WAITING,
    WATCHED,
    Standing,
)
from agent.deviceplugin.rivals import rival
from agent.deviceplugin.serve.answering import Answering
from agent.deviceplugin.serve.bell import Bell
from agent.deviceplugin.serve.figures import OK
from agent.deviceplugin.serve.incarnation import CannotServe, Incarnation
from agent.deviceplugin.serve.site import Site

MAX_SAID = 5  # sockets of others in a message


class Life:
    """Belongs to the loop thread. `run` goes on until it is cancelled, and stops what it serves."""

    def __init__(
        self,
        site: Site,
        folder: KubeletFolder,
        bell: Bell,
        answering: Answering,
        changed: Callable[[], None],
    ) -> None:
        """`bell` is rung when the folder was looked at; `changed` hears of another standing."""
        self.answering = answering
        self.standing = Standing(answering.offer.name, site, changed)
        self._bell = bell
        self._site = site
        self._folder = folder
        self._number = 1
        self._lost_with: File | None = None  # of which kubelet
        self._lost_s: list[float] = []  # when it ended streams
        self._failures = 0  # in a row

    async def run(self) -> None:
        """Serve and register, for ever."""
        while True:
            await self._once()

    async def _once(self) -> None:
        await self._bell.until(lambda: self._folder.seen.folder is not None)
        seen = self._folder.seen
        if seen.socket != self._lost_with:
            self._lost_with, self._lost_s = seen.socket, []
        if await self._kept_out(seen):
            return
        incarnation = Incarnation(self.answering, self._site, self._bell)
        try:
            self._number = 1 + await incarnation.start(self._number)
        except CannotServe as error:
            self.standing.say(WAITING, error.reason, str(error))
            await self._back_off(partial(self._another, seen))
            return
        try:
            again_s = await self._follow(incarnation, seen)
        finally:
            await incarnation.stop()
        await self._bell.until(partial(self._another, seen), again_s)

    async def _kept_out(self, seen: FolderSeen) -> bool:
        """Wait, if another plug-in serves this resource; say whether it did."""
        offer = self.answering.offer
        other = rival(offer.vendor, offer.name, self._folder.others())
        if not other:
            return False
        self._say_rival(other)
        await self._bell.until(partial(self._another, seen), self._site.pace.poll_s)
        return True

    def _say_rival(self, other: str) -> None:
        offer = self.answering.offer
        text = f"{other} in {self._folder.path} serves {offer.name}: remove that plug-in, or take "
        text += f"{offer.vendor} out of device_plugin.vendors"
        self.standing.say(CONFLICT, "AnotherPlugin", text)

    def _rival(self) -> str:
        """Return the socket of another plug-in that came since; empty if there is none."""
        offer = self.answering.offer
        other = rival(offer.vendor, offer.name, self._folder.names)
        return other if other and self._folder.answers(other) else ""

    async def _follow(self, incarnation: Incarnation, seen: FolderSeen) -> float:
        """Register and be watched until that ends; return how long to wait with the next server."""
        over = partial(self._over, incarnation, seen)
        while not over():
            if self._folder.seen.socket is None:
                self.standing.say(WAITING, "KubeletAway", f"there is no {self._folder.kubelet}")
                await self._bell.until(over)
            elif not incarnation.begun:
                wait_s = await self._register(incarnation, over)
                if wait_s is not None:
                    return wait_s
            elif not await self._watched(incarnation, over):
                return self._lost()
        return 0.0 if self._another(seen) else self._site.pace.rest_s

    async def _register(self, incarnation: Incarnation, over: Callable[[], bool]) -> float | None:
        """Ask until there is a stream or all is over; `None`. Else how long to wait with the next.

        A server that the kubelet took but never asked is not registered twice.
        """
        pace = self._site.pace

        def came() -> bool:
            return incarnation.begun or over()

        self.standing.say(REGISTERING)
        failure = await self._asked(incarnation, over)
        if failure is None:
            self.standing.say(REGISTERED)
            if await self._bell.until(came, pace.stream_s):
                return None
            text = f"the kubelet took the registration, and has not asked in {pace.stream_s:g} s"
            self.standing.say(REGISTERED, "NoStream", text)
            self._failures += 1
            return pace.after(self._failures, self._site.uniform)
        if came():
            return None
        self.standing.say(REFUSED if failure.refused else WAITING, failure.reason, str(failure))
        if failure.refused:
            await self._bell.until(came, pace.when_refused(self._site.uniform))
        else:
            await self._back_off(came)
        return None

    async def _asked(
        self, incarnation: Incarnation, over: Callable[[], bool]
    ) -> NotRegistered | None:
        """Return why the kubelet did not take us; `None` if it did, or came for devices anyway."""
        counts, deadline_s = self.answering.counts, self._site.pace.register_s
        asking = register(self._folder.kubelet, incarnation.registration(), deadline_s)
        task = asyncio.create_task(asking, name=f"register {self.answering.offer.name}")
        task.add_done_callback(lambda _: self._bell.ring())
        try:
            await self._bell.until(lambda: task.done() or incarnation.begun or over())
        finally:
            task.cancel()  # of no effect on one that is done
            await asyncio.wait({task})
        failure = None if task.cancelled() else task.exception()
        if failure is not None and not isinstance(failure, NotRegistered):
            raise failure
        if failure is None and not over():
            counts.registered(OK)
        elif failure is not None:
            counts.registered(failure.reason)
        return failure

    async def _watched(self, incarnation: Incarnation, over: Callable[[], bool]) -> bool:
        """Return when all is over; false if the kubelet left the stream and opens no other.

        A plug-in that came later is told of, and not given way to: the kubelet would take the end
        of our stream for the end of theirs.
        """
        self._failures = 0
        while incarnation.streams and not over():
            if other := self._rival():
                self._say_rival(other)
            else:
                self.standing.say(WATCHED)
            now = partial(self._changed, incarnation, over, other)
            await self._bell.until(now)
        if over():
            return True
        self.standing.say(REGISTERED, "StreamEnded", "the kubelet ended the stream")
        return await self._bell.until(
            lambda: incarnation.streams > 0 or over(), self._site.pace.stream_s
        )

    def _changed(self, incarnation: Incarnation, over: Callable[[], bool], other: str) -> bool:
        return not incarnation.streams or over() or self._rival() != other

    def _lost(self) -> float:
        """Return how long to stay away after a stream that the kubelet ended while it went on."""
        pace, now_s = self._site.pace, self._site.clock.monotonic()
        recent = [at_s for at_s in self._lost_s if at_s > now_s - pace.losses_s]
        self._lost_s = [*recent, now_s]
        if len(self._lost_s) < pace.losses:
            return pace.rest_s
        self._lost_s = []
        others = ", ".join(self._folder.others()[:MAX_SAID]) or "none"
        text = f"the kubelet ended {pace.losses} streams: another plug-in registers this resource "
        text += f"again and again, or there are two agents; other sockets there: {others}"
        self.standing.say(CONFLICT, "StreamsEnded", text)
        return pace.when_refused(self._site.uniform)

    async def _back_off(self, over: Callable[[], bool]) -> None:
        self._failures += 1
        await self._bell.until(over, self._site.pace.after(self._failures, self._site.uniform))

    def _another(self, seen: FolderSeen) -> bool:
        """Say whether there is another kubelet than the one seen."""
        return seen.replaced(self._folder.seen)

    def _over(self, incarnation: Incarnation, seen: FolderSeen) -> bool:
        """Say whether this server is of no use any more."""
        offer = self.answering.offer
        if incarnation.options != (offer.check_start, offer.choose):
            return True
        return self._another(seen) or not incarnation.in_place()
