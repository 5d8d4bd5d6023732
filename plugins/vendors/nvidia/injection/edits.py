"""Container edits for NVIDIA cards: CDI names, environment variables, or bare device nodes.

A CDI device is found by UUID, else by a name whose device nodes are those of the card. A UUID with
the nodes of another card is not used. Device nodes are checked against the kernel's device numbers.
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
OWN_KIND = "xpu-agent.io/gpu"  # the agent's file, written if no NVIDIA file names every card
CHANNEL_KIND = "nvidia.com/imex-channel"
_NUMBERED = re.compile(r"(gpu|mig)?[0-9]{1,4}(:[0-9]{1,4})?")
_CARD = re.compile(r"/dev/nvidia[0-9]{1,4}")
_CAP = re.compile(r"/dev/nvidia-caps/nvidia-cap[0-9]{1,6}")


def find_cdi_names(
    matches: Sequence[DeviceMatch], host: HostDevices
) -> tuple[tuple[str, ...] | None, str]:
    """Return a qualified name for each match, all of one kind; else `None` and the problem.

    Indices change when cards are added or removed, so a numbered name is accepted only if its
    nodes are exactly those of the card. The name `all` and stale specs are not used.
    """
    specs, problem = [], "no CDI spec names every granted card"
    for spec in host.cdi:
        reason = stale_reason(spec, host.paths, host.driver_version)
        if reason:
            problem = reason
        else:
            specs.append(spec)
    tests = [_is_card(match) for match in matches]
    for kind in _kinds(specs):
        names = qualified_names(specs, kind, tests)
        if names is not None:
            return names, ""
    for spec in specs:
        for match, test in zip(matches, tests, strict=True):
            uuid = unambiguous_id(match)
            if any(device.name == uuid and not test(device) for device in spec.devices):
                if match.device.vendor_minor is None:
                    text = f"nodes of {uuid} cannot be compared: the card's number is not known"
                else:
                    text = f"{uuid} has nodes of another card: run nvidia-ctk cdi generate"
                return None, f"{spec.path}: {text}"
    return None, problem


def _kinds(specs: Iterable[CdiSpec]) -> tuple[str, ...]:
    others = []
    for kind in dict.fromkeys(spec.kind for spec in specs):
        vendor, _, kind_class = kind.partition("/")
        nvidia = vendor == "nvidia.com" or vendor.endswith(".nvidia.com")
        if kind_class == "gpu" and nvidia and vendor != "management.nvidia.com":
            others.append(kind)
    return tuple(dict.fromkeys((*FIRST_KINDS, *others, OWN_KIND)))


def _is_card(match: DeviceMatch) -> Callable[[CdiDevice], bool]:
    """Return a function that checks whether a CDI device is this card or slice.

    The numbers of cards change at a boot without one of them, and an old file stays: a UUID counts
    only if the nodes beside it, where there are any, are those of the card. While the card's number
    is unknown, no nodes of cards are.
    """
    part = match.partition
    uuid = unambiguous_id(match)
    number = match.device.vendor_minor
    cards = set() if number is None else {f"/dev/nvidia{number}"}
    caps = {node.path for node in part.nodes} if part else set()

    def fits(device: CdiDevice) -> bool:
        own_cards = {path for path in device.nodes if _CARD.fullmatch(path)}
        own_caps = {path for path in device.nodes if _CAP.fullmatch(path)}
        if uuid is not None and device.name == uuid:
            is_other_card = bool(own_cards) and own_cards != cards
            is_other_slice = len(caps) >= 2 and bool(own_caps) and own_caps != caps
            return not (is_other_card or is_other_slice)
        if not cards or not _NUMBERED.fullmatch(device.name):
            return False
        if part is not None and len(caps) < 2:
            return False
        return own_cards == cards and own_caps == caps

    return fits


CARD_DRIVERS = ("nvidia", "nvidia-frontend")  # names of the driver in /proc/devices, newest first
UVM_DRIVERS = ("nvidia-uvm",)
CAPABILITY_DRIVERS = ("nvidia-caps",)
CHANNEL_DRIVERS = ("nvidia-caps-imex-channels",)
NODE_PATTERNS = ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/nvidia-caps-imex-channels/*")

# control nodes in the order of NVIDIA's own plug-in, with driver and minor
_CONTROL_NODES = (
    ("/dev/nvidiactl", CARD_DRIVERS, 255),
    ("/dev/nvidia-uvm", UVM_DRIVERS, 0),
    ("/dev/nvidia-uvm-tools", UVM_DRIVERS, 1),
    ("/dev/nvidia-modeset", CARD_DRIVERS, 254),
)


def node_edits(
    matches: Sequence[DeviceMatch],
    channels: Iterable[int],
    host: HostDevices,
    driver_root: str = "/",
) -> tuple[DeviceNodeEdit, ...]:
    """Return control nodes, the cards' nodes in PCI order, and IMEX channels; each path once.

    `driver_root` is the root of a driver container's files. Refuses with `UVMMissing`,
    `DeviceNodeMissing` or `MIGNodeMissing` if a node does not exist, and with `NodeMismatch` if
    it belongs to another device.
    """
    finder = _NodeFinder(host, driver_root)
    finder.add_control_nodes()
    for match in matches:
        finder.add_card(match)
    for channel in channels:
        path = f"/dev/nvidia-caps-imex-channels/channel{channel}"
        finder.require(path, CHANNEL_DRIVERS, channel)
    return tuple([node_edit(node, path) for path, node in finder.nodes.items()])


class _NodeFinder:
    """Looks up nodes below the driver's root, else below `/dev`, and collects them in `nodes`."""

    def __init__(self, host: HostDevices, driver_root: str) -> None:
        self._by_path = host.nodes_by_path
        self._majors = dict(host.majors)
        self._root = driver_root.rstrip("/")
        self.nodes: dict[str, DeviceNode] = {}  # by the path in the container

    def add_control_nodes(self) -> None:
        """Add the control nodes that exist; CUDA programs cannot start without nvidia-uvm."""
        for path, drivers, minor in _CONTROL_NODES:
            if self._node(path) is not None:
                self.require(path, drivers, minor)
            elif path == "/dev/nvidia-uvm":
                raise AllocationRefused(RefusalReason.UVM_MISSING, f"{path}: is nvidia-uvm loaded")

    def add_card(self, match: DeviceMatch) -> None:
        """Add a card's node, and the two capability nodes of a slice."""
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
        """Add a node after checking that its numbers are those of its driver."""
        node = self._node(path)
        if node is None:
            raise AllocationRefused(refusal, f"{path} does not exist")
        major = None
        for driver in reversed(drivers):
            major = self._majors.get(driver, major)
        if node.minor != minor or (major is not None and node.major != major):
            expected = f"{'?' if major is None else major}:{minor}"
            raise AllocationRefused(
                RefusalReason.NODE_MISMATCH,
                f"{node.path} is {node.major}:{node.minor}, its driver's is {expected}",
            )
        self.nodes[path] = node

    def _node(self, path: str) -> DeviceNode | None:
        driver_node = self._by_path.get(f"{self._root}{path}") if self._root else None
        return driver_node or self._by_path.get(path)


RUNTIME_HANDLER = "nvidia"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
CHANNELS = "NVIDIA_IMEX_CHANNELS"
NICS, NICS_ON = "NVIDIA_MOFED", "enabled"  # requests all RDMA devices of the host

# NVIDIA's runtime gives all cards to images older than VISIBLE, which it detects by these
OLD_IMAGE, NEW_IMAGE = "CUDA_VERSION", "NVIDIA_REQUIRE_CUDA"


def host_query(settings: NvidiaSettings) -> HostDeviceQuery:
    """Return the paths that injection needs: the driver's nodes, also below its root, HAMi-core."""
    root = settings.driver_root.rstrip("/")
    return HostDeviceQuery(
        nodes=tuple(f"{top}{path}" for top in dict.fromkeys((root, "")) for path in NODE_PATTERNS),
        paths=(sharing.LIBRARY, sharing.PRELOAD_SOURCE),
        mps=True,
    )


def edits(
    devices: Sequence[VendorDevice],
    allocation: DeviceAllocation,
    container: ContainerSpec,
    host: HostDevices,
) -> ContainerEdits:
    """Return the edits for an allocation.

    Without an allocation, return the edits for a container that requests devices by itself.
    Raises `AllocationRefused` if the container could not use the allocated devices.
    """
    settings = host.settings_as(NvidiaSettings)
    matches = match_devices(allocation, devices)
    has_vendor_runtime = host.effective_handler(container.runtime_handler).startswith(
        RUNTIME_HANDLER
    )
    if not matches:
        is_old_image = _is_old_image(container)
        return withhold_devices(
            container,
            VISIBLE,
            container.unallocated_policy,
            has_vendor_runtime=has_vendor_runtime,
            is_implied=is_old_image,
        )
    by_bus_id = sort_by_bus_id(matches)
    for match in by_bus_id:
        has_mig = dict(match.device.facts).get("unschedulable") == RefusalReason.MIG_ENABLED.value
        if has_mig and match.partition is None:
            raise AllocationRefused(
                RefusalReason.MIG_ENABLED, f"{match.device.key} was granted whole"
            )
    parts = [_visible(matches, by_bus_id, allocation, container, host, settings)]
    if container.env_value(NICS) == NICS_ON:
        parts.append(
            withhold_devices(
                container, NICS, container.unallocated_policy, has_vendor_runtime=has_vendor_runtime
            )
        )
    if sharing.requests_hami(container):
        preload_file = settings.preload == "file"
        limits = sharing.hami_edits(
            by_bus_id, container, host, preload_file=preload_file, region=settings.region
        )
        parts.append(limits)
    elif sharing.requests_mps(container):
        parts.append(sharing.mps_edits(by_bus_id, host))
    return merge_edits(parts)


def _visible(
    matches: Sequence[DeviceMatch],
    by_bus_id: Sequence[DeviceMatch],
    allocation: DeviceAllocation,
    container: ContainerSpec,
    host: HostDevices,
    settings: NvidiaSettings,
) -> ContainerEdits:
    names, problem = None, ""
    if settings.injection == "cdi" or (settings.injection == "auto" and host.cdi_enabled):
        names, problem = find_cdi_names(by_bus_id, host)
    if names is not None:
        channels = tuple(f"{CHANNEL_KIND}={number}" for number in allocation.channels)
        return ContainerEdits(cdi=(*names, *channels))
    if settings.injection == "cdi":
        raise AllocationRefused(RefusalReason.CDI_NAME_MISSING, problem)
    handler = host.effective_handler(container.runtime_handler)
    if settings.injection == "env" or (
        settings.injection == "auto" and handler.startswith(RUNTIME_HANDLER)
    ):
        return _environment(matches, by_bus_id, allocation, container, settings)
    nodes = node_edits(by_bus_id, allocation.channels, host, settings.driver_root)
    message = "only device nodes are injected: the image must bring the driver's libraries"
    # otherwise NVIDIA's runtime would add devices that the image requests, such as all cards
    suppressed = [(VISIBLE, "void")] if handler.startswith(RUNTIME_HANDLER) else []
    if suppressed and container.env_value(CHANNELS):
        suppressed.append((CHANNELS, ""))
    return ContainerEdits(
        env=tuple(suppressed),
        nodes=missing_nodes(container, nodes),
        notes=(ContainerNote(reason="NoDriverInjection", message=message),),
    )


def _is_old_image(container: ContainerSpec) -> bool:
    is_unset = container.env_value(VISIBLE) is None
    return is_unset and bool(container.env_value(OLD_IMAGE)) and not container.env_value(NEW_IMAGE)


def _environment(
    matches: Sequence[DeviceMatch],
    by_bus_id: Sequence[DeviceMatch],
    allocation: DeviceAllocation,
    container: ContainerSpec,
    settings: NvidiaSettings,
) -> ContainerEdits:
    """Return variables with the cards' UUIDs: a number would be NVML's index, not the minor.

    The variable for channels replaces the container's own request.
    """
    if settings.upstream_compatible and all(match.partition is None for match in matches):
        visible = [str(match.vendor_minor) for match in matches]
    else:
        visible = [visible_id(match) for match in by_bus_id]
    env = [
        (VISIBLE, ",".join(dict.fromkeys(visible)))
    ]  # each card once, even with several replicas
    if allocation.channels or container.env_value(CHANNELS):
        env.append((CHANNELS, ",".join(map(str, allocation.channels))))
    return ContainerEdits(env=tuple(env))
