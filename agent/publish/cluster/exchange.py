"""One object's dealings with the server: what a decision asks for, and what becomes of it."""

from __future__ import annotations

import asyncio

from agent.kube.apply.managed import accused, metadata_of
from agent.kube.apply.pruned import Place, missing, show_place, undeclared
from agent.kube.apply.requests import MANAGER
from agent.kube.errors import ApiError, Conflict, Invalid
from agent.publish.base import Desired
from agent.publish.cluster import setbacks
from agent.publish.cluster.calls import Calls
from agent.publish.cluster.decide import (
    Circumstances,
    Clean,
    Done,
    Hold,
    Remove,
    Reown,
    Step,
    Wait,
    Write,
    decide,
    ownerless,
)
from agent.publish.cluster.intent import own_part
from agent.publish.cluster.known import Known
from agent.publish.cluster.rivals import patience_s, told
from agent.publish.cluster.site import Pause, Site
from agent.publish.cluster.standing import Standing
from agent.publish.cluster.state import Phase, Rival, WriterState

MAX_REPAIRS = 3  # in a row, of what somebody undoes each time
UNDONE_PAUSE_S = 300.0
REST_S = 1.0  # for the rest of what is partial, before an object is made


class Exchange:
    """Takes one step at a time towards what is wanted."""

    def __init__(self, publisher: str, first: Desired, site: Site) -> None:
        self._site = site
        state = WriterState(kind=first.kind, name=first.name, publisher=publisher)
        self.standing = Standing(state, site.tell)
        self.acked: Desired | None = None
        self.known = Known(first.kind, site)
        self._calls = Calls(first, site, self.known)
        self._wrote: Desired | None = None  # and not yet acknowledged as whole
        self._settled: Desired | None = None  # for which all was done that what we know allows
        self._had: Desired | None = None  # which the server had, but for what was left to others
        self._failures = self._repairs = 0
        self._lacked_s: float | None = None  # monotonic: since when the object could be made

    @property
    def state(self) -> WriterState:
        """Say how the object stands."""
        return self.standing.state

    async def step(self, desired: Desired) -> Pause | None:
        """Make one request, or none and say how long to wait; `None`: go on at once."""
        if (wait := ownerless(desired, self._site.node_uid())) is not None:
            self.standing.set(phase=Phase.WAITING, error=wait.why)
            return Pause(self._site.about(self._site.pace.resync_s))
        sight = self.known.sight
        if sight is None or (desired is self._settled and not self.known.due_in_s()):
            self._settled = None
            self.known.doubt_limits()
            await self._calls.read(desired, again=self.acked is not None)
            return None
        if (uid := str(metadata_of(sight.stored).get("uid") or "")) != self.state.uid:
            self.standing.set(uid=uid)
        now = Circumstances(
            node_uid=self._site.node_uid(),
            now_s=self._site.clock.wall(),
            takeover_s=self._site.pace.takeover_s,
            claims=self.known.claims,
            dropped=self.known.dropped,
            lacks_apply=self.known.lacks_apply,
            cleaned=self.known.cleaned,
        )
        step = decide(desired, self.known.now(sight), now)
        await asyncio.sleep(0)  # to compare a large object is work enough for one turn of the loop
        return await self._perform(desired, step)

    async def _perform(self, desired: Desired, step: Step) -> Pause | None:
        match step:
            case Done():
                return self._acknowledged(desired)
            case Wait(why):
                self._settle(desired)
                return self._wait(Phase.WAITING, why)
            case Hold():
                return self._hold(desired, step)
            case Remove():
                self.standing.set(phase=Phase.WRITING)
                if self._count(await self._calls.remove(step)):
                    self._wrote = desired
                return None
            case Reown():
                self.standing.set(phase=Phase.WRITING)
                self._count(await self._calls.write(step))
                return None
            case Clean():
                await self._clean(step)
                return None
            case Write():
                return await self._write_once(desired, step)

    async def _clean(self, step: Clean) -> None:
        """Remove it, or let it be where the server refuses that: what is wanted must not wait."""
        self.standing.set(phase=Phase.WRITING)
        try:
            written = self._count(await self._calls.write(step))
        except Invalid:
            self.known.cleaned = step.residue
            return
        if written:
            self.known.cleaned = step.residue
            self._took(step)

    def _for_the_rest(self, desired: Desired) -> Pause | None:
        """Wait a moment before an object is made in part: one write instead of two."""
        if not desired.partial or not self.known.lacks_object:
            self._lacked_s = None
            return None
        now_s = self._site.clock.monotonic()
        if self._lacked_s is None:
            self._lacked_s = now_s
        left_s = self._lacked_s + REST_S - now_s
        return Pause(left_s) if left_s > 0 else None

    async def _write_once(self, desired: Desired, step: Write) -> Pause | None:
        if (pause := self._for_the_rest(desired)) is not None:
            return pause
        if self.known.is_left(desired, step.residue):
            return self._acknowledged(desired)
        if self._wrote is desired and not step.taken:
            return self._not_kept(desired, step)
        if desired is self._had and not step.taken:
            if self._repairs >= MAX_REPAIRS:
                return self._undone()
            self._repairs += 1
            self.standing.set(repaired=self.state.repaired + 1)
            self.standing.note("write_repaired")
        self.standing.set(phase=Phase.WRITING)
        if not self._count(await self._calls.write(step)):
            return None
        self._wrote = desired
        if step.taken:
            self._took(step)
        return None

    def _took(self, step: Write | Clean) -> None:
        """Remember whose fields became ours, and tell it."""
        self.known.took(step)
        others = tuple(rival for rival in step.taken if rival.name != MANAGER)
        if others:
            silent = f"silent for {self._patience_s(others):.0f} s, taken over"
            key = f"{[rival.name for rival in others]} {silent}"
            self.standing.say(setbacks.TAKEN_OVER, f"{told(others)}: {silent}", key)

    def _count(self, written: bool) -> bool:
        self.standing.set(written=self.state.written + written)
        return written

    def _not_kept(self, desired: Desired, step: Write) -> Pause | None:
        """Take it that the server does not take over all of a content, and say so once."""
        sight = self.known.sight
        stored = sight.stored if sight is not None else None
        part = own_part(desired, step.body)
        part.pop("metadata", None)
        self.known.leave(desired, step.residue)
        self._drop(frozenset(missing(part, stored)))
        return None

    def _drop(self, places: frozenset[Place]) -> bool:
        """Leave out fields that the server does not know; return whether that is news."""
        new = self.known.drop(places)
        if new:
            fields = ", ".join(sorted(map(show_place, new)))
            message = (
                f"{self._calls.target.resource.plural} here have no {fields}: left out; upgrade "
            )
            self.standing.say(setbacks.NOT_KEPT, message + "the CRD to have it")
        return bool(new)

    def _undone(self) -> Pause:
        """Leave an object alone for a while that somebody changes back each time."""
        message = f"what is written is undone each time; the next try is in {UNDONE_PAUSE_S:.0f} s"
        self.standing.say(setbacks.UNDONE, message)
        self._repairs -= 1
        self.known.forget()
        self.standing.set(phase=Phase.HELD, error=message)
        return Pause(self._site.about(UNDONE_PAUSE_S))

    def _acknowledged(self, desired: Desired) -> Pause:
        """Tell that the server has what is wanted, be it that we wrote it or that it had it."""
        wrote, new = self._settle(desired), desired is not self.acked
        self._had = self.acked = desired
        self.known.agree()
        self.standing.recover()
        self.standing.set(
            phase=Phase.IDLE,
            error="",
            rivals=(),
            last_ack_s=self._site.clock.wall(),
            unchanged=self.state.unchanged + (new and not wrote),
        )
        return Pause(self.known.rest_s())

    def _settle(self, desired: Desired) -> bool:
        """Take it that no more can be done now; return whether anything had to be written."""
        wrote = self._wrote is desired
        self._failures = 0
        if not wrote:
            self._repairs = 0
        self._settled, self._wrote = desired, None
        return wrote

    def _wait(self, phase: Phase, why: str) -> Pause:
        """Wait for new content, or for the object to change."""
        self.standing.set(phase=phase, error=why)
        return Pause(self.known.rest_s())

    def _hold(self, desired: Desired, step: Hold) -> Pause:
        patience_s = self._patience_s(step.rivals)
        until = f"until it was silent for {patience_s:.0f} s" if patience_s else "for good"
        if patience_s > self._site.pace.takeover_s:
            until += ", as it wrote again after they were taken over"
        message = f"{told(step.rivals)}: left to it {until}. {setbacks.ONE_WRITER}"
        who = sorted(rival.name for rival in step.rivals)  # their fields may change each time
        self.standing.say(setbacks.CONFLICT, message, key=f"{who} {until}")
        self.standing.set(rivals=step.rivals)
        if self._settle(desired):
            self._had = desired
        return self._wait(Phase.HELD, message)

    def _patience_s(self, rivals: tuple[Rival, ...]) -> float:
        takeover_s, claims = self._site.pace.takeover_s, self.known.claims
        return max(patience_s(rival, takeover_s, claims) for rival in rivals)

    def failed(self, error: ApiError) -> Pause | None:
        """Take in a failed call; `None`: another one may mend it at once."""
        self.standing.set(failed=self.state.failed + 1)
        self._wrote = None
        if isinstance(error, Conflict):
            self.known.accuse(accused(error))
            self.known.forget()
            return None
        if self._asks_otherwise(error):
            return None
        back = setbacks.setback(error, self._calls.target.resource.plural)
        if not back.until_content:
            self.known.forget()
        if back.phase is Phase.ABSENT:
            self.known.dropped = frozenset()  # another version of it may come
        if back.reason:
            self.standing.say(back.reason, back.message, back.key)
        elif not self._failures:
            self.standing.note("write_failed", back.message)
        self._failures += 1
        self.standing.set(phase=back.phase, error=back.message)
        site = self._site
        if back.slow:
            told = back.phase is Phase.ABSENT and site.is_watched(self.state.kind)
            slow_s = max(site.pace.slow_s, site.pace.absent_s if told else 0.0)
            return Pause(site.about(slow_s), back.until_content)
        wait_s = site.backoff.wait_s(self._failures, error.retry_after_s, site.uniform)
        return Pause(wait_s, wakes=False)

    def crowded(self) -> Pause:
        """Leave an object alone that changes faster than it can be written: longer each time."""
        self._failures += 1
        self.standing.set(phase=Phase.PENDING, error="others change it faster than we can write")
        backoff = self._site.backoff
        # no full jitter: a turn is several requests, and their number is what is to be bounded
        wait_s = backoff.wait_s(self._failures, None, lambda _, ceiling_s: ceiling_s)
        return Pause(self._site.about(wait_s), wakes=False)

    def _asks_otherwise(self, error: ApiError) -> bool:
        """Say whether the same can be written in another way that was not tried yet."""
        if setbacks.may_name_fields(error) and self._drop(undeclared(str(error))):
            return True
        tried = self.known.lacks_apply
        self.known.lacks_apply = tried or setbacks.forbids_apply(error)
        return self.known.lacks_apply and not tried
