"""The node as a tree of text: sockets, memory nodes, and the PCIe branches that lead to devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from agent.cli.terminal import MIN_WIDTH, PLAIN, Terminal, wrap
from agent.cli.topology.branches import Branch, branches
from agent.model.device import Device, Health, HealthState
from agent.model.snapshot import NodeSnapshot
from agent.publish.device_view import long_name, short_name
from agent.topology.link import bandwidth_mb_s
from agent.topology.numa import UNKNOWN, NodeKind, NumaNode
from agent.topology.pci import PciFunction
from agent.topology.pci_config import DOWNSTREAM, PCIE_TO_PCI, ROOT_PORT, UPSTREAM
from agent.topology.placement import PlacementRules, Placer
from agent.topology.switches import display_name as switch_name
from agent.topology.switches import port_types
from agent.topology.text import format_cpu_list

_BRIDGE = 0x0604
_SHOWN = {0x02: "network", 0x03: "display", 0x0B: "processor", 0x12: "accelerator"}
_NVME = 0x0108
_PORTS = {
    ROOT_PORT: "root port",
    UPSTREAM: "switch",
    DOWNSTREAM: "switch port",
    PCIE_TO_PCI: "PCI bridge",
}
_GIB = 1 << 30


class _Strokes(msgspec.Struct, frozen=True):
    """What the tree is drawn with: before a child, before the last one, and below either."""

    child: str
    last: str
    below_child: str
    below_last: str = "   "


_BOXES = _Strokes("├─ ", "└─ ", "│  ")
_ASCII = _Strokes("|- ", "`- ", "|  ")


class _Line(msgspec.Struct, frozen=True):
    """A line and what hangs below it."""

    text: str
    below: tuple[_Line, ...] = ()


def tree_text(snapshot: NodeSnapshot, terminal: Terminal = PLAIN) -> str:
    """Draw the node; of PCI only what leads to devices, network, display and NVMe functions.

    A root hangs below the memory node that all functions shown under it share; roots of
    unknown or several nodes come last.
    """
    picture = _Picture(snapshot)
    top = _Line(f"{snapshot.node.name} ({snapshot.node.source})", tuple(picture.machine()))
    strokes = _ASCII if terminal.ascii_only else _BOXES
    return "\n".join(_drawn(top, "", "", strokes, terminal.width)) + "\n"


def _drawn(
    line: _Line, first: str, rest: str, strokes: _Strokes, width: int | None
) -> Iterable[str]:
    """Yield a line and what is below it; one that is too long goes on below its own beginning."""
    parts = [line.text]
    below = rest + (strokes.below_child if line.below else strokes.below_last)
    if width is not None:
        parts = list(wrap(line.text, max(MIN_WIDTH, width - len(below))))
    yield first + parts[0]
    yield from (below + part for part in parts[1:])
    for child in line.below:
        last = child is line.below[-1]
        yield from _drawn(
            child,
            rest + (strokes.last if last else strokes.child),
            rest + (strokes.below_last if last else strokes.below_child),
            strokes,
            width,
        )


class _Picture:
    def __init__(self, snapshot: NodeSnapshot) -> None:
        self.snapshot = snapshot
        self.tree = snapshot.pci.value
        self.numa = snapshot.numa.value
        devices = snapshot.devices.value.devices
        rules = PlacementRules(overrides=snapshot.devices.value.numa_overrides)
        self.placer = Placer(self.tree, self.numa, rules)
        self.at: dict[str, list[Device]] = {}
        for device in devices:
            if device.place.path:
                self.at.setdefault(device.place.path[-1], []).append(device)
        self.loose = [device for device in devices if not device.place.path]

    def machine(self) -> Iterable[_Line]:
        roots = self._roots()
        for package in self.snapshot.cpus.value.packages:
            nodes = [node for node in self.numa.nodes if node.socket == package.socket]
            text = f"socket {package.socket}: CPUs {format_cpu_list(package.cpus)}"
            yield _Line(text, tuple(self._node(node, roots) for node in nodes))
        sockets = {package.socket for package in self.snapshot.cpus.value.packages}
        for node in self.numa.nodes:
            if node.socket not in sockets:
                yield self._node(node, roots)
        known = {node.id for node in self.numa.nodes}
        lost = [line for node, lines in roots.items() if node not in known for line in lines]
        if lost:
            yield _Line("memory node unknown or several", tuple(lost))
        if self.loose:
            yield _Line("not on PCI", tuple(_Line(self._device(d)) for d in self.loose))

    def _node(self, node: NumaNode, roots: Mapping[int, list[_Line]]) -> _Line:
        parts = [f"CPUs {format_cpu_list(node.cpus)}" if node.cpus else "no CPUs"]
        if node.memory_bytes is not None:
            parts.append(f"{node.memory_bytes / _GIB:.1f} GiB")
        if node.kind in (NodeKind.DAX, NodeKind.GPU):
            parts.append(f"{node.kind.value} memory")
        return _Line(f"NUMA node {node.id}: {', '.join(parts)}", tuple(roots.get(node.id, ())))

    def _roots(self) -> dict[int, list[_Line]]:
        """Return the lines of the roots by the memory node they hang below."""
        found: dict[int, list[_Line]] = {}
        for branch in branches(self._shown()):
            nodes = set(self._nodes_below(branch))
            node = nodes.pop() if len(nodes) == 1 else UNKNOWN
            found.setdefault(node, []).append(self._branch(branch))
        return found

    def _shown(self) -> Iterable[PciFunction]:
        absent = [
            PciFunction(address=a, root=d[0].place.root, bridges=_bridges(d[0]))
            for a, d in self.at.items()
            if a not in self.tree.functions
        ]
        return [f for f in self.tree.functions.values() if self._is_shown(f)] + absent

    def _is_shown(self, function: PciFunction) -> bool:
        if function.address in self.at:
            return True
        base = function.base_class
        shown = base is not None and (base >> 8 in _SHOWN or base == _NVME)
        return shown and function.physfn is None

    def _nodes_below(self, branch: Branch) -> Iterable[int]:
        for device in self.at.get(branch.address, ()):
            yield device.place.numa_node
        if branch.function is not None and branch.address not in self.at:
            yield self.placer.numa_node(branch.function).node
        for child in branch.children:
            yield from self._nodes_below(child)

    def _branch(self, branch: Branch, port: str = "") -> _Line:
        devices = self.at.get(branch.address, ())
        if devices:
            words = "; ".join(self._device(device) for device in devices)
        elif branch.function is not None:
            words = _plain(branch.function)
        else:
            words = port
        below = self._ports(branch)
        lines = tuple(
            self._branch(child, below.get(child.address, "")) for child in branch.children
        )
        return _Line(f"{branch.address} {words}".rstrip(), lines)

    def _ports(self, branch: Branch) -> dict[str, str]:
        """Return what kind of port each bridge directly below is, by any function under it."""
        return {child.address: self._port(child) for child in branch.children if child.children}

    def _port(self, bridge: Branch) -> str:
        below = _any_function(bridge.children)
        if below is None or bridge.address not in below.bridges:
            return "bridge"
        kind = port_types(self.tree, below)[below.bridges.index(bridge.address)]
        seen = self.tree.get(bridge.address)
        words = _PORTS.get(kind, "bridge") if kind is not None else "bridge"
        if kind == UPSTREAM and seen is not None:
            words = f"{words}, {switch_name(seen)}"
        return words if seen is not None else f"{words}, not shown by sysfs"

    def _device(self, device: Device) -> str:
        info, health = device.info, device.info.health
        name = short_name(device).removesuffix(f" {info.bus_id}")  # the line begins with it
        parts = [name, long_name(device), _health(health)]
        if not info.managed:
            parts.append("not managed")
        if count := sum(len(group.vfs) for group in info.vf_groups):
            parts.append(f"{count} virtual functions")
        if device.place.link_degraded:
            parts.append(f"{_link(device)} ({device.place.link_degraded} degraded)")
        return ", ".join(filter(None, parts))


def _bridges(device: Device) -> tuple[str, ...]:
    return device.place.path[1:-1] if device.place.root else device.place.path[:-1]


def _any_function(children: Sequence[Branch]) -> PciFunction | None:
    for child in children:
        if (found := child.function or _any_function(child.children)) is not None:
            return found
    return None


def _plain(function: PciFunction) -> str:
    base = function.base_class
    kind = "NVMe" if base == _NVME else _SHOWN.get(base >> 8 if base is not None else -1, "")
    ids = (function.vendor_id, function.device_id)
    return kind if None in ids else f"{kind} {ids[0]:04x}:{ids[1]:04x}"


def _link(device: Device) -> str:
    link = device.place.link
    return f"{bandwidth_mb_s(link.speed, link.width) or 'unknown'} MB/s"


def _health(health: Health) -> str:
    state = health.state.value
    return state if health.state is HealthState.HEALTHY else f"{state}: {health.reason}"
