"""What the kubelet's device plug-in serves, and how it stands with the kubelet."""

from __future__ import annotations

import msgspec


class ResourceServed(msgspec.Struct, frozen=True, kw_only=True):
    """One resource. `state`: conflict, waiting, registering, registered, watched, refused."""

    name: str  # nvidia.com/gpu
    vendor: str
    state: str = "waiting"
    reason: str = ""  # CamelCase, why it is not watched
    message: str = ""
    devices: int = 0
    healthy: int = 0
    registrations: int = 0
    lists_sent: int = 0


class ServedView(msgspec.Struct, frozen=True, kw_only=True):
    """All resources, by name."""

    resources: tuple[ResourceServed, ...] = ()
