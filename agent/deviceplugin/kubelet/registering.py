"""One registration with the kubelet, and what its answer means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.deviceplugin.base import MAX_DETAIL
from agent.errors import AgentError

if TYPE_CHECKING:
    from grpc import aio

METHOD = "/v1beta1.Registration/Register"
OPTIONS = (
    # a path is no authority, and strict servers refuse it
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # a connection of its own: that of an earlier kubelet on this path is of no use
    ("grpc.use_local_subchannel_pool", 1),
)
# the kubelet's words; it has one status for all errors
REFUSALS = (
    ("is not supported by kubelet", "VersionRefused"),
    ("ResourceName", "NameRefused"),
)


class NotRegistered(AgentError):
    """The kubelet did not take the registration; `refused` if asking again alone will not help."""

    def __init__(self, reason: str, detail: str, *, refused: bool = False) -> None:
        super().__init__(detail[:MAX_DETAIL])
        self.reason = reason  # CamelCase
        self.refused = refused


async def register(path: str, request: bytes, deadline_s: float) -> None:
    """Register, or raise `NotRegistered` within the deadline. gRPC is loaded by then.

    The kubelet asks our server before it answers: this must run beside it. That it answered is no
    proof of anything: old kubelets do so before they try to reach us.
    """
    from grpc import aio  # noqa: PLC0415 - see above

    async with aio.insecure_channel(f"unix:{path}", options=OPTIONS) as channel:
        ask: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
        try:
            await ask(request, timeout=deadline_s)
        except aio.AioRpcError as error:
            raise failure_of(error, deadline_s) from error


def failure_of(error: aio.AioRpcError, deadline_s: float) -> NotRegistered:
    """Return what an error means. Foreign text is cut."""
    code, detail = error.code().name, (error.details() or "")[:MAX_DETAIL]
    if code == "UNAVAILABLE":
        return NotRegistered("KubeletAway", f"the kubelet does not listen: {detail}")
    if code == "DEADLINE_EXCEEDED":
        return NotRegistered("KubeletSilent", f"the kubelet gave no answer in {deadline_s:g} s")
    if code == "UNIMPLEMENTED":
        return NotRegistered("NoKubelet", "who listens knows no registration", refused=True)
    for words, reason in REFUSALS:
        if words in detail:
            return NotRegistered(reason, f"the kubelet refuses: {detail}", refused=True)
    return NotRegistered("RegistrationFailed", f"{code}: {detail}")
