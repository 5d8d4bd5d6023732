"""Objects that the agent writes; watched to notice that somebody else changed or removed them."""

from __future__ import annotations

import msgspec

from agent.kube.objects.metadata import Metadata
from agent.kube.resources import DEVICES, TOPOLOGIES
from agent.kube.watch.wire import Kind


class OwnObject(msgspec.Struct):
    """Only the metadata is read: a changed version makes the writer read the object."""

    metadata: Metadata


def resource_version(found: OwnObject) -> str:
    """Return the object's version; opaque."""
    return found.metadata.resource_version


OWN_DEVICE: Kind[OwnObject, str] = Kind(resource=DEVICES, wire=OwnObject, make=resource_version)
OWN_TOPOLOGY: Kind[OwnObject, str] = Kind(
    resource=TOPOLOGIES, wire=OwnObject, make=resource_version
)
