"""Serves the kubelet's pod-resources API with allocated devices, on a socket of its own.

The socket file is created under a temporary name and renamed; a socket of another program is never
replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import random
import shutil
import socket
import stat
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent.errors import AgentError, ParseError
from agent.kube.errors import ApiError, BadResponse, ServerError, Throttled, Unreachable
from agent.kubelet.pod_list_file import PodListFile
from agent.kubelet.pod_resources_list import add_allocations
from agent.loop import await_shielded, run_in_thread
from agent.snapshot.cluster import PodResourcesProxyStatus
from agent.snapshot.node import SnapshotStore

if TYPE_CHECKING:
    from grpc import aio

log = logging.getLogger(__name__)

SERVICE = "v1.PodResourcesLister"

LIST, ALLOCATABLE, GET = "List", "GetAllocatableResources", "Get"

FOLDER, SOCKET = "pod-resources", "kubelet.sock"

MAX_MESSAGE_BYTES = 16 << 20

MAX_PATH_BYTES = 107  # of a socket's address

NO_SOCKET = "no socket: is the kubelet running? See kubelet.root_dir"

FIRST_WAIT_S = 0.02  # the kubelet accepts 100 calls a second

MAX_EXPONENT = 5

OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # gRPC would send the path as authority, which Go's servers refuse
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # a kubelet restarts within seconds: by default the pause grows to two minutes
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

Sleep = Callable[[float], Awaitable[None]]


def kubelet_socket(root_dir: str) -> str:
    """Return the socket of the kubelet with this root folder."""
    return f"{root_dir.rstrip('/')}/{FOLDER}/{SOCKET}"


def load_grpc() -> None:
    """Load gRPC and the messages: 100 ms and 12 MB, so on a thread and only where they are used."""
    from grpc import aio  # noqa: F401, PLC0415 - grpc

    from proto.gen import podresources_v1_pb2  # noqa: F401, PLC0415 - protobuf


class PodResourcesChannel:
    """Calls the kubelet. Belongs to the loop thread; connects at the first call and when needed.

    The `reason` of its errors is the name of gRPC's status.
    """

    def __init__(
        self,
        path: str,
        *,
        deadline_s: float = 10.0,
        sleep: Sleep = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`path` is that of the socket."""
        self._path = path
        self._deadline_s = deadline_s
        self._sleep = sleep
        self._uniform = uniform
        self._channel: aio.Channel | None = None

    async def call(self, method: str, request: bytes) -> bytes:
        """Return the reply within the deadline; calls that the rate limit refuses are repeated."""
        if not os.path.exists(self._path):
            raise self._unreachable(method, "UNAVAILABLE", NO_SOCKET)
        if len(os.fsencode(self._path)) > MAX_PATH_BYTES:
            raise self._unreachable(method, "UNAVAILABLE", f"longer than {MAX_PATH_BYTES} bytes")
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._call_with_retry(method, request)
        except TimeoutError as error:
            detail = f"no answer within {self._deadline_s:g} s"
            raise self._unreachable(method, "DEADLINE_EXCEEDED", detail) from error

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    async def _call_with_retry(self, method: str, request: bytes) -> bytes:
        refusal_count = 0
        while True:
            try:
                return await self._call_once(method, request)
            except Throttled:
                ceiling_s = FIRST_WAIT_S * 2.0 ** min(refusal_count, MAX_EXPONENT)
                refusal_count += 1
                await self._sleep(self._uniform(ceiling_s / 2, ceiling_s))

    async def _call_once(self, method: str, request: bytes) -> bytes:
        if self._channel is None:
            await run_in_thread(load_grpc)
        from grpc import aio  # noqa: PLC0415 - grpc

        if self._channel is None:
            self._channel = aio.insecure_channel(f"unix:{self._path}", options=OPTIONS)
        call: aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(
            f"/{SERVICE}/{method}"
        )
        try:
            reply: bytes = await call(request)
        except aio.AioRpcError as error:
            raise self._failure(method, error.code().name, error.details() or "") from error
        return reply

    def _failure(self, method: str, code: str, detail: str) -> ApiError:
        request = f"{method} at {self._path}"
        if code == "UNAVAILABLE":
            return self._unreachable(method, code, detail)
        if code == "RESOURCE_EXHAUSTED":
            # the client's own size limit has the same status as the server's rate limit
            error_class = BadResponse if "larger than max" in detail else Throttled
            return error_class(request, detail, reason=code)
        return ServerError(request, f"{code}: {detail}", reason=code)

    def _unreachable(self, method: str, code: str, detail: str) -> Unreachable:
        return Unreachable(f"{method} at {self._path}", detail, reason=code)


FOLDER_MODE = 0o750  # as that of the kubelet's own folder

SOCKET_MODE = 0o600  # as that of the kubelet's socket: only root may connect

TEMPORARY_PREFIX = ".making-"


class ProxySocketError(AgentError):
    """The socket cannot be created; the message has the path and advice."""


class ProxySocketFile:
    """`kubelet.sock` in a folder.

    gRPC removes the file at its address when it binds and when it stops. It therefore binds to
    another name in a private folder, and the socket is renamed: a successor's socket in the same
    place is never removed.

    The socket is identified by its inode number. The kernel gives that number to no other file as
    long as the server listens, so the server must be stopped after `remove`.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self.path = self._folder / SOCKET
        self._identity: tuple[int, int] | None = None

    @contextlib.contextmanager
    def create(self) -> Iterator[str]:
        """Yield the address to bind to; then rename the socket. Raises `ProxySocketError`."""
        try:
            self._folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            self._remove_temporary_folders()
            temporary_folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=self._folder))
        except OSError as error:
            raise self.error(error.strerror or str(error)) from error
        try:
            socket_path = temporary_folder / "s"
            if len(os.fsencode(socket_path)) > MAX_PATH_BYTES:
                raise self.error(f"longer than {MAX_PATH_BYTES} bytes")
            if self._is_listening():
                raise self.error("another proxy listens there, a koordlet perhaps")
            yield f"unix:{socket_path}"
            self._place(socket_path)
        finally:
            shutil.rmtree(temporary_folder, ignore_errors=True)

    def is_in_place(self) -> bool:
        """Return whether the socket in place is the one of this object."""
        return self._identity is not None and _inode(self.path) == self._identity

    def remove(self) -> None:
        """Remove the socket if it is the one of this object."""
        if self.is_in_place():
            with contextlib.suppress(OSError):  # a file system that became read-only keeps it
                self.path.unlink(missing_ok=True)
        self._identity = None

    def remove_dead(self) -> tuple[str, ...]:
        """Remove what a killed agent left; return the path of its socket if there was one.

        Raises `ProxySocketError`. A socket at which a process listens stays.
        """
        try:
            self._remove_temporary_folders()
            status = self._status()
            if status is None or not stat.S_ISSOCK(status.st_mode) or self._is_listening():
                return ()
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise self.error(error.strerror or str(error)) from error
        return (str(self.path),)

    def error(self, detail: str) -> ProxySocketError:
        """Return an error with the path and the setting."""
        return ProxySocketError(f"{self.path}: {detail}; see kubelet.pod_resources_proxy_dir")

    def _place(self, socket_path: Path) -> None:
        try:
            socket_path.chmod(SOCKET_MODE)
            status = self._status()
            if status is not None and not stat.S_ISSOCK(status.st_mode):
                raise self.error("something that is no socket stands there")
            identity = _inode(socket_path)
            socket_path.replace(self.path)
        except OSError as error:
            raise self.error(error.strerror or str(error)) from error
        self._identity = identity

    def _remove_temporary_folders(self) -> None:
        """Remove temporary folders of agents that were killed."""
        for folder in self._folder.glob(f"{TEMPORARY_PREFIX}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def _status(self) -> os.stat_result | None:
        try:
            return self.path.lstat()
        except FileNotFoundError:
            return None

    def _is_listening(self) -> bool:
        """Return whether a process accepts connections; a stale file does not."""
        status = self._status()
        if status is None or not stat.S_ISSOCK(status.st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(0)  # a local socket answers at once, unless its queue is full
            try:
                connection.connect(str(self.path))
            except OSError as error:
                # any other error, such as a full queue, means that a process listens
                return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
            return True


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


CHECK_S = 10.0

STOP_S = 1.0  # for open calls

MAX_CALLS = 32  # open at once; gRPC refuses more with RESOURCE_EXHAUSTED


class PodResourcesProxy:
    """Answers calls of the pod-resources API. Belongs to the loop thread.

    `List` is the kubelet's present answer with the allocations of the known pods, which are as old
    as the last poll of the kubelet's pods. Other methods are passed through. While the kubelet does
    not answer, its error is the answer: an empty list would mean that all devices are free.
    """

    def __init__(
        self,
        folder: str,
        channel: PodResourcesChannel,
        store: SnapshotStore,
        pod_file: PodListFile | None = None,
    ) -> None:
        """`folder` gets the socket. The pods of `pod_file` replace the cluster's."""
        self.state = PodResourcesProxyStatus()
        self._channel = channel
        self._store = store
        self._pod_file = pod_file
        self._file = ProxySocketFile(folder)
        self._server: aio.Server | None = None
        self._calls: Counter[str] = Counter()

    async def run(self, sleep: Sleep = asyncio.sleep) -> None:
        """Serve until cancelled.

        Create the socket again if it was removed or could not be created.
        """
        try:
            while True:
                await self.check()
                await sleep(CHECK_S)
        finally:
            await self.stop()

    async def check(self) -> None:
        """Serve unless this already happens; update the state."""
        if self._server is not None and self._file.is_in_place():
            return
        await self.stop()
        try:
            await self._start()
        except AgentError as error:
            if not self.state.error:
                log.warning("pod_resources_proxy_down", extra={"error": str(error)})
            self._set_state(serving=False, error=str(error))
            return
        self._set_state(serving=True, error="")

    async def stop(self) -> None:
        """Remove the socket if it is still this object's, and end open calls."""
        if self._server is None:
            return
        server, self._server = self._server, None
        self._file.remove()
        await await_shielded(server.stop(STOP_S))
        self._set_state(serving=False, error="")

    async def _start(self) -> None:
        await run_in_thread(load_grpc)
        import grpc.aio  # noqa: PLC0415 - grpc

        server = grpc.aio.server(
            options=(("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),),
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(self._method_handler(name))
            for name in (LIST, ALLOCATABLE, GET)
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            with self._file.create() as address:
                try:
                    server.add_insecure_port(address)
                except RuntimeError as error:
                    raise self._file.error(str(error)) from error
                # a start that is cancelled halfway leaves a server that cannot be stopped
                await await_shielded(server.start())
        except BaseException:  # also a cancellation halfway: no server may keep running
            await await_shielded(server.stop(None))
            raise
        self._server = server

    def _method_handler(
        self, method: str
    ) -> Callable[[bytes, aio.ServicerContext[bytes, bytes]], Awaitable[bytes]]:
        async def answer(request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
            import grpc  # noqa: PLC0415 - grpc

            try:
                reply = await self._reply(method, request)
            except ApiError as error:
                self._count(method, error.reason)
                await context.abort(grpc.StatusCode[error.reason], str(error))
            except ParseError as error:
                self._count(method, "INTERNAL")
                await context.abort(grpc.StatusCode.INTERNAL, str(error))
            self._count(method, "OK")
            return reply

        return answer

    async def _reply(self, method: str, request: bytes) -> bytes:
        reply = await self._channel.call(method, request)
        if method != LIST:
            return reply
        # the pods may be in a file, and a list may have thousands of devices
        return await run_in_thread(lambda: self._add_allocations(reply))

    def _add_allocations(self, reply: bytes) -> bytes:
        snapshot = self._store.current
        pods = snapshot.cluster.pods if self._pod_file is None else self._pod_file.read()
        return add_allocations(reply, pods, snapshot.served.value.held)

    def _count(self, method: str, status: str) -> None:
        self._calls[f"{method} {status}"] += 1
        calls = tuple(sorted(self._calls.items()))
        self.state = msgspec.structs.replace(self.state, calls=calls)

    def _set_state(self, *, serving: bool, error: str) -> None:
        self.state = msgspec.structs.replace(self.state, is_serving=serving, error=error)
