"""Commands that act on the running agent, through its admin socket."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
from pathlib import Path

from agent.cli.options import settings_of
from agent.errors import AgentError
from agent.web.unix_socket import NAME, NoAdminSocket, connect, socket_path

ANSWER_S = 60.0  # a discovery may be in progress
MAX_ANSWER = 1 << 16  # bytes
DEFAULT_OUT = "xpu-agent-out"


class Refused(AgentError):
    """The agent did not do it; says why."""


class _Connection(http.client.HTTPConnection):
    """HTTP over the agent's socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=ANSWER_S)
        self._path = path
        self.sock: socket.socket

    def connect(self) -> None:
        """Connect to the socket instead of to an address."""
        self.sock = connect(self._path)
        self.sock.settimeout(ANSWER_S)


def rescan(arguments: argparse.Namespace) -> int:
    """Have the agent look at everything now."""
    return _ask(arguments, "rescan", {})


def release(arguments: argparse.Namespace) -> int:
    """Have the agent let go of a vendor's driver for a while."""
    asked = {"vendor": arguments.vendor, "for_s": arguments.for_s}
    return _ask(arguments, "release", asked)


def clear(arguments: argparse.Namespace) -> int:
    """Have the agent forget a device's lasting fault."""
    return _ask(arguments, "clear", {"device": arguments.device})


def _ask(arguments: argparse.Namespace, action: str, body: dict[str, object]) -> int:
    connection = _Connection(_path(arguments))
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/debug/{action}", json.dumps(body), headers)
        answer = connection.getresponse()
        told = json.loads(answer.read(MAX_ANSWER))
    except TimeoutError as error:
        raise Refused(f"{action}: no answer within {ANSWER_S:.0f} s") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Refused(f"{action}: the agent answered nothing of use: {error}") from error
    finally:
        connection.close()
    if "done" not in told:
        raise Refused(f"{action}: {told.get('error', 'refused')}")
    print(told["done"])
    return 0


def _path(arguments: argparse.Namespace) -> str:
    """Return the socket that was named, else that of the settings, else the first that is there."""
    if arguments.socket:
        return str(arguments.socket)
    settings = settings_of(arguments)
    setting = settings.admin.socket
    if setting:
        path = socket_path(setting, "")
        if path is None:
            raise NoAdminSocket("admin.socket: off; set it to a path, and restart the agent")
        return path
    usual = [str(Path(folder, NAME)) for folder in (settings.node.run_dir, DEFAULT_OUT)]
    return next((path for path in usual if os.path.exists(path)), usual[0])
