"""A node's topology as a tree of text: sockets, NUMA nodes, PCIe branches, devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from agent.cli.terminal import MIN_WIDTH, PLAIN_TERMINAL, Terminal, wrap
from agent.snapshot.cpu import UNKNOWN_NODE, NumaNode, NumaNodeKind
from agent.snapshot.device import Device, Health, HealthState, long_name, short_name
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pci import PciFunction, address_sort_key, is_host_bridge
from agent.topology.pci_config import DOWNSTREAM_PORT, PCIE_TO_PCI, ROOT_PORT, UPSTREAM_PORT
from agent.topology.pcie_link import bandwidth_mb_s
from agent.topology.placement import NumaNodeFinder, PlacementRules
from agent.topology.switches import port_types
from agent.topology.switches import switch_display_name as switch_name
from agent.wire_formats.kernel_text import format_cpu_list


class PciBranch(msgspec.Struct, frozen=True):
    """A root, bridge or device; `function` is `None` for roots and for unlisted bridges."""

    address: str
    function: PciFunction | None
    children: tuple[PciBranch, ...] = ()


class _MutableBranch(msgspec.Struct):
    function: PciFunction | None = None
    children: dict[str, _MutableBranch] = msgspec.field(default_factory=dict)


def build_branches(functions: Iterable[PciFunction]) -> tuple[PciBranch, ...]:
    """Return the roots with all branches, each level in order, and the functions without a root.

    The branches come from the paths of the functions, which are finite: a hostile tree causes no
    loop.
    """
    top = _MutableBranch()
    for function in functions:
        twig = top
        for part in function.path:
            twig = twig.children.setdefault(part, _MutableBranch())
        twig.function = function
    return _freeze(top)


def _freeze(twig: _MutableBranch) -> tuple[PciBranch, ...]:
    return tuple(
        PciBranch(address, child.function, _freeze(child))
        for address, child in sorted(twig.children.items(), key=lambda item: _branch_order(item[0]))
    )


def _branch_order(address: str) -> tuple[int, ...]:
    if is_host_bridge(address):
        domain, bus = address.removeprefix("pci").split(":")
        return int(domain, 16), int(bus, 16)
    return address_sort_key(address)


_PCI_CLASSES = {0x02: "network", 0x03: "display", 0x0B: "processor", 0x12: "accelerator"}

_NVME = 0x0108

_PORT_NAMES = {
    ROOT_PORT: "root port",
    UPSTREAM_PORT: "switch",
    DOWNSTREAM_PORT: "switch port",
    PCIE_TO_PCI: "PCI bridge",
}

_GIB = 1 << 30


class _LineStyle(msgspec.Struct, frozen=True):
    """The characters of the tree: before a child, before the last child, and below either."""

    child: str
    last: str
    below_child: str
    below_last: str = "   "


_UNICODE_STYLE = _LineStyle("├─ ", "└─ ", "│  ")

_ASCII_STYLE = _LineStyle("|- ", "`- ", "|  ")


class _TreeLine(msgspec.Struct, frozen=True):
    """A line and the lines below it."""

    text: str
    below: tuple[_TreeLine, ...] = ()


def tree_text(snapshot: NodeSnapshot, terminal: Terminal = PLAIN_TERMINAL) -> str:
    """Draw the node, with the PCI paths of devices, network, display and NVMe functions.

    A root is below the NUMA node that all functions shown under it share; roots of unknown or
    several nodes come last.
    """
    picture = _TopologyTree(snapshot)
    top = _TreeLine(f"{snapshot.node.name} ({snapshot.node.source})", tuple(picture.top_lines()))
    strokes = _ASCII_STYLE if terminal.ascii_only else _UNICODE_STYLE
    return "\n".join(_draw_line(top, "", "", strokes, terminal.width)) + "\n"


def _draw_line(
    line: _TreeLine, first: str, rest: str, strokes: _LineStyle, width: int | None
) -> Iterable[str]:
    """Yield a line and the lines below it; the rest of a long line is indented."""
    parts = [line.text]
    below = rest + (strokes.below_child if line.below else strokes.below_last)
    if width is not None:
        parts = list(wrap(line.text, max(MIN_WIDTH, width - len(below))))
    yield first + parts[0]
    yield from (below + part for part in parts[1:])
    for child in line.below:
        last = child is line.below[-1]
        yield from _draw_line(
            child,
            rest + (strokes.last if last else strokes.child),
            rest + (strokes.below_last if last else strokes.below_child),
            strokes,
            width,
        )


class _TopologyTree:
    def __init__(self, snapshot: NodeSnapshot) -> None:
        self.snapshot = snapshot
        self.tree = snapshot.pci.value
        self.numa = snapshot.numa.value
        devices = snapshot.devices.value.devices
        rules = PlacementRules(overrides=snapshot.devices.value.numa_overrides)
        self.placer = NumaNodeFinder(self.tree, self.numa, rules)
        self.devices_by_address: dict[str, list[Device]] = {}
        for device in devices:
            if device.place.path:
                self.devices_by_address.setdefault(device.place.path[-1], []).append(device)
        self.devices_without_pci = [device for device in devices if not device.place.path]

    def top_lines(self) -> Iterable[_TreeLine]:
        roots = self._roots()
        for package in self.snapshot.cpus.value.packages:
            nodes = [node for node in self.numa.nodes if node.socket == package.socket]
            text = f"socket {package.socket}: CPUs {format_cpu_list(package.cpus)}"
            yield _TreeLine(text, tuple(self._node(node, roots) for node in nodes))
        sockets = {package.socket for package in self.snapshot.cpus.value.packages}
        for node in self.numa.nodes:
            if node.socket not in sockets:
                yield self._node(node, roots)
        node_ids = {node.id for node in self.numa.nodes}
        lost = [line for node, lines in roots.items() if node not in node_ids for line in lines]
        if lost:
            yield _TreeLine("memory node unknown or several", tuple(lost))
        if self.devices_without_pci:
            yield _TreeLine(
                "not on PCI", tuple(_TreeLine(self._device(d)) for d in self.devices_without_pci)
            )

    def _node(self, node: NumaNode, roots: Mapping[int, list[_TreeLine]]) -> _TreeLine:
        parts = [f"CPUs {format_cpu_list(node.cpus)}" if node.cpus else "no CPUs"]
        if node.memory_bytes is not None:
            parts.append(f"{node.memory_bytes / _GIB:.1f} GiB")
        if node.kind in (NumaNodeKind.DAX, NumaNodeKind.GPU):
            parts.append(f"{node.kind.value} memory")
        return _TreeLine(f"NUMA node {node.id}: {', '.join(parts)}", tuple(roots.get(node.id, ())))

    def _roots(self) -> dict[int, list[_TreeLine]]:
        """Return the lines of the roots by the NUMA node that they are below."""
        lines_by_node: dict[int, list[_TreeLine]] = {}
        for branch in build_branches(self._listed_functions()):
            nodes = set(self._nodes_below(branch))
            node = nodes.pop() if len(nodes) == 1 else UNKNOWN_NODE
            lines_by_node.setdefault(node, []).append(self._branch(branch))
        return lines_by_node

    def _listed_functions(self) -> Iterable[PciFunction]:
        absent = [
            PciFunction(address=a, root=d[0].place.root, bridges=_bridges(d[0]))
            for a, d in self.devices_by_address.items()
            if a not in self.tree.functions
        ]
        return [f for f in self.tree.functions.values() if self._is_shown(f)] + absent

    def _is_shown(self, function: PciFunction) -> bool:
        if function.address in self.devices_by_address:
            return True
        base = function.base_class
        is_listed = base is not None and (base >> 8 in _PCI_CLASSES or base == _NVME)
        return is_listed and function.physfn is None

    def _nodes_below(self, branch: PciBranch) -> Iterable[int]:
        for device in self.devices_by_address.get(branch.address, ()):
            yield device.place.numa_node
        if branch.function is not None and branch.address not in self.devices_by_address:
            yield self.placer.numa_node(branch.function).node
        for child in branch.children:
            yield from self._nodes_below(child)

    def _branch(self, branch: PciBranch, port: str = "") -> _TreeLine:
        devices = self.devices_by_address.get(branch.address, ())
        if devices:
            words = "; ".join(self._device(device) for device in devices)
        elif branch.function is not None:
            words = _function_text(branch.function)
        else:
            words = port
        below = self._ports(branch)
        lines = tuple(
            self._branch(child, below.get(child.address, "")) for child in branch.children
        )
        return _TreeLine(f"{branch.address} {words}".rstrip(), lines)

    def _ports(self, branch: PciBranch) -> dict[str, str]:
        """Return the port type of each bridge directly below, by any function under it."""
        return {child.address: self._port(child) for child in branch.children if child.children}

    def _port(self, bridge: PciBranch) -> str:
        below = _any_function(bridge.children)
        if below is None or bridge.address not in below.bridges:
            return "bridge"
        kind = port_types(self.tree, below)[below.bridges.index(bridge.address)]
        function = self.tree.get(bridge.address)
        words = _PORT_NAMES.get(kind, "bridge") if kind is not None else "bridge"
        if kind == UPSTREAM_PORT and function is not None:
            words = f"{words}, {switch_name(function)}"
        return words if function is not None else f"{words}, not shown by sysfs"

    def _device(self, device: Device) -> str:
        info, health = device.info, device.info.health
        name = short_name(device).removesuffix(f" {info.bus_id}")  # the line begins with it
        parts = [name, long_name(device), _health_text(health)]
        if not info.managed:
            parts.append("not managed")
        if count := sum(len(group.vfs) for group in info.vf_groups):
            parts.append(f"{count} virtual functions")
        if device.place.link_degraded:
            parts.append(f"{_link_text(device)} ({device.place.link_degraded} degraded)")
        return ", ".join(filter(None, parts))


def _bridges(device: Device) -> tuple[str, ...]:
    return device.place.path[1:-1] if device.place.root else device.place.path[:-1]


def _any_function(children: Sequence[PciBranch]) -> PciFunction | None:
    for child in children:
        if (function := child.function or _any_function(child.children)) is not None:
            return function
    return None


def _function_text(function: PciFunction) -> str:
    base = function.base_class
    kind = "NVMe" if base == _NVME else _PCI_CLASSES.get(base >> 8 if base is not None else -1, "")
    ids = (function.vendor_id, function.device_id)
    return kind if None in ids else f"{kind} {ids[0]:04x}:{ids[1]:04x}"


def _link_text(device: Device) -> str:
    link = device.place.link
    return f"{bandwidth_mb_s(link.speed, link.width) or 'unknown'} MB/s"


def _health_text(health: Health) -> str:
    state = health.state.value
    return state if health.state is HealthState.HEALTHY else f"{state}: {health.reason}"
