"""The NodeResourceTopology object: zones, and what the scheduler must know of the CPUs."""

from __future__ import annotations

import msgspec

from agent.model.snapshot import NodeSnapshot
from agent.publish.base import Desired
from agent.publish.wire.owner import waits_for_node

V1ALPHA1 = "v1alpha1"  # what Koordinator reads and writes
V1ALPHA2 = "v1alpha2"  # to be written wherever it is served: see `agent.publish.nrt.whole`


class TopologyPublisher(msgspec.Struct, frozen=True):
    """Publishes CPUs and memory nodes of this node, and what a cluster says of them.

    `kubelet` says whether the kubelet is asked for its settings; `version` is to be one that the
    server has. What renders is loaded when it is needed: the first Device does not wait for it.
    """

    interval_s: float = 3.0
    kubelet: bool = True
    version: str = V1ALPHA1
    name: str = "topology"

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[Desired, ...]:  # noqa: ARG002 - see Publisher
        """Return the object; nothing before the CPUs were read, or if none could be.

        In a cluster nothing is published before the Node is known, which owns the object.
        """
        cpus, numa = snapshot.cpus, snapshot.numa
        if cpus.taken_s is None or numa.taken_s is None or not cpus.value.usable:
            return ()
        if waits_for_node(snapshot):
            return ()
        from agent.publish.nrt.whole import render  # noqa: PLC0415 - see above

        return (render(snapshot, self.version, asks_kubelet=self.kubelet),)
