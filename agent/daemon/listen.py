"""The address that the HTTP server listens on."""

from __future__ import annotations

import msgspec

from agent.errors import BadConfig


class Address(msgspec.Struct, frozen=True):
    """Host and port; port 0 lets the kernel choose."""

    host: str
    port: int

    def url(self) -> str:
        """Return what a browser on this machine opens."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - shown
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.port}/"


def parse_address(text: str) -> Address:
    """Parse `HOST:PORT` or `[IPv6]:PORT`; raise `BadConfig`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not colon or not host or not port.isdecimal() or not port.isascii() or int(port) > 65535:
        raise BadConfig(f"metrics.listen: {text!r} is not HOST:PORT, as 127.0.0.1:9316 is")
    return Address(host, int(port))
