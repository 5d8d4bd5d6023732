"""The gRPC server of one registration.

A socket of its own, the five methods, and an orderly end.
"""

from __future__ import annotations

import os

from grpc import aio

from agent.deviceplugin.context import ChangeCondition, PluginContext
from agent.deviceplugin.kubelet_folder import MAX_PATH_BYTES, is_path_too_long, socket_name
from agent.deviceplugin.messages import build_options, encode_registration
from agent.deviceplugin.servicer import ListStreams, ResourceServicer, build_service
from agent.errors import AgentError
from agent.loop import await_shielded
from proto.gen import deviceplugin_v1beta1_pb2 as pb

SOCKET_MODE = 0o600  # the kubelet is root
MAX_CALLS = 64  # open at once; gRPC refuses more with RESOURCE_EXHAUSTED
SERVER_OPTIONS = (("grpc.max_receive_message_length", 4 << 20),)


class ServerStartError(AgentError):
    """The socket cannot be created; the message has its path and advice. `reason` is CamelCase."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class ResourceServer:
    """Serves one resource. Belongs to the loop thread; its `options` never change.

    The previous server must have stopped before this one is registered.
    """

    def __init__(
        self, servicer: ResourceServicer, context: PluginContext, changes: ChangeCondition
    ) -> None:
        self.endpoint = ""  # file name in the kubelet's folder
        self.options = (servicer.resource.check_start, servicer.resource.choose)
        self._servicer = servicer
        self._context = context
        self._changes = changes
        self._streams = ListStreams(servicer, context, changes)
        self._socket_identity: tuple[int, int] | None = None
        self._server: aio.Server | None = None

    @property
    def stream_count(self) -> int:
        """Return the number of open streams."""
        return self._streams.open_count

    @property
    def has_had_stream(self) -> bool:
        """Return whether the kubelet has ever opened a stream."""
        return self._streams.opened_count > 0

    async def start(self, number: int) -> int:
        """Serve on the socket with this number, or the next free one; return the number.

        Raises `ServerStartError`. gRPC is loaded by then.
        """
        while os.path.lexists(path := self._path(number)):
            number += 1
        if is_path_too_long(path):
            text = f"{path}: longer than {MAX_PATH_BYTES} bytes; see kubelet.root_dir"
            raise ServerStartError("PathTooLong", text)
        server = self._build_server()
        try:
            # no await since the check of the path: no other task takes the name
            server.add_insecure_port(f"unix:{path}")
            status = os.lstat(path)
            os.chmod(path, SOCKET_MODE)
            # a start that is cancelled halfway leaves a server that cannot be stopped
            await await_shielded(server.start())
        except (RuntimeError, OSError) as error:
            await await_shielded(server.stop(None))
            raise ServerStartError("NoSocket", f"{path}: {str(error)[:200]}") from error
        except BaseException:  # also a cancellation halfway: no server may keep running
            await await_shielded(server.stop(None))
            raise
        self._server, self._socket_identity = server, (status.st_dev, status.st_ino)
        self.endpoint = os.path.basename(path)
        return number

    def is_socket_in_place(self) -> bool:
        """Return whether the socket in the kubelet's folder is still this server's."""
        try:
            status = os.lstat(os.path.join(self._context.folder, self.endpoint))
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._socket_identity

    def registration_message(self) -> bytes:
        """Return the `RegisterRequest` for this server."""
        return encode_registration(self.endpoint, self._servicer.resource.name, self._options())

    async def stop(self) -> None:
        """End the streams in order, then the server, which removes its socket."""
        self._streams.end_all()
        if self._server is not None:
            server, self._server = self._server, None
            await await_shielded(self._end(server))

    async def _end(self, server: aio.Server) -> None:
        stop_s = self._context.timing.stop_s
        # streams first: otherwise the kubelet sees a broken connection instead of an end
        await self._changes.wait_for(lambda: not self._streams.open_count, stop_s)
        await server.stop(stop_s)

    def _path(self, number: int) -> str:
        return os.path.join(self._context.folder, socket_name(self._servicer.resource.name, number))

    def _options(self) -> pb.DevicePluginOptions:
        check_start, choose = self.options
        return build_options(check_start=check_start, choose=choose)

    def _build_server(self) -> aio.Server:
        server = aio.server(options=SERVER_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
        options = self._options().SerializeToString()
        server.add_generic_rpc_handlers((build_service(self._servicer, self._streams, options),))
        return server
