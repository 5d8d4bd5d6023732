"""Where the kubelet of this node listens: by the settings, else by its Node object."""

from __future__ import annotations

import ipaddress

import msgspec

from agent.config.cluster import KubeletSettings
from agent.model.cluster.facts import NodeFacts

DEFAULT_PORT = 10250


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An address and how it is spoken to. Without TLS no token is sent."""

    host: str  # a name or an address, without brackets
    port: int
    tls: bool = True

    @property
    def url(self) -> str:
        """Return the base of all URLs there."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def endpoint_of(settings: KubeletSettings, node: NodeFacts | None) -> Endpoint | None:
    """Return the endpoint; `None` while neither the settings nor the Node name an address.

    A Node with two addresses of the type is reached at its first, which is of its main family.
    """
    host = settings.address or _address(settings.address_type, node)
    if not host:
        return None
    if settings.read_only_port:
        return Endpoint(host=host, port=settings.read_only_port, tls=False)
    reported = node.kubelet_port if node is not None else None
    return Endpoint(host=host, port=settings.port or reported or DEFAULT_PORT)


def _address(kind: str, node: NodeFacts | None) -> str | None:
    for found, address in node.addresses if node is not None else ():
        if found == kind and _plain(address):
            return address
    return None


def _plain(address: str) -> bool:
    """Say whether the text can stand in a URL as a host and as nothing else."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return 0 < len(address) < 254 and address.replace("-", "").replace(".", "").isalnum()
    return "%" not in address
