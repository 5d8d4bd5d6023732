"""Listen addresses in settings and flags."""

from __future__ import annotations

import ipaddress

import msgspec

from agent.config.settings import MetricsSettings
from agent.errors import BadConfig

MAX_PORT, MAX_PORT_DIGITS = 65535, 5


class ListenAddress(msgspec.Struct, frozen=True):
    """Host and port; port 0 lets the kernel choose."""

    host: str
    port: int

    @property
    def local_host(self) -> str:
        """Return the host by which programs of this machine reach the address."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - shown

    @property
    def is_loopback(self) -> bool:
        """Return whether only programs of this machine reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def url(self, scheme: str = "http") -> str:
        """Return the URL for a browser on this machine."""
        shown = f"[{self.local_host}]" if ":" in self.local_host else self.local_host
        return f"{scheme}://{shown}:{self.port}/"


def parse_listen_address(text: str, key: str = "metrics.listen") -> ListenAddress:
    """Parse `HOST:PORT` or `[IPv6]:PORT`; raise `BadConfig` that names the setting."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    digits = port.isascii() and port.isdecimal() and len(port) <= MAX_PORT_DIGITS
    if not colon or not host or not digits or int(port) > MAX_PORT:
        raise BadConfig(f"{key}: {text!r} is not HOST:PORT, as 127.0.0.1:9316 is")
    return ListenAddress(host, int(port))


def listen_addresses(metrics: MetricsSettings) -> tuple[ListenAddress, ...]:
    """Return the addresses of metrics and page; raise `BadConfig`."""
    addresses = [parse_listen_address(metrics.listen)]
    if metrics.page_listen:
        addresses.append(parse_listen_address(metrics.page_listen, "metrics.page_listen"))
    return tuple(addresses)
