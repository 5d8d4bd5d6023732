"""Takes one object step by step to its desired state: calls, errors, status."""

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

log = logging.getLogger(__name__)

MAX_REPAIRS = 3  # in a row, of changes that another writer undoes each time
UNDONE_PAUSE_S = 300.0
PARTIAL_WAIT_S = 1.0  # for the other parts of an object, before it is created


class ObjectReconciler:
    """Takes one object to its desired state, one request at a time."""

    def __init__(self, publisher: str, first: DesiredObject, context: WriterContext) -> None:
        self._context = context
        state = WriterState(kind=first.kind, name=first.name, publisher=publisher)
        self.reporter = WriterReporter(state, context.messages)
        self.last_confirmed: DesiredObject | None = None
        self.cache = ObjectCache(first.kind, context)
        self._calls = ObjectCalls(first, context, self.cache)
        self._written_content: DesiredObject | None = (
            None  # written, but not yet compared with the response
        )
        self._final_content: DesiredObject | None = (
            None  # nothing more can be done for this content until the object changes
        )
        self._stored_content: DesiredObject | None = (
            None  # the server has had this content, except for contested fields
        )
        self._failures = self._repairs = 0
        self._missing_since_s: float | None = None  # monotonic: since when the object is missing

    @property
    def state(self) -> WriterState:
        """Return the public state of the object."""
        return self.reporter.state

    async def step(self, desired: DesiredObject) -> WriterPause | None:
        """Make at most one request; return how long to wait, `None` to continue at once."""
        if (wait := owner_wait(desired, self._context.store.current.node.uid)) is not None:
            self.reporter.update(phase=WriterPhase.WAITING, error=wait.reason)
            return WriterPause(self._context.jitter(self._context.timing.resync_s))
        live = self.cache.live
        if live is None or (desired is self._final_content and not self.cache.due_in_s()):
            self._final_content = None
            self.cache.retry_limits()
            await self._calls.read(desired, again=self.last_confirmed is not None)
            return None
        if (uid := str(metadata_of(live.stored).get("uid") or "")) != self.state.uid:
            self.reporter.update(uid=uid)
        inputs = DecisionInputs(
            node_uid=self._context.store.current.node.uid,
            now_s=self._context.clock.wall(),
            takeover_s=self._context.timing.takeover_s,
            conflict_history=self.cache.conflict_history,
            unknown_fields=self.cache.unknown_fields,
            last_cleanup=self.cache.last_cleanup,
        )
        step = decide(desired, self.cache.at_current_time(live), inputs)
        await asyncio.sleep(0)  # comparing a large object took its time
        return await self._perform(desired, step)

    async def _perform(self, desired: DesiredObject, step: WriterStep) -> WriterPause | None:
        match step:
            case InSyncStep():
                return self._record_in_sync(desired)
            case WaitStep(reason):
                self._settle(desired)
                return self._wait(WriterPhase.WAITING, reason)
            case ConflictStep():
                return self._hold(desired, step)
            case DeleteStep():
                self.reporter.update(phase=WriterPhase.WRITING)
                if self._count(await self._calls.remove(step)):
                    self._written_content = desired
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
        """Remove stale fields.

        If the server refuses that, they stay: it must not delay the desired content.
        """
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
        """Wait a moment before a partial object is created: one write instead of two."""
        if not desired.is_partial or not self.cache.is_object_missing:
            self._missing_since_s = None
            return None
        now_s = self._context.clock.monotonic()
        if self._missing_since_s is None:
            self._missing_since_s = now_s
        rest_s = self._missing_since_s + PARTIAL_WAIT_S - now_s
        return WriterPause(rest_s) if rest_s > 0 else None

    async def _write_once(self, desired: DesiredObject, step: ApplyStep) -> WriterPause | None:
        if (pause := self._wait_for_rest(desired)) is not None:
            return pause
        if self.cache.is_accepted(desired, step.residue):
            return self._record_in_sync(desired)
        if self._written_content is desired and not step.takeovers:
            return self._record_dropped_fields(desired, step)
        if desired is self._stored_content and not step.takeovers:
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
        self._written_content = desired
        if step.takeovers:
            self._record_takeover(step)
        return None

    def _record_takeover(self, step: ApplyStep | CleanupStep) -> None:
        """Record whose fields were taken over, and report it."""
        self.cache.record_takeover(step)
        others = tuple(conflict for conflict in step.takeovers if conflict.manager != FIELD_MANAGER)
        if others:
            silent = f"silent for {self._patience_s(others):.0f} s, taken over"
            key = f"{[conflict.manager for conflict in others]} {silent}"
            self.reporter.report_once(
                write_errors.TAKEN_OVER, f"{describe_conflicts(others)}: {silent}", key
            )

    def _count(self, written: bool) -> bool:
        self.reporter.update(written=self.state.written + written)
        return written

    def _record_dropped_fields(self, desired: DesiredObject, step: ApplyStep) -> WriterPause | None:
        """Record that the server does not store all fields of a content; report it once."""
        live = self.cache.live
        stored = live.stored if live is not None else None
        self.cache.accept_difference(desired, step.residue)
        self._drop_missing_fields(desired, step, stored)
        return None

    def _drop_missing_fields(
        self, desired: DesiredObject, step: ApplyStep, stored: JsonDict | None
    ) -> None:
        """Leave out the fields of a body that the stored object lacks."""
        comparable = comparable_part(desired, step.body)
        comparable.pop("metadata", None)
        self._drop(frozenset(missing_fields(comparable, stored)))

    def _drop(self, places: frozenset[SchemaPath]) -> bool:
        """Leave out fields that the server does not know; return whether any is new."""
        new = self.cache.drop_fields(places)
        if new:
            fields = ", ".join(sorted(map(render_schema_path, new)))
            message = (
                f"{self._calls.target.resource.plural} here have no {fields}: left out; upgrade "
            )
            self.reporter.report_once(write_errors.NOT_KEPT, message + "the CRD to have it")
        return bool(new)

    def _pause_after_undo(self) -> WriterPause:
        """Pause for an object whose changes another writer undoes each time."""
        message = f"what is written is undone each time; the next try is in {UNDONE_PAUSE_S:.0f} s"
        self.reporter.report_once(write_errors.UNDONE, message)
        self._repairs -= 1
        self.cache.clear()
        self.reporter.update(phase=WriterPhase.IN_CONFLICT, error=message)
        return WriterPause(self._context.jitter(UNDONE_PAUSE_S))

    def _record_in_sync(self, desired: DesiredObject) -> WriterPause:
        """Record that the server's object matches the desired one."""
        has_written, is_new = self._settle(desired), desired is not self.last_confirmed
        self._stored_content = self.last_confirmed = desired
        self.cache.reset_conflicts()
        self.reporter.recover()
        self.reporter.update(
            phase=WriterPhase.IDLE,
            error="",
            conflicts=(),
            last_ack_s=self._context.clock.wall(),
            unchanged=self.state.unchanged + (is_new and not has_written),
        )
        return WriterPause(self.cache.rest_s())

    def _settle(self, desired: DesiredObject) -> bool:
        """Record that nothing more can be done now; return whether anything was written."""
        has_written = self._written_content is desired
        self._failures = 0
        if not has_written:
            self._repairs = 0
        self._final_content, self._written_content = desired, None
        return has_written

    def _wait(self, phase: WriterPhase, reason: str) -> WriterPause:
        """Wait for new content, or for the object to change."""
        self.reporter.update(phase=phase, error=reason)
        return WriterPause(self.cache.rest_s())

    def _hold(self, desired: DesiredObject, step: ConflictStep) -> WriterPause:
        patience_s = self._patience_s(step.conflicts)
        until = f"until it was silent for {patience_s:.0f} s" if patience_s else "for good"
        if patience_s > self._context.timing.takeover_s:
            until += ", as it wrote again after they were taken over"
        message = (
            f"{describe_conflicts(step.conflicts)}: left to it {until}. {write_errors.ONE_WRITER}"
        )
        managers = sorted(
            conflict.manager for conflict in step.conflicts
        )  # not their fields, which may differ each time
        self.reporter.report_once(write_errors.CONFLICT, message, key=f"{managers} {until}")
        self.reporter.update(conflicts=step.conflicts)
        if self._settle(desired):
            self._stored_content = desired
        return self._wait(WriterPhase.IN_CONFLICT, message)

    def _patience_s(self, conflicts: tuple[FieldConflict, ...]) -> float:
        takeover_s, history = self._context.timing.takeover_s, self.cache.conflict_history
        return max(patience_s(conflict, takeover_s, history) for conflict in conflicts)

    def handle_error(self, error: ApiError) -> WriterPause | None:
        """Handle a failed call; return the pause, `None` if another request may succeed at once."""
        self.reporter.update(failed=self.state.failed + 1)
        self._written_content = None
        if isinstance(error, Conflict):
            self.cache.add_conflicts(conflicting_managers(error))
            self.cache.clear()
            return None
        if self._can_retry_without_fields(error):
            return None
        failure = write_errors.classify_write_error(error, self._calls.target.resource.plural)
        if not failure.until_content:
            self.cache.clear()
        if failure.phase is WriterPhase.ABSENT:
            self.cache.unknown_fields = (
                frozenset()
            )  # another version of the CRD may be installed later
        if failure.reason:
            self.reporter.report_once(failure.reason, failure.message, failure.key)
        elif not self._failures:
            self.reporter.log("write_failed", failure.message)
        self._failures += 1
        self.reporter.update(phase=failure.phase, error=failure.message)
        context = self._context
        if failure.slow:
            is_watched = failure.phase is WriterPhase.ABSENT and context.is_watched(self.state.kind)
            slow_s = max(context.timing.slow_s, context.timing.absent_s if is_watched else 0.0)
            return WriterPause(context.jitter(slow_s), failure.until_content)
        wait_s = context.backoff.wait_s(self._failures, error.retry_after_s, context.uniform)
        return WriterPause(wait_s, ends_on_content=False)

    def back_off(self) -> WriterPause:
        """Pause longer each time for an object that changes faster than it can be written."""
        self._failures += 1
        self.reporter.update(
            phase=WriterPhase.PENDING, error="others change it faster than we can write"
        )
        backoff = self._context.backoff
        # no full jitter: a turn makes several requests, whose number must stay bounded
        wait_s = backoff.wait_s(self._failures, None, lambda _, ceiling_s: ceiling_s)
        return WriterPause(self._context.jitter(wait_s), ends_on_content=False)

    def _can_retry_without_fields(self, error: ApiError) -> bool:
        """Return whether a retry without some fields may succeed.

        A server that refuses a field may have no room in its message for the field's name. Then a
        dry run finds the fields, once: it drops them instead of refusing them.
        """
        if write_errors.may_name_fields(error) and self._drop(undeclared_fields(str(error))):
            return True
        if not write_errors.is_schema_mismatch(error) or self.cache.field_check is FieldCheck.DONE:
            return False
        self.cache.field_check = FieldCheck.DUE
        return True


OBJECT_NOT_FOUND = (
    "NotFound"  # the reason of a 404 for an object; for a missing resource it is empty
)


class ObjectCalls:
    """Makes one call at a time; raises `ApiError`, or `ParseError` for an invalid response."""

    def __init__(self, first: DesiredObject, context: WriterContext, cache: ObjectCache) -> None:
        self._api = context.api
        self._cache = cache
        self.target = ObjectRequests(
            resource=resource_of(first),
            name=first.name,
            subresource="status" if first.status_only else "",
            deadline_s=context.timing.deadline_s,
        )

    async def read(self, desired: DesiredObject, *, again: bool) -> None:
        """Read the object; `again`: detect another agent that wrote it since the last response."""
        before = self._cache.live if again else None
        self._cache.begin_read()
        try:
            await self._call_and_store(self.target.read())
        except NotFound as error:
            if error.reason != OBJECT_NOT_FOUND and not desired.is_absent:
                raise
            self._cache.store(None, None)
            return
        self._cache.detect_twin(before, self.target.subresource)

    async def write(self, step: ApplyStep | OwnerRepairStep | CleanupStep) -> bool:
        """Write; return whether the object still existed."""
        is_absent = self._cache.live is None or self._cache.live.stored is None
        try:
            await self._call_and_store(self._request(step))
        except NotFound as error:
            if is_absent or error.reason != OBJECT_NOT_FOUND:
                raise
            self._cache.clear()
            return False
        return True

    async def remove(self, step: DeleteStep) -> bool:
        """Delete the object; return whether it still existed."""
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

    async def _call_and_store(self, request: ApiRequest) -> None:
        """Make a call whose response is the object."""
        response = await self._api.call(request)
        server_s = http_date_s(response.headers.get("date", ""))
        self._cache.store(decode_object(response.body), server_s)


class WriterReporter:
    """The public state of a writer. Equal events in a row are reported once."""

    def __init__(self, state: WriterState, messages: MessageQueue) -> None:
        self.state = state
        self._messages = messages
        self._reported_keys: dict[str, str] = {}  # by reason

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
        """Forget the recoverable reasons, so that they are reported again if they return."""
        for reason in RECOVERABLE_REASONS:
            if self._reported_keys.pop(reason, None) is not None:
                self.log("write_recovered")

    def log(self, event: str, error: str = "") -> None:
        """Log a message that needs no attention yet."""
        fields = {"kind": self.state.kind, "object": self.state.name}
        log.info(event, extra=fields | ({"error": error} if error else {}))
