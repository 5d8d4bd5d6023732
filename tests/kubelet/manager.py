"""The strict kubelet itself: see this package's description for what it does and can be told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import stat
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path

import grpc
from grpc import aio

from proto.gen import deviceplugin_v1beta1_pb2 as pb
from tests.kubelet import admission, checkpoint
from tests.kubelet.endpoint import Endpoint
from tests.kubelet.rules import is_extended_resource_name

Context = aio.ServicerContext[bytes, bytes]
SOCKET = "kubelet.sock"
STEP_S = 0.005


class FakeKubelet:
    """Belongs to the test's event loop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.complaints: list[str] = []
        self.registered: list[pb.RegisterRequest] = []
        self.lists: dict[str, list[pb.ListAndWatchResponse]] = {}
        self.endpoints: dict[str, Endpoint] = {}
        # by resource: every capacity and allocatable amount that the node's status could have had
        self.statuses: dict[str, list[tuple[int, int]]] = {}
        self.past: list[Endpoint] = []  # all that ever registered
        self.allocations: list[checkpoint.Allocation] = []  # as the checkpoint has them
        self.over: set[str] = set()  # pods whose phase is terminal, or whose object is gone
        self.refused: dict[str, str] = {}  # the kubelet's words by pod; nobody asks for it again
        self._admitting = asyncio.Lock()  # one pod at a time, however long a plug-in takes
        self.hold_register = asyncio.Event()
        self.half_open = self.at_once = self.closes_old = False
        self.refuse_version = self.unavailable = False
        self.slow_reader = 0.0
        self.choice: set[str] = set()  # ids that are taken whatever the plug-in prefers
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
        """Return as soon as it holds. Only pytest's limit for a whole test ends the wait."""
        try:
            while not holds():
                await asyncio.sleep(STEP_S)
        except BaseException:
            print(f"waited for: {what}; complaints: {self.complaints}")  # noqa: T201 - why it hung
            raise

    def capacity(self, resource: str) -> int:
        """Return what the node's status says it has."""
        one = self.endpoints.get(resource)
        return len(one.devices) if one is not None else 0

    def allocatable(self, resource: str) -> int:
        """Return what the node's status says can be given away."""
        one = self.endpoints.get(resource)
        return len(one.healthy()) if one is not None else 0

    async def admit(
        self, pod_uid: str, container: str, desired: Mapping[str, int], *, aligned: bool = False
    ) -> admission.Admitted:
        """Admit a pod of one container and ask before its start.

        Raises `NotAdmitted`, which is for good, and `NotStarted`, which is not.
        """
        one = admission.Container(container, dict(desired))
        await self.admit_pod(pod_uid, (one,), aligned=aligned)
        return await self.begin(pod_uid, one)

    async def admit_pod(
        self, pod_uid: str, containers: Sequence[admission.Container], *, aligned: bool = False
    ) -> None:
        """Choose devices for all containers of a pod, init ones first, before any of them runs.

        No other pod is admitted meanwhile, and none is deleted.
        """
        async with self._admitting:
            assert pod_uid not in self.refused, "the kubelet never asks again for a refused pod"
            try:
                await self._admit(pod_uid, containers, aligned)
            except admission.NotAdmitted as error:
                # what its containers were given is free, and stays in the file until the next write
                self.refused[pod_uid] = str(error)
                self.over.add(pod_uid)
                raise

    async def begin(self, pod_uid: str, container: admission.Container) -> admission.Admitted:
        """Ask before a container's start, as often as that is tried; return what it has."""
        result = admission.Admitted()
        entries = [self._held(pod_uid, container.name, name) for name in container.wanted]
        for allocation in entries:
            assert allocation is not None, "the pod was not admitted"
            differ = result.merge(allocation.response)
            name = allocation.resource
            self.complaints += [f"{name}: another resource says otherwise: {key}" for key in differ]
            result.ids[name] = sorted(allocation.ids)
        for name, ids in result.ids.items():
            await admission.before_start(self.endpoints[name], ids)
        return result

    async def end(self, pod_uid: str) -> None:
        """Have a pod's phase terminal, or its object gone: its devices are free.

        The checkpoint goes on naming it until it is written for another reason.
        """
        async with self._admitting:
            self.over.add(pod_uid)

    def used(self, resource: str) -> set[str]:
        """Return the ids that are not free by the kubelet's account."""
        return {
            device_id
            for allocation in self.allocations
            if allocation.resource == resource and allocation.pod_uid not in self.over
            for device_id in allocation.ids
        }

    async def _admit(
        self, pod_uid: str, containers: Sequence[admission.Container], aligned: bool
    ) -> None:
        reusable: dict[str, set[str]] = {}
        for container in sorted(containers, key=lambda one: one.kind is admission.Kind.MAIN):
            for name, needed in random.sample(
                sorted(container.wanted.items()), len(container.wanted)
            ):
                if self._held(pod_uid, container.name, name) is not None:
                    continue  # it ran before the kubelet began again
                pool = reusable.setdefault(name, set())
                allocation = await self._allocate(
                    pod_uid, container.name, name, needed, aligned, pool
                )
                self.allocations.append(allocation)
                self._write()
                if container.kind is admission.Kind.INIT:
                    pool.update(allocation.ids)
                else:
                    pool.difference_update(allocation.ids)

    def _held(self, pod_uid: str, container: str, name: str) -> checkpoint.Allocation | None:
        desired = (pod_uid, container, name)
        allocations = (allocation for allocation in self.allocations if _key(allocation) == desired)
        return next(allocations, None)

    async def _allocate(
        self,
        pod_uid: str,
        container: str,
        name: str,
        needed: int,
        aligned: bool,
        reusable: set[str],
    ) -> checkpoint.Allocation:
        endpoint = self.endpoints.get(name)
        again = frozenset(sorted(reusable)[:needed])
        fresh = needed - len(again)
        free = admission.available(endpoint, name, self.used(name), fresh)
        assert endpoint is not None
        mask = admission.best_mask(endpoint.nodes(), free, fresh) if aligned and fresh else None
        own = free & self.choice
        ids = await admission.choose(endpoint, free, fresh, mask, again, own) if fresh else []
        ids += sorted(again)
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
        register_request = pb.RegisterRequest.FromString(request)
        self.registered.append(register_request)
        while self.hold_register.is_set():
            await asyncio.sleep(STEP_S)
        if self.unavailable:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the device manager is not ready")
        if register_request.version != "v1beta1" or self.refuse_version:
            await _refuse(
                context,
                f'requested API version "{register_request.version}" is not supported by kubelet. '
                'Supported version is ["v1beta1"]',
            )
        if not is_extended_resource_name(register_request.resource_name):
            await _refuse(
                context, f'the ResourceName "{register_request.resource_name}" is invalid'
            )
        if self.at_once:
            self._spawn(self._connect_quietly(register_request))
            return b""
        try:
            endpoint = await self._connect(register_request)
        except (TimeoutError, aio.AioRpcError, ValueError) as error:
            await _refuse(context, f"failed to dial device plugin: {error!r}"[:300])
        if not self.half_open:
            self._spawn(self._watch(endpoint))
        return b""

    async def _connect_quietly(self, register_request: pb.RegisterRequest) -> None:
        try:
            await self._watch(await self._connect(register_request))
        except (TimeoutError, aio.AioRpcError, ValueError) as error:
            self.complaints.append(
                f"{register_request.resource_name}: cannot be dialled: {error!r}"[:200]
            )

    async def _connect(self, register_request: pb.RegisterRequest) -> Endpoint:
        if os.path.basename(register_request.endpoint) != register_request.endpoint:
            self.complaints.append(f"endpoint {register_request.endpoint} is no file name")
            raise ValueError(register_request.endpoint)
        endpoint = Endpoint(
            register_request.resource_name, str(self.folder / register_request.endpoint)
        )
        self.past.append(endpoint)
        try:
            await endpoint.dial()
        except BaseException:
            await endpoint.close()
            raise
        if endpoint.options != register_request.options:
            self.complaints.append(
                f"{register_request.resource_name}: two answers about its options"
            )
        self._succeed(endpoint)
        return endpoint

    def _succeed(self, endpoint: Endpoint) -> None:
        old = self.endpoints.get(endpoint.resource)
        self.endpoints[endpoint.resource] = endpoint
        if old is not None:
            endpoint.inherit(old)
        self._note_statuses()
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

    def _note_statuses(self) -> None:
        for name in self.endpoints:
            status = (self.capacity(name), self.allocatable(name))
            statuses = self.statuses.setdefault(name, [])
            if statuses[-1:] != [status]:
                statuses.append(status)

    def _write(self) -> None:
        self._note_statuses()
        self.allocations = [
            allocation for allocation in self.allocations if allocation.pod_uid not in self.over
        ]
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
