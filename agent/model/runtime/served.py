"""What the kubelet's device plug-in serves, and how it stands with the kubelet."""

from __future__ import annotations

import msgspec

from agent.model.device import Pairs


class ResourceServed(msgspec.Struct, frozen=True, kw_only=True):
    """One resource. `state`: conflict, waiting, registering, registered, watched, refused."""

    name: str  # nvidia.com/gpu
    vendor: str
    state: str = "waiting"
    reason: str = ""  # CamelCase, why it is not watched
    message: str = ""
    devices: int = 0
    healthy: int = 0
    withdrawn_ids: tuple[str, ...] = ()  # ids in use that the kubelet would give to another pod
    registrations: int = 0
    lists_sent: int = 0


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one resource that the kubelet gave to one container, by its own account.

    `exchanges` name for some of the ids the device that the container has instead: the kubelet's
    account cannot be changed. What a pod has by a grant is not in here.
    """

    pod_uid: str
    resource: str
    ids: tuple[str, ...] = ()  # as the kubelet knows them
    container: str = ""  # name; empty: of one of the pod's, it is not known which
    exchanges: Pairs = ()  # (id that the kubelet knows, id of the device that is given)

    @property
    def pairs(self) -> Pairs:
        """Return each id that the kubelet knows with the id of the device that is given for it."""
        given = dict(self.exchanges)
        return tuple((name, given.get(name, name)) for name in self.ids)

    @property
    def device_ids(self) -> tuple[str, ...]:
        """Return the ids of the devices that the container has, unless it has a grant."""
        return tuple(given for _, given in self.pairs)


class ServedView(msgspec.Struct, frozen=True, kw_only=True):
    """All resources, by name.

    `held` is what the kubelet's checkpoint says, and what was answered since it was read.
    """

    resources: tuple[ResourceServed, ...] = ()
    held: tuple[Held, ...] = ()

    def exchanges(self, resource: str) -> frozenset[tuple[str, str]]:
        """Return each exchange of a resource once: the kubelet's id, and that of the device."""
        of_resource = (one for one in self.held if one.resource == resource)
        return frozenset(pair for one in of_resource for pair in one.exchanges)
