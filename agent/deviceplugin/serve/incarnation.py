"""One incarnation of a resource's server: a file of its own, the five methods, and a clean end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agent.deviceplugin.serve.answering import Answering
from agent.deviceplugin.serve.bell import Bell
from agent.deviceplugin.serve.methods import service_of
from agent.deviceplugin.serve.names import MAX_PATH_BYTES, socket_name, too_long
from agent.deviceplugin.serve.site import Site
from agent.deviceplugin.serve.streaming import Streams
from agent.errors import AgentError
from agent.loop import to_its_end

if TYPE_CHECKING:
    from grpc import aio

    from proto.gen import deviceplugin_v1beta1_pb2 as pb

MODE = 0o600  # the kubelet is root
MAX_CALLS = 64  # at once; more are refused by gRPC with RESOURCE_EXHAUSTED
OPTIONS = (("grpc.max_receive_message_length", 4 << 20),)


class CannotServe(AgentError):
    """There can be no socket; the message names its path and what to do. `reason` is CamelCase."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Incarnation:
    """Belongs to the loop thread. `options` stay for its life.

    The server of another incarnation must have stopped before this one is registered.
    """

    def __init__(self, answering: Answering, site: Site, bell: Bell) -> None:
        self.endpoint = ""  # file name in the kubelet's folder
        self.options = (answering.offer.check_start, answering.offer.choose)
        self._answering = answering
        self._site = site
        self._bell = bell
        self._streams = Streams(answering, site, bell)
        self._file: tuple[int, int] | None = None
        self._server: aio.Server | None = None

    @property
    def streams(self) -> int:
        """Return how many streams are open."""
        return self._streams.open

    @property
    def begun(self) -> bool:
        """Say whether there ever was one."""
        return self._streams.begun > 0

    async def start(self, number: int) -> int:
        """Serve in a file with that number, or the next one that is free, which is returned.

        Raises `CannotServe`. gRPC is loaded by then.
        """
        while os.path.lexists(path := self._path(number)):
            number += 1
        if too_long(path):
            text = f"{path}: longer than {MAX_PATH_BYTES} bytes; see kubelet.root_dir"
            raise CannotServe("PathTooLong", text)
        server = self._built()
        try:
            # no await from the look to here: nobody else of this process takes the name
            server.add_insecure_port(f"unix:{path}")
            status = os.lstat(path)
            os.chmod(path, MODE)
            # a start that is cancelled in the middle leaves a server that cannot be stopped
            await to_its_end(server.start())
        except (RuntimeError, OSError) as error:
            await to_its_end(server.stop(None))
            raise CannotServe("NoSocket", f"{path}: {str(error)[:200]}") from error
        except BaseException:  # a stop in the middle of a start too: nothing goes on serving
            await to_its_end(server.stop(None))
            raise
        self._server, self._file = server, (status.st_dev, status.st_ino)
        self.endpoint = os.path.basename(path)
        return number

    def in_place(self) -> bool:
        """Say whether the kubelet still finds this server by its file."""
        try:
            status = os.lstat(os.path.join(self._site.folder, self.endpoint))
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._file

    def registration(self) -> bytes:
        """Return what the kubelet is told of this server."""
        from agent.deviceplugin.serve.messages import registration  # noqa: PLC0415 - protobuf

        return registration(self.endpoint, self._answering.offer.name, self._options())

    async def stop(self) -> None:
        """End the streams in good order, then the server; its file goes with it."""
        self._streams.end()
        if self._server is not None:
            server, self._server = self._server, None
            await to_its_end(self._ended(server))

    async def _ended(self, server: aio.Server) -> None:
        stop_s = self._site.pace.stop_s
        # streams first, or the kubelet sees a broken connection where it should see an end
        await self._bell.until(lambda: not self._streams.open, stop_s)
        await server.stop(stop_s)

    def _path(self, number: int) -> str:
        return os.path.join(self._site.folder, socket_name(self._answering.offer.name, number))

    def _options(self) -> pb.DevicePluginOptions:
        from agent.deviceplugin.serve.messages import options_of  # noqa: PLC0415 - protobuf

        check_start, choose = self.options
        return options_of(check_start=check_start, choose=choose)

    def _built(self) -> aio.Server:
        from grpc import aio  # noqa: PLC0415 - loaded by now

        server = aio.server(options=OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
        options = self._options().SerializeToString()
        server.add_generic_rpc_handlers((service_of(self._answering, self._streams, options),))
        return server
