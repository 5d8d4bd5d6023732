"""Device nodes of NVIDIA cards and MIG instances, checked against what the kernel says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from agent.model.device import DeviceNode
from agent.model.grant.edits import NodeEdit
from agent.model.grant.granted import Match
from agent.model.grant.host import HostMeans
from agent.model.grant.refusal import GrantRefused, Refusal
from plugins.injection.nodes import shown

CARDS = ("nvidia", "nvidia-frontend")  # names of the driver in /proc/devices, newest first
UVM = ("nvidia-uvm",)
CAPS = ("nvidia-caps",)
CHANNELS = ("nvidia-caps-imex-channels",)
PATTERNS = ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/nvidia-caps-imex-channels/*")
# control nodes in the order of NVIDIA's own plugin, with driver and minor
_CONTROL = (
    ("/dev/nvidiactl", CARDS, 255),
    ("/dev/nvidia-uvm", UVM, 0),
    ("/dev/nvidia-uvm-tools", UVM, 1),
    ("/dev/nvidia-modeset", CARDS, 254),
)


def node_edits(
    granted: Sequence[Match], channels: Iterable[int], host: HostMeans, driver_root: str = "/"
) -> tuple[NodeEdit, ...]:
    """Return control nodes, then each card's by PCI order, then IMEX channels; each path once.

    `driver_root` is where a driver container keeps its files. `UVMMissing`, `DeviceNodeMissing`,
    `MIGNodeMissing` if a needed node is not there, `NodeMismatch` if it is another's.
    """
    found = _Finder(host, driver_root)
    nodes = [*found.control(), *(node for match in granted for node in found.card(match))]
    for channel in channels:
        path = f"/dev/nvidia-caps-imex-channels/channel{channel}"
        nodes.append(found.must(path, CHANNELS, channel))
    return tuple({node.path: node for node in nodes}.values())


class _Finder:
    """Looks nodes up below the driver's root, else below `/dev`."""

    def __init__(self, host: HostMeans, driver_root: str) -> None:
        self._host = host
        self._root = driver_root.rstrip("/")

    def control(self) -> Iterator[NodeEdit]:
        """Yield the control nodes that exist; without unified memory no CUDA program starts."""
        for path, drivers, minor in _CONTROL:
            if self._node(path) is not None:
                yield self.must(path, drivers, minor)
            elif path == "/dev/nvidia-uvm":
                raise GrantRefused(Refusal.UVM_MISSING, f"{path}: is nvidia-uvm loaded")

    def card(self, match: Match) -> Iterator[NodeEdit]:
        """Yield a card's node, and of a slice the two that admit to it."""
        yield self.must(f"/dev/nvidia{match.vendor_minor}", CARDS, match.vendor_minor)
        if match.partition is None:
            return
        if len(match.partition.nodes) < 2:  # of the GPU instance and of the compute instance
            raise GrantRefused(
                Refusal.MIG_NODE_MISSING,
                f"{match.partition.uuid} has {len(match.partition.nodes)} of 2 capability nodes",
            )
        for node in match.partition.nodes:
            yield self.must(node.path, CAPS, node.minor, Refusal.MIG_NODE_MISSING)

    def must(
        self,
        path: str,
        drivers: tuple[str, ...],
        minor: int,
        refusal: Refusal = Refusal.DEVICE_NODE_MISSING,
    ) -> NodeEdit:
        """Return a node whose numbers are those of its driver."""
        node = self._node(path)
        if node is None:
            raise GrantRefused(refusal, f"{path} does not exist")
        major = self._host.major(*drivers)
        if node.minor != minor or (major is not None and node.major != major):
            wanted = f"{'?' if major is None else major}:{minor}"
            raise GrantRefused(
                Refusal.NODE_MISMATCH,
                f"{node.path} is {node.major}:{node.minor}, its driver's is {wanted}",
            )
        return shown(node, path)

    def _node(self, path: str) -> DeviceNode | None:
        return (self._host.node(f"{self._root}{path}") if self._root else None) or (
            self._host.node(path)
        )
