"""One incarnation of a resource's server: a file of its own, the five methods, and a clean end."""

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
MAX_CALLS = 64  # at once; more are refused by gRPC with RESOURCE_EXHAUSTED
SERVER_OPTIONS = (("grpc.max_receive_message_length", 4 << 20),)


class ServerStartError(AgentError):
    """There can be no socket; the message names its path and what to do. `reason` is CamelCase."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class ResourceServer:
    """Belongs to the loop thread. `options` stay for its life.

    The server of another incarnation must have stopped before this one is registered.
    """

    def __init__(
        self, answering: ResourceServicer, site: PluginContext, bell: ChangeCondition
    ) -> None:
        self.endpoint = ""  # file name in the kubelet's folder
        self.options = (answering.resource.check_start, answering.resource.choose)
        self._servicer = answering
        self._context = site
        self._changes = bell
        self._streams = ListStreams(answering, site, bell)
        self._socket_identity: tuple[int, int] | None = None
        self._server: aio.Server | None = None

    @property
    def stream_count(self) -> int:
        """Return how many streams are open."""
        return self._streams.open_count

    @property
    def has_had_stream(self) -> bool:
        """Say whether there ever was one."""
        return self._streams.opened_count > 0

    async def start(self, number: int) -> int:
        """Serve in a file with that number, or the next one that is free, which is returned.

        Raises `CannotServe`. gRPC is loaded by then.
        """
        while os.path.lexists(path := self._path(number)):
            number += 1
        if is_path_too_long(path):
            text = f"{path}: longer than {MAX_PATH_BYTES} bytes; see kubelet.root_dir"
            raise ServerStartError("PathTooLong", text)
        server = self._build_server()
        try:
            # no await from the look to here: nobody else of this process takes the name
            server.add_insecure_port(f"unix:{path}")
            status = os.lstat(path)
            os.chmod(path, SOCKET_MODE)
            # a start that is cancelled in the middle leaves a server that cannot be stopped
            await await_shielded(server.start())
        except (RuntimeError, OSError) as error:
            await await_shielded(server.stop(None))
            raise ServerStartError("NoSocket", f"{path}: {str(error)[:200]}") from error
        except BaseException:  # a stop in the middle of a start too: nothing goes on serving
            await await_shielded(server.stop(None))
            raise
        self._server, self._socket_identity = server, (status.st_dev, status.st_ino)
        self.endpoint = os.path.basename(path)
        return number

    def is_socket_in_place(self) -> bool:
        """Say whether the kubelet still finds this server by its file."""
        try:
            status = os.lstat(os.path.join(self._context.folder, self.endpoint))
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._socket_identity

    def registration_message(self) -> bytes:
        """Return what the kubelet is told of this server."""
        return encode_registration(self.endpoint, self._servicer.resource.name, self._options())

    async def stop(self) -> None:
        """End the streams in good order, then the server; its file goes with it."""
        self._streams.end_all()
        if self._server is not None:
            server, self._server = self._server, None
            await await_shielded(self._end(server))

    async def _end(self, server: aio.Server) -> None:
        stop_s = self._context.timing.stop_s
        # streams first, or the kubelet sees a broken connection where it should see an end
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
