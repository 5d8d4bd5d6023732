"""One NRI connection: dispatches the runtime's calls and answers each within the time budget."""

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
    """Answers every call and never closes the connection itself. Belongs to the loop thread.

    `ready` is done when the runtime has listed all its pods and the view contains them.
    """

    def __init__(
        self,
        requests: OpenRuntimeRequests,
        events: RuntimeEvents,
        view_store: RuntimeViewStore,
        counters: NriCounters,
        budget_s: float,
    ) -> None:
        """Create a session; `requests` and `events` belong to this connection only."""
        self._requests = requests
        self._events = events
        self._view_store = view_store
        self._counters = counters
        self._budget_s = budget_s
        self._server = CallServer(SERVICE, _METHODS)
        self._loop = asyncio.get_running_loop()
        self._list = SynchronizationList()
        self._reading: asyncio.Task[None] | None = None
        self._connection: RuntimeConnection | None = None
        self.peer = RuntimePeer()
        self.ready: asyncio.Future[None] = self._loop.create_future()

    def attach(self, connection: RuntimeConnection) -> None:
        """Send answers over this connection."""
        self._connection = connection

    def handle_frame(self, frame: TtrpcFrame) -> None:
        """Handle a frame of the connection: answer it now, or when the hooks have answered."""
        server, counters = self._server, self._counters
        outcome = server.accept(frame)
        if isinstance(outcome, RuntimeCall):
            self._serve(outcome)
        elif outcome is not None:
            counters.unknown_methods += server.unknown_methods
            counters.oversized += server.oversized
            server.unknown_methods = server.oversized = 0
            self._write(outcome)

    def handle_close(self, reason: ConnectionClosed) -> None:
        """Cancel all pending work: hooks, the list, and `ready`."""
        self._requests.cancel_all()
        if self._reading is not None:
            self._reading.cancel()
        if not self.ready.done():
            self.ready.set_exception(reason)
            self.ready.exception()  # mark it as retrieved: possibly nobody awaits it

    def _serve(self, call: RuntimeCall) -> None:
        arrived_s = (
            self._connection.arrived_s if self._connection is not None else self._loop.time()
        )
        reply = partial(self._reply, call, arrived_s)
        try:
            outcome = _METHODS[call.method](self, call)
        except (DecodeError, ParseError) as error:
            reply("malformed", CallError(INTERNAL, f"ttrpc: error unmarshalling payload: {error}"))
        except Exception as error:  # boundary of an RPC: a bug must not end the connection
            log.exception("nri_call_failed", extra={"method": call.method})
            reply("broken", CallError(INTERNAL, f"{type(error).__name__}: see the agent's log"))
        else:
            if isinstance(outcome, RuntimeRequest):
                hook_time_s = hook_budget_s(self._budget_s, call.timeout_s, self.peer)
                self._requests.submit(outcome, arrived_s + hook_time_s, reply)
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
        """Record name and versions of the runtime; subscribe to the events that it supports."""
        message = calls.ConfigureRequest.FromString(call.payload)
        self.peer = parse_peer(
            message.runtime_name,
            message.runtime_version,
            message.NRI_version,
            message.request_timeout,
        )
        self._view_store.set_peer(self.peer)
        self._view_store.set_state(
            "registered", "AwaitingPods", "the runtime has not told its pods yet"
        )
        mask = event_mask(self.peer.nri)
        return calls.ConfigureResponse(events=mask).SerializeToString()

    def synchronize(self, call: RuntimeCall) -> bytes:
        """Collect a part of the list; the list is parsed after the answer to its last part."""
        pod_list, self._list = self._list, SynchronizationList()
        if pod_list.add(call.payload):  # an invalid part discards the parts before it
            self._list = pod_list
            return calls.SynchronizeResponse(more=True).SerializeToString()
        if self._reading is not None:
            self._reading.cancel()
        self._requests.list_applied.clear()
        self._view_store.begin_list()
        self._reading = self._loop.create_task(self._apply_list(pod_list))
        return b""

    async def _apply_list(self, pod_list: SynchronizationList) -> None:
        """Apply a full list to the view; requests that arrive meanwhile wait for it."""
        try:
            sandboxes, containers = await pod_list.read(self.peer)
            self._view_store.replace_all(sandboxes, containers)
        except Exception:  # otherwise a bug in reading one list would block all requests for ever
            log.exception("nri_list_failed")
            self._view_store.fail_list()
        self._counters.dropped += pod_list.dropped
        self._requests.list_applied.set()
        if not self.ready.done():
            self.ready.set_result(None)

    def shutdown(self, call: RuntimeCall) -> bytes:  # noqa: ARG002 - it says nothing
        """Close the connection on the runtime's demand, after the answer."""
        if self._connection is not None:
            self._loop.call_soon(self._connection.close, "ShutDown")
        return b""

    def create(self, call: RuntimeCall) -> RuntimeRequest:
        """Return the request to the hooks for a new container."""
        return self._events.create_container(
            calls.CreateContainerRequest.FromString(call.payload), self.peer
        )

    def update(self, call: RuntimeCall) -> RuntimeRequest:
        """Return the request to the hooks for changed resources."""
        return self._events.update_container(calls.UpdateContainerRequest.FromString(call.payload))

    def state_change(self, call: RuntimeCall) -> RuntimeRequest | None:
        """Handle an event that older runtimes send by this one method."""
        message = calls.StateChangeEvent.FromString(call.payload)
        return self._events.handle_event(message.event, message.pod, message.container, self.peer)

    def pod_event(self, call: RuntimeCall, number: int) -> RuntimeRequest | None:
        """Handle an event of a pod: the messages of all pod events begin with the same fields."""
        message = calls.RunPodSandboxRequest.FromString(call.payload)
        return self._events.handle_event(number, message.pod, None, self.peer)

    def container_event(self, call: RuntimeCall, number: int) -> RuntimeRequest | None:
        """Handle an event of a container: the messages of all container events begin alike."""
        message = calls.StartContainerRequest.FromString(call.payload)
        return self._events.handle_event(number, message.pod, message.container, self.peer)

    def accept(self, call: RuntimeCall) -> bytes:  # noqa: ARG002 - whatever it says
        """Answer without a change or a refusal."""
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

DEADLINE_MARGIN_S = 0.2  # before the runtime's own time limit, after which it closes the connection

DRAIN_S = 2.0  # at the end, for hooks that ignore their cancellation

ReplyCallback = Callable[
    [str, "bytes | CallError"], None
]  # result for the counters, and the answer


def hook_budget_s(budget_s: float, call_timeout_s: float, peer: RuntimePeer) -> float:
    """Return the time for the hooks: the budget, or less if the runtime waits for less."""
    limit_s = min(call_timeout_s or peer.request_timeout_s, peer.request_timeout_s)
    return min(budget_s, max(limit_s - DEADLINE_MARGIN_S, limit_s / 2))


class OpenRuntimeRequests:
    """The open requests of one connection. Belongs to the loop thread."""

    def __init__(
        self, handler: RuntimeHandler, view_store: RuntimeViewStore, counters: NriCounters
    ) -> None:
        """Pass requests to `handler`; mark containers that start without an answer in the view."""
        self._handler = handler
        self._view_store = view_store
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._open: dict[asyncio.Task[None], tuple[asyncio.TimerHandle, RuntimeRequest]] = {}
        self.list_applied = asyncio.Event()  # cleared while a full list is being applied
        self.list_applied.set()

    def submit(self, open_request: RuntimeRequest, until_s: float, reply: ReplyCallback) -> None:
        """Call `reply` once, at the latest at `until_s` of the loop's clock.

        Then it is called with no change; a container with an allocation is refused.
        `reply` is called before this method returns if the hooks answer without waiting.
        """
        answer: Adjustment | Awaitable[Adjustment] | None = None
        if self.list_applied.is_set():
            try:
                answer = self._handler.adjust(open_request.request)
            except Exception as error:  # noqa: BLE001 - boundary of a hook: a bug stops no pod
                reply(*self._hook_failure(open_request, error))
                return
        if isinstance(answer, Adjustment):
            reply(*self._answer(open_request, answer))
            return
        self._view_store.publish_pending()
        task = self._loop.create_task(self._await_answer(open_request, answer, reply))
        if inspect.iscoroutine(answer):  # a task cancelled before its first turn does not close it
            task.add_done_callback(partial(_close_coroutine, answer))
        timer = self._loop.call_at(until_s, self._expire, task, reply)
        self._open[task] = timer, open_request
        self._counters.in_flight += 1

    async def drain(self) -> None:
        """Wait for the open requests: a pod that starts now needs its adjustment."""
        if self._open:
            await asyncio.wait(tuple(self._open), timeout=DRAIN_S)

    def cancel_all(self) -> None:
        """Cancel all open requests: the connection that waits for the answers has ended."""
        for task in tuple(self._open):
            open_request = self._remove(task)
            task.cancel()
            if open_request is not None:
                self._mark_missed(open_request, "ConnectionLost")

    async def _await_answer(
        self,
        open_request: RuntimeRequest,
        pending_adjustment: Awaitable[Adjustment] | None,
        reply: ReplyCallback,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - within a coroutine that is one
        try:
            result, answer = self._answer(
                open_request, await self._adjustment(open_request, pending_adjustment)
            )
        except asyncio.CancelledError as error:
            if task not in self._open:
                raise  # cancelled by this class: it is answered, or the connection has ended
            result, answer = self._hook_failure(open_request, error)
        except Exception as error:  # noqa: BLE001 - as in `submit`
            result, answer = self._hook_failure(open_request, error)
        self._remove(task)
        reply(result, answer)

    async def _adjustment(
        self, open_request: RuntimeRequest, pending_adjustment: Awaitable[Adjustment] | None
    ) -> Adjustment:
        if pending_adjustment is not None:
            return await pending_adjustment
        await self.list_applied.wait()
        adjustment = self._handler.adjust(open_request.request)
        return adjustment if isinstance(adjustment, Adjustment) else await adjustment

    def _hook_failure(
        self, open_request: RuntimeRequest, error: BaseException
    ) -> tuple[str, bytes | CallError]:
        stage = open_request.request.stage.value
        log.error("nri_hooks_failed", extra={"stage": stage}, exc_info=error)
        if _needs_devices(open_request):
            text = f"HookFailed: {type(error).__name__}: see the agent's log"
            return self._refusal(open_request, INTERNAL, text)
        self._mark_missed(open_request, "HookFailed")
        return "broken", b""

    def _answer(
        self, open_request: RuntimeRequest, adjustment: Adjustment
    ) -> tuple[str, bytes | CallError]:
        """Return the result for the counters and the answer; never raises."""
        if adjustment.failed:
            return self._refusal(open_request, FAILED_PRECONDITION, _refusal_message(adjustment))
        stage = open_request.request.stage
        try:
            if stage is HookStage.CREATE:
                answer = render_creation(
                    adjustment, open_request.request.resources, open_request.peer
                )
            elif stage is HookStage.UPDATE:
                container_id, resources = open_request.subject_id, open_request.request.resources
                answer = render_update(container_id, adjustment, resources)
            else:
                answer = b""  # a pod has no answer
        except CallError as error:
            return self._refusal(open_request, error.code, error.message)
        except Exception as error:  # a bug: without the answer the container would lack devices
            log.exception("nri_answer_failed", extra={"stage": stage.value})
            return self._refusal(
                open_request, INTERNAL, f"{type(error).__name__}: see the agent's log"
            )
        if stage is HookStage.CREATE:
            self._counters.adjustments += bool(answer)
            self._view_store.mark_created(open_request.subject_id)
        elif stage is HookStage.UPDATE:
            self._counters.updates += bool(answer)
        return "ok", answer

    def _refusal(
        self, open_request: RuntimeRequest, code: int, message: str
    ) -> tuple[str, bytes | CallError]:
        if not open_request.is_refusable:
            return "ok", b""
        if open_request.request.stage is HookStage.CREATE:
            self._view_store.remove_container(open_request.subject_id)
        return "refused", CallError(code, message)

    def _expire(self, task: asyncio.Task[None], reply: ReplyCallback) -> None:
        open_request = self._remove(task)
        if open_request is None:
            return
        task.cancel()
        stage = open_request.request.stage.value
        log.warning("nri_answer_late", extra={"stage": stage, "subject": open_request.subject_id})
        if _needs_devices(open_request):
            text = "BudgetExceeded: the hooks have not answered in time; see nri.budget_ms"
            reply("late", self._refusal(open_request, FAILED_PRECONDITION, text)[1])
            return
        self._mark_missed(open_request, "BudgetExceeded")
        reply("late", b"")

    def _mark_missed(self, open_request: RuntimeRequest, reason: str) -> None:
        self._view_store.mark_missed(open_request.subject_id, reason)

    def _remove(self, task: asyncio.Task[None]) -> RuntimeRequest | None:
        timer, open_request = self._open.pop(task, (None, None))
        if timer is not None:
            timer.cancel()
            self._counters.in_flight -= 1
        return open_request


def _needs_devices(open_request: RuntimeRequest) -> bool:
    """Return whether a new container must not run without an answer: it has an allocation.

    Running without the allocated devices is worse than not running.
    """
    request = open_request.request
    return request.stage is HookStage.CREATE and allocation_annotation(request.pod) is not None


def _close_coroutine(coroutine: Coroutine[object, object, object], _: asyncio.Task[None]) -> None:
    coroutine.close()


def _refusal_message(adjustment: Adjustment) -> str:
    """Return the message for the runtime, with the reason in it once."""
    reason, message = adjustment.reason, adjustment.failed
    return message if reason in message else f"{reason}: {message}"
