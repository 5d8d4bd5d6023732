"""Commands that act on the running agent, through its admin socket."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
from pathlib import Path

from agent.cli.options import command_settings
from agent.errors import AgentError
from agent.web.admin_socket import SOCKET_NAME, AdminSocketError, connect_socket, socket_path

ANSWER_DEADLINE_S = 60.0  # a discovery may be in progress
MAX_ANSWER_BYTES = 1 << 16  # bytes
DEFAULT_OUT_FOLDER = "xpu-agent-out"


class ActionRefused(AgentError):
    """The agent did not do it; says why."""


class _AdminConnection(http.client.HTTPConnection):
    """HTTP over the agent's socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=ANSWER_DEADLINE_S)
        self._path = path
        self.sock: socket.socket

    def connect(self) -> None:
        """Connect to the socket instead of to an address."""
        self.sock = connect_socket(self._path)
        self.sock.settimeout(ANSWER_DEADLINE_S)


def rescan(arguments: argparse.Namespace) -> int:
    """Have the agent look at everything now."""
    return _post_action(arguments, "rescan", {})


def release(arguments: argparse.Namespace) -> int:
    """Have the agent let go of a vendor's driver for a while."""
    request = {"vendor": arguments.vendor, "for_s": arguments.for_s}
    return _post_action(arguments, "release", request)


def clear(arguments: argparse.Namespace) -> int:
    """Have the agent forget a device's lasting fault."""
    return _post_action(arguments, "clear", {"device": arguments.device})


def _post_action(arguments: argparse.Namespace, action: str, body: dict[str, object]) -> int:
    connection = _AdminConnection(_socket_path(arguments))
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/debug/{action}", json.dumps(body), headers)
        answer = connection.getresponse()
        reply = json.loads(answer.read(MAX_ANSWER_BYTES))
    except TimeoutError as error:
        raise ActionRefused(f"{action}: no answer within {ANSWER_DEADLINE_S:.0f} s") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ActionRefused(f"{action}: the agent answered nothing of use: {error}") from error
    finally:
        connection.close()
    if "done" not in reply:
        raise ActionRefused(f"{action}: {reply.get('error', 'refused')}")
    print(reply["done"])
    return 0


def _socket_path(arguments: argparse.Namespace) -> str:
    """Return the socket that was named, else that of the settings, else the first that is there."""
    if arguments.socket:
        return str(arguments.socket)
    settings = command_settings(arguments)
    setting = settings.admin.socket
    if setting:
        path = socket_path(setting, "")
        if path is None:
            raise AdminSocketError("admin.socket: off; set it to a path, and restart the agent")
        return path
    usual = [
        str(Path(folder, SOCKET_NAME)) for folder in (settings.node.run_dir, DEFAULT_OUT_FOLDER)
    ]
    return next((path for path in usual if os.path.exists(path)), usual[0])
