"""One NRI connection.

Dispatches the runtime's calls and answers each within the time budget of the hooks.

Asks the hooks within the budget: the runtime gets an answer in time whatever they do.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial

from google.protobuf.message import DecodeError

from agent.allocation.index import allocation_annotation
from agent.errors import ParseError
from agent.nri.messages import (
    RuntimeEvents,
    RuntimeRequest,
    render_creation,
    render_update,
)
from agent.nri.runtime_view import RuntimeHandler, RuntimeViewStore
from agent.nri.statistics import NriCounters
from agent.nri.synchronization import SynchronizationList
from agent.nri.versions import RuntimePeer, event_mask, parse_peer
from agent.nri.wire.connection import CallServer, RuntimeCall, RuntimeConnection
from agent.nri.wire.errors import FAILED_PRECONDITION, INTERNAL, CallError, ConnectionClosed
from agent.nri.wire.frames import TtrpcFrame, error_frame, response_frame
from agent.snapshot.container import Adjustment, HookStage
from proto.gen import nri_plugin_pb2 as calls

log = logging.getLogger(__name__)

SERVICE = "nri.pkg.api.v1alpha1.Plugin"

MethodHandler = Callable[["RuntimeSession", RuntimeCall], "bytes | RuntimeRequest | None"]


class RuntimeSession:
    """Answers every call, most at once, and never by closing. Belongs to the loop thread.

    `ready` is done when the runtime has told of all its pods and these are in the picture.
    """

    def __init__(
        self,
        asking: OpenRuntimeRequests,
        told: RuntimeEvents,
        picture: RuntimeViewStore,
        figures: NriCounters,
        budget_s: float,
    ) -> None:
        """`asking` and `told` are this connection's own."""
        self._requests = asking
        self._events = told
        self._view_store = picture
        self._counters = figures
        self._budget_s = budget_s
        self._server = CallServer(SERVICE, _METHODS)
        self._loop = asyncio.get_running_loop()
        self._list = SynchronizationList()
        self._reading: asyncio.Task[None] | None = None
        self._connection: RuntimeConnection | None = None
        self.peer = RuntimePeer()
        self.ready: asyncio.Future[None] = self._loop.create_future()

    def attach(self, trunk: RuntimeConnection) -> None:
        """Answer over this trunk."""
        self._connection = trunk

    def handle_frame(self, frame: TtrpcFrame) -> None:
        """Answer a frame, now or when the hooks have spoken; the trunk calls it."""
        server, figures = self._server, self._counters
        outcome = server.accept(frame)
        if isinstance(outcome, RuntimeCall):
            self._serve(outcome)
        elif outcome is not None:
            figures.unknown_methods += server.unknown_methods
            figures.oversized += server.oversized
            server.unknown_methods = server.oversized = 0
            self._write(outcome)

    def handle_close(self, why: ConnectionClosed) -> None:
        """End what waits: for hooks, for the list, for `ready`."""
        self._requests.cancel_all()
        if self._reading is not None:
            self._reading.cancel()
        if not self.ready.done():
            self.ready.set_exception(why)
            self.ready.exception()  # it may be that nobody waits for it any more

    def _serve(self, call: RuntimeCall) -> None:
        arrived_s = (
            self._connection.arrived_s if self._connection is not None else self._loop.time()
        )
        reply = partial(self._reply, call, arrived_s)
        try:
            outcome = _METHODS[call.method](self, call)
        except (DecodeError, ParseError) as error:
            reply("malformed", CallError(INTERNAL, f"ttrpc: error unmarshalling payload: {error}"))
        except Exception as error:  # an RPC's boundary: no bug costs a connection
            log.exception("nri_call_failed", extra={"method": call.method})
            reply("broken", CallError(INTERNAL, f"{type(error).__name__}: see the agent's log"))
        else:
            if isinstance(outcome, RuntimeRequest):
                patience = hook_budget_s(self._budget_s, call.timeout_s, self.peer)
                self._requests.submit(outcome, arrived_s + patience, reply)
            else:
                reply("ok", outcome or b"")

    def _reply(
        self, call: RuntimeCall, arrived_s: float, result: str, answer: bytes | CallError
    ) -> None:
        if not self._server.finish(call.stream):
            return
        try:
            message = _response_frame(call.stream, answer)
        except CallError as error:  # more than a frame carries
            result, message = "refused", _response_frame(call.stream, error)
        self._write(message)
        self._counters.count_answer(call.method, result, self._loop.time() - arrived_s)

    def _write(self, message: bytes) -> None:
        if self._connection is not None:
            self._connection.answer(message)

    def configure(self, call: RuntimeCall) -> bytes:
        """Learn who the runtime is; subscribe to what it knows of what is wanted."""
        told = calls.ConfigureRequest.FromString(call.payload)
        self.peer = parse_peer(
            told.runtime_name, told.runtime_version, told.NRI_version, told.request_timeout
        )
        self._view_store.set_peer(self.peer)
        self._view_store.set_state(
            "registered", "AwaitingPods", "the runtime has not told its pods yet"
        )
        mask = event_mask(self.peer.nri)
        return calls.ConfigureResponse(events=mask).SerializeToString()

    def synchronize(self, call: RuntimeCall) -> bytes:
        """Keep a part of the list; the last one is read after the answer."""
        parts, self._list = self._list, SynchronizationList()
        if parts.add(call.payload):  # one that cannot be read takes those before it with it
            self._list = parts
            return calls.SynchronizeResponse(more=True).SerializeToString()
        if self._reading is not None:
            self._reading.cancel()
        self._requests.list_applied.clear()
        self._view_store.begin_list()
        self._reading = self._loop.create_task(self._apply_list(parts))
        return b""

    async def _apply_list(self, parts: SynchronizationList) -> None:
        """Bring the picture up to the list; what is asked meanwhile waits for it."""
        try:
            sandboxes, containers = await parts.read()
            self._view_store.replace_all(sandboxes, containers)
        except Exception:  # a bug in reading one list must not make all questions wait for ever
            log.exception("nri_list_failed")
            self._view_store.fail_list()
        self._counters.dropped += parts.dropped
        self._requests.list_applied.set()
        if not self.ready.done():
            self.ready.set_result(None)

    def shutdown(self, call: RuntimeCall) -> bytes:  # noqa: ARG002 - it says nothing
        """Leave, as the runtime wishes; the answer goes first."""
        if self._connection is not None:
            self._loop.call_soon(self._connection.close, "ShutDown")
        return b""

    def create(self, call: RuntimeCall) -> RuntimeRequest:
        """Ask the hooks."""
        return self._events.create_container(
            calls.CreateContainerRequest.FromString(call.payload), self.peer
        )

    def update(self, call: RuntimeCall) -> RuntimeRequest:
        """Ask the hooks."""
        return self._events.update_container(calls.UpdateContainerRequest.FromString(call.payload))

    def state_change(self, call: RuntimeCall) -> RuntimeRequest | None:
        """Take in an event that older runtimes tell by this one method."""
        told = calls.StateChangeEvent.FromString(call.payload)
        return self._events.handle_event(told.event, told.pod, told.container)

    def pod_event(self, call: RuntimeCall, number: int) -> RuntimeRequest | None:
        """Take in an event of a pod: all their messages begin alike."""
        told = calls.RunPodSandboxRequest.FromString(call.payload)
        return self._events.handle_event(number, told.pod, None)

    def container_event(self, call: RuntimeCall, number: int) -> RuntimeRequest | None:
        """Take in an event of a container: all their messages begin alike."""
        told = calls.StartContainerRequest.FromString(call.payload)
        return self._events.handle_event(number, told.pod, told.container)

    def accept(self, call: RuntimeCall) -> bytes:  # noqa: ARG002 - whatever it says
        """Have no say: nothing is changed, nothing refused."""
        return b""


def _response_frame(stream: int, answer: bytes | CallError) -> bytes:
    if isinstance(answer, CallError):
        return error_frame(stream, answer.code, answer.message)
    return response_frame(stream, answer)


def _pod_event(number: int) -> MethodHandler:
    return lambda session, call: session.pod_event(call, number)


def _container_event(number: int) -> MethodHandler:
    return lambda session, call: session.container_event(call, number)


_METHODS: Mapping[str, MethodHandler] = {
    "Configure": RuntimeSession.configure,
    "Synchronize": RuntimeSession.synchronize,
    "Shutdown": RuntimeSession.shutdown,
    "StateChange": RuntimeSession.state_change,
    "CreateContainer": RuntimeSession.create,
    "UpdateContainer": RuntimeSession.update,
    "StopContainer": _container_event(calls.STOP_CONTAINER),
    "UpdatePodSandbox": RuntimeSession.accept,
    "ValidateContainerAdjustment": RuntimeSession.accept,
    "RunPodSandbox": _pod_event(calls.RUN_POD_SANDBOX),
    "PostUpdatePodSandbox": _pod_event(calls.POST_UPDATE_POD_SANDBOX),
    "StopPodSandbox": _pod_event(calls.STOP_POD_SANDBOX),
    "RemovePodSandbox": _pod_event(calls.REMOVE_POD_SANDBOX),
    "PostCreateContainer": _container_event(calls.POST_CREATE_CONTAINER),
    "StartContainer": _container_event(calls.START_CONTAINER),
    "PostStartContainer": _container_event(calls.POST_START_CONTAINER),
    "PostUpdateContainer": _container_event(calls.POST_UPDATE_CONTAINER),
    "RemoveContainer": _container_event(calls.REMOVE_CONTAINER),
}

DEADLINE_MARGIN_S = 0.2  # before the runtime's own patience ends, which would cost the connection

DRAIN_S = 2.0  # at the end, for hooks that do not even end when they are told to

ReplyCallback = Callable[[str, "bytes | CallError"], None]  # how it went, and the answer


def hook_budget_s(budget_s: float, call_timeout_s: float, peer: RuntimePeer) -> float:
    """Return how long the hooks may take: the budget, or less where the runtime waits for less."""
    limit_s = min(call_timeout_s or peer.request_timeout_s, peer.request_timeout_s)
    return min(budget_s, max(limit_s - DEADLINE_MARGIN_S, limit_s / 2))


class OpenRuntimeRequests:
    """The questions of one connection that are open. Belongs to the loop thread."""

    def __init__(
        self, handler: RuntimeHandler, view_store: RuntimeViewStore, figures: NriCounters
    ) -> None:
        """Pass requests to `handler`; mark containers that start without an answer in the view."""
        self._handler = handler
        self._view_store = view_store
        self._counters = figures
        self._loop = asyncio.get_running_loop()
        self._open: dict[asyncio.Task[None], tuple[asyncio.TimerHandle, RuntimeRequest]] = {}
        self.list_applied = asyncio.Event()  # cleared while the picture is being replaced
        self.list_applied.set()

    def submit(self, question: RuntimeRequest, until_s: float, reply: ReplyCallback) -> None:
        """Have `reply` called once, by the loop's time `until_s` with no change if need be.

        It is called before this returns if the hooks answer without waiting.
        """
        said: Adjustment | Awaitable[Adjustment] | None = None
        if self.list_applied.is_set():
            try:
                said = self._handler.adjust(question.request)
            except Exception as error:  # noqa: BLE001 - a hook's boundary: a bug stops no pod
                reply(*self._hook_failure(question, error))
                return
        if isinstance(said, Adjustment):
            reply(*self._answer(question, said))
            return
        self._view_store.publish_pending()
        task = self._loop.create_task(self._await_answer(question, said, reply))
        if inspect.iscoroutine(said):  # a task that is cancelled before its first turn leaves it
            task.add_done_callback(partial(_close_coroutine, said))
        timer = self._loop.call_at(until_s, self._expire, task, reply)
        self._open[task] = timer, question
        self._counters.in_flight += 1

    async def drain(self) -> None:
        """Wait for what is open now: a pod that starts just then is not to start without us."""
        if self._open:
            await asyncio.wait(tuple(self._open), timeout=DRAIN_S)

    def cancel_all(self) -> None:
        """End all that is open: nobody waits for the answers any more."""
        for task in tuple(self._open):
            question = self._remove(task)
            task.cancel()
            if question is not None:
                self._mark_missed(question, "ConnectionLost")

    async def _await_answer(
        self, question: RuntimeRequest, said: Awaitable[Adjustment] | None, reply: ReplyCallback
    ) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - within a coroutine that is one
        try:
            result, answer = self._answer(question, await self._adjustment(question, said))
        except asyncio.CancelledError as error:
            if task not in self._open:
                raise  # by us: it is answered, or nobody waits
            result, answer = self._hook_failure(question, error)
        except Exception as error:  # noqa: BLE001 - as in `ask`
            result, answer = self._hook_failure(question, error)
        self._remove(task)
        reply(result, answer)

    async def _adjustment(
        self, question: RuntimeRequest, said: Awaitable[Adjustment] | None
    ) -> Adjustment:
        if said is not None:
            return await said
        await self.list_applied.wait()
        found = self._handler.adjust(question.request)
        return found if isinstance(found, Adjustment) else await found

    def _hook_failure(
        self, question: RuntimeRequest, error: BaseException
    ) -> tuple[str, bytes | CallError]:
        stage = question.request.stage.value
        log.error("nri_hooks_failed", extra={"stage": stage}, exc_info=error)
        asked = question.request
        if asked.stage is HookStage.CREATE and allocation_annotation(asked.pod) is not None:
            # to run without what was granted is worse than not to run
            text = f"HookFailed: {type(error).__name__}: see the agent's log"
            return self._refusal(question, INTERNAL, text)
        self._mark_missed(question, "HookFailed")
        return "broken", b""

    def _answer(
        self, question: RuntimeRequest, adjustment: Adjustment
    ) -> tuple[str, bytes | CallError]:
        """Return how it went and the answer; never raises."""
        if adjustment.failed:
            return self._refusal(question, FAILED_PRECONDITION, _refusal_message(adjustment))
        stage = question.request.stage
        try:
            if stage is HookStage.CREATE:
                answer = render_creation(adjustment, question.request.resources, question.peer)
            elif stage is HookStage.UPDATE:
                subject, asked = question.subject_id, question.request.resources
                answer = render_update(subject, adjustment, asked)
            else:
                answer = b""  # a pod has no answer
        except CallError as error:
            return self._refusal(question, error.code, error.message)
        except Exception as error:  # a bug, and without the answer the container would lack things
            log.exception("nri_answer_failed", extra={"stage": stage.value})
            return self._refusal(question, INTERNAL, f"{type(error).__name__}: see the agent's log")
        if stage is HookStage.CREATE:
            self._counters.adjustments += bool(answer)
            self._view_store.mark_created(question.subject_id)
        elif stage is HookStage.UPDATE:
            self._counters.updates += bool(answer)
        return "ok", answer

    def _refusal(
        self, question: RuntimeRequest, code: int, message: str
    ) -> tuple[str, bytes | CallError]:
        if not question.is_refusable:
            return "ok", b""
        if question.request.stage is HookStage.CREATE:
            self._view_store.remove_container(question.subject_id)
        return "refused", CallError(code, message)

    def _expire(self, task: asyncio.Task[None], reply: ReplyCallback) -> None:
        question = self._remove(task)
        if question is None:
            return
        task.cancel()
        stage = question.request.stage.value
        log.warning("nri_answer_late", extra={"stage": stage, "subject": question.subject_id})
        self._mark_missed(question, "BudgetExceeded")
        reply("late", b"")

    def _mark_missed(self, question: RuntimeRequest, reason: str) -> None:
        self._view_store.mark_missed(question.subject_id, reason)

    def _remove(self, task: asyncio.Task[None]) -> RuntimeRequest | None:
        timer, question = self._open.pop(task, (None, None))
        if timer is not None:
            timer.cancel()
            self._counters.in_flight -= 1
        return question


def _close_coroutine(said: Coroutine[object, object, object], _: asyncio.Task[None]) -> None:
    said.close()


def _refusal_message(adjustment: Adjustment) -> str:
    """Return the message for the runtime, with the reason in it once."""
    reason, message = adjustment.reason, adjustment.failed
    return message if reason in message else f"{reason}: {message}"
