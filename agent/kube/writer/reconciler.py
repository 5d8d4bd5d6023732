"""Takes one object step by step to its desired state: calls, errors, status.

The calls about one object; what each is answered is what is known of the object then.

How an object stands, and what people were told of it.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from agent.kube.api import FIELD_MANAGER, ApiRequest, ObjectRequests, decode_object
from agent.kube.errors import ApiError, Conflict, Invalid, NotFound
from agent.kube.http_errors import http_date_s
from agent.kube.server_side_apply import (
    SchemaPath,
    conflicting_managers,
    metadata_of,
    missing_fields,
    render_schema_path,
    undeclared_fields,
)
from agent.kube.writer import write_errors
from agent.kube.writer.conflicts import describe_conflicts, patience_s
from agent.kube.writer.context import WriterContext, WriterPause
from agent.kube.writer.decision import (
    ApplyStep,
    CleanupStep,
    ConflictStep,
    DecisionInputs,
    DeleteStep,
    InSyncStep,
    OwnerRepairStep,
    WaitStep,
    WriterStep,
    comparable_part,
    decide,
    owner_wait,
    resource_of,
)
from agent.kube.writer.object_cache import FieldCheck, ObjectCache
from agent.kube.writer.write_errors import RECOVERABLE_REASONS
from agent.messages import EventReported, MessageQueue
from agent.snapshot.publications import DesiredObject, FieldConflict, WriterPhase, WriterState
from agent.wire_formats.json_values import JsonDict

MAX_REPAIRS = 3  # in a row, of what somebody undoes each time

UNDONE_PAUSE_S = 300.0

PARTIAL_WAIT_S = 1.0  # for the rest of what is partial, before an object is made


class ObjectReconciler:
    """Takes one step at a time towards what is wanted."""

    def __init__(self, publisher: str, first: DesiredObject, site: WriterContext) -> None:
        self._site = site
        state = WriterState(kind=first.kind, name=first.name, publisher=publisher)
        self.reporter = WriterReporter(state, site.messages)
        self.last_confirmed: DesiredObject | None = None
        self.cache = ObjectCache(first.kind, site)
        self._calls = ObjectCalls(first, site, self.cache)
        self._wrote: DesiredObject | None = None  # and not yet acknowledged as whole
        self._settled: DesiredObject | None = (
            None  # for which all was done that what we know allows
        )
        self._had: DesiredObject | None = (
            None  # which the server had, but for what was left to others
        )
        self._failures = self._repairs = 0
        self._lacked_s: float | None = None  # monotonic: since when the object could be made

    @property
    def state(self) -> WriterState:
        """Say how the object stands."""
        return self.reporter.state

    async def step(self, desired: DesiredObject) -> WriterPause | None:
        """Make one request, or none and say how long to wait; `None`: go on at once."""
        if (wait := owner_wait(desired, self._site.node_uid())) is not None:
            self.reporter.update(phase=WriterPhase.WAITING, error=wait.why)
            return WriterPause(self._site.jitter(self._site.timing.resync_s))
        sight = self.cache.live
        if sight is None or (desired is self._settled and not self.cache.due_in_s()):
            self._settled = None
            self.cache.retry_limits()
            await self._calls.read(desired, again=self.last_confirmed is not None)
            return None
        if (uid := str(metadata_of(sight.stored).get("uid") or "")) != self.state.uid:
            self.reporter.update(uid=uid)
        now = DecisionInputs(
            node_uid=self._site.node_uid(),
            now_s=self._site.clock.wall(),
            takeover_s=self._site.timing.takeover_s,
            conflict_history=self.cache.conflict_history,
            unknown_fields=self.cache.unknown_fields,
            last_cleanup=self.cache.last_cleanup,
        )
        step = decide(desired, self.cache.at_current_time(sight), now)
        await asyncio.sleep(0)  # to compare a large object is work enough for one turn of the loop
        return await self._perform(desired, step)

    async def _perform(self, desired: DesiredObject, step: WriterStep) -> WriterPause | None:
        match step:
            case InSyncStep():
                return self._record_in_sync(desired)
            case WaitStep(why):
                self._settle(desired)
                return self._wait(WriterPhase.WAITING, why)
            case ConflictStep():
                return self._hold(desired, step)
            case DeleteStep():
                self.reporter.update(phase=WriterPhase.WRITING)
                if self._count(await self._calls.remove(step)):
                    self._wrote = desired
                return None
            case OwnerRepairStep():
                self.reporter.update(phase=WriterPhase.WRITING)
                self._count(await self._calls.write(step))
                return None
            case CleanupStep():
                await self._clean(step)
                return None
            case ApplyStep():
                return await self._write_once(desired, step)

    async def _clean(self, step: CleanupStep) -> None:
        """Remove it, or let it be where the server refuses that: what is wanted must not wait."""
        self.reporter.update(phase=WriterPhase.WRITING)
        try:
            written = self._count(await self._calls.write(step))
        except Invalid:
            self.cache.last_cleanup = step.residue
            return
        if written:
            self.cache.last_cleanup = step.residue
            self._record_takeover(step)

    def _wait_for_rest(self, desired: DesiredObject) -> WriterPause | None:
        """Wait a moment before an object is made in part: one write instead of two."""
        if not desired.is_partial or not self.cache.is_object_missing:
            self._lacked_s = None
            return None
        now_s = self._site.clock.monotonic()
        if self._lacked_s is None:
            self._lacked_s = now_s
        left_s = self._lacked_s + PARTIAL_WAIT_S - now_s
        return WriterPause(left_s) if left_s > 0 else None

    async def _write_once(self, desired: DesiredObject, step: ApplyStep) -> WriterPause | None:
        if (pause := self._wait_for_rest(desired)) is not None:
            return pause
        if self.cache.is_accepted(desired, step.residue):
            return self._record_in_sync(desired)
        if self._wrote is desired and not step.takeovers:
            return self._record_dropped_fields(desired, step)
        if desired is self._had and not step.takeovers:
            if self._repairs >= MAX_REPAIRS:
                return self._pause_after_undo()
            self._repairs += 1
            self.reporter.update(repaired=self.state.repaired + 1)
            self.reporter.log("write_repaired")
        self.reporter.update(phase=WriterPhase.WRITING)
        if self.cache.field_check is FieldCheck.DUE:
            self.cache.field_check = FieldCheck.DONE
            self._drop_missing_fields(desired, step, await self._calls.dry_run(step))
            return None
        if not self._count(await self._calls.write(step)):
            return None
        self._wrote = desired
        if step.takeovers:
            self._record_takeover(step)
        return None

    def _record_takeover(self, step: ApplyStep | CleanupStep) -> None:
        """Remember whose fields became ours, and tell it."""
        self.cache.record_takeover(step)
        others = tuple(rival for rival in step.takeovers if rival.manager != FIELD_MANAGER)
        if others:
            silent = f"silent for {self._patience_s(others):.0f} s, taken over"
            key = f"{[rival.manager for rival in others]} {silent}"
            self.reporter.report_once(
                write_errors.TAKEN_OVER, f"{describe_conflicts(others)}: {silent}", key
            )

    def _count(self, written: bool) -> bool:
        self.reporter.update(written=self.state.written + written)
        return written

    def _record_dropped_fields(self, desired: DesiredObject, step: ApplyStep) -> WriterPause | None:
        """Take it that the server does not take over all of a content, and say so once."""
        sight = self.cache.live
        stored = sight.stored if sight is not None else None
        self.cache.accept_difference(desired, step.residue)
        self._drop_missing_fields(desired, step, stored)
        return None

    def _drop_missing_fields(
        self, desired: DesiredObject, step: ApplyStep, stored: JsonDict | None
    ) -> None:
        """Leave out the fields of a body that the stored object lacks."""
        part = comparable_part(desired, step.body)
        part.pop("metadata", None)
        self._drop(frozenset(missing_fields(part, stored)))

    def _drop(self, places: frozenset[SchemaPath]) -> bool:
        """Leave out fields that the server does not know; return whether that is news."""
        new = self.cache.drop_fields(places)
        if new:
            fields = ", ".join(sorted(map(render_schema_path, new)))
            message = (
                f"{self._calls.target.resource.plural} here have no {fields}: left out; upgrade "
            )
            self.reporter.report_once(write_errors.NOT_KEPT, message + "the CRD to have it")
        return bool(new)

    def _pause_after_undo(self) -> WriterPause:
        """Leave an object alone for a while that somebody changes back each time."""
        message = f"what is written is undone each time; the next try is in {UNDONE_PAUSE_S:.0f} s"
        self.reporter.report_once(write_errors.UNDONE, message)
        self._repairs -= 1
        self.cache.clear()
        self.reporter.update(phase=WriterPhase.IN_CONFLICT, error=message)
        return WriterPause(self._site.jitter(UNDONE_PAUSE_S))

    def _record_in_sync(self, desired: DesiredObject) -> WriterPause:
        """Tell that the server has what is wanted, be it that we wrote it or that it had it."""
        wrote, new = self._settle(desired), desired is not self.last_confirmed
        self._had = self.last_confirmed = desired
        self.cache.reset_conflicts()
        self.reporter.recover()
        self.reporter.update(
            phase=WriterPhase.IDLE,
            error="",
            conflicts=(),
            last_ack_s=self._site.clock.wall(),
            unchanged=self.state.unchanged + (new and not wrote),
        )
        return WriterPause(self.cache.rest_s())

    def _settle(self, desired: DesiredObject) -> bool:
        """Take it that no more can be done now; return whether anything had to be written."""
        wrote = self._wrote is desired
        self._failures = 0
        if not wrote:
            self._repairs = 0
        self._settled, self._wrote = desired, None
        return wrote

    def _wait(self, phase: WriterPhase, why: str) -> WriterPause:
        """Wait for new content, or for the object to change."""
        self.reporter.update(phase=phase, error=why)
        return WriterPause(self.cache.rest_s())

    def _hold(self, desired: DesiredObject, step: ConflictStep) -> WriterPause:
        patience_s = self._patience_s(step.conflicts)
        until = f"until it was silent for {patience_s:.0f} s" if patience_s else "for good"
        if patience_s > self._site.timing.takeover_s:
            until += ", as it wrote again after they were taken over"
        message = (
            f"{describe_conflicts(step.conflicts)}: left to it {until}. {write_errors.ONE_WRITER}"
        )
        who = sorted(rival.manager for rival in step.conflicts)  # their fields may change each time
        self.reporter.report_once(write_errors.CONFLICT, message, key=f"{who} {until}")
        self.reporter.update(conflicts=step.conflicts)
        if self._settle(desired):
            self._had = desired
        return self._wait(WriterPhase.IN_CONFLICT, message)

    def _patience_s(self, rivals: tuple[FieldConflict, ...]) -> float:
        takeover_s, claims = self._site.timing.takeover_s, self.cache.conflict_history
        return max(patience_s(rival, takeover_s, claims) for rival in rivals)

    def handle_error(self, error: ApiError) -> WriterPause | None:
        """Take in a failed call; `None`: another one may mend it at once."""
        self.reporter.update(failed=self.state.failed + 1)
        self._wrote = None
        if isinstance(error, Conflict):
            self.cache.add_conflicts(conflicting_managers(error))
            self.cache.clear()
            return None
        if self._can_retry_otherwise(error):
            return None
        back = write_errors.classify_write_error(error, self._calls.target.resource.plural)
        if not back.until_content:
            self.cache.clear()
        if back.phase is WriterPhase.ABSENT:
            self.cache.unknown_fields = frozenset()  # another version of it may come
        if back.reason:
            self.reporter.report_once(back.reason, back.message, back.key)
        elif not self._failures:
            self.reporter.log("write_failed", back.message)
        self._failures += 1
        self.reporter.update(phase=back.phase, error=back.message)
        site = self._site
        if back.slow:
            told = back.phase is WriterPhase.ABSENT and site.is_watched(self.state.kind)
            slow_s = max(site.timing.slow_s, site.timing.absent_s if told else 0.0)
            return WriterPause(site.jitter(slow_s), back.until_content)
        wait_s = site.backoff.wait_s(self._failures, error.retry_after_s, site.uniform)
        return WriterPause(wait_s, ends_on_content=False)

    def back_off(self) -> WriterPause:
        """Leave an object alone that changes faster than it can be written: longer each time."""
        self._failures += 1
        self.reporter.update(
            phase=WriterPhase.PENDING, error="others change it faster than we can write"
        )
        backoff = self._site.backoff
        # no full jitter: a turn is several requests, and their number is what is to be bounded
        wait_s = backoff.wait_s(self._failures, None, lambda _, ceiling_s: ceiling_s)
        return WriterPause(self._site.jitter(wait_s), ends_on_content=False)

    def _can_retry_otherwise(self, error: ApiError) -> bool:
        """Return whether a next try without some fields may succeed.

        A server that refuses a field may have no room in its message for the field's name. Then
        a dry run finds the fields, once: it drops them instead of refusing them.
        """
        if write_errors.may_name_fields(error) and self._drop(undeclared_fields(str(error))):
            return True
        if not write_errors.is_schema_mismatch(error) or self.cache.field_check is FieldCheck.DONE:
            return False
        self.cache.field_check = FieldCheck.DUE
        return True


OBJECT_NOT_FOUND = (
    "NotFound"  # the reason of a 404 for an object; where a resource lacks there is none
)


class ObjectCalls:
    """Makes one call at a time. A failed one is an `ApiError`, an odd answer a `ParseError`."""

    def __init__(self, first: DesiredObject, site: WriterContext, known: ObjectCache) -> None:
        self._api = site.api
        self._cache = known
        self.target = ObjectRequests(
            resource=resource_of(first),
            name=first.name,
            subresource="status" if first.status_only else "",
            deadline_s=site.timing.deadline_s,
        )

    async def read(self, desired: DesiredObject, *, again: bool) -> None:
        """Read the object; `again`: find out who wrote it since it was last seen."""
        before = self._cache.live if again else None
        self._cache.begin_read()
        try:
            await self._take(self.target.read())
        except NotFound as error:
            if error.reason != OBJECT_NOT_FOUND and not desired.is_absent:
                raise
            self._cache.store(None, None)
            return
        self._cache.detect_twin(before, self.target.subresource)

    async def write(self, step: ApplyStep | OwnerRepairStep | CleanupStep) -> bool:
        """Write; return whether the object was still there."""
        absent = self._cache.live is None or self._cache.live.stored is None
        try:
            await self._take(self._request(step))
        except NotFound as error:
            if absent or error.reason != OBJECT_NOT_FOUND:
                raise
            self._cache.clear()
            return False
        return True

    async def remove(self, step: DeleteStep) -> bool:
        """Delete the object; return whether it was still there."""
        try:
            await self._api.call(self.target.delete(step.uid, step.version))
        except NotFound:
            return False
        finally:
            self._cache.clear()
        self._cache.store(None, None)
        return True

    def _request(self, step: ApplyStep | OwnerRepairStep | CleanupStep) -> ApiRequest:
        if isinstance(step, OwnerRepairStep):
            return self.target.merge(step.patch, subresource="")
        if isinstance(step, CleanupStep):
            return self.target.merge(step.patch)
        return self.target.apply(step.body, force=step.force)

    async def dry_run(self, step: ApplyStep) -> JsonDict:
        """Return the object as the server would store it without the fields it does not know."""
        is_new = self._cache.live is None or self._cache.live.stored is None
        request = self.target.create(step.body) if is_new else self.target.merge(step.body)
        query = (*request.query, ("dryRun", "All"))
        response = await self._api.call(msgspec.structs.replace(request, query=query))
        return decode_object(response.body)

    async def _take(self, request: ApiRequest) -> None:
        """Make a call whose answer is the object."""
        response = await self._api.call(request)
        server_s = http_date_s(response.headers.get("date", ""))
        self._cache.store(decode_object(response.body), server_s)


log = logging.getLogger(__name__)


class WriterReporter:
    """The public state of a writer. A repeated event is reported once while it is the same."""

    def __init__(self, state: WriterState, messages: MessageQueue) -> None:
        self.state = state
        self._messages = messages
        self._reported_keys: dict[str, str] = {}  # by reason, of which there are few

    def update(self, **changes: object) -> None:
        """Change fields of the state."""
        self.state = msgspec.structs.replace(self.state, **changes)

    def report_once(self, reason: str, message: str, key: str = "") -> None:
        """Report an event unless the last one of its reason has the same key.

        Without a key, messages are compared.
        """
        key = key or message
        if self._reported_keys.get(reason) != key:
            self._reported_keys[reason] = key
            text = f"{self.state.kind} {self.state.name}: {message}"
            self._messages.put(EventReported(reason, text))

    def recover(self) -> None:
        """Forget the recoverable reasons: should one come back, it is reported again."""
        for reason in RECOVERABLE_REASONS:
            if self._reported_keys.pop(reason, None) is not None:
                self.log("write_recovered")

    def log(self, event: str, error: str = "") -> None:
        """Log what needs nobody's attention yet."""
        fields = {"kind": self.state.kind, "object": self.state.name}
        log.info(event, extra=fields | ({"error": error} if error else {}))
