"""The NodeSLO object, not yet laid over the defaults."""

from __future__ import annotations

import msgspec

from agent.kube.objects.metadata import Metadata
from agent.kube.resources import NODE_SLOS
from agent.kube.watch.wire import Kind

_ABSENT = msgspec.Raw(b"null")


class NodeSloObject(msgspec.Struct):
    """What is read of a NodeSLO's JSON. The spec's values are judged one by one, elsewhere."""

    metadata: Metadata
    spec: msgspec.Raw = _ABSENT


def plain_slo(found: NodeSloObject) -> object:
    """Return of `metadata` what tells versions, and `spec` as it came: JSON of whatever size.

    It is opened where there is time for it, see `agent.model.slo.in_force.slo_view`.
    """
    meta = found.metadata
    versions = {"resourceVersion": meta.resource_version, "generation": meta.generation}
    return {"metadata": versions, "spec": found.spec.copy()}  # the rest of the page is let go


OWN_NODE_SLO: Kind[NodeSloObject, object] = Kind(
    resource=NODE_SLOS, wire=NodeSloObject, make=plain_slo
)
