"""Addresses that are listened on, as settings and flags spell them."""

from __future__ import annotations

import msgspec

from agent.errors import BadConfig

MAX_PORT, MAX_DIGITS = 65535, 5


class Address(msgspec.Struct, frozen=True):
    """Host and port; port 0 lets the kernel choose."""

    host: str
    port: int

    @property
    def near(self) -> str:
        """Return the host that programs of this machine reach it at."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - shown

    def url(self) -> str:
        """Return what a browser on this machine opens."""
        shown = f"[{self.near}]" if ":" in self.near else self.near
        return f"http://{shown}:{self.port}/"


def parse_address(text: str, key: str = "metrics.listen") -> Address:
    """Parse `HOST:PORT` or `[IPv6]:PORT`; raise `BadConfig` that names the setting."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    digits = port.isascii() and port.isdecimal() and len(port) <= MAX_DIGITS
    if not colon or not host or not digits or int(port) > MAX_PORT:
        raise BadConfig(f"{key}: {text!r} is not HOST:PORT, as 127.0.0.1:9316 is")
    return Address(host, int(port))
