"""One connection's conversation: every call of the runtime, and who answers it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from google.protobuf.message import DecodeError

from agent.errors import ParseError
from agent.nri.asking import Asking, Question, patience_s
from agent.nri.events import Events
from agent.nri.figures import Figures
from agent.nri.picture import Picture
from agent.nri.synchronizing import Parts
from agent.nri.versions import Peer, events, peer
from agent.nri.wire.errors import INTERNAL, CallFailed, TrunkClosed
from agent.nri.wire.server import Call, CallServer
from agent.nri.wire.trunk import Trunk
from agent.nri.wire.ttrpc import Frame, refusal, response
from proto.gen import nri_plugin_pb2 as calls

log = logging.getLogger(__name__)

SERVICE = "nri.pkg.api.v1alpha1.Plugin"

Method = Callable[["Session", Call], "bytes | Question | None"]


class Session:
    """Answers every call, most at once, and never by closing. Belongs to the loop thread.

    `ready` is done when the runtime has told of all its pods and these are in the picture.
    """

    def __init__(
        self, asking: Asking, told: Events, picture: Picture, figures: Figures, budget_s: float
    ) -> None:
        """`asking` and `told` are this connection's own."""
        self._asking = asking
        self._told = told
        self._picture = picture
        self._figures = figures
        self._budget_s = budget_s
        self._server = CallServer(SERVICE, _METHODS)
        self._loop = asyncio.get_running_loop()
        self._parts = Parts()
        self._reading: asyncio.Task[None] | None = None
        self._trunk: Trunk | None = None
        self.peer = Peer()
        self.ready: asyncio.Future[None] = self._loop.create_future()

    def over(self, trunk: Trunk) -> None:
        """Answer over this trunk."""
        self._trunk = trunk

    def take(self, frame: Frame) -> None:
        """Answer a frame, now or when the hooks have spoken; the trunk calls it."""
        server, figures = self._server, self._figures
        outcome = server.take(frame)
        if isinstance(outcome, Call):
            self._serve(outcome)
        elif outcome is not None:
            figures.unknown_methods += server.unknown_methods
            figures.oversized += server.oversized
            server.unknown_methods = server.oversized = 0
            self._write(outcome)

    def lost(self, why: TrunkClosed) -> None:
        """End what waits: for hooks, for the list, for `ready`."""
        self._asking.drop()
        if self._reading is not None:
            self._reading.cancel()
        if not self.ready.done():
            self.ready.set_exception(why)
            self.ready.exception()  # it may be that nobody waits for it any more

    def _serve(self, call: Call) -> None:
        arrived_s = self._trunk.arrived_s if self._trunk is not None else self._loop.time()
        reply = partial(self._reply, call, arrived_s)
        try:
            outcome = _METHODS[call.method](self, call)
        except (DecodeError, ParseError) as error:
            reply("malformed", CallFailed(INTERNAL, f"ttrpc: error unmarshalling payload: {error}"))
        except Exception as error:  # an RPC's boundary: no bug costs a connection
            log.exception("nri_call_failed", extra={"method": call.method})
            reply("broken", CallFailed(INTERNAL, f"{type(error).__name__}: see the agent's log"))
        else:
            if isinstance(outcome, Question):
                patience = patience_s(self._budget_s, call.timeout_s, self.peer)
                self._asking.ask(outcome, arrived_s + patience, reply)
            else:
                reply("ok", outcome or b"")

    def _reply(self, call: Call, arrived_s: float, result: str, answer: bytes | CallFailed) -> None:
        if not self._server.finish(call.stream):
            return
        try:
            message = _message(call.stream, answer)
        except CallFailed as error:  # more than a frame carries
            result, message = "refused", _message(call.stream, error)
        self._write(message)
        self._figures.answered(call.method, result, self._loop.time() - arrived_s)

    def _write(self, message: bytes) -> None:
        if self._trunk is not None:
            self._trunk.answer(message)

    def configure(self, call: Call) -> bytes:
        """Learn who the runtime is; subscribe to what it knows of what is wanted."""
        told = calls.ConfigureRequest.FromString(call.payload)
        self.peer = peer(
            told.runtime_name, told.runtime_version, told.NRI_version, told.request_timeout
        )
        self._picture.met(self.peer)
        self._picture.stands("registered", "AwaitingPods", "the runtime has not told its pods yet")
        mask = events(self.peer.nri)
        return calls.ConfigureResponse(events=mask).SerializeToString()

    def synchronize(self, call: Call) -> bytes:
        """Keep a part of the list; the last one is read after the answer."""
        parts, self._parts = self._parts, Parts()
        if parts.add(call.payload):  # one that cannot be read takes those before it with it
            self._parts = parts
            return calls.SynchronizeResponse(more=True).SerializeToString()
        if self._reading is not None:
            self._reading.cancel()
        self._asking.settled.clear()
        self._picture.begin_list()
        self._reading = self._loop.create_task(self._read(parts))
        return b""

    async def _read(self, parts: Parts) -> None:
        """Bring the picture up to the list; what is asked meanwhile waits for it."""
        try:
            sandboxes, containers = await parts.read()
            self._picture.listed(sandboxes, containers)
        except Exception:  # a bug in reading one list must not make all questions wait for ever
            log.exception("nri_list_failed")
            self._picture.unlisted()
        self._figures.left_out += parts.left_out
        self._asking.settled.set()
        if not self.ready.done():
            self.ready.set_result(None)

    def shutdown(self, call: Call) -> bytes:  # noqa: ARG002 - it says nothing
        """Leave, as the runtime wishes; the answer goes first."""
        if self._trunk is not None:
            self._loop.call_soon(self._trunk.leave, "ShutDown")
        return b""

    def create(self, call: Call) -> Question:
        """Ask the hooks."""
        return self._told.create(calls.CreateContainerRequest.FromString(call.payload), self.peer)

    def update(self, call: Call) -> Question:
        """Ask the hooks."""
        return self._told.update(calls.UpdateContainerRequest.FromString(call.payload))

    def state_change(self, call: Call) -> Question | None:
        """Take in an event that older runtimes tell by this one method."""
        told = calls.StateChangeEvent.FromString(call.payload)
        return self._told.event(told.event, told.pod, told.container)

    def pod_event(self, call: Call, number: int) -> Question | None:
        """Take in an event of a pod: all their messages begin alike."""
        told = calls.RunPodSandboxRequest.FromString(call.payload)
        return self._told.event(number, told.pod, None)

    def container_event(self, call: Call, number: int) -> Question | None:
        """Take in an event of a container: all their messages begin alike."""
        told = calls.StartContainerRequest.FromString(call.payload)
        return self._told.event(number, told.pod, told.container)

    def nothing(self, call: Call) -> bytes:  # noqa: ARG002 - whatever it says
        """Have no say: nothing is changed, nothing refused."""
        return b""


def _message(stream: int, answer: bytes | CallFailed) -> bytes:
    if isinstance(answer, CallFailed):
        return refusal(stream, answer.code, answer.message)
    return response(stream, answer)


def _pod(number: int) -> Method:
    return lambda session, call: session.pod_event(call, number)


def _container(number: int) -> Method:
    return lambda session, call: session.container_event(call, number)


_METHODS: Mapping[str, Method] = {
    "Configure": Session.configure,
    "Synchronize": Session.synchronize,
    "Shutdown": Session.shutdown,
    "StateChange": Session.state_change,
    "CreateContainer": Session.create,
    "UpdateContainer": Session.update,
    "StopContainer": _container(calls.STOP_CONTAINER),
    "UpdatePodSandbox": Session.nothing,
    "ValidateContainerAdjustment": Session.nothing,
    "RunPodSandbox": _pod(calls.RUN_POD_SANDBOX),
    "PostUpdatePodSandbox": _pod(calls.POST_UPDATE_POD_SANDBOX),
    "StopPodSandbox": _pod(calls.STOP_POD_SANDBOX),
    "RemovePodSandbox": _pod(calls.REMOVE_POD_SANDBOX),
    "PostCreateContainer": _container(calls.POST_CREATE_CONTAINER),
    "StartContainer": _container(calls.START_CONTAINER),
    "PostStartContainer": _container(calls.POST_START_CONTAINER),
    "PostUpdateContainer": _container(calls.POST_UPDATE_CONTAINER),
    "RemoveContainer": _container(calls.REMOVE_CONTAINER),
}
