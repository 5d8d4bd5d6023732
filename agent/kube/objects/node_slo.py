"""The NodeSLO object, not yet laid over the defaults."""

from __future__ import annotations

import msgspec

from agent.errors import ParseError
from agent.kube.objects.metadata import Metadata
from agent.kube.resources import NODE_SLOS
from agent.kube.watch.wire import Kind

_ABSENT = msgspec.Raw(b"null")


class NodeSloObject(msgspec.Struct):
    """What is read of a NodeSLO's JSON. The spec's values are judged one by one, elsewhere."""

    metadata: Metadata
    spec: msgspec.Raw = _ABSENT


def plain_slo(found: NodeSloObject) -> object:
    """Return the object as plain values: `spec` whatever it is, of `metadata` what tells versions.

    Raises `ParseError` where the spec's text holds what no value can be.
    """
    meta = found.metadata
    try:
        spec: object = msgspec.json.decode(found.spec)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ParseError(f"spec: {type(error).__name__}: {str(error)[:120]}", "") from error
    versions = {"resourceVersion": meta.resource_version, "generation": meta.generation}
    return {"metadata": versions, "spec": spec}


OWN_NODE_SLO: Kind[NodeSloObject, object] = Kind(
    resource=NODE_SLOS, wire=NodeSloObject, make=plain_slo
)
