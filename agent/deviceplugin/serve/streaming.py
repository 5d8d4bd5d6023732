"""ListAndWatch: the whole list at once, and again when it says something new, until the end."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from agent.deviceplugin.serve.answering import Answering
from agent.deviceplugin.serve.bell import Bell
from agent.deviceplugin.serve.listing import due_in_s
from agent.deviceplugin.serve.site import Site
from agent.kubelet.base import in_thread

if TYPE_CHECKING:
    from grpc import aio

    from agent.deviceplugin.base import Listed

    Context = aio.ServicerContext[bytes, bytes]

MANY = 500  # devices of a list that is made beside the loop


class Streams:
    """The streams of one server. Belongs to the loop thread; rings when one begins or ends."""

    def __init__(self, answering: Answering, site: Site, bell: Bell) -> None:
        self.open = 0
        self.begun = 0  # that ever were
        self._answering = answering
        self._site = site
        self._bell = bell
        self._ending = False

    def end(self) -> None:
        """Have every stream end in good order, and none begin."""
        self._ending = True
        self._bell.ring()

    async def follow(self, request: bytes, context: Context) -> None:
        """Send lists until the end, or until the kubelet has gone, which cancels this."""
        del request  # it is empty
        self.begun += 1
        self._counted(1)
        try:
            await self._send(context)
        finally:
            self._counted(-1)

    async def _send(self, context: Context) -> None:
        """Send the newest list that is due; those that a slow reader missed are never sent."""
        sent: tuple[Listed, ...] | None = None
        sent_s = -math.inf
        monotonic, list_s = self._site.clock.monotonic, self._site.pace.list_s
        while not self._ending:
            devices = self._answering.devices
            wait_s = due_in_s(sent, sent_s, devices, monotonic(), list_s)
            if wait_s == 0:
                await context.write(await self._encoded(devices))
                sent, sent_s = devices, monotonic()
                self._answering.counts.lists_sent += 1
                self._bell.ring()
                continue
            await self._bell.until(partial(self._stirred, devices), wait_s)

    def _stirred(self, devices: tuple[Listed, ...]) -> bool:
        return self._ending or self._answering.devices is not devices

    async def _encoded(self, devices: tuple[Listed, ...]) -> bytes:
        from agent.deviceplugin.serve.messages import list_bytes  # noqa: PLC0415 - protobuf

        if len(devices) <= MANY:
            return list_bytes(devices)
        return await in_thread(lambda: list_bytes(devices))

    def _counted(self, more: int) -> None:
        self.open += more
        self._answering.counts.streams += more
        self._bell.ring()
