"""CDI names of NVIDIA cards: by UUID, else by a name whose own nodes are the card's.

Device nodes of NVIDIA cards and MIG instances, checked against what the kernel says.

What a container gets of NVIDIA cards: CDI names, an environment, or bare device nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from agent.snapshot.allocation import (
    AllocationRefused,
    DeviceAllocation,
    DeviceMatch,
    RefusalReason,
    match_devices,
    sort_by_bus_id,
)
from agent.snapshot.container import ContainerSpec
from agent.snapshot.device import DeviceNode, VendorDevice
from agent.snapshot.edits import ContainerEdits, ContainerNote, DeviceNodeEdit, merge_edits
from agent.snapshot.host_devices import CdiDevice, CdiSpec, HostDeviceQuery, HostDevices
from agent.wire_formats.cdi_specs import qualified_names, stale_reason
from plugins.shared.injection import (
    missing_nodes,
    node_edit,
    unambiguous_id,
    visible_id,
    withhold_devices,
)
from plugins.vendors.nvidia.injection import sharing
from plugins.vendors.nvidia.settings import NvidiaSettings

FIRST_KINDS = ("nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gpu")

OWN_KIND = "xpu-agent.io/gpu"  # written where no file of NVIDIA's names every card

CHANNEL_KIND = "nvidia.com/imex-channel"

_NUMBERED = re.compile(r"(gpu|mig)?[0-9]{1,4}(:[0-9]{1,4})?")

_CARD = re.compile(r"/dev/nvidia[0-9]{1,4}")

_CAP = re.compile(r"/dev/nvidia-caps/nvidia-cap[0-9]{1,6}")


def find_cdi_names(
    granted: Sequence[DeviceMatch], host: HostDevices
) -> tuple[tuple[str, ...] | None, str]:
    """Return a qualified name for each match, all of one kind; else `None` and why.

    Indices move when cards come and go, so a numbered name counts only if its nodes are exactly
    those of the card; `all` never does. A stale spec is not used.
    """
    specs, why = [], "no CDI spec names every granted card"
    for spec in host.cdi:
        reason = stale_reason(spec, host.paths, host.driver_version)
        if reason:
            why = reason
        else:
            specs.append(spec)
    tests = [_is_card(match) for match in granted]
    for kind in _kinds(specs):
        names = qualified_names(specs, kind, tests)
        if names is not None:
            return names, ""
    return None, why


def _kinds(specs: Iterable[CdiSpec]) -> tuple[str, ...]:
    others = []
    for kind in dict.fromkeys(spec.kind for spec in specs):
        vendor, _, kind_class = kind.partition("/")
        nvidia = vendor == "nvidia.com" or vendor.endswith(".nvidia.com")
        if kind_class == "gpu" and nvidia and vendor != "management.nvidia.com":
            others.append(kind)
    return tuple(dict.fromkeys((*FIRST_KINDS, *others, OWN_KIND)))


def _is_card(match: DeviceMatch) -> Callable[[CdiDevice], bool]:
    """Return the test whether a CDI device is this card, or this slice of it."""
    part = match.partition
    uuid = unambiguous_id(match)
    number = match.device.vendor_minor
    cards = set() if number is None else {f"/dev/nvidia{number}"}
    caps = {node.path for node in part.nodes} if part else set()

    def fits(device: CdiDevice) -> bool:
        if uuid is not None and device.name == uuid:
            return True
        if not cards or not _NUMBERED.fullmatch(device.name):
            return False
        if part is not None and len(caps) < 2:
            return False
        own = {path for path in device.nodes if _CARD.fullmatch(path)}
        own_caps = {path for path in device.nodes if _CAP.fullmatch(path)}
        return own == cards and own_caps == caps

    return fits


CARD_DRIVERS = ("nvidia", "nvidia-frontend")  # names of the driver in /proc/devices, newest first

UVM_DRIVERS = ("nvidia-uvm",)

CAPABILITY_DRIVERS = ("nvidia-caps",)

CHANNEL_DRIVERS = ("nvidia-caps-imex-channels",)

NODE_PATTERNS = ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/nvidia-caps-imex-channels/*")

# control nodes in the order of NVIDIA's own plugin, with driver and minor
_CONTROL_NODES = (
    ("/dev/nvidiactl", CARD_DRIVERS, 255),
    ("/dev/nvidia-uvm", UVM_DRIVERS, 0),
    ("/dev/nvidia-uvm-tools", UVM_DRIVERS, 1),
    ("/dev/nvidia-modeset", CARD_DRIVERS, 254),
)


def node_edits(
    granted: Sequence[DeviceMatch],
    channels: Iterable[int],
    host: HostDevices,
    driver_root: str = "/",
) -> tuple[DeviceNodeEdit, ...]:
    """Return control nodes, then each card's by PCI order, then IMEX channels; each path once.

    `driver_root` is where a driver container keeps its files. `UVMMissing`, `DeviceNodeMissing`,
    `MIGNodeMissing` if a needed node is not there, `NodeMismatch` if it is another's.
    """
    finder = _NodeFinder(host, driver_root)
    finder.add_control_nodes()
    for match in granted:
        finder.add_card(match)
    for channel in channels:
        path = f"/dev/nvidia-caps-imex-channels/channel{channel}"
        finder.require(path, CHANNEL_DRIVERS, channel)
    return tuple([node_edit(node, path) for path, node in finder.nodes.items()])


class _NodeFinder:
    """Looks nodes up below the driver's root, else below `/dev`; `nodes` has them by path."""

    def __init__(self, host: HostDevices, driver_root: str) -> None:
        self._by_path = host.nodes_by_path
        self._majors = dict(host.majors)
        self._root = driver_root.rstrip("/")
        self.nodes: dict[str, DeviceNode] = {}  # by the path in the container

    def add_control_nodes(self) -> None:
        """Add the control nodes that exist; without unified memory no CUDA program starts."""
        for path, drivers, minor in _CONTROL_NODES:
            if self._node(path) is not None:
                self.require(path, drivers, minor)
            elif path == "/dev/nvidia-uvm":
                raise AllocationRefused(RefusalReason.UVM_MISSING, f"{path}: is nvidia-uvm loaded")

    def add_card(self, match: DeviceMatch) -> None:
        """Add a card's node, and of a slice the two that give access to it."""
        minor = match.vendor_minor
        self.require(f"/dev/nvidia{minor}", CARD_DRIVERS, minor)
        if match.partition is None:
            return
        if len(match.partition.nodes) < 2:  # of the GPU instance and of the compute instance
            raise AllocationRefused(
                RefusalReason.MIG_NODE_MISSING,
                f"{match.partition.uuid} has {len(match.partition.nodes)} of 2 capability nodes",
            )
        for node in match.partition.nodes:
            self.require(node.path, CAPABILITY_DRIVERS, node.minor, RefusalReason.MIG_NODE_MISSING)

    def require(
        self,
        path: str,
        drivers: tuple[str, ...],
        minor: int,
        refusal: RefusalReason = RefusalReason.DEVICE_NODE_MISSING,
    ) -> None:
        """Add a node whose numbers are those of its driver."""
        node = self._node(path)
        if node is None:
            raise AllocationRefused(refusal, f"{path} does not exist")
        major = None
        for driver in reversed(drivers):
            major = self._majors.get(driver, major)
        if node.minor != minor or (major is not None and node.major != major):
            wanted = f"{'?' if major is None else major}:{minor}"
            raise AllocationRefused(
                RefusalReason.NODE_MISMATCH,
                f"{node.path} is {node.major}:{node.minor}, its driver's is {wanted}",
            )
        self.nodes[path] = node

    def _node(self, path: str) -> DeviceNode | None:
        own = self._by_path.get(f"{self._root}{path}") if self._root else None
        return own or self._by_path.get(path)


VISIBLE = "NVIDIA_VISIBLE_DEVICES"

CHANNELS = "NVIDIA_IMEX_CHANNELS"

NICS, NICS_ON = "NVIDIA_MOFED", "enabled"  # all RDMA devices of the host, beside cards

# by which NVIDIA's runtime knows images of before VISIBLE: those that do not set it ask for all
OLD_IMAGE, NEW_IMAGE = "CUDA_VERSION", "NVIDIA_REQUIRE_CUDA"


def host_query(settings: NvidiaSettings) -> HostDeviceQuery:
    """Name the driver's nodes, below its own root too, and HAMi-core's files."""
    root = settings.driver_root.rstrip("/")
    return HostDeviceQuery(
        nodes=tuple(f"{top}{path}" for top in dict.fromkeys((root, "")) for path in NODE_PATTERNS),
        paths=(sharing.LIBRARY, sharing.PRELOAD_SOURCE),
        mps=True,
    )


def edits(
    devices: Sequence[VendorDevice],
    grant: DeviceAllocation,
    container: ContainerSpec,
    host: HostDevices,
) -> ContainerEdits:
    """Return what a grant changes; without one, what becomes of a container that helps itself.

    Raises `GrantRefused` when the container could not use what it was granted.
    """
    settings = host.settings_as(NvidiaSettings)
    named = match_devices(grant, devices)
    ours = host.effective_handler(container.runtime_handler).startswith("nvidia")
    if not named:
        old = _is_old_image(container)
        return withhold_devices(
            container, VISIBLE, container.unallocated_policy, ours=ours, implied=old
        )
    granted = sort_by_bus_id(named)
    for match in granted:
        cut = dict(match.device.facts).get("unschedulable") == RefusalReason.MIG_ENABLED.value
        if cut and match.partition is None:
            raise AllocationRefused(
                RefusalReason.MIG_ENABLED, f"{match.device.key} was granted whole"
            )
    parts = [_visible(named, granted, grant, container, host, settings)]
    if container.env_value(NICS) == NICS_ON:
        parts.append(withhold_devices(container, NICS, container.unallocated_policy, ours=ours))
    if sharing.requests_hami(container):
        preload_file = settings.preload == "file"
        limits = sharing.hami_edits(
            granted, container, host, preload_file=preload_file, region=settings.region
        )
        parts.append(limits)
    elif sharing.requests_mps(container):
        parts.append(sharing.mps_edits(granted, host))
    return merge_edits(parts)


def _visible(
    named: Sequence[DeviceMatch],
    granted: Sequence[DeviceMatch],
    grant: DeviceAllocation,
    container: ContainerSpec,
    host: HostDevices,
    settings: NvidiaSettings,
) -> ContainerEdits:
    names, why = None, ""
    if settings.injection == "cdi" or (settings.injection == "auto" and host.cdi_enabled):
        names, why = find_cdi_names(granted, host)
    if names is not None:
        channels = tuple(f"{CHANNEL_KIND}={number}" for number in grant.channels)
        return ContainerEdits(cdi=(*names, *channels))
    if settings.injection == "cdi":
        raise AllocationRefused(RefusalReason.CDI_NAME_MISSING, why)
    handler = host.effective_handler(container.runtime_handler)
    if settings.injection == "env" or (
        settings.injection == "auto" and handler.startswith("nvidia")
    ):
        return _environment(named, granted, grant, container, settings)
    nodes = node_edits(granted, grant.channels, host, settings.driver_root)
    message = "only device nodes are injected: the image must bring the driver's libraries"
    # NVIDIA's runtime would add what the image asks for, such as all cards
    quiet = [(VISIBLE, "void")] if handler.startswith("nvidia") else []
    if quiet and container.env_value(CHANNELS):
        quiet.append((CHANNELS, ""))
    return ContainerEdits(
        env=tuple(quiet),
        nodes=missing_nodes(container, nodes),
        notes=(ContainerNote(reason="NoDriverInjection", message=message),),
    )


def _is_old_image(container: ContainerSpec) -> bool:
    unset = container.env_value(VISIBLE) is None
    return unset and bool(container.env_value(OLD_IMAGE)) and not container.env_value(NEW_IMAGE)


def _environment(
    named: Sequence[DeviceMatch],
    granted: Sequence[DeviceMatch],
    grant: DeviceAllocation,
    container: ContainerSpec,
    settings: NvidiaSettings,
) -> ContainerEdits:
    """Name the cards by UUID: a number would be NVML's index, which is not the minor.

    Channels that the container asks for itself and was not granted are taken from its request.
    """
    if settings.upstream_compatible and all(match.partition is None for match in named):
        visible = [str(match.vendor_minor) for match in named]
    else:
        visible = [visible_id(match) for match in granted]
    env = [(VISIBLE, ",".join(dict.fromkeys(visible)))]  # a card once, however many replicas
    if grant.channels or container.env_value(CHANNELS):
        env.append((CHANNELS, ",".join(map(str, grant.channels))))
    return ContainerEdits(env=tuple(env))
