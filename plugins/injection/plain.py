"""What a container gets of devices that need their own nodes and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from agent.model.device import VendorDevice
from agent.model.grant.container import Container
from agent.model.grant.edits import ContainerEdits
from agent.model.grant.granted import Grant, matches
from agent.model.grant.host import HostMeans
from agent.model.grant.refusal import GrantRefused, Refusal
from plugins.injection.nodes import missing_in, shown


def edits(
    devices: Sequence[VendorDevice], grant: Grant, container: Container, host: HostMeans
) -> ContainerEdits:
    """Show each granted device's nodes, or those of the granted slice, in the grant's order.

    `DeviceNodeMissing` if one is not on the host any more, `NodeMismatch` if it is another.
    """
    nodes = []
    for match in matches(grant, devices):
        part = match.partition
        for node in (*match.device.nodes, *(part.nodes if part else ())):
            found = host.must_have(node.path)
            if found != node:
                numbers = f"{found.major}:{found.minor}, was {node.major}:{node.minor}"
                raise GrantRefused(Refusal.NODE_MISMATCH, f"{node.path} is {numbers}")
            nodes.append(shown(found))
    return ContainerEdits(nodes=missing_in(container, nodes))
