"""Describes RDMA devices for the inventory. Pure but for the check of device nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from agent.snapshot.device import (
    DeviceKind,
    DeviceNode,
    DevicePort,
    Health,
    HealthState,
    Pairs,
    VendorDevice,
)
from agent.snapshot.host_files import HostFiles
from plugins.vendors.rdma.discovery.minors import RdmaDeviceRecord
from plugins.vendors.rdma.discovery.nics import Nic, VirtualFunctions
from plugins.vendors.rdma.health.ports import health_of
from plugins.vendors.rdma.sysfs.classes import ClassKind, RdmaClass, RdmaNodes
from plugins.vendors.rdma.sysfs.functions import DRIVERS, PENDING, RdmaPciFunction, RdmaScan
from plugins.vendors.rdma.sysfs.ports import INFINIBAND
from plugins.vendors.rdma.sysfs.values import show_guid, subnet_prefix

SOFT_WORDS = "software on a network device: published with discovery.rdma.soft only"
RESOURCES: Pairs = (("koordinator.sh/rdma", "100"),)


class DeviceAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """What a device gets besides what its own files say."""

    minor: int | None = None
    labels: Pairs = ()
    health: Health = PENDING
    ports: tuple[DevicePort, ...] = ()
    netdevs: tuple[str, ...] = ()
    pod_limit: str | None = None  # of the RDMA cgroup controller
    exclusive: bool = False


def family(driver: str | None) -> str:
    """Name the family of a driver; an unknown one is treated alike."""
    return driver if driver in DRIVERS and driver else "other"


def soft_id(item: RdmaClass) -> str:
    """Return the identity of a device without PCI function."""
    return f"soft-{item.node_guid or item.name}"


def _pairs(facts: Mapping[str, str | None]) -> Pairs:
    return tuple((name, value) for name, value in facts.items() if value)


def _count(value: int | None) -> str | None:
    return None if value is None else str(value)


def _prefixes(ports: Iterable[DevicePort]) -> set[str]:
    """Return the fabrics that InfiniBand ports are on."""
    return {subnet_prefix(p.gid) for p in ports if p.gid and p.link_layer == INFINIBAND}


def _common(item: RdmaClass, outfit: DeviceAttributes, nodes: RdmaNodes) -> dict[str, str | None]:
    """Facts of every device of the class."""
    layers = {port.link_layer for port in outfit.ports if port.link_layer}
    mad = {
        node.path.rpartition("/")[2].rstrip("0123456789") for node in nodes.mad.get(item.name, ())
    }
    missing = [name for name in ("umad", "issm") if name not in mad]
    missing += [] if nodes.rdma_cm else ["rdma_cm"]
    return {
        "name": item.name,
        "netdevs": ",".join(outfit.netdevs),
        "node_guid": show_guid(item.node_guid or ""),
        "sys_image_guid": show_guid(item.sys_image_guid or ""),
        "firmware": item.firmware,
        "hca_type": item.hca_type,
        "board_id": item.board_id,
        "link_layer": ",".join(sorted(layers)),
        "subnet_prefix": ",".join(sorted(_prefixes(outfit.ports))),
        "pkeys": ",".join(sorted({key for port in outfit.ports for key in port.pkeys})),
        "missing": ",".join(missing),
        "netns_mode": "exclusive" if outfit.exclusive else "shared",
        "pod_limit": outfit.pod_limit,
    }


def _nodes(name: str, nodes: RdmaNodes) -> tuple[DeviceNode, ...]:
    uverbs = nodes.uverbs.get(name)
    rest = (*nodes.mad.get(name, ()), *((nodes.rdma_cm,) if nodes.rdma_cm else ()))
    return ((uverbs,) if uverbs else ()) + tuple(sorted(rest, key=lambda node: node.path))


def functions_of_card(nic: Nic, nics: Iterable[Nic]) -> tuple[str, ...]:
    """Return the other functions of a card that is plugged into several roots (Socket Direct)."""
    guid, root = nic.primary.sys_image_guid, nic.function.root
    return tuple(
        other.function.address
        for other in nics
        if guid and other.primary.sys_image_guid == guid and other.function.root != root
    )


def describe_nic(
    nic: Nic,
    nodes: RdmaNodes,
    outfit: DeviceAttributes,
    vfs: VirtualFunctions,
    sisters: Sequence[str],
) -> VendorDevice:
    """Describe a NIC that the class shows."""
    function = nic.function
    facts = _common(nic.primary, outfit, nodes) | {
        "driver": function.driver,
        "lag": "true" if nic.members else None,
        "members": ",".join(nic.members),
        "other_names": ",".join(nic.others),
        "subfunctions": ",".join(nic.subfunctions),
        "sriov_numvfs": _count(function.numvfs),
        "sriov_totalvfs": _count(function.totalvfs),
        "samecard": ",".join(sisters),
    }
    return VendorDevice(
        kind=DeviceKind.RDMA,
        vendor=family(function.driver),
        bus_id=function.address,
        uuid=function.address,
        minor=outfit.minor,
        model=nic.primary.hca_type,
        health=outfit.health,
        resources=RESOURCES,
        labels=outfit.labels,
        facts=_pairs(facts),
        nodes=_nodes(nic.primary.name, nodes),
        ports=outfit.ports,
        vf_groups=vfs.groups,
    )


class DeviceAbsence(msgspec.Struct, frozen=True):
    """Why a function shows no RDMA device."""

    health: Health | None  # None: as before, nothing is wrong
    managed: bool
    in_namespace: bool = False


def judge_absence(
    function: RdmaPciFunction, seen: RdmaDeviceRecord | None, scan: RdmaScan
) -> DeviceAbsence:
    """Judge a function without RDMA device, by what it was in this boot.

    Where a device lives in one network namespace only, a bound driver whose RDMA module is
    loaded means that a pod has it.
    """
    if function.is_gone:
        return DeviceAbsence(health_of("DeviceGone", HealthState.FAILED), managed=True)
    driver = DRIVERS.get(function.driver or "")
    same = seen is not None and seen.driver == function.driver is not None
    loaded = driver is not None and driver.module in scan.loaded_modules
    if scan.has_exclusive_netns and (same or loaded):
        return DeviceAbsence(None, managed=True, in_namespace=True)
    if function.driver == "vfio-pci":
        return DeviceAbsence(health_of("BoundToVFIO", HealthState.SUSPECT), managed=False)
    if function.driver is None or (seen is not None and not same):
        return DeviceAbsence(health_of("DriverUnbound", HealthState.FAILED), managed=False)
    # one that never had a device since the boot is an Ethernet NIC as far as anybody can tell
    state = HealthState.FAILED if seen is not None else HealthState.HEALTHY
    return DeviceAbsence(health_of("NoRdmaDevice", state), managed=seen is not None)


def describe_absent_nic(
    function: RdmaPciFunction,
    seen: RdmaDeviceRecord | None,
    outfit: DeviceAttributes,
    vfs: VirtualFunctions,
    why: DeviceAbsence,
    last: VendorDevice | None = None,
) -> VendorDevice:
    """Describe a NIC whose RDMA device is not in the class: gone, unbound, or in a pod.

    What is known from `last` time stays, but its ports.
    """
    facts = {
        "name": seen.name if seen else None,
        "node_guid": show_guid(seen.guid or "") if seen else None,
        "driver": function.driver,
        "netdevs": ",".join(function.netdevs),
        "netns_mode": "exclusive" if outfit.exclusive else "shared",
        "in_namespace": "true" if why.in_namespace else None,
    }
    known = dict(last.facts) if last else {}
    return VendorDevice(
        kind=DeviceKind.RDMA,
        vendor=family(function.driver or (seen.driver if seen else None)),
        bus_id=function.address,
        uuid=function.address,
        minor=outfit.minor,
        model=last.model if last else None,
        managed=why.managed,
        health=outfit.health,
        resources=RESOURCES if why.managed else (),
        labels=outfit.labels,
        facts=_pairs(known | facts),
        nodes=last.nodes if last and why.in_namespace else (),
        vf_groups=vfs.groups,
    )


def describe_soft_device(
    item: RdmaClass, nodes: RdmaNodes, outfit: DeviceAttributes, *, uuid: str, managed: bool
) -> VendorDevice:
    """Describe a device that is software upon a network device; it is no NIC of its own."""
    health = outfit.health
    if not managed and health.state is HealthState.HEALTHY:
        health = replace(health, reason="SoftDevice", message=SOFT_WORDS)
    facts = _common(item, outfit, nodes) | {
        "parent": item.parent,
        "parent_bus_id": item.origin.address,
    }
    return VendorDevice(
        kind=DeviceKind.RDMA,
        vendor=item.soft_family,
        bus_id=None,
        uuid=uuid,
        minor=outfit.minor,
        managed=managed,
        health=health,
        resources=RESOURCES if managed else (),
        labels=outfit.labels,
        facts=_pairs(facts),
        nodes=_nodes(item.name, nodes),
        ports=outfit.ports,
    )


def describe_other_device(item: RdmaClass) -> VendorDevice:
    """Describe an entry of the class that is neither a PCI function nor known software."""
    health = Health(
        state=HealthState.SUSPECT,
        reason="NotOnPCI",
        message="an RDMA device of unknown kind: listed only",
    )
    return VendorDevice(
        kind=DeviceKind.RDMA,
        vendor="other",
        bus_id=None,
        uuid=f"other-{item.name}",
        model=item.hca_type,
        managed=False,
        health=health,
        facts=_pairs({"name": item.name, "node_guid": show_guid(item.node_guid or "")}),
    )


def node_fault(host: HostFiles, name: str, nodes: RdmaNodes, *, replay: bool) -> Health | None:
    """Say why no application can open a device; `None` if one can.

    Only uverbs is needed. Numbers of nodes are compared on this machine, where nodes exist; an
    agent that cannot see the host's `/dev/infiniband` at all has nothing to say.
    """
    node = nodes.uverbs.get(name)
    if node is None:
        return _unusable(f"no uverbs device of {name}: is the module ib_uverbs loaded")
    if replay or not host.exists("/dev/infiniband"):
        return None
    found = host.device_number(node.path)
    if found is None:
        return _unusable(f"{node.path} is missing")
    if found != (node.major, node.minor):
        numbers = f"{found[0]}:{found[1]}, the kernel says {node.major}:{node.minor}"
        return _unusable(f"{node.path} is {numbers}")
    return None


def _unusable(message: str) -> Health:
    return Health(state=HealthState.FAILED, reason="DeviceNodeMissing", message=message)


def soft_of(classes: Iterable[RdmaClass]) -> tuple[tuple[str, RdmaClass], ...]:
    """Return soft devices with distinct identities: two on one MAC address share their GUID."""
    found: dict[str, RdmaClass] = {}
    for item in classes:
        if item.origin.kind is ClassKind.SOFT:
            name = soft_id(item)
            found[name if name not in found else f"{name}-{item.name}"] = item
    return tuple(found.items())
