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


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one resource that the kubelet gave to one container, by its own account."""

    pod_uid: str
    resource: str
    ids: tuple[str, ...] = ()  # as the kubelet knows them
    container: str = ""  # name; empty: of one of the pod's, it is not known which


class ServedView(msgspec.Struct, frozen=True, kw_only=True):
    """All resources, by name.

    `held` is what the kubelet's checkpoint says, and what was answered since it was read.
    """

    resources: tuple[ResourceServed, ...] = ()
    held: tuple[Held, ...] = ()
