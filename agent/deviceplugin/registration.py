"""One registration with the kubelet, and what its answer means.

Other vendors' device plug-ins: two that serve one resource would take turns at it.

How a resource stands with the kubelet, said once each time it becomes another.

The life of one resource with the kubelet: served, registered, watched, and all of it again.
Each time begins with a new server in a file of its own, and ends with that server stopped: the
kubelet takes the end of an old stream for that of the newest server of the resource.
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

REGISTER_METHOD = "/v1beta1.Registration/Register"

CHANNEL_OPTIONS = (
    # a path is no authority, and strict servers refuse it
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # a connection of its own: that of an earlier kubelet on this path is of no use
    ("grpc.use_local_subchannel_pool", 1),
)

# the kubelet's words; it has one status for all errors
REFUSAL_REASONS = (
    ("is not supported by kubelet", "VersionRefused"),
    ("ResourceName", "NameRefused"),
)


class RegistrationError(AgentError):
    """The kubelet did not take the registration; `refused` if asking again alone will not help."""

    def __init__(self, reason: str, detail: str, *, refused: bool = False) -> None:
        super().__init__(detail[:MAX_ERROR_DETAIL])
        self.reason = reason  # CamelCase
        self.is_refused = refused


async def register(path: str, request: bytes, deadline_s: float) -> None:
    """Register, or raise `NotRegistered` within the deadline. gRPC is loaded by then.

    The kubelet asks our server before it answers: this must run beside it. That it answered is no
    proof of anything: old kubelets do so before they try to reach us.
    """
    async with aio.insecure_channel(f"unix:{path}", options=CHANNEL_OPTIONS) as channel:
        ask: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(REGISTER_METHOD)
        try:
            await ask(request, timeout=deadline_s)
        except aio.AioRpcError as error:
            raise registration_error(error, deadline_s) from error


def registration_error(error: aio.AioRpcError, deadline_s: float) -> RegistrationError:
    """Return what an error means. Foreign text is cut."""
    code, detail = error.code().name, (error.details() or "")[:MAX_ERROR_DETAIL]
    if code == "UNAVAILABLE":
        return RegistrationError("KubeletAway", f"the kubelet does not listen: {detail}")
    if code == "DEADLINE_EXCEEDED":
        return RegistrationError("KubeletSilent", f"the kubelet gave no answer in {deadline_s:g} s")
    if code == "UNIMPLEMENTED":
        return RegistrationError("NoKubelet", "who listens knows no registration", refused=True)
    for words, reason in REFUSAL_REASONS:
        if words in detail:
            return RegistrationError(reason, f"the kubelet refuses: {detail}", refused=True)
    return RegistrationError("RegistrationFailed", f"{code}: {detail}")


AGENT_SOCKET_PREFIX = "xpu-agent-"  # what our sockets' names start with


def find_conflicting_socket(
    prefixes: tuple[str, ...], resource: str, sockets: Iterable[str]
) -> str:
    """Return the socket of another plug-in that serves this resource; empty if there is none.

    `prefixes` are those of the vendor's own plug-in; `sockets` are the names of sockets in the
    kubelet's folder that a process listens on.
    """
    domain, _, own_name = resource.partition("/")
    # a plug-in of NICs names its sockets so, whoever made the NICs
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


log = logging.getLogger(__name__)

WAITING, REGISTERING, REGISTERED = "waiting", "registering", "registered"

WATCHED, REFUSED, CONFLICT = "watched", "refused", "conflict"

# what a person has to do something about, by the reason of its event
_EVENT_REASONS = {REFUSED: "DevicePluginRefused", CONFLICT: "DevicePluginConflict"}


class RegistrationStatus:
    """State, its CamelCase reason, and a message for people; those of `ResourceServed`."""

    def __init__(self, resource: str, site: PluginContext, changed: Callable[[], None]) -> None:
        self.state, self.reason, self.message = WAITING, "", ""
        self._resource = resource
        self._context = site
        self._on_change = changed
        self._last_reported = ("", "")

    def update(self, state: str, reason: str = "", message: str = "") -> None:
        """Be in that state; a person hears of a trouble once, until it was over."""
        if (state, reason, message) == (self.state, self.reason, self.message):
            return
        self.state, self.reason, self.message = state, reason, message
        self._on_change()
        on_the_way = state in (REGISTERING, REGISTERED) and not reason
        if on_the_way or (state, reason) == self._last_reported:
            return
        self._last_reported = (state, reason)
        fields = {"resource": self._resource, "state": state, "reason": reason, "error": message}
        log.log(logging.INFO if not reason else logging.WARNING, "device_plugin", extra=fields)
        if state in _EVENT_REASONS:
            self._context.messages.put(
                EventReported(_EVENT_REASONS[state], f"{self._resource}: {message}")
            )


MAX_SOCKETS_TOLD = 5  # sockets of others in a message


class ResourceRegistration:
    """Belongs to the loop thread. `run` goes on until it is cancelled, and stops what it serves."""

    def __init__(
        self,
        site: PluginContext,
        folder: KubeletFolder,
        bell: ChangeCondition,
        answering: ResourceServicer,
        changed: Callable[[], None],
    ) -> None:
        """`bell` is rung when the folder was looked at; `changed` hears of another standing."""
        self.servicer = answering
        self.status = RegistrationStatus(answering.resource.name, site, changed)
        self._changes = bell
        self._context = site
        self._folder = folder
        self._number = 1
        self._losing_kubelet: SocketIdentity | None = None  # of which kubelet
        self._loss_times_s: list[float] = []  # when it ended streams
        self._failures = 0  # in a row

    async def run(self) -> None:
        """Serve and register, for ever."""
        while True:
            await self._serve_once()

    async def _serve_once(self) -> None:
        await self._changes.wait_for(lambda: self._folder.state.folder is not None)
        seen = self._folder.state
        if seen.socket != self._losing_kubelet:
            self._losing_kubelet, self._loss_times_s = seen.socket, []
        if await self._wait_for_conflict(seen):
            return
        incarnation = ResourceServer(self.servicer, self._context, self._changes)
        try:
            self._number = 1 + await incarnation.start(self._number)
        except ServerStartError as error:
            self.status.update(WAITING, error.reason, str(error))
            await self._back_off(partial(self._is_kubelet_replaced, seen))
            return
        try:
            again_s = await self._keep_registered(incarnation, seen)
        finally:
            await incarnation.stop()
        await self._changes.wait_for(partial(self._is_kubelet_replaced, seen), again_s)

    async def _wait_for_conflict(self, seen: FolderState) -> bool:
        """Wait, if another plug-in serves this resource; say whether it did."""
        offer = self.servicer.resource
        other = find_conflicting_socket(
            self._socket_prefixes(), offer.name, self._folder.other_plugins()
        )
        if not other:
            return False
        self._report_conflict(other)
        await self._changes.wait_for(
            partial(self._is_kubelet_replaced, seen), self._context.timing.poll_s
        )
        return True

    def _socket_prefixes(self) -> tuple[str, ...]:
        return self._context.socket_prefixes.get(self.servicer.resource.vendor, ())

    def _report_conflict(self, other: str) -> None:
        offer = self.servicer.resource
        text = f"{other} in {self._folder.path} serves {offer.name}: remove that plug-in, or take "
        text += f"{offer.vendor} out of device_plugin.vendors"
        self.status.update(CONFLICT, "AnotherPlugin", text)

    def _find_conflict(self) -> str:
        """Return the socket of another plug-in that came since; empty if there is none."""
        offer = self.servicer.resource
        other = find_conflicting_socket(self._socket_prefixes(), offer.name, self._folder.names)
        return other if other and self._folder.is_listening(other) else ""

    async def _keep_registered(self, incarnation: ResourceServer, seen: FolderState) -> float:
        """Register and be watched until that ends; return how long to wait with the next server."""
        over = partial(self._is_obsolete, incarnation, seen)
        while not over():
            if self._folder.state.socket is None:
                self.status.update(
                    WAITING, "KubeletAway", f"there is no {self._folder.kubelet_socket}"
                )
                await self._changes.wait_for(over)
            elif not incarnation.has_had_stream:
                wait_s = await self._register(incarnation, over)
                if wait_s is not None:
                    return wait_s
            elif not await self._wait_while_watched(incarnation, over):
                return self._record_lost_stream()
        return 0.0 if self._is_kubelet_replaced(seen) else self._context.timing.server_pause_s

    async def _register(
        self, incarnation: ResourceServer, over: Callable[[], bool]
    ) -> float | None:
        """Ask until there is a stream or all is over; `None`. Else how long to wait with the next.

        A server that the kubelet took but never asked is not registered twice.
        """
        pace = self._context.timing

        def came() -> bool:
            return incarnation.has_had_stream or over()

        self.status.update(REGISTERING)
        failure = await self._try_register(incarnation, over)
        if failure is None:
            self.status.update(REGISTERED)
            if await self._changes.wait_for(came, pace.stream_s):
                return None
            text = f"the kubelet took the registration, and has not asked in {pace.stream_s:g} s"
            self.status.update(REGISTERED, "NoStream", text)
            self._failures += 1
            return pace.retry_delay_s(self._failures, self._context.random_uniform)
        if came():
            return None
        self.status.update(REFUSED if failure.is_refused else WAITING, failure.reason, str(failure))
        if failure.is_refused:
            await self._changes.wait_for(came, pace.refused_delay_s(self._context.random_uniform))
        else:
            await self._back_off(came)
        return None

    async def _try_register(
        self, incarnation: ResourceServer, over: Callable[[], bool]
    ) -> RegistrationError | None:
        """Return why the kubelet did not take us; `None` if it did, or came for devices anyway."""
        counts, deadline_s = self.servicer.counters, self._context.timing.register_s
        asking = register(
            self._folder.kubelet_socket, incarnation.registration_message(), deadline_s
        )
        task = asyncio.create_task(asking, name=f"register {self.servicer.resource.name}")
        task.add_done_callback(lambda _: self._changes.notify_all())
        try:
            await self._changes.wait_for(
                lambda: task.done() or incarnation.has_had_stream or over()
            )
        finally:
            task.cancel()  # of no effect on one that is done
            await asyncio.wait({task})
        failure = None if task.cancelled() else task.exception()
        if failure is not None and not isinstance(failure, RegistrationError):
            raise failure
        if failure is None and not over():
            counts.count_registration(RESULT_OK)
        elif failure is not None:
            counts.count_registration(failure.reason)
        return failure

    async def _wait_while_watched(
        self, incarnation: ResourceServer, over: Callable[[], bool]
    ) -> bool:
        """Return when all is over; false if the kubelet left the stream and opens no other.

        A plug-in that came later is told of, and not given way to: the kubelet would take the end
        of our stream for the end of theirs.
        """
        self._failures = 0
        while incarnation.stream_count and not over():
            if other := self._find_conflict():
                self._report_conflict(other)
            else:
                self.status.update(WATCHED)
            now = partial(self._is_stream_or_conflict_changed, incarnation, over, other)
            await self._changes.wait_for(now)
        if over():
            return True
        self.status.update(REGISTERED, "StreamEnded", "the kubelet ended the stream")
        return await self._changes.wait_for(
            lambda: incarnation.stream_count > 0 or over(), self._context.timing.stream_s
        )

    def _is_stream_or_conflict_changed(
        self, incarnation: ResourceServer, over: Callable[[], bool], other: str
    ) -> bool:
        return not incarnation.stream_count or over() or self._find_conflict() != other

    def _record_lost_stream(self) -> float:
        """Return how long to stay away after a stream that the kubelet ended while it went on."""
        pace, now_s = self._context.timing, self._context.clock.monotonic()
        recent = [at_s for at_s in self._loss_times_s if at_s > now_s - pace.loss_window_s]
        self._loss_times_s = [*recent, now_s]
        if len(self._loss_times_s) < pace.max_losses:
            return pace.server_pause_s
        self._loss_times_s = []
        others = ", ".join(self._folder.other_plugins()[:MAX_SOCKETS_TOLD]) or "none"
        text = (
            f"the kubelet ended {pace.max_losses} streams: another plug-in registers this resource "
        )
        text += f"again and again, or there are two agents; other sockets there: {others}"
        self.status.update(CONFLICT, "StreamsEnded", text)
        return pace.refused_delay_s(self._context.random_uniform)

    async def _back_off(self, over: Callable[[], bool]) -> None:
        self._failures += 1
        await self._changes.wait_for(
            over, self._context.timing.retry_delay_s(self._failures, self._context.random_uniform)
        )

    def _is_kubelet_replaced(self, seen: FolderState) -> bool:
        """Say whether there is another kubelet than the one seen."""
        return seen.is_replaced_by(self._folder.state)

    def _is_obsolete(self, incarnation: ResourceServer, seen: FolderState) -> bool:
        """Say whether this server is of no use any more."""
        offer = self.servicer.resource
        if incarnation.options != (offer.check_start, offer.choose):
            return True
        return self._is_kubelet_replaced(seen) or not incarnation.is_socket_in_place()
