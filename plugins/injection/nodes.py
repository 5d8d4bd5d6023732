"""Device nodes for containers: at the host's path or below the driver's root, once each."""

from __future__ import annotations

from collections.abc import Iterable

from agent.model.device import DeviceNode
from agent.model.grant.container import Container
from agent.model.grant.edits import NodeEdit
from agent.model.grant.host import HostMeans
from agent.model.grant.refusal import GrantRefused, Refusal


def shown(node: DeviceNode, path: str = "", *, file_mode: int | None = None) -> NodeEdit:
    """Show a node of the host in the container, at the same path unless another is given."""
    return NodeEdit(
        host_path=node.path,
        path=path or node.path,
        major=node.major,
        minor=node.minor,
        file_mode=file_mode,
    )


def present(host: HostMeans, paths: Iterable[str]) -> tuple[NodeEdit, ...]:
    """Show those of the paths that exist, in their order."""
    found = (host.node(path) for path in paths)
    return tuple(shown(node) for node in found if node is not None)


def below(host: HostMeans, folder: str) -> tuple[NodeEdit, ...]:
    """Show every node in a folder, by path."""
    nodes = sorted(host.nodes, key=lambda node: node.path)
    return tuple(shown(node) for node in nodes if node.path.rpartition("/")[0] == folder)


def missing_in(container: Container, nodes: Iterable[NodeEdit]) -> tuple[NodeEdit, ...]:
    """Return the nodes that the container does not have, each path once.

    `DeviceConflict` if a path stands for other numbers already.
    """
    taken = {node.path: (node.major, node.minor) for node in container.nodes}
    new: list[NodeEdit] = []
    for node in nodes:
        numbers = (node.major, node.minor)
        if node.path not in taken:
            taken[node.path] = numbers
            new.append(node)
        elif taken[node.path] != numbers:
            raise GrantRefused(
                Refusal.DEVICE_CONFLICT,
                f"{node.path} is {taken[node.path]} in the container, {numbers} on the host",
            )
    return tuple(new)
