"""A node's topology for programs and as a matrix; `tree` draws it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agent.cli.output import GAP
from agent.cli.terminal import PLAIN, Terminal, fit_lines
from agent.cli.topology.branches import Branch, branches
from agent.cli.topology.tree import tree_text
from agent.model.device import Device
from agent.model.distances import Levels, device_levels, level_of
from agent.model.snapshot import NodeSnapshot
from agent.publish.device_view import column_name, long_name
from agent.topology.distance import NODE, PHB, PIX, PXB, SELF, SYS
from agent.topology.numa import UNKNOWN
from agent.topology.placement import PlacementRules, Placer
from agent.topology.text import format_cpu_list

__all__ = ["matrix_text", "topology_json", "tree_text"]

_LEGEND = (
    (SELF, "the same device"),
    (SYS, "between memory nodes, over the link between sockets, or not known"),
    (NODE, "between host bridges of one memory node"),
    (PHB, "through a host bridge"),
    (PXB, "through several PCIe switches, not a host bridge"),
    (PIX, "through one PCIe switch at most"),
    ("NV#", "directly over # NVLinks"),
    ("NVB", "over the NVLinks of one GPU between them"),
    ("C2C, HCCS, ML#", "directly over the maker's own links"),
)


def topology_json(snapshot: NodeSnapshot) -> dict[str, object]:
    """Return sockets, memory nodes, PCI tree and distances; what is not known is null."""
    cpus, numa, tree = snapshot.cpus.value, snapshot.numa.value, snapshot.pci.value
    placed = {d.place.path[-1]: d.place for d in snapshot.devices.value.devices if d.place.path}
    placer = Placer(tree, numa, PlacementRules(overrides=snapshot.devices.value.numa_overrides))
    nodes = {
        address: placed[address].numa_node if address in placed else placer.numa_node(function).node
        for address, function in tree.functions.items()
    }
    levels = device_levels(snapshot.devices.value, tree)
    return {
        "sockets": [
            {
                "id": package.socket,
                "package_id": _known(package.package_id),
                "cpus": format_cpu_list(package.cpus),
                "numa_nodes": [node.id for node in numa.nodes if node.socket == package.socket],
            }
            for package in cpus.packages
        ],
        "numa_nodes": [
            {
                "id": node.id,
                "cpus": format_cpu_list(node.cpus),
                "memory_bytes": node.memory_bytes,
                "distances": list(node.distances) if node.distances is not None else None,
            }
            for node in numa.nodes
        ],
        "pci": [_branch(branch, nodes) for branch in branches(tree.functions.values())],
        "distances": {f"{a} {b}": level for (a, b), level in levels.items()},
    }


def _branch(branch: Branch, nodes: dict[str, int]) -> dict[str, object]:
    function = branch.function
    return {
        "address": branch.address,
        "class": _hex(function.class_code, 6) if function else None,
        "vendor_id": _hex(function.vendor_id, 4) if function else None,
        "device_id": _hex(function.device_id, 4) if function else None,
        "numa_node": _known(nodes.get(branch.address, UNKNOWN)),
        "children": [_branch(child, nodes) for child in branch.children],
    }


def _hex(value: int | None, digits: int) -> str | None:
    return f"0x{value:0{digits}x}" if value is not None else None


def _known(number: int) -> int | None:
    return number if number != UNKNOWN else None


def matrix_text(snapshot: NodeSnapshot, terminal: Terminal = PLAIN) -> str:
    """Return the level of each pair of devices, as `nvidia-smi topo -m` lays it out.

    Columns that do not fit the terminal follow below the others, behind the names again.
    """
    view = snapshot.devices.value
    if not view.devices:
        return "no accelerator or RDMA device\n"
    levels = device_levels(view, snapshot.pci.value)
    names = [column_name(device, index) for index, device in enumerate(view.devices)]
    rows = [["", *names, "CPUs", "NUMA node"]]
    rows += [
        [name, *_row(device, snapshot, levels)]
        for name, device in zip(names, view.devices, strict=True)
    ]
    lines = _aligned(rows, terminal.width)
    legend = [f"  {name:<14} {meaning}" for name, meaning in _LEGEND]
    devices = [
        f"  {name:<14} {d.place.path[-1] if d.place.path else '-'}  {long_name(d)}"
        for name, d in zip(names, view.devices, strict=True)
    ]
    below = fit_lines(["", "Levels:", *legend, "", "Devices:", *devices, ""], terminal)
    return "\n".join([*lines, *below])


def _row(device: Device, snapshot: NodeSnapshot, levels: Levels) -> list[str]:
    others = snapshot.devices.value.devices
    node = snapshot.numa.value.node(device.place.numa_node)
    cells = [level_of(device, other, levels) or "-" for other in others]
    cpus = format_cpu_list(node.cpus) if node is not None else "-"
    return [*cells, cpus or "-", str(node.id) if node is not None else "-"]


def _aligned(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines: list[str] = []
    for columns in _columns(widths, width):
        lines += [""] if lines else []
        lines += [GAP.join(row[c].ljust(widths[c]) for c in columns).rstrip() for row in rows]
    return lines


def _columns(widths: Sequence[int], width: int | None) -> Iterator[list[int]]:
    """Yield the columns that fit beside each other, the first, which has the names, in each."""
    block = [0]
    for column in range(1, len(widths)):
        taken = sum(widths[c] + len(GAP) for c in block) + widths[column]
        if width is not None and taken > width and len(block) > 1:
            yield block
            block = [0]
        block.append(column)
    yield block
