"""The runtime's side of registration: a socket, one plug-in after the other, and their order."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Literal

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from proto.gen import nri_container_pb2 as pb
from proto.gen import nri_plugin_pb2 as nri
from tests.patience import PATIENCE_S
from tests.runtime.plugin import UNIMPLEMENTED, UNKNOWN, Logged, Plugin, PluginClosed, Status
from tests.runtime.trunk import Trunk
from tests.runtime.versions import Version
from tests.runtime.ways import Ways

MAX_PART = 4 << 20
LEAST_PART = 8  # objects
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_NAME = re.compile(r"[A-Za-z0-9_.+-]+")


class Broken(AssertionError):
    """A plug-in broke rules of the protocol; the text lists them."""


class Hub:
    """Listens, registers plug-ins and keeps them; `picture` says what a Synchronize tells."""

    def __init__(
        self,
        folder: Path,
        version: Version,
        *,
        registration_s: float = 5.0,
        request_s: float = 2.0,
        tell_limits: bool = True,
    ) -> None:
        self.socket = folder / "nri.sock"
        self.version = version
        self.registration_s, self.request_s = registration_s, request_s
        self.tell_limits = tell_limits
        self.ways = Ways()
        self.log: list[Logged] = []
        self.seen: list[Plugin] = []
        self.plugins: list[Plugin] = []
        self.broken: list[str] = []
        self.lock = asyncio.Lock()  # the one that all requests go through
        self._ready: asyncio.Queue[Plugin] = asyncio.Queue()
        self._dialled: asyncio.Queue[Streams] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def extra(self) -> bytes:
        """Unknown fields at the end of each message."""
        return self.ways.extra

    def picture(self) -> tuple[list[pb.PodSandbox], list[pb.Container]]:
        """Return all pods and containers there are."""
        raise NotImplementedError

    def broke(self, what: str) -> None:
        """Note a rule that was broken."""
        self.broken.append(what)

    def take_broken(self) -> list[str]:
        """Return what was broken so far, and forget it."""
        chosen, self.broken[:] = list(self.broken), ()
        return chosen

    async def __aenter__(self) -> Hub:
        await self.listen()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self.kill()
        for task in tuple(self._tasks):
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self.broken and error is None:
            raise Broken("; ".join(self.broken))

    async def listen(self) -> None:
        """Remove what is there, create the socket and accept, one plug-in after the other."""
        self.socket.unlink(missing_ok=True)
        self._dialled = asyncio.Queue()
        self._server = await asyncio.start_unix_server(self._dial, self.socket)
        self._start(self._accept(self._dialled))

    def kill(self) -> None:
        """Be gone at once: no farewell, and the socket's file stays."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in tuple(self._tasks):
            task.cancel()
        for plugin in self.seen:
            plugin.close("the runtime is gone")
        while not self._dialled.empty():  # those that waited in the line
            self._dialled.get_nowait()[1].transport.abort()
        self.plugins.clear()

    async def restart(self) -> None:
        """Be gone, and back."""
        self.kill()
        await self.listen()

    async def plugged(self, timeout_s: float = PATIENCE_S) -> Plugin:
        """Return the next plug-in that is registered and synchronized."""
        async with asyncio.timeout(timeout_s):
            return await self._ready.get()

    async def dialled(self, count: int = 1, timeout_s: float = PATIENCE_S) -> Plugin:
        """Wait until so many connections were accepted ever; return that one."""
        async with asyncio.timeout(timeout_s):
            while len(self.seen) < count:
                await asyncio.sleep(0.005)
        return self.seen[count - 1]

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dial(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._dialled.put_nowait((reader, writer))

    async def _accept(self, dialled: asyncio.Queue[Streams]) -> None:
        """Register one after the other: the real accept loop is serial."""
        while True:
            streams = await dialled.get()
            plugin = Plugin(self)
            plugin.trunk = Trunk(streams, self.ways, plugin.take)
            self.seen.append(plugin)
            self._start(plugin.live())
            try:
                await self._register(plugin)
            except (PluginClosed, Status, TimeoutError) as error:
                plugin.close(str(error) or "not registered in time")

    async def _register(self, plugin: Plugin) -> None:
        async with asyncio.timeout(self.registration_s):
            await _first(plugin.registered, plugin.closed)
        if plugin.state == "closed":
            raise PluginClosed(plugin.reason)
        await self._obey(self.ways.configure, plugin)
        answer = await plugin.call("Configure", self._configuration(), nri.ConfigureResponse)
        if answer.events & ~self.version.events:
            self.broke(f"invalid plugin events: {answer.events:#x}")
            raise PluginClosed(f"invalid plugin events: {answer.events:#x}")
        plugin.events = answer.events or self.version.events
        plugin.state = "configured"
        await self._obey(self.ways.synchronize, plugin)
        async with self.lock:
            async with asyncio.timeout(self.request_s):  # of the whole sequence
                await self._synchronize(plugin)
            if plugin.closed.is_set():
                raise PluginClosed(plugin.reason)
            plugin.state = "synchronized"
            self.plugins = [*(p for p in self.plugins if p.state != "closed"), plugin]
            self.plugins.sort(key=lambda one: one.index)
        self._ready.put_nowait(plugin)

    async def _obey(self, way: str, plugin: Plugin) -> None:
        if way == "hang":
            await plugin.closed.wait()
        if way != "answer":
            raise PluginClosed(f"the runtime means to {way}")

    def _configuration(self) -> nri.ConfigureRequest:
        reports = self.version.tells_limits and self.tell_limits
        return nri.ConfigureRequest(
            runtime_name=self.version.runtime,
            runtime_version=self.version.release,
            registration_timeout=int(self.registration_s * 1e3) if reports else 0,
            request_timeout=int(self.request_s * 1e3) if reports else 0,
            NRI_version="v{}.{}.{}".format(*self.version.nri) if self.version.tells_version else "",
        )

    async def _synchronize(self, plugin: Plugin) -> None:
        pods, containers = self.picture()
        for part, more in self._parts(pods, containers):
            answer = await plugin.call("Synchronize", part, nri.SynchronizeResponse)
            if more and (not answer.more or answer.update):
                self.broke("plugin does not handle split sync requests")
                raise PluginClosed("plugin does not handle split sync requests")
            if not more and answer.more:
                self.broke("the last part of Synchronize was answered with more")

    def _parts(
        self, pods: list[pb.PodSandbox], containers: list[pb.Container]
    ) -> list[tuple[nri.SynchronizeRequest, bool]]:
        """Cut the picture: pods and containers apart, each by the size that goes."""
        step = self.ways.part_objects or (len(pods) + len(containers)) or 1
        while True:
            parts = [
                nri.SynchronizeRequest(
                    pods=pods[at : at + step], containers=containers[at : at + step]
                )
                for at in range(0, max(len(pods), len(containers), 1), step)
            ]
            if max(part.ByteSize() for part in parts) <= MAX_PART - 1024:
                break
            if not self.version.in_parts or step <= LEAST_PART:
                raise Status(8, "message length exceed maximum message size of 4194304")
            step = max(LEAST_PART, int(step * 0.7))
        for part in parts[:-1]:
            part.more = True
        return [(part, part.more) for part in parts]

    async def answer(self, plugin: Plugin, method: str, payload: bytes) -> Proto | Literal["hang"]:
        """Serve what plug-ins call."""
        if method == "RegisterPlugin":
            return await self._answer_registration(plugin, payload)
        if method == "UpdateContainers":
            return await self._answer_updates(plugin, payload)
        self.broke(f"a call to {method}")
        raise Status(UNIMPLEMENTED, f"method {method}")

    async def _answer_registration(self, plugin: Plugin, payload: bytes) -> Proto | Literal["hang"]:
        way = self.ways.registration
        if way == "hang":
            return "hang"
        if way == "drop":
            plugin.close("dropped at its registration")
            return "hang"
        try:
            request = nri.RegisterPluginRequest.FromString(payload)
        except DecodeError as error:
            raise Status(13, "unmarshalling payload") from error
        plugin.name, plugin.index = request.plugin_name, request.plugin_idx
        plugin.nri_version = request.NRI_version
        wrong = self._wrong_name(plugin)
        if way == "refuse" or wrong:
            raise Status(UNKNOWN, wrong or "invalid plugin name: refused")
        plugin.state = "registered"
        plugin.registered.set()
        if self.ways.configure_first:
            async with asyncio.timeout(self.request_s):
                while plugin.state == "registered":
                    await asyncio.sleep(0)
        return nri.Empty()

    def _wrong_name(self, plugin: Plugin) -> str:
        wrong = ""
        if plugin.state != "dialled":
            wrong = "registered twice"
        elif not plugin.name or (self.version.tells_version and not _NAME.fullmatch(plugin.name)):
            wrong = f"invalid plugin name: {plugin.name}"
        elif not re.fullmatch("[0-9]{2}", plugin.index):
            wrong = f"invalid plugin index: {plugin.index}"
        if wrong:
            self.broke(wrong)
        return wrong

    async def _answer_updates(self, plugin: Plugin, payload: bytes) -> Proto:
        if plugin.unanswered:
            self.broke(f"deadlock: UpdateContainers while {plugin.unanswered} is unanswered")
        if not self.version.updates_are_safe:
            self.broke("UpdateContainers, which can lock this runtime up")
        async with self.lock:
            nri.UpdateContainersRequest.FromString(payload)
        return nri.UpdateContainersResponse()


async def _first(*events: asyncio.Event) -> None:
    """Wait for the first of these."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
