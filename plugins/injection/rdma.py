"""What a container gets of RDMA devices: verbs, the connection manager, unlimited locked memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from agent.model.device import DeviceNode, VendorDevice
from agent.model.grant.container import Container
from agent.model.grant.edits import UNLIMITED, ContainerEdits, NodeEdit, Note, RlimitEdit
from agent.model.grant.granted import Grant, Match, matches
from agent.model.grant.host import HostMeans, HostNeeds, RdmaFunction
from agent.model.grant.refusal import GrantRefused, Refusal
from plugins.injection.identifiers import safe
from plugins.injection.nodes import missing_in, shown
from plugins.injection.policy import policy_of

MANAGER = "/dev/infiniband/rdma_cm"
NAMES, ADDRESSES = "XPU_RDMA_DEVICES", "XPU_RDMA_PCI"
PLUGIN_ADDRESSES = "PCIDEVICE_KOORDINATOR_SH_RDMA"  # convention of the SR-IOV plug-in
NCCL = "NCCL_IB_HCA"
_ALL_MAY = 0o666
_MEMLOCK = RlimitEdit(name="RLIMIT_MEMLOCK", soft=UNLIMITED, hard=UNLIMITED)


class RdmaPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What people decide about injection."""

    inject_all_ports: bool = True  # of LAG and several RDMA devices on one function
    inject_umad: bool = False  # lets the container change the fabric
    require_rdma_cm: bool = False
    memlock: bool = True
    nccl_env: bool = False


class _Given(msgspec.Struct, frozen=True, kw_only=True):
    """One granted function: what of it is shown, and under which names."""

    address: str
    names: tuple[str, ...]
    nodes: tuple[DeviceNode, ...]
    netdevs: tuple[str, ...] = ()  # of RoCE, outside the pod's own network namespace


def needs(_settings: Mapping[str, object]) -> HostNeeds:
    """Name the nodes of RDMA, and ask for the functions behind them."""
    return HostNeeds(nodes=("/dev/infiniband/*",), functions=True)


def edits(
    devices: Sequence[VendorDevice], grant: Grant, container: Container, host: HostMeans
) -> ContainerEdits:
    """Return what a grant changes; nothing without one.

    Of a granted virtual function its own verbs device is shown and not the card's. Raises
    `GrantRefused` that names the address of a function that has none.
    """
    policy = policy_of(host.settings, RdmaPolicy, "rdma")
    given = [item for match in matches(grant, devices) for item in _given(match, host, policy)]
    if not given:
        return ContainerEdits()
    nodes, notes = list(_manager(host, policy)), []
    if not nodes:
        text = f"{MANAGER} does not exist: programs that connect by it will fail"
        notes.append(Note(reason="RdmaManagerMissing", message=text))
    nodes += [shown(node, file_mode=_ALL_MAY) for item in given for node in item.nodes]
    notes += _left_behind(given, container)
    return ContainerEdits(
        nodes=missing_in(container, nodes),
        env=_environment(given, container, policy),
        rlimits=(_MEMLOCK,) if policy.memlock else (),
        notes=tuple(notes),
    )


def _left_behind(given: Sequence[_Given], container: Container) -> Iterator[Note]:
    """Tell of RoCE functions whose network device the pod does not have: their GIDs are its."""
    for item in given if not container.host_network else ():
        if item.netdevs:
            text = f"{item.address}: {item.netdevs[0]} is not in the pod's network namespace"
            yield Note(reason="RdmaWithoutNetdev", message=text)


def _manager(host: HostMeans, policy: RdmaPolicy) -> Iterator[NodeEdit]:
    node = host.must_have(MANAGER) if policy.require_rdma_cm else host.node(MANAGER)
    if node is not None:
        yield shown(node, file_mode=_ALL_MAY)


def _given(match: Match, host: HostMeans, policy: RdmaPolicy) -> Iterator[_Given]:
    functions = {function.address: function for function in host.functions}
    roce = any(port.link_layer == "Ethernet" for port in match.device.ports)
    if match.entry.vfs:
        for address in match.entry.vfs:
            yield _function(functions.get(address), address, policy, roce=roce)
        return
    device = match.device
    address = device.bus_id or device.uuid or ""
    seen = functions.get(address)
    if seen is not None and seen.verbs:
        yield _function(seen, address, policy, roce=roce)
    elif seen is not None and seen.driver == "vfio-pci":
        raise GrantRefused(Refusal.BOUND_TO_VFIO, f"{address} is a virtual machine's")
    else:
        # a device that moved into a pod's namespace is in no class here; its number stays
        yield _known(device, address, policy)
    if policy.inject_all_ports:
        # a member of a bond has no RDMA device of its own: that of the first function serves all
        for member in _members(device):
            found = functions.get(member)
            if found is not None and found.verbs:
                yield _function(found, member, policy, roce=roce)


def _members(device: VendorDevice) -> tuple[str, ...]:
    """Return the other functions of a bonded device."""
    listed = dict(device.facts).get("members", "").split(",")
    return tuple(address for address in listed if address and address != device.bus_id)


def _function(seen: RdmaFunction | None, address: str, policy: RdmaPolicy, *, roce: bool) -> _Given:
    safe(address, "RDMA function")
    if seen is not None and seen.driver == "vfio-pci":
        raise GrantRefused(Refusal.BOUND_TO_VFIO, f"{address} is a virtual machine's")
    if seen is None or not seen.verbs:
        why = "is not on this host" if seen is None else "has no verbs device"
        raise GrantRefused(Refusal.VERBS_MISSING, f"{address} {why}")
    count = None if policy.inject_all_ports else 1
    umad = seen.umad if policy.inject_umad else ()
    return _Given(
        address=address,
        names=seen.names[:count],
        nodes=(*seen.verbs[:count], *umad),
        netdevs=seen.netdevs if roce else (),
    )


def _known(device: VendorDevice, address: str, policy: RdmaPolicy) -> _Given:
    """Show what the last discovery knew of a device."""
    verbs = tuple(node for node in device.nodes if "/uverbs" in node.path)
    if not verbs:
        raise GrantRefused(Refusal.VERBS_MISSING, f"{address} has no verbs device")
    umad = tuple(node for node in device.nodes if "/umad" in node.path)
    name = dict(device.facts).get("name")
    return _Given(
        address=address,
        names=(name,) if name else (),
        nodes=(*verbs, *(umad if policy.inject_umad else ())),
    )


def _environment(
    given: Sequence[_Given], container: Container, policy: RdmaPolicy
) -> tuple[tuple[str, str], ...]:
    names = list(dict.fromkeys(safe(name, item.address) for item in given for name in item.names))
    addresses = ",".join(dict.fromkeys(safe(item.address, "RDMA function") for item in given))
    env = [(ADDRESSES, addresses), (PLUGIN_ADDRESSES, addresses)]
    if names:
        env.insert(0, (NAMES, ",".join(names)))
    if names and policy.nccl_env and container.value(NCCL) is None:
        # the first = makes NCCL compare whole names
        env.append((NCCL, "=" + ",".join(f"{name}:1" for name in names)))
    return tuple(env)
