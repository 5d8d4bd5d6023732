"""Container edits for Ascend chips and vNPUs.

With `ascend-docker-runtime` they are environment variables that the runtime reads, otherwise CDI
names, or device nodes of chips and their managers with mounts of the driver's files.
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

RUNTIME_HANDLER = "ascend"
VISIBLE = "ASCEND_VISIBLE_DEVICES"
SPECS = "ASCEND_VNPU_SPECS"
OPTIONS = "ASCEND_RUNTIME_OPTIONS"
VIRTUAL = "VIRTUAL"  # numbers are those of vNPUs
NO_DRIVER = "NODRV"


MANAGER = "/dev/davinci_manager"
DOCKER_MANAGER = "/dev/davinci_manager_docker"
_NODE_FOLDERS = ("/dev/uburma", "/dev/ummu")


class ChipFamily(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between families of chips; names are nodes below /dev."""

    shared: tuple[str, ...] = ("devmm_svm", "hisi_hdc", "dvpp_cmdlist")  # if present
    needed: tuple[str, ...] = ()
    docker_manager: bool = False  # the manager node for containers replaces the other one


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

# by family or product in the device's facts; all others are like a server
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
    """Return the family of a device by its product, else by its chip family."""
    facts = dict(device.facts)
    families = (_FAMILIES.get(facts.get(key, "")) for key in ("product", "family"))
    return next((family for family in families if family is not None), SERVER)


def node_edits(matches: Sequence[DeviceMatch], host: HostDevices) -> tuple[DeviceNodeEdit, ...]:
    """Return the chips' nodes in ascending order, then the managers of their family.

    Refuses with `DeviceNodeMissing` if the node of a chip or of the manager does not exist.
    """
    nodes = [_chip(match, host) for match in sorted(matches, key=lambda match: match.vendor_minor)]
    nodes += _managers(chip_family_of(matches[0].device), host)
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
TOPOLOGY = f"{DRIVER}/topo"  # for chips of super pods
MOUNT_LIST = "/etc/ascend-docker-runtime.d/base.list"
SOURCES = (*_FOLDERS, *_FILES, TOPOLOGY, *LIBRARY_DIRS)  # paths on the host


def host_query(_settings: AscendSettings) -> HostDeviceQuery:
    """Return the paths that injection needs: nodes of chips and managers, the driver's files."""
    return HostDeviceQuery(nodes=NODE_PATTERNS, paths=SOURCES, mount_list=MOUNT_LIST)


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
    matches = match_devices(allocation, devices)
    has_vendor_runtime = (
        RUNTIME_HANDLER in host.effective_handler(container.runtime_handler).lower()
    )
    if not matches:
        return withhold_devices(
            container, VISIBLE, container.unallocated_policy, has_vendor_runtime=has_vendor_runtime
        )
    has_slice = any(match.partition or match.entry.template for match in matches)
    if has_slice and len(matches) > 1:
        raise AllocationRefused(
            RefusalReason.MIXED_GRANT, "a container gets one vNPU, or whole chips"
        )
    if has_vendor_runtime:
        return ContainerEdits(env=_environment(matches, container))
    if has_slice and matches[0].partition is None:
        template = matches[0].entry.template
        raise AllocationRefused(RefusalReason.PARTITION_MISSING, f"no vNPU of {template} was made")
    if host.settings_as(AscendSettings).injection == "cdi" and host.cdi_enabled:
        return ContainerEdits(cdi=_names(matches, host))
    nodes = missing_nodes(container, node_edits(matches, host))
    env = (*_environment(matches, container), *_library_path(container, host))
    return ContainerEdits(nodes=nodes, mounts=_mounts(matches, container, host), env=env)


def _environment(
    matches: Sequence[DeviceMatch], container: ContainerSpec
) -> tuple[tuple[str, str], ...]:
    """Return variables with the chips' numbers, or with the vNPU's number or template.

    The container's option `VIRTUAL`, with which the numbers would be those of vNPUs, is dropped.
    """
    (first, *_) = matches
    # with a template of the container the runtime would create a vNPU
    without_specs = ((SPECS, ""),) if container.env_value(SPECS) else ()
    if first.partition is not None:
        return ((VISIBLE, str(_vnpu(first))), (OPTIONS, VIRTUAL), *without_specs)
    numbers = sorted({match.vendor_minor for match in matches})
    visible = (VISIBLE, ",".join(map(str, numbers)))
    env = [visible]
    options = [value for name, value in container.env if name == OPTIONS]
    if any(VIRTUAL in value for value in options):
        env.append((OPTIONS, NO_DRIVER if any(NO_DRIVER in value for value in options) else ""))
    if first.entry.template:
        env.append((SPECS, safe_name(first.entry.template, "vNPU template")))
    else:
        env += without_specs
    return tuple(env)


def _vnpu(match: DeviceMatch) -> int:
    number = match.partition.instance if match.partition else None
    if number is None:
        raise AllocationRefused(
            RefusalReason.PARTITION_MISSING, f"{match.device.key}: a vNPU has no number"
        )
    return number


def _names(matches: Sequence[DeviceMatch], host: HostDevices) -> tuple[str, ...]:
    """Return the chips' CDI names; vNPUs have none."""
    numbers = sorted(match.vendor_minor for match in matches if match.partition is None)
    for kind in CDI_KINDS:
        names = qualified_names(host.cdi, kind, (has_name(str(number)) for number in numbers))
        if names is not None and len(numbers) == len(matches):
            return names
    raise AllocationRefused(RefusalReason.CDI_NAME_MISSING, "no CDI spec names every granted chip")


def _mounts(
    matches: Sequence[DeviceMatch], container: ContainerSpec, host: HostDevices
) -> tuple[MountEdit, ...]:
    """Return mounts of the driver's files that exist; a list of the node has precedence."""
    super_pod = any(key.startswith("super") for key, _ in matches[0].device.facts)
    paths = (*_FOLDERS, *_FILES, *((TOPOLOGY,) if super_pod else ()))
    if host.mount_list is not None:
        paths = host.mount_list
    needed = (path for path in paths if path in host.paths and path not in container.mounts)
    return sort_by_depth(
        MountEdit(
            host_path=path,
            path=path,
            options=BIND_READ_ONLY if path in _FILES else BIND_TREE_READ_ONLY,
        )
        for path in dict.fromkeys(needed)
    )


def _library_path(container: ContainerSpec, host: HostDevices) -> tuple[tuple[str, str], ...]:
    """Return LD_LIBRARY_PATH with the driver's folders before those of the container."""
    container_value = container.env_value(LIBRARY_PATH) or ""
    container_paths = container_value.split(":")
    added = [path for path in LIBRARY_DIRS if path in host.paths and path not in container_paths]
    if not added:
        return ()
    return ((LIBRARY_PATH, ":".join((*added, container_value) if container_value else added)),)
