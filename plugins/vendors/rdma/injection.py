"""Container edits for RDMA devices: verbs, the connection manager, unlimited locked memory."""

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
from agent.snapshot.device import DeviceNode, VendorDevice
from agent.snapshot.edits import (
    UNLIMITED_RLIMIT,
    ContainerEdits,
    ContainerNote,
    DeviceNodeEdit,
    RlimitEdit,
)
from agent.snapshot.host_devices import HostDeviceQuery, HostDevices, RdmaFunction
from plugins.shared.injection import missing_nodes, node_edit, safe_name
from plugins.vendors.rdma.settings import RdmaSettings

MANAGER = "/dev/infiniband/rdma_cm"
NAMES, ADDRESSES = "XPU_RDMA_DEVICES", "XPU_RDMA_PCI"
PLUGIN_ADDRESSES = "PCIDEVICE_KOORDINATOR_SH_RDMA"  # convention of the SR-IOV plug-in
NCCL = "NCCL_IB_HCA"
_ALL_MAY = 0o666
_MEMLOCK = RlimitEdit(name="RLIMIT_MEMLOCK", soft=UNLIMITED_RLIMIT, hard=UNLIMITED_RLIMIT)


class _AllocatedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """One allocated function with the nodes and names for the container."""

    address: str
    names: tuple[str, ...]
    nodes: tuple[DeviceNode, ...]
    netdevs: tuple[str, ...] = ()  # of RoCE, outside the pod's own network namespace


def host_query(_settings: RdmaSettings) -> HostDeviceQuery:
    """Return the query for all RDMA nodes."""
    return HostDeviceQuery(nodes=("/dev/infiniband/*",))


def edits(
    devices: Sequence[VendorDevice],
    allocation: DeviceAllocation,
    container: ContainerSpec,
    host: HostDevices,
) -> ContainerEdits:
    """Return the edits for an allocation; none without one.

    A container with a virtual function gets its verbs device, not the card's. Raises
    `AllocationRefused` with the address of a function that has none.
    """
    settings = host.settings_as(RdmaSettings)
    functions = [
        function
        for match in match_devices(allocation, devices)
        for function in _allocated_functions(match, host, settings)
    ]
    if not functions:
        return ContainerEdits()
    nodes, notes = list(_manager(host, settings)), []
    if not nodes:
        text = f"{MANAGER} does not exist: programs that connect by it will fail"
        notes.append(ContainerNote(reason="RdmaManagerMissing", message=text))
    nodes += [
        node_edit(node, file_mode=_ALL_MAY) for function in functions for node in function.nodes
    ]
    notes += _netdev_notes(functions, container)
    return ContainerEdits(
        nodes=missing_nodes(container, nodes),
        env=_environment(functions, container, settings),
        rlimits=(_MEMLOCK,) if settings.memlock else (),
        notes=tuple(notes),
    )


def _netdev_notes(
    functions: Sequence[_AllocatedFunction], container: ContainerSpec
) -> Iterator[ContainerNote]:
    """Yield a note for each RoCE function without its network device in the pod: it has no GIDs."""
    for function in functions if not container.host_network else ():
        if function.netdevs:
            text = (
                f"{function.address}: {function.netdevs[0]} is not in the pod's network namespace"
            )
            yield ContainerNote(reason="RdmaWithoutNetdev", message=text)


def _manager(host: HostDevices, settings: RdmaSettings) -> Iterator[DeviceNodeEdit]:
    node = host.require_node(MANAGER) if settings.require_rdma_cm else host.node(MANAGER)
    if node is not None:
        yield node_edit(node, file_mode=_ALL_MAY)


def _allocated_functions(
    match: DeviceMatch, host: HostDevices, settings: RdmaSettings
) -> Iterator[_AllocatedFunction]:
    functions = {function.address: function for function in host.functions}
    is_roce = any(port.link_layer == "Ethernet" for port in match.device.ports)
    if match.entry.vfs:
        for address in match.entry.vfs:
            yield _function(functions.get(address), address, settings, is_roce=is_roce)
        return
    device = match.device
    address = device.bus_id or device.uuid or ""
    current = functions.get(address)
    if current is not None and current.verbs:
        yield _function(current, address, settings, is_roce=is_roce)
    elif current is not None and current.driver == "vfio-pci":
        raise AllocationRefused(RefusalReason.BOUND_TO_VFIO, f"{address} is a virtual machine's")
    else:
        # a device that moved into a pod's namespace is in no class here; its number stays
        yield _function_of_device(device, address, settings)
    if settings.inject_all_ports:
        # a member of a bond has no RDMA device of its own: that of the first function serves all
        for member in _members(device):
            member_function = functions.get(member)
            if member_function is not None and member_function.verbs:
                yield _function(member_function, member, settings, is_roce=is_roce)


def _members(device: VendorDevice) -> tuple[str, ...]:
    """Return the other functions of a bonded device."""
    members = dict(device.facts).get("members", "").split(",")
    return tuple(address for address in members if address and address != device.bus_id)


def _function(
    function: RdmaFunction | None, address: str, settings: RdmaSettings, *, is_roce: bool
) -> _AllocatedFunction:
    safe_name(address, "RDMA function")
    if function is not None and function.driver == "vfio-pci":
        raise AllocationRefused(RefusalReason.BOUND_TO_VFIO, f"{address} is a virtual machine's")
    if function is None or not function.verbs:
        problem = "is not on this host" if function is None else "has no verbs device"
        raise AllocationRefused(RefusalReason.VERBS_MISSING, f"{address} {problem}")
    count = None if settings.inject_all_ports else 1
    umad = function.umad if settings.inject_umad else ()
    return _AllocatedFunction(
        address=address,
        names=function.names[:count],
        nodes=(*function.verbs[:count], *umad),
        netdevs=function.netdevs if is_roce else (),
    )


def _function_of_device(
    device: VendorDevice, address: str, settings: RdmaSettings
) -> _AllocatedFunction:
    """Return the function of a device as the last discovery described it."""
    verbs = tuple(node for node in device.nodes if "/uverbs" in node.path)
    if not verbs:
        raise AllocationRefused(RefusalReason.VERBS_MISSING, f"{address} has no verbs device")
    umad = tuple(node for node in device.nodes if "/umad" in node.path)
    name = dict(device.facts).get("name")
    return _AllocatedFunction(
        address=address,
        names=(name,) if name else (),
        nodes=(*verbs, *(umad if settings.inject_umad else ())),
    )


def _environment(
    functions: Sequence[_AllocatedFunction], container: ContainerSpec, settings: RdmaSettings
) -> tuple[tuple[str, str], ...]:
    names = list(
        dict.fromkeys(
            safe_name(name, function.address) for function in functions for name in function.names
        )
    )
    addresses = ",".join(
        dict.fromkeys(safe_name(function.address, "RDMA function") for function in functions)
    )
    env = [(ADDRESSES, addresses), (PLUGIN_ADDRESSES, addresses)]
    if names:
        env.insert(0, (NAMES, ",".join(names)))
    if names and settings.nccl_env and container.env_value(NCCL) is None:
        # the first = makes NCCL compare whole names
        env.append((NCCL, "=" + ",".join(f"{name}:1" for name in names)))
    return tuple(env)
