"""The Node object as far as we read it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from agent.errors import ParseError
from agent.kube.objects.metadata import LabelledMetadata, checked_uid, pairs
from agent.kube.resources import NODES
from agent.kube.watch.wire import Kind
from agent.model.cluster.facts import Amounts, NodeFacts

MAX_RESOURCES = 1024
MAX_ADDRESSES = 64
MAX_TEXT = 256  # of an id, a resource's name, a quantity

_Quantities = dict[str, str | int | float]


class _Address(msgspec.Struct):
    type: str = ""
    address: str = ""


class _Endpoint(msgspec.Struct):
    port: int = msgspec.field(default=0, name="Port")


class _Endpoints(msgspec.Struct, rename="camel"):
    kubelet_endpoint: _Endpoint | None = None


class _Info(msgspec.Struct):
    machine_id: str = msgspec.field(default="", name="machineID")
    boot_id: str = msgspec.field(default="", name="bootID")


class _Status(msgspec.Struct, rename="camel"):
    capacity: _Quantities | None = None
    allocatable: _Quantities | None = None
    addresses: list[_Address] | None = None
    daemon_endpoints: _Endpoints | None = None
    node_info: _Info | None = None


class NodeObject(msgspec.Struct):
    """What is read of a Node's JSON."""

    metadata: LabelledMetadata
    status: _Status | None = None


def node_facts(node: NodeObject) -> NodeFacts:
    """Return what a Node says; raise `ParseError` if it cannot be used."""
    meta, status = node.metadata, node.status or _Status()
    info = status.node_info or _Info()
    addresses = status.addresses or []
    return NodeFacts(
        name=meta.name,
        uid=checked_uid(meta.uid),
        resource_version=meta.resource_version,
        labels=pairs("labels", meta.labels),
        annotations=pairs("annotations", meta.annotations),
        capacity=_amounts(status.capacity),
        allocatable=_amounts(status.allocatable),
        addresses=tuple((one.type, one.address) for one in addresses[:MAX_ADDRESSES]),
        kubelet_port=_port(status.daemon_endpoints),
        machine_id=info.machine_id[:MAX_TEXT],
        boot_id=info.boot_id[:MAX_TEXT],
    )


def _amounts(found: Mapping[str, str | int | float] | None) -> Amounts:
    if len(found or ()) > MAX_RESOURCES:
        raise ParseError(f"amounts: more than {MAX_RESOURCES} resources", "")
    texts = {name: str(value) for name, value in (found or {}).items()}
    small = {k: v for k, v in texts.items() if len(k) <= MAX_TEXT and len(v) <= MAX_TEXT}
    return MappingProxyType(small)


def _port(endpoints: _Endpoints | None) -> int | None:
    """Return the kubelet's port; 0, and what is no port, is what was not said."""
    endpoint = endpoints.kubelet_endpoint if endpoints else None
    return endpoint.port if endpoint and 0 < endpoint.port < 65536 else None


OWN_NODE: Kind[NodeObject, NodeFacts] = Kind(resource=NODES, wire=NodeObject, make=node_facts)
