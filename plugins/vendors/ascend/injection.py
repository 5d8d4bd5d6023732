"""What `ascend-docker-runtime` reads from a container's environment, and refuses.

Device nodes of Ascend chips: which managers each family of chips has.

What a container gets of Ascend chips and vNPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from agent.snapshot.allocation import (
    AllocationRefused,
    DeviceAllocation,
    DeviceMatch,
    RefusalReason,
    match_devices,
)
from agent.snapshot.container import ContainerSpec
from agent.snapshot.device import VendorDevice
from agent.snapshot.edits import (
    BIND_READ_ONLY,
    BIND_TREE_READ_ONLY,
    ContainerEdits,
    DeviceNodeEdit,
    MountEdit,
    sort_by_depth,
)
from agent.snapshot.host_devices import HostDeviceQuery, HostDevices
from agent.wire_formats.cdi_specs import has_name, qualified_names
from plugins.shared.injection import (
    existing_nodes,
    missing_nodes,
    node_edit,
    nodes_below,
    safe_name,
    withhold_devices,
)
from plugins.vendors.ascend.settings import AscendSettings

VISIBLE = "ASCEND_VISIBLE_DEVICES"

SPECS = "ASCEND_VNPU_SPECS"

OPTIONS = "ASCEND_RUNTIME_OPTIONS"

VIRTUAL = "VIRTUAL"  # the number is a vNPU's

NO_DRIVER = "NODRV"


MANAGER = "/dev/davinci_manager"

DOCKER_MANAGER = "/dev/davinci_manager_docker"

_NODE_FOLDERS = ("/dev/uburma", "/dev/ummu")


class ChipFamily(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between families of chips; names are of nodes below /dev."""

    shared: tuple[str, ...] = ("devmm_svm", "hisi_hdc", "dvpp_cmdlist")  # if present
    needed: tuple[str, ...] = ()
    docker_manager: bool = False  # the manager for containers stands in for the other


SERVER = ChipFamily()

A5 = ChipFamily(shared=("hisi_hdc",))

EDGE_310B = ChipFamily(
    shared=(
        *("svm0", "ts_aisle", "upgrade", "sys", "vdec", "vpc", "pngd", "venc", "log_drv"),
        *("acodec", "ai", "ao", "vo", "hdmi", "dvpp_cmdlist"),
    ),
    docker_manager=True,
)

SOC_A1 = ChipFamily(
    shared=("event_sched", "xsmem_dev", "dvpp_cmdlist"),
    needed=(
        *("vpc", "vdec", "sys", "spi_smbus", "user_config", "ts_aisle", "svm0", "log_drv"),
        *("memory_bandwidth", "upgrade"),
    ),
)

MODEL_3000 = ChipFamily(shared=("dvpp_cmdlist",))

# by what the vendor's facts call the family or the product; anything else is a server's
_FAMILIES = {
    "A5": A5,
    "310B": EDGE_310B,
    "Atlas 200I SoC A1": SOC_A1,
    "Atlas 200 Model 3000": MODEL_3000,
}

_SHARED = {
    name for family in (SERVER, *_FAMILIES.values()) for name in (*family.shared, *family.needed)
}

NODE_PATTERNS = (
    *("/dev/davinci*", "/dev/vdavinci*"),
    *(f"{folder}/*" for folder in _NODE_FOLDERS),
    *(f"/dev/{name}" for name in sorted(_SHARED)),
)


def chip_family_of(device: VendorDevice) -> ChipFamily:
    """Return what a device's facts say of its family; the product decides before the chip."""
    facts = dict(device.facts)
    named = (_FAMILIES.get(facts.get(key, "")) for key in ("product", "family"))
    return next((family for family in named if family is not None), SERVER)


def node_edits(granted: Sequence[DeviceMatch], host: HostDevices) -> tuple[DeviceNodeEdit, ...]:
    """Return the chips' nodes ascending, then the managers of their family.

    `DeviceNodeMissing` if a chip's node or the manager is not there.
    """
    nodes = [_chip(match, host) for match in sorted(granted, key=lambda match: match.vendor_minor)]
    nodes += _managers(chip_family_of(granted[0].device), host)
    return tuple({node.path: node for node in nodes}.values())


def _chip(match: DeviceMatch, host: HostDevices) -> DeviceNodeEdit:
    if match.partition is None:
        return node_edit(host.require_node(f"/dev/davinci{match.vendor_minor}"))
    number = match.partition.instance
    return node_edit(host.require_node(f"/dev/vdavinci{number}"), f"/dev/davinci{number}")


def _managers(family: ChipFamily, host: HostDevices) -> Iterator[DeviceNodeEdit]:
    for_containers = host.node(DOCKER_MANAGER) if family.docker_manager else None
    yield node_edit(for_containers or host.require_node(MANAGER), MANAGER)
    yield from (node_edit(host.require_node(f"/dev/{name}")) for name in family.needed)
    yield from existing_nodes(host, (f"/dev/{name}" for name in family.shared))
    for folder in _NODE_FOLDERS:
        yield from nodes_below(host, folder)


OWN_KIND = "xpu-agent.io/npu"  # of the CDI file that the agent writes

CDI_KINDS = ("ascend.com/npu", OWN_KIND)

DRIVER = "/usr/local/Ascend/driver"

LIBRARY_PATH = "LD_LIBRARY_PATH"

LIBRARY_DIRS = (f"{DRIVER}/lib64/common", f"{DRIVER}/lib64/driver")

_FOLDERS = (f"{DRIVER}/lib64", f"{DRIVER}/include", "/usr/local/dcmi", "/var/queue_schedule")

_FILES = (f"{DRIVER}/version.info", "/usr/local/bin/npu-smi", "/etc/ascend_install.info")

TOPOLOGY = f"{DRIVER}/topo"  # of super pods

MOUNT_LIST = "/etc/ascend-docker-runtime.d/base.list"

SOURCES = (*_FOLDERS, *_FILES, TOPOLOGY, *LIBRARY_DIRS)  # to be looked for on the host


def host_query(_settings: AscendSettings) -> HostDeviceQuery:
    """Name the chips' and managers' nodes, and the driver's files."""
    return HostDeviceQuery(nodes=NODE_PATTERNS, paths=SOURCES, mount_list=MOUNT_LIST)


def edits(
    devices: Sequence[VendorDevice],
    grant: DeviceAllocation,
    container: ContainerSpec,
    host: HostDevices,
) -> ContainerEdits:
    """Return what a grant changes; without one, what becomes of a container that helps itself.

    Raises `GrantRefused` when the container could not use what it was granted.
    """
    granted = match_devices(grant, devices)
    ours = "ascend" in host.effective_handler(container.runtime_handler).lower()
    if not granted:
        return withhold_devices(container, VISIBLE, container.unallocated_policy, ours=ours)
    sliced = any(match.partition or match.entry.template for match in granted)
    if sliced and len(granted) > 1:
        raise AllocationRefused(
            RefusalReason.MIXED_GRANT, "a container gets one vNPU, or whole chips"
        )
    if ours:
        return ContainerEdits(env=_environment(granted, container))
    if sliced and granted[0].partition is None:
        template = granted[0].entry.template
        raise AllocationRefused(RefusalReason.PARTITION_MISSING, f"no vNPU of {template} was made")
    if host.settings_as(AscendSettings).injection == "cdi" and host.cdi_enabled:
        return ContainerEdits(cdi=_names(granted, host))
    nodes = missing_nodes(container, node_edits(granted, host))
    env = (*_environment(granted, container), *_library_path(container, host))
    return ContainerEdits(nodes=nodes, mounts=_mounts(granted, container, host), env=env)


def _environment(
    granted: Sequence[DeviceMatch], container: ContainerSpec
) -> tuple[tuple[str, str], ...]:
    """Name the chips to the runtime; a vNPU by its own number, or by what it is made from.

    An option of the container that would have chips' numbers read as those of vNPUs is dropped.
    """
    (first, *_) = granted
    # a template of the container's own would have the runtime cut the chip
    no_cut = ((SPECS, ""),) if container.env_value(SPECS) else ()
    if first.partition is not None:
        return ((VISIBLE, str(_vnpu(first))), (OPTIONS, VIRTUAL), *no_cut)
    numbers = sorted({match.vendor_minor for match in granted})
    visible = (VISIBLE, ",".join(map(str, numbers)))
    env = [visible]
    asked = [value for name, value in container.env if name == OPTIONS]
    if any(VIRTUAL in value for value in asked):
        env.append((OPTIONS, NO_DRIVER if any(NO_DRIVER in value for value in asked) else ""))
    if first.entry.template:
        env.append((SPECS, safe_name(first.entry.template, "vNPU template")))
    else:
        env += no_cut
    return tuple(env)


def _vnpu(match: DeviceMatch) -> int:
    number = match.partition.instance if match.partition else None
    if number is None:
        raise AllocationRefused(
            RefusalReason.PARTITION_MISSING, f"{match.device.key}: a vNPU has no number"
        )
    return number


def _names(granted: Sequence[DeviceMatch], host: HostDevices) -> tuple[str, ...]:
    """Return the chips' CDI names; vNPUs have none."""
    wanted = sorted(match.vendor_minor for match in granted if match.partition is None)
    for kind in CDI_KINDS:
        names = qualified_names(host.cdi, kind, (has_name(str(number)) for number in wanted))
        if names is not None and len(wanted) == len(granted):
            return names
    raise AllocationRefused(RefusalReason.CDI_NAME_MISSING, "no CDI spec names every granted chip")


def _mounts(
    granted: Sequence[DeviceMatch], container: ContainerSpec, host: HostDevices
) -> tuple[MountEdit, ...]:
    """Mount the driver's files that exist; the node's own list replaces ours."""
    super_pod = any(key.startswith("super") for key, _ in granted[0].device.facts)
    paths = (*_FOLDERS, *_FILES, *((TOPOLOGY,) if super_pod else ()))
    if host.mount_list is not None:
        paths = host.mount_list
    wanted = (path for path in paths if path in host.paths and path not in container.mounts)
    return sort_by_depth(
        MountEdit(
            host_path=path,
            path=path,
            options=BIND_READ_ONLY if path in _FILES else BIND_TREE_READ_ONLY,
        )
        for path in dict.fromkeys(wanted)
    )


def _library_path(container: ContainerSpec, host: HostDevices) -> tuple[tuple[str, str], ...]:
    """Put the driver's folders that exist before the container's own."""
    own = container.env_value(LIBRARY_PATH) or ""
    listed = own.split(":")
    added = [path for path in LIBRARY_DIRS if path in host.paths and path not in listed]
    if not added:
        return ()
    return ((LIBRARY_PATH, ":".join((*added, own) if own else added)),)
