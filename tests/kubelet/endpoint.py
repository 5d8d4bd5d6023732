"""One plug-in's server as the kubelet knows it: dialled, asked, watched."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

from grpc import aio

from proto.gen import deviceplugin_v1beta1_pb2 as pb

MAX_ID = 63  # characters
DIAL_S = 10.0
OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", 4 << 20),  # Go's default, which the kubelet leaves
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class Endpoint:
    """Belongs to one registration. `ended` is the status of its stream, `None` while it is open."""

    def __init__(self, resource: str, path: str) -> None:
        self.resource, self.path = resource, path
        self.name = path.rpartition("/")[2]
        self.options = pb.DevicePluginOptions()
        self.devices: dict[str, pb.Device] = {}  # of the last list
        self.lists: list[pb.ListAndWatchResponse] = []
        self.watching = False
        self.stopped = False  # the kubelet holds it for gone
        self.ended: str | None = None
        self.waits_for = ""  # the method whose answer an admission waits for
        self._left = False
        self._channel = aio.insecure_channel(f"unix:{path}", options=OPTIONS)
        self._call: aio.UnaryStreamCall[bytes, bytes] | None = None

    async def dial(self) -> None:
        """Connect, blocking, and ask for the options; `TimeoutError` after ten seconds."""
        await asyncio.wait_for(self._channel.channel_ready(), DIAL_S)
        answer = await self.call("GetDevicePluginOptions", b"")
        self.options = pb.DevicePluginOptions.FromString(answer)

    async def call(self, method: str, request: bytes, timeout_s: float | None = None) -> bytes:
        """Call one of the plain methods."""
        ask: aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}"
        )
        self.waits_for = method
        try:
            answer: bytes = await ask(request, timeout=timeout_s)
        finally:
            self.waits_for = ""
        return answer

    async def watch(self, slow_s: Callable[[], float]) -> AsyncIterator[pb.ListAndWatchResponse]:
        """Yield each list until the stream ends, however that is; none if it was left before."""
        if self._left:
            self.ended = "CANCELLED"
            return
        watch: aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch"
        )
        self._call = watch(b"")
        self.watching = True
        try:
            async for message in self._call:
                yield pb.ListAndWatchResponse.FromString(message)
                await asyncio.sleep(slow_s())
            self.ended = "OK"
        except aio.AioRpcError as error:
            self.ended = error.code().name
        except asyncio.CancelledError:
            self.ended = "CANCELLED"
            if not self._left:
                raise
        finally:
            self.watching = False

    def inherit(self, old: Endpoint) -> None:
        """Count the devices of the endpoint before this one until the first list."""
        healthy = old.healthy()
        for name, device in old.devices.items():
            copied = pb.Device.FromString(device.SerializeToString())
            if name not in healthy:
                copied.health = "Unhealthy"
            self.devices[name] = copied

    def take(self, message: pb.ListAndWatchResponse) -> list[str]:
        """Let this list replace the one before; return what is wrong with it."""
        ids = Counter(device.ID for device in message.devices)
        wrong = [f"{self.resource}: {one} is listed twice" for one in ids if ids[one] > 1]
        wrong += [
            f"{self.resource}: {one[:80]!r} is no id" for one in ids if not 0 < len(one) <= MAX_ID
        ]
        self.lists.append(message)
        self.devices = {device.ID: device for device in message.devices}
        return wrong

    def nodes(self) -> dict[str, frozenset[int]]:
        """Return the NUMA nodes of every device."""
        return {
            name: frozenset(node.ID for node in device.topology.nodes)
            for name, device in self.devices.items()
        }

    def healthy(self) -> set[str]:
        """Return the devices that can be given away; none of a plug-in that is gone."""
        if self.stopped:
            return set()
        return {name for name, one in self.devices.items() if one.health == "Healthy"}

    def cancel(self) -> None:
        """Leave the stream."""
        self._left = True
        if self._call is not None:
            self._call.cancel()

    async def close(self) -> None:
        """Hang up."""
        self.cancel()
        await self._channel.close()
