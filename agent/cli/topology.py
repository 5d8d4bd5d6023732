"""A node's topology as JSON and as a matrix."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from agent.app.oneshot import inspect_host
from agent.cli.context import command_inputs, report_silent_vendors
from agent.cli.output import GAP, format_document
from agent.cli.terminal import PLAIN_TERMINAL, Terminal, fit_lines, standard_output, write_document
from agent.cli.topology_tree import PciBranch, build_branches, tree_text
from agent.snapshot.cpu import UNKNOWN_NODE
from agent.snapshot.device import Device, column_name, long_name
from agent.snapshot.node import NodeSnapshot
from agent.topology.distance import (
    NODE,
    PHB,
    PIX,
    PXB,
    SELF,
    SYS,
    LevelByPair,
    device_levels,
    level_between,
)
from agent.topology.placement import NumaNodeFinder, PlacementRules
from agent.web.page.svg import topology_svg
from agent.wire_formats.kernel_text import format_cpu_list


def topology(arguments: argparse.Namespace) -> int:
    """Print the topology as a tree, a matrix, JSON or SVG."""
    snapshot = inspect_host(command_inputs(arguments), samples=0)
    _print_topology(snapshot, arguments.output)
    return report_silent_vendors(snapshot, 0)


def _print_topology(snapshot: NodeSnapshot, form: str) -> None:
    if form == "svg":
        write_document(topology_svg(snapshot) + "\n")
        return

    if form == "json":
        write_document(format_document(topology_json(snapshot), "json"))
        return
    view = matrix_text if form == "matrix" else tree_text
    sys.stdout.write(view(snapshot, standard_output()).rstrip("\n") + "\n")


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
    """Return sockets, NUMA nodes, PCI tree and distances; unknown values are null."""
    cpus, numa, tree = snapshot.cpus.value, snapshot.numa.value, snapshot.pci.value
    placed = {d.place.path[-1]: d.place for d in snapshot.devices.value.devices if d.place.path}
    placer = NumaNodeFinder(
        tree, numa, PlacementRules(overrides=snapshot.devices.value.numa_overrides)
    )
    nodes = {
        address: placed[address].numa_node if address in placed else placer.numa_node(function).node
        for address, function in tree.functions.items()
    }
    levels = device_levels(snapshot.devices.value, tree)
    return {
        "sockets": [
            {
                "id": package.socket,
                "package_id": _none_if_unknown(package.package_id),
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
        "pci": [_branch_json(branch, nodes) for branch in build_branches(tree.functions.values())],
        "distances": {f"{a} {b}": level for (a, b), level in levels.items()},
    }


def _branch_json(branch: PciBranch, nodes: dict[str, int]) -> dict[str, object]:
    function = branch.function
    return {
        "address": branch.address,
        "class": _hex(function.class_code, 6) if function else None,
        "vendor_id": _hex(function.vendor_id, 4) if function else None,
        "device_id": _hex(function.device_id, 4) if function else None,
        "numa_node": _none_if_unknown(nodes.get(branch.address, UNKNOWN_NODE)),
        "children": [_branch_json(child, nodes) for child in branch.children],
    }


def _hex(value: int | None, digits: int) -> str | None:
    return f"0x{value:0{digits}x}" if value is not None else None


def _none_if_unknown(number: int) -> int | None:
    return number if number != UNKNOWN_NODE else None


def matrix_text(snapshot: NodeSnapshot, terminal: Terminal = PLAIN_TERMINAL) -> str:
    """Return the level of each pair of devices, in the layout of `nvidia-smi topo -m`.

    Columns that do not fit the terminal follow below the others, after the names again.
    """
    view = snapshot.devices.value
    if not view.devices:
        return "no accelerator or RDMA device\n"
    levels = device_levels(view, snapshot.pci.value)
    names = [column_name(device, index) for index, device in enumerate(view.devices)]
    rows = [["", *names, "CPUs", "NUMA node"]]
    rows += [
        [name, *_matrix_row(device, snapshot, levels)]
        for name, device in zip(names, view.devices, strict=True)
    ]
    lines = _align_columns(rows, terminal.width)
    legend = [f"  {name:<14} {meaning}" for name, meaning in _LEGEND]
    devices = [
        f"  {name:<14} {d.place.path[-1] if d.place.path else '-'}  {long_name(d)}"
        for name, d in zip(names, view.devices, strict=True)
    ]
    below = fit_lines(["", "Levels:", *legend, "", "Devices:", *devices, ""], terminal)
    return "\n".join([*lines, *below])


def _matrix_row(device: Device, snapshot: NodeSnapshot, levels: LevelByPair) -> list[str]:
    others = snapshot.devices.value.devices
    node = snapshot.numa.value.node(device.place.numa_node)
    cells = [level_between(device, other, levels) or "-" for other in others]
    cpus = format_cpu_list(node.cpus) if node is not None else "-"
    return [*cells, cpus or "-", str(node.id) if node is not None else "-"]


def _align_columns(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines: list[str] = []
    for columns in _column_blocks(widths, width):
        lines += [""] if lines else []
        lines += [GAP.join(row[c].ljust(widths[c]) for c in columns).rstrip() for row in rows]
    return lines


def _column_blocks(widths: Sequence[int], width: int | None) -> Iterator[list[int]]:
    """Yield the columns that fit beside each other; each block begins with the names."""
    block = [0]
    for column in range(1, len(widths)):
        width_used = sum(widths[c] + len(GAP) for c in block) + widths[column]
        if width is not None and width_used > width and len(block) > 1:
            yield block
            block = [0]
        block.append(column)
    yield block
