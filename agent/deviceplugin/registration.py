"""Registers one resource with the kubelet, and keeps it registered.

`register` makes one call; `find_conflicting_socket` finds another vendor's plug-in for the same
resource, since two plug-ins would alternate; `RegistrationStatus` reports each state once.

`ResourceRegistration` serves, registers and watches one resource, again and again. Each round
begins with a new server on a socket of its own and ends when that server has stopped: the kubelet
takes the end of an old stream for the end of the resource's newest server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

from grpc import aio

from agent.deviceplugin.context import ChangeCondition, PluginContext
from agent.deviceplugin.kubelet_folder import FolderState, KubeletFolder, SocketIdentity
from agent.deviceplugin.resources import MAX_ERROR_DETAIL
from agent.deviceplugin.server import ResourceServer, ServerStartError
from agent.deviceplugin.servicer import RESULT_OK, ResourceServicer
from agent.errors import AgentError
from agent.messages import EventReported

log = logging.getLogger(__name__)

REGISTER_METHOD = "/v1beta1.Registration/Register"

CHANNEL_OPTIONS = (
    # gRPC would send the path as authority, which strict servers refuse
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # its own connection: one to an earlier kubelet on this path may be cached
    ("grpc.use_local_subchannel_pool", 1),
)

# texts of the kubelet, which has one status for all errors
REFUSAL_REASONS = (
    ("is not supported by kubelet", "VersionRefused"),
    ("ResourceName", "NameRefused"),
)


class RegistrationError(AgentError):
    """The kubelet did not accept the registration; `is_refused` if a retry alone will not help."""

    def __init__(self, reason: str, detail: str, *, is_refused: bool = False) -> None:
        super().__init__(detail[:MAX_ERROR_DETAIL])
        self.reason = reason  # CamelCase
        self.is_refused = is_refused


async def register(path: str, request: bytes, deadline_s: float) -> None:
    """Register, or raise `RegistrationError` within the deadline. gRPC is loaded by then.

    The kubelet calls the agent's server before it answers: the server must run meanwhile. Its
    answer proves nothing: old kubelets answer before they connect to the server.
    """
    async with aio.insecure_channel(f"unix:{path}", options=CHANNEL_OPTIONS) as channel:
        call: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(REGISTER_METHOD)
        try:
            await call(request, timeout=deadline_s)
        except aio.AioRpcError as error:
            raise registration_error(error, deadline_s) from error


def registration_error(error: aio.AioRpcError, deadline_s: float) -> RegistrationError:
    """Return the error of a failed registration. Texts of the kubelet are cut."""
    code, detail = error.code().name, (error.details() or "")[:MAX_ERROR_DETAIL]
    if code == "UNAVAILABLE":
        return RegistrationError("KubeletAway", f"the kubelet does not listen: {detail}")
    if code == "DEADLINE_EXCEEDED":
        return RegistrationError("KubeletSilent", f"the kubelet gave no answer in {deadline_s:g} s")
    if code == "UNIMPLEMENTED":
        return RegistrationError("NoKubelet", "who listens knows no registration", is_refused=True)
    for words, reason in REFUSAL_REASONS:
        if words in detail:
            return RegistrationError(reason, f"the kubelet refuses: {detail}", is_refused=True)
    return RegistrationError("RegistrationFailed", f"{code}: {detail}")


AGENT_SOCKET_PREFIX = "xpu-agent-"  # start of the agent's socket names


def find_conflicting_socket(
    prefixes: tuple[str, ...], resource: str, sockets: Iterable[str]
) -> str:
    """Return the socket of another plug-in that serves this resource; empty if there is none.

    `prefixes` are those of the vendor's own plug-in; `sockets` are the names of listening sockets
    in the kubelet's folder.
    """
    domain, _, own_name = resource.partition("/")
    # device plug-ins for NICs use this name for every vendor
    full_name = f"{domain}_{own_name}.sock"
    for name in sorted(sockets):
        if (
            not name.endswith(".sock")
            or name.startswith(AGENT_SOCKET_PREFIX)
            or name == "kubelet.sock"
        ):
            continue
        if name in (f"{own_name}.sock", full_name):
            return name
        if name.startswith(prefixes) and not name.startswith(f"{domain}_"):
            return name
    return ""


WAITING, REGISTERING, REGISTERED = "waiting", "registering", "registered"

WATCHED, REFUSED, CONFLICT = "watched", "refused", "conflict"

# states that need a person, with the reason of their event
_EVENT_REASONS = {REFUSED: "DevicePluginRefused", CONFLICT: "DevicePluginConflict"}


class RegistrationStatus:
    """State, CamelCase reason and message of a registration, as in `PluginResource`."""

    def __init__(
        self, resource: str, context: PluginContext, on_change: Callable[[], None]
    ) -> None:
        self.state, self.reason, self.message = WAITING, "", ""
        self._resource = resource
        self._context = context
        self._on_change = on_change
        self._last_reported = ("", "")

    def update(self, state: str, reason: str = "", message: str = "") -> None:
        """Set the state; log and report a problem once until it is over."""
        if (state, reason, message) == (self.state, self.reason, self.message):
            return
        self.state, self.reason, self.message = state, reason, message
        self._on_change()
        is_progressing = state in (REGISTERING, REGISTERED) and not reason
        if is_progressing or (state, reason) == self._last_reported:
            return
        self._last_reported = (state, reason)
        fields = {"resource": self._resource, "state": state, "reason": reason, "error": message}
        log.log(logging.INFO if not reason else logging.WARNING, "device_plugin", extra=fields)
        if state in _EVENT_REASONS:
            self._context.messages.put(
                EventReported(_EVENT_REASONS[state], f"{self._resource}: {message}")
            )


MAX_REPORTED_SOCKETS = 5  # sockets of others in a message


class ResourceRegistration:
    """Keeps one resource served and registered until `run` is cancelled. Of the loop thread."""

    def __init__(
        self,
        context: PluginContext,
        folder: KubeletFolder,
        changes: ChangeCondition,
        servicer: ResourceServicer,
        on_change: Callable[[], None],
    ) -> None:
        """Create the registration.

        `changes` is notified after each scan of the folder; `on_change` is called after each
        change of the status.
        """
        self.servicer = servicer
        self.status = RegistrationStatus(servicer.resource.name, context, on_change)
        self._changes = changes
        self._context = context
        self._folder = folder
        self._number = 1
        self._losing_kubelet: SocketIdentity | None = None  # the kubelet that ended the streams
        self._loss_times_s: list[float] = []  # when it ended them
        self._failures = 0  # number of failures in a row

    async def run(self) -> None:
        """Serve and register until cancelled."""
        while True:
            await self._serve_once()

    async def _serve_once(self) -> None:
        await self._changes.wait_for(lambda: self._folder.state.folder is not None)
        folder_state = self._folder.state
        if folder_state.socket != self._losing_kubelet:
            self._losing_kubelet, self._loss_times_s = folder_state.socket, []
        if await self._wait_for_conflict(folder_state):
            return
        server = ResourceServer(self.servicer, self._context, self._changes)
        try:
            self._number = 1 + await server.start(self._number)
        except ServerStartError as error:
            self.status.update(WAITING, error.reason, str(error))
            await self._back_off(partial(self._is_kubelet_replaced, folder_state))
            return
        try:
            pause_s = await self._keep_registered(server, folder_state)
        finally:
            await server.stop()
        await self._changes.wait_for(partial(self._is_kubelet_replaced, folder_state), pause_s)

    async def _wait_for_conflict(self, folder_state: FolderState) -> bool:
        """If another plug-in serves this resource, report it and wait; return whether one does."""
        resource = self.servicer.resource
        other = find_conflicting_socket(
            self._socket_prefixes(), resource.name, self._folder.other_plugins()
        )
        if not other:
            return False
        self._report_conflict(other)
        await self._changes.wait_for(
            partial(self._is_kubelet_replaced, folder_state), self._context.timing.poll_s
        )
        return True

    def _socket_prefixes(self) -> tuple[str, ...]:
        return self._context.socket_prefixes.get(self.servicer.resource.vendor, ())

    def _report_conflict(self, other: str) -> None:
        resource = self.servicer.resource
        text = (
            f"{other} in {self._folder.path} serves {resource.name}: remove that plug-in, or take "
        )
        text += f"{resource.vendor} out of device_plugin.vendors"
        self.status.update(CONFLICT, "AnotherPlugin", text)

    def _find_conflict(self) -> str:
        """Return the listening socket of another plug-in that appeared since.

        Empty if there is none.
        """
        resource = self.servicer.resource
        other = find_conflicting_socket(self._socket_prefixes(), resource.name, self._folder.names)
        return other if other and self._folder.is_listening(other) else ""

    async def _keep_registered(self, server: ResourceServer, folder_state: FolderState) -> float:
        """Register and serve until the server is obsolete; return the pause before the next one."""
        is_over = partial(self._is_obsolete, server, folder_state)
        while not is_over():
            if self._folder.state.socket is None:
                self.status.update(
                    WAITING, "KubeletAway", f"there is no {self._folder.kubelet_socket}"
                )
                await self._changes.wait_for(is_over)
            elif not server.has_had_stream:
                wait_s = await self._register(server, is_over)
                if wait_s is not None:
                    return wait_s
            elif not await self._wait_while_watched(server, is_over):
                return self._record_lost_stream()
        return (
            0.0 if self._is_kubelet_replaced(folder_state) else self._context.timing.server_pause_s
        )

    async def _register(self, server: ResourceServer, is_over: Callable[[], bool]) -> float | None:
        """Register until there is a stream, then return `None`.

        Else return the pause before a new server.

        A server that the kubelet accepted but never called is not registered twice.
        """
        timing = self._context.timing

        def has_stream_or_is_over() -> bool:
            return server.has_had_stream or is_over()

        self.status.update(REGISTERING)
        failure = await self._try_register(server, is_over)
        if failure is None:
            self.status.update(REGISTERED)
            if await self._changes.wait_for(has_stream_or_is_over, timing.stream_s):
                return None
            text = f"the kubelet took the registration, and has not asked in {timing.stream_s:g} s"
            self.status.update(REGISTERED, "NoStream", text)
            self._failures += 1
            return timing.retry_delay_s(self._failures, self._context.random_uniform)
        if has_stream_or_is_over():
            return None
        self.status.update(REFUSED if failure.is_refused else WAITING, failure.reason, str(failure))
        if failure.is_refused:
            await self._changes.wait_for(
                has_stream_or_is_over, timing.refused_delay_s(self._context.random_uniform)
            )
        else:
            await self._back_off(has_stream_or_is_over)
        return None

    async def _try_register(
        self, server: ResourceServer, is_over: Callable[[], bool]
    ) -> RegistrationError | None:
        """Return why the registration failed.

        `None` if it succeeded or the kubelet opened a stream.
        """
        counts, deadline_s = self.servicer.counters, self._context.timing.register_s
        call = register(self._folder.kubelet_socket, server.registration_message(), deadline_s)
        task = asyncio.create_task(call, name=f"register {self.servicer.resource.name}")
        task.add_done_callback(lambda _: self._changes.notify_all())
        try:
            await self._changes.wait_for(lambda: task.done() or server.has_had_stream or is_over())
        finally:
            task.cancel()  # no effect if it is done
            await asyncio.wait({task})
        failure = None if task.cancelled() else task.exception()
        if failure is not None and not isinstance(failure, RegistrationError):
            raise failure
        if failure is None and not is_over():
            counts.count_registration(RESULT_OK)
        elif failure is not None:
            counts.count_registration(failure.reason)
        return failure

    async def _wait_while_watched(
        self, server: ResourceServer, is_over: Callable[[], bool]
    ) -> bool:
        """Return true when `is_over()`; false if the kubelet ended the stream and opens no other.

        A conflicting plug-in that appears later is reported, but the agent goes on: the kubelet
        would take the end of this stream for the end of the other plug-in's.
        """
        self._failures = 0
        while server.stream_count and not is_over():
            if other := self._find_conflict():
                self._report_conflict(other)
            else:
                self.status.update(WATCHED)
            has_changed = partial(self._is_stream_or_conflict_changed, server, is_over, other)
            await self._changes.wait_for(has_changed)
        if is_over():
            return True
        self.status.update(REGISTERED, "StreamEnded", "the kubelet ended the stream")
        return await self._changes.wait_for(
            lambda: server.stream_count > 0 or is_over(), self._context.timing.stream_s
        )

    def _is_stream_or_conflict_changed(
        self, server: ResourceServer, is_over: Callable[[], bool], other: str
    ) -> bool:
        return not server.stream_count or is_over() or self._find_conflict() != other

    def _record_lost_stream(self) -> float:
        """Record a stream that the kubelet ended; return the pause before the next server."""
        timing, now_s = self._context.timing, self._context.clock.monotonic()
        recent = [at_s for at_s in self._loss_times_s if at_s > now_s - timing.loss_window_s]
        self._loss_times_s = [*recent, now_s]
        if len(self._loss_times_s) < timing.max_losses:
            return timing.server_pause_s
        self._loss_times_s = []
        others = ", ".join(self._folder.other_plugins()[:MAX_REPORTED_SOCKETS]) or "none"
        text = f"the kubelet ended {timing.max_losses} streams: another plug-in registers this "
        text += f"resource again and again, or there are two agents; other sockets there: {others}"
        self.status.update(CONFLICT, "StreamsEnded", text)
        return timing.refused_delay_s(self._context.random_uniform)

    async def _back_off(self, is_over: Callable[[], bool]) -> None:
        self._failures += 1
        await self._changes.wait_for(
            is_over,
            self._context.timing.retry_delay_s(self._failures, self._context.random_uniform),
        )

    def _is_kubelet_replaced(self, folder_state: FolderState) -> bool:
        """Return whether another kubelet replaced the one in `folder_state`."""
        return folder_state.is_replaced_by(self._folder.state)

    def _is_obsolete(self, server: ResourceServer, folder_state: FolderState) -> bool:
        """Return whether this server cannot be used any more."""
        resource = self.servicer.resource
        if server.options != (resource.check_start, resource.choose):
            return True
        return self._is_kubelet_replaced(folder_state) or not server.is_socket_in_place()
