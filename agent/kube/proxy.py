"""Which proxy leads to a server: HTTPS_PROXY, HTTP_PROXY and NO_PROXY, read as Go reads them."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from agent.kube.errors import NoApiServer


class Proxy(msgspec.Struct, frozen=True, kw_only=True):
    """A proxy, and who we are there. Its text never holds the password."""

    url: str  # http://proxy:3128, without user and password
    user: str = ""
    password: str = ""

    def headers(self) -> dict[str, str]:
        """Return what tells the proxy who we are."""
        if not self.user:
            return {}
        pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return {"Proxy-Authorization": f"Basic {pair}"}

    def __str__(self) -> str:
        """Say which, for messages."""
        return self.url

    def __repr__(self) -> str:
        """Say which, for messages."""
        return f"Proxy({self.url})"


def proxy_for(url: str, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy that the environment names for a URL; `None`: go there directly.

    This machine itself is never asked for through a proxy, and nothing that NO_PROXY names: a
    host, a domain (with or without a dot before it), an address, a network, each with or without
    a port, or `*`. Raise `NoApiServer` for a proxy that is none.
    """
    parts = _split(url)
    variable = "HTTPS_PROXY" if parts.scheme == "https" else "HTTP_PROXY"
    text = _variable(environ, variable)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    if not text or _local(host) or _excepted(host, port, _variable(environ, "NO_PROXY")):
        return None
    return proxy_of(text, variable)


def proxy_of(text: str, origin: str) -> Proxy:
    """Return the proxy that a text names; `origin` is where it stands, for the message."""
    parts = _split(text if "://" in text else f"http://{text}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise NoApiServer(f"{origin}: only http:// and https:// proxies are supported")
    port = f":{parts.port}" if parts.port else ""
    return Proxy(
        url=f"{parts.scheme}://{bracketed(parts.hostname)}{port}",
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
    )


def bracketed(host: str) -> str:
    """Return a host as it stands in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _split(url: str) -> SplitResult:
    """Split a URL; one that is broken (a bracket, a port) has no host."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return urlsplit("")
    return parts


def _variable(environ: Mapping[str, str], name: str) -> str:
    return (environ.get(name) or environ.get(name.lower()) or "").strip()


def _local(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _excepted(host: str, port: int, no_proxy: str) -> bool:
    return any(_names(entry.strip().lower(), host.lower(), port) for entry in no_proxy.split(","))


def _names(entry: str, host: str, port: int) -> bool:
    if not entry:
        return False
    if entry == "*":
        return True
    address = _address(host)
    if "/" in entry:
        return address is not None and _within(address, entry)
    entry, entry_port = _without_port(entry)
    if entry_port is not None and entry_port != port:
        return False
    if address is not None:
        return _address(entry) == address
    domain = entry.removeprefix("*")
    if domain.startswith("."):
        return host.endswith(domain)
    return host == domain or host.endswith(f".{domain}")


def _without_port(entry: str) -> tuple[str, int | None]:
    if _address(entry) is not None:  # an IPv6 address has colons of its own
        return entry, None
    host, colon, port = entry.rpartition(":")
    if colon and port.isdecimal():
        return host.strip("[]"), int(port[:6])
    return entry.strip("[]"), None


def _within(address: ipaddress.IPv4Address | ipaddress.IPv6Address, network: str) -> bool:
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None
