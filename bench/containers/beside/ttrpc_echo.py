"""The plug-in's own frames and calls with nothing behind them: each new container is echoed.

`python -m bench.containers.beside.ttrpc_echo SOCKET`
"""

from __future__ import annotations

import asyncio
import sys

from agent.nri.plugin import RUNTIME_SERVICE
from agent.nri.session import SERVICE
from agent.nri.wire.connection import CallServer, RuntimeCall, RuntimeConnection
from agent.nri.wire.errors import ConnectionClosed
from agent.nri.wire.frames import TtrpcFrame, response_frame
from proto.gen import nri_plugin_pb2 as nri

METHODS = ("Configure", "Synchronize", "CreateContainer")
DEADLINE_S = 30.0


async def run(socket: str) -> None:
    """Serve until the runtime closes."""
    server = CallServer(SERVICE, METHODS)
    closed = asyncio.Event()

    def take(frame: TtrpcFrame) -> None:
        call = server.accept(frame)
        assert isinstance(call, RuntimeCall)
        server.finish(call.stream)
        payload = b""
        if call.method == "Configure":
            payload = nri.ConfigureResponse(events=8).SerializeToString()
        elif call.method == "CreateContainer":
            payload = nri.CreateContainerRequest.FromString(call.payload).SerializeToString()
        trunk.answer(response_frame(call.stream, payload))

    def lost(_: ConnectionClosed) -> None:
        closed.set()

    trunk = RuntimeConnection(take, lost, RUNTIME_SERVICE)
    await asyncio.get_running_loop().create_unix_connection(lambda: trunk, socket)
    plugin_request = nri.RegisterPluginRequest(plugin_name="echo", plugin_idx="10")
    await trunk.calls.call("RegisterPlugin", plugin_request.SerializeToString(), DEADLINE_S)
    await closed.wait()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
