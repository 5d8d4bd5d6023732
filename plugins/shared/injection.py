"""Container edits that vendors share: device nodes, names of devices, and unallocated requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from agent.snapshot.allocation import (
    AllocationRefused,
    DeviceAllocation,
    DeviceMatch,
    RefusalReason,
    match_devices,
)
from agent.snapshot.container import ContainerSpec
from agent.snapshot.device import DeviceNode, VendorDevice
from agent.snapshot.edits import NO_EDITS, ContainerEdits, ContainerNote, DeviceNodeEdit
from agent.snapshot.host_devices import EMPTY_QUERY, HostDeviceQuery, HostDevices
from agent.snapshot.settings import VendorSettings

# what UUIDs of cards and slices, PCI addresses and RDMA devices are made of; no list separators
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


def safe_name(name: str | None, kind: str) -> str:
    """Return the name if it is safe in lists and paths; else raise `BadDeviceId`.

    Libraries may be wrong, and users write annotations; neither may add a card to a list.
    """
    if not name or not _SAFE_NAME.fullmatch(name) or "/../" in f"/{name}/":
        raise AllocationRefused(RefusalReason.BAD_DEVICE_ID, f"{kind}: {(name or '')[:64]!r}")
    return name


def unambiguous_id(match: DeviceMatch) -> str | None:
    """Return the uuid of a card, or of the slice of it; `None` for one that may mean others.

    A library that calls a card `all` or `0` would have its runtime show other cards.
    """
    uuid = match.partition.uuid if match.partition else match.device.uuid
    return uuid if uuid and "-" in uuid else None


def visible_id(match: DeviceMatch) -> str:
    """Return the id of a card, or of its slice, for its runtime; else raise `BadDeviceId`."""
    uuid = unambiguous_id(match)
    if uuid is None:
        shown_id = match.partition.uuid if match.partition else match.device.uuid
        raise AllocationRefused(
            RefusalReason.BAD_DEVICE_ID, f"{match.device.key}: {(shown_id or '')[:64]!r}"
        )
    return safe_name(uuid, match.device.key)


def node_edit(node: DeviceNode, path: str = "", *, file_mode: int | None = None) -> DeviceNodeEdit:
    """Return the edit that shows a node of the host at `path`; empty: at the same path."""
    return DeviceNodeEdit(
        host_path=node.path,
        path=path or node.path,
        major=node.major,
        minor=node.minor,
        file_mode=file_mode,
    )


def existing_nodes(host: HostDevices, paths: Iterable[str]) -> tuple[DeviceNodeEdit, ...]:
    """Return edits for those of the paths that exist, in their order."""
    nodes = (host.node(path) for path in paths)
    return tuple(node_edit(node) for node in nodes if node is not None)


def nodes_below(host: HostDevices, folder: str) -> tuple[DeviceNodeEdit, ...]:
    """Return edits for every node in a folder, by path."""
    nodes = sorted(host.nodes, key=lambda node: node.path)
    return tuple(node_edit(node) for node in nodes if node.path.rpartition("/")[0] == folder)


def missing_nodes(
    container: ContainerSpec, nodes: Iterable[DeviceNodeEdit]
) -> tuple[DeviceNodeEdit, ...]:
    """Return the nodes that the container does not have, each path once.

    `DeviceConflict` if a path stands for other numbers already.
    """
    present = {node.path: (node.major, node.minor) for node in container.nodes}
    new: list[DeviceNodeEdit] = []
    for node in nodes:
        numbers = (node.major, node.minor)
        if node.path not in present:
            present[node.path] = numbers
            new.append(node)
        elif present[node.path] != numbers:
            raise AllocationRefused(
                RefusalReason.DEVICE_CONFLICT,
                f"{node.path} is {present[node.path]} in the container, {numbers} on the host",
            )
    return tuple(new)


OFF, WARN, VOID = "off", "warn", "void"

_ASKS_FOR_NONE = ("", "void", "none")


def withhold_devices(
    container: ContainerSpec,
    variable: str,
    policy: str,
    *,
    has_vendor_runtime: bool,
    is_implied: bool = False,
) -> ContainerEdits:
    """Return edits for a container that requests devices by `variable` without an allocation.

    `policy`: `off` ignores it, `warn` adds a note, `void` also sets the variable to `void`.
    `has_vendor_runtime`: the container's runtime reads the variable; with `is_implied` it takes a
    missing one for a request. Privileged and protected containers, and those with devices of
    another device plug-in, keep what they have.
    """
    value = (container.env_value(variable) or "").strip()
    if not has_vendor_runtime or policy == OFF or (value in _ASKS_FOR_NONE and not is_implied):
        return NO_EDITS
    if container.given_elsewhere:
        return NO_EDITS
    request = f"container {container.name!r} asks for devices with {variable} and was granted none"
    if policy == WARN or container.privileged or container.protected:
        return ContainerEdits(notes=(ContainerNote(reason="UngrantedDevices", message=request),))
    message = f"{request}; it gets none"
    return ContainerEdits(
        env=((variable, "void"),),
        notes=(ContainerNote(reason="UngrantedDevices", message=message),),
    )


def host_query(_settings: VendorSettings) -> HostDeviceQuery:
    """Return an empty query: the nodes of the devices suffice."""
    return EMPTY_QUERY


def edits(
    devices: Sequence[VendorDevice],
    allocation: DeviceAllocation,
    container: ContainerSpec,
    host: HostDevices,
) -> ContainerEdits:
    """Return the nodes of each allocated device or slice, in the order of the allocation.

    `DeviceNodeMissing` if one is not on the host any more, `NodeMismatch` if it is another.
    """
    nodes = []
    for match in match_devices(allocation, devices):
        partition = match.partition
        for node in (*match.device.nodes, *(partition.nodes if partition else ())):
            actual = host.require_node(node.path)
            if actual != node:
                numbers = f"{actual.major}:{actual.minor}, was {node.major}:{node.minor}"
                raise AllocationRefused(RefusalReason.NODE_MISMATCH, f"{node.path} is {numbers}")
            nodes.append(node_edit(actual))
    return ContainerEdits(nodes=missing_nodes(container, nodes))
