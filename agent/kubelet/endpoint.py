"""Where the kubelet of this node listens: by the settings, else by its Node object."""

from __future__ import annotations

import ipaddress
import re

from agent.config.cluster import KubeletSettings
from agent.model.cluster.facts import NodeFacts

DEFAULT_PORT = 10250

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


def url_of(kubelet: KubeletSettings, node: NodeFacts | None) -> str | None:
    """Return the base of its URLs; `None` while neither settings nor Node name an address.

    The read-only port is spoken to without TLS, and then no token is sent. A Node with two
    addresses of the type is reached at its first, which is of its main family.
    """
    found = node.addresses if node is not None else ()
    named = (address for kind, address in found if kind == kubelet.address_type)
    hosts = (kubelet.address,) if kubelet.address else named
    host = next(filter(None, map(_host, hosts)), None)
    if host is None:
        return None
    if kubelet.read_only_port:
        return f"http://{host}:{kubelet.read_only_port}"
    reported = node.kubelet_port if node is not None else None
    return f"https://{host}:{kubelet.port or reported or DEFAULT_PORT}"


def _host(address: str) -> str | None:
    """Return the address as it stands in a URL; `None` for what is no address and no name."""
    try:
        version = ipaddress.ip_address(address).version
    except ValueError:
        return address if _NAME.fullmatch(address) else None
    if "%" in address:  # of one interface only, which no Node means
        return None
    return f"[{address}]" if version == 6 else address
