"""The NodeResourceTopology object: zones, and what the scheduler must know of the CPUs."""

from __future__ import annotations

import msgspec

from agent.model.snapshot import NodeSnapshot
from agent.publish.base import Desired
from agent.publish.wire.owner import waits_for_node

GROUP = "topology.node.k8s.io"
V1ALPHA1 = "v1alpha1"  # what Koordinator reads and writes
V1ALPHA2 = "v1alpha2"  # written wherever it is served: see `agent.publish.nrt.whole`


class TopologyPublisher(msgspec.Struct, frozen=True):
    """Publishes CPUs and memory nodes of this node, and what a cluster says of them.

    `kubelet` says whether the kubelet is asked for its settings. What renders is loaded when it is
    needed: the first Device does not wait for it.
    """

    interval_s: float = 3.0
    kubelet: bool = True
    name: str = "topology"

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[Desired, ...]:  # noqa: ARG002 - see Publisher
        """Return the object; nothing before the CPUs were read, or if none could be.

        In a cluster nothing is published before the Node is known, which owns the object, and
        before the server told its versions: the older one would take from the newer.
        """
        cpus, numa = snapshot.cpus, snapshot.numa
        if cpus.taken_s is None or numa.taken_s is None or not cpus.value.usable:
            return ()
        version = version_for(snapshot)
        if waits_for_node(snapshot) or version is None:
            return ()
        from agent.publish.nrt.whole import render  # noqa: PLC0415 - see above

        return (render(snapshot, version, asks_kubelet=self.kubelet),)


def version_for(snapshot: NodeSnapshot) -> str | None:
    """Return the version to write; `None` while that is not known."""
    if not snapshot.cluster.clustered:
        return V1ALPHA1
    served = snapshot.cluster.topology_versions.value
    if served is None:
        return None
    return V1ALPHA2 if V1ALPHA2 in served else V1ALPHA1
