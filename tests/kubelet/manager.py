"""The strict kubelet itself: see this package's description for what it does and can be told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import stat
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path

import grpc
from grpc import aio

from proto.gen import deviceplugin_v1beta1_pb2 as pb
from tests.kubelet import admission, checkpoint
from tests.kubelet.endpoint import Endpoint
from tests.kubelet.rules import is_extended_resource_name

Context = aio.ServicerContext[bytes, bytes]
SOCKET = "kubelet.sock"
WAIT_S = 10.0
STEP_S = 0.005


class FakeKubelet:
    """Belongs to the test's event loop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.complaints: list[str] = []
        self.registered: list[pb.RegisterRequest] = []
        self.lists: dict[str, list[pb.ListAndWatchResponse]] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self.past: list[Endpoint] = []  # all that ever registered
        self.allocations: list[checkpoint.Allocation] = []
        self.hold_register = asyncio.Event()
        self.half_open = self.at_once = self.closes_old = False
        self.refuse_version = self.unavailable = False
        self.slow_reader = 0.0
        self._server: aio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin as the kubelet does: no socket in the folder but its own."""
        self.folder.mkdir(mode=0o750, exist_ok=True)
        for path in self.folder.iterdir():
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        await self._listen()

    async def stop(self) -> None:
        """End; every connection ends with it."""
        await self._deafen()
        for endpoint in self.past:
            await endpoint.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.endpoints = {}

    async def restart(self) -> None:
        """Stop, and start with nothing but what was allocated."""
        await self.stop()
        await self.start()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakeKubelet]:
        await self.start()
        try:
            yield self
        finally:
            await self.stop()

    def wipe(self) -> None:
        """Remove the sockets of all plug-ins."""
        for path in self.folder.iterdir():
            if path.name != SOCKET and stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()

    async def replace_folder(self) -> None:
        """Have another folder in place of this one."""
        await self._deafen()
        shutil.rmtree(self.folder)
        await self.start()

    async def replace_socket(self) -> None:
        """Listen in another file of the same name, and forget nothing."""
        await self._deafen()
        await self._listen()

    def drop(self, resource: str) -> None:
        """Leave one stream."""
        self.endpoints[resource].cancel()

    async def resource(
        self, name: str, *, healthy: int | None = None, not_this: Endpoint | None = None
    ) -> Endpoint:
        """Return the resource's endpoint as soon as its list has so many healthy devices."""

        def there() -> bool:
            one = self.endpoints.get(name)
            if one is None or one is not_this or not one.watching or not one.lists:
                return False
            return healthy is None or len(one.healthy()) == healthy

        await self.until(there, f"{name} with {healthy} healthy devices")
        return self.endpoints[name]

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Return as soon as it holds; fail after ten seconds."""
        deadline_s = asyncio.get_running_loop().time() + WAIT_S
        while not holds():
            if asyncio.get_running_loop().time() > deadline_s:
                raise AssertionError(f"not within {WAIT_S:g} s: {what}; {self.complaints}")
            await asyncio.sleep(STEP_S)

    def capacity(self, resource: str) -> int:
        """Return what the node's status says it has."""
        one = self.endpoints.get(resource)
        return len(one.devices) if one is not None else 0

    def allocatable(self, resource: str) -> int:
        """Return what the node's status says can be given away."""
        one = self.endpoints.get(resource)
        return len(one.healthy()) if one is not None else 0

    async def admit(
        self, pod_uid: str, container: str, wanted: Mapping[str, int], *, aligned: bool = False
    ) -> admission.Admitted:
        """Admit a container and ask before its start; raise `NotAdmitted`."""
        found = admission.Admitted()
        for name, needed in random.sample(sorted(wanted.items()), len(wanted)):
            allocation = self._held(pod_uid, container, name)
            if allocation is None:
                allocation = await self._allocate(pod_uid, container, name, needed, aligned)
                self.allocations.append(allocation)
                self._write()
            differ = found.merge(allocation.response)
            self.complaints += [f"{name}: another resource says otherwise: {key}" for key in differ]
            found.ids[name] = sorted(allocation.ids)
        for name, ids in found.ids.items():
            await admission.before_start(self.endpoints[name], ids)
        return found

    def forget(self, pod_uid: str) -> None:
        """Have a pod gone."""
        self.allocations = [one for one in self.allocations if one.pod_uid != pod_uid]
        self._write()

    def _held(self, pod_uid: str, container: str, name: str) -> checkpoint.Allocation | None:
        wanted = (pod_uid, container, name)
        found = (one for one in self.allocations if _key(one) == wanted)
        return next(found, None)

    async def _allocate(
        self, pod_uid: str, container: str, name: str, needed: int, aligned: bool
    ) -> checkpoint.Allocation:
        endpoint = self.endpoints.get(name)
        used = {i for one in self.allocations if one.resource == name for i in one.ids}
        free = admission.available(endpoint, name, used, needed)
        assert endpoint is not None
        mask = admission.best_mask(endpoint.nodes(), free, needed) if aligned else None
        ids = await admission.choose(endpoint, free, needed, mask)
        return await admission.allocate(endpoint, pod_uid, container, random.sample(ids, len(ids)))

    async def _listen(self) -> None:
        server = aio.server()
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Register": grpc.unary_unary_rpc_method_handler(self._register)
        }
        service = grpc.method_handlers_generic_handler("v1beta1.Registration", handlers)
        server.add_generic_rpc_handlers((service,))
        server.add_insecure_port(f"unix:{self.folder / SOCKET}")
        await server.start()
        self._server = server

    async def _deafen(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
        (self.folder / SOCKET).unlink(missing_ok=True)

    async def _register(self, request: bytes, context: Context) -> bytes:
        asked = pb.RegisterRequest.FromString(request)
        self.registered.append(asked)
        while self.hold_register.is_set():
            await asyncio.sleep(STEP_S)
        if self.unavailable:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the device manager is not ready")
        if asked.version != "v1beta1" or self.refuse_version:
            await _refuse(
                context,
                f'requested API version "{asked.version}" is not supported by kubelet. '
                'Supported version is ["v1beta1"]',
            )
        if not is_extended_resource_name(asked.resource_name):
            await _refuse(context, f'the ResourceName "{asked.resource_name}" is invalid')
        if self.at_once:
            self._spawn(self._connect_quietly(asked))
            return b""
        try:
            endpoint = await self._connect(asked)
        except (TimeoutError, aio.AioRpcError, ValueError) as error:
            await _refuse(context, f"failed to dial device plugin: {error!r}"[:300])
        if not self.half_open:
            self._spawn(self._watch(endpoint))
        return b""

    async def _connect_quietly(self, asked: pb.RegisterRequest) -> None:
        try:
            await self._watch(await self._connect(asked))
        except (TimeoutError, aio.AioRpcError, ValueError) as error:
            self.complaints.append(f"{asked.resource_name}: cannot be dialled: {error!r}"[:200])

    async def _connect(self, asked: pb.RegisterRequest) -> Endpoint:
        if os.path.basename(asked.endpoint) != asked.endpoint:
            self.complaints.append(f"endpoint {asked.endpoint} is no file name")
            raise ValueError(asked.endpoint)
        endpoint = Endpoint(asked.resource_name, str(self.folder / asked.endpoint))
        self.past.append(endpoint)
        try:
            await endpoint.dial()
        except BaseException:
            await endpoint.close()
            raise
        if endpoint.options != asked.options:
            self.complaints.append(f"{asked.resource_name}: two answers about its options")
        self._succeed(endpoint)
        return endpoint

    def _succeed(self, endpoint: Endpoint) -> None:
        old = self.endpoints.get(endpoint.resource)
        self.endpoints[endpoint.resource] = endpoint
        if old is None or old.ended is not None:
            return
        if old.watching and old.name.rsplit(".", 2)[0] == endpoint.name.rsplit(".", 2)[0]:
            text = f"{endpoint.resource}: registered while its last stream was still open"
            self.complaints.append(text)
        if self.closes_old:
            old.cancel()

    async def _watch(self, endpoint: Endpoint) -> None:
        async for message in endpoint.watch(lambda: self.slow_reader):
            self.complaints += endpoint.take(message)
            self.lists.setdefault(endpoint.resource, []).append(message)
            self._write()
        # by the name of the resource, whoever it belongs to by now; kubelets from before that
        # (`closes_old`) knew better
        if not self.closes_old:
            endpoint = self.endpoints.get(endpoint.resource, endpoint)
        endpoint.stopped = True
        endpoint.cancel()
        self._write()

    def _write(self) -> None:
        if self.folder.is_dir():
            registered = {name: one.healthy() for name, one in self.endpoints.items()}
            checkpoint.write(self.folder, self.allocations, registered)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _key(one: checkpoint.Allocation) -> tuple[str, str, str]:
    return one.pod_uid, one.container, one.resource


async def _refuse(context: Context, text: str) -> None:
    """Answer as Go does: every error is UNKNOWN."""
    await context.abort(grpc.StatusCode.UNKNOWN, text)
