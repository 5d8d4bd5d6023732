"""The kubelet's pod-resources, typed; what it does not offer is got another way, or unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from agent.errors import ParseError
from agent.kube.errors import ApiError, BadAnswer, Unreachable
from agent.kubelet.base import Offload, in_thread
from agent.kubelet.resources.channel import ALLOCATABLE, GET, LIST, PodResourcesChannel, load_grpc
from agent.kubelet.resources.decode import allocatable_from, pod_from, pods_from
from agent.model.cluster.pod_resources import Allocatable, PodResources

if TYPE_CHECKING:
    from google.protobuf.message import Message

M = TypeVar("M", bound="Message")
T = TypeVar("T")


class PodResourcesClient:
    """Belongs to the loop thread. Every method raises `ApiError` when it cannot tell."""

    def __init__(self, channel: PodResourcesChannel, offload: Offload = in_thread) -> None:
        """`channel` is shared with the proxy, if there is one."""
        self._channel = channel
        self._offload = offload
        self._lacking: set[str] = set()  # methods that this kubelet does not offer

    async def pods(self) -> tuple[PodResources, ...]:
        """Return what every pod has, by namespace and name."""
        reply = await self._call(LIST, b"")
        from proto.gen import podresources_v1_pb2 as pb  # noqa: PLC0415 - loaded by the call

        return await self._decoded(LIST, reply, pb.ListPodResourcesResponse, pods_from)

    async def allocatable(self) -> Allocatable | None:
        """Return what can be given away; `None` if this kubelet does not tell."""
        reply = await self._offered(ALLOCATABLE, b"")
        if reply is None:
            return None
        from proto.gen import podresources_v1_pb2 as pb  # noqa: PLC0415 - loaded by the call

        kind = pb.AllocatableResourcesResponse
        return await self._decoded(ALLOCATABLE, reply, kind, allocatable_from)

    async def pod(self, namespace: str, name: str) -> PodResources | None:
        """Return what one pod has; `None` if the kubelet knows no such pod."""
        await in_thread(load_grpc)
        from proto.gen import podresources_v1_pb2 as pb  # noqa: PLC0415 - loaded by now

        request = pb.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        try:
            reply = await self._offered(GET, request.SerializeToString())
        except ApiError as error:
            if _no_such_pod(error):
                return None
            raise
        if reply is None:
            wanted = (namespace, name)
            found = (pod for pod in await self.pods() if (pod.namespace, pod.name) == wanted)
            return next(found, None)
        kind = pb.GetPodResourcesResponse
        return await self._decoded(GET, reply, kind, lambda got: pod_from(got.pod_resources))

    async def _offered(self, method: str, request: bytes) -> bytes | None:
        """Return the reply; `None` if this kubelet lacks the method, which is asked once."""
        if method in self._lacking:
            return None
        try:
            return await self._call(method, request)
        except ApiError as error:
            if not _not_offered(error):
                raise
        self._lacking.add(method)
        return None

    async def _call(self, method: str, request: bytes) -> bytes:
        try:
            return await self._channel.call(method, request)
        except Unreachable:
            self._lacking.clear()  # what comes back may be a newer kubelet
            raise

    async def _decoded(
        self, method: str, reply: bytes, kind: type[M], convert: Callable[[M], T]
    ) -> T:
        from google.protobuf.message import DecodeError  # noqa: PLC0415 - loaded by the call

        try:
            return await self._offload(lambda: convert(kind.FromString(reply)))
        except (ParseError, DecodeError) as error:
            raise BadAnswer(method, str(error)) from error


def _not_offered(error: ApiError) -> bool:
    """Say whether the method lacks: not known, or behind a feature gate, which is a plain error."""
    return error.reason == "UNIMPLEMENTED" or (
        error.reason == "UNKNOWN" and "disabled" in str(error)
    )


def _no_such_pod(error: ApiError) -> bool:
    return error.reason == "NOT_FOUND" or (error.reason == "UNKNOWN" and "not found" in str(error))
