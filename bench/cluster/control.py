"""The server of a bench, seen from outside: what was asked of it, and what it is given."""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from bench.cluster.write_server import Served
from tests.apiserver.log import Logged

DEADLINE_S = 30.0
WRITES = ("create", "update", "patch", "delete")


class Control:
    """Asks and steers; what it sends is not in the log."""

    def __init__(self, served: Served) -> None:
        """Take where the server is."""
        self._served = served
        self._connection = kept_connection(served)

    def another(self) -> Control:
        """Return one with a connection of its own, for another process."""
        return Control(self._served)

    def requests(self) -> list[Logged]:
        """Return what was asked since `forget`, oldest first."""
        return msgspec.json.decode(self._send("GET", "requests"), type=list[Logged])

    def forget(self) -> None:
        """Forget what was asked so far."""
        self._send("DELETE", "requests")

    def put(self, body: object) -> None:
        """Create or replace an object as an administrator."""
        self._send("POST", "put", msgspec.json.encode(body))

    def environment(self, node: str, folder: Path) -> dict[str, str]:
        """Return what an agent of that Node finds in its environment, as in a pod."""
        where = urlsplit(self._served.url)
        return {
            "KUBERNETES_SERVICE_HOST": str(where.hostname),
            "KUBERNETES_SERVICE_PORT": str(where.port),
            "XPU_AGENT_SERVICE_ACCOUNT": self._served.account,
            "XPU_AGENT_NODE__NAME": node,
            "XPU_AGENT_NODE__RUN_DIR": str(folder / "run"),
            "XPU_AGENT_ADMIN__SOCKET": str(folder / "admin.sock"),
        }

    def _send(self, method: str, what: str, body: bytes | None = None) -> bytes:
        self._connection.request(method, f"/_control/{what}", body)
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{method} {what}: {answer.status} {data[:200]!r}")
        return data


def kept_connection(served: Served) -> http.client.HTTPSConnection:
    """Return a connection that stays open between requests."""
    where = urlsplit(served.url)
    context = ssl.create_default_context(cafile=served.ca_file)
    host, port = str(where.hostname), where.port
    return http.client.HTTPSConnection(host, port, timeout=DEADLINE_S, context=context)


def acknowledged_s(requests: list[Logged], resource: str) -> list[tuple[float, Logged]]:
    """Return the writes of a resource that were taken, and when they were answered, wall clock."""
    return [
        (entry.time_s + entry.took_s, entry)
        for entry in requests
        if entry.resource == resource and entry.verb in WRITES and 200 <= entry.status < 300
    ]
