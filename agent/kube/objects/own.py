"""Objects that the agent writes: watched to notice when another writer changes or removes them."""

from __future__ import annotations

import msgspec

from agent.kube.objects.metadata import Metadata
from agent.kube.resources import DEVICES, TOPOLOGIES
from agent.kube.watch.wire import Kind


class OwnObject(msgspec.Struct):
    """An object without its content: a changed version makes the writer read the whole object."""

    metadata: Metadata


def resource_version(one: OwnObject) -> str:
    """Return the object's version; opaque."""
    return one.metadata.resource_version


OWN_DEVICE: Kind[OwnObject, str] = Kind(resource=DEVICES, wire=OwnObject, make=resource_version)
OWN_TOPOLOGY: Kind[OwnObject, str] = Kind(
    resource=TOPOLOGIES, wire=OwnObject, make=resource_version
)
