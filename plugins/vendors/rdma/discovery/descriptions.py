"""Describes RDMA devices for the inventory. Pure, except for the check of device nodes."""

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
    """Facts about a device besides the files of its class."""

    minor: int | None = None
    labels: Pairs = ()
    health: Health = PENDING
    ports: tuple[DevicePort, ...] = ()
    netdevs: tuple[str, ...] = ()
    pod_limit: str | None = None  # of the RDMA cgroup controller
    exclusive: bool = False


def family(driver: str | None) -> str:
    """Return the family of a driver; `other` for an unknown one."""
    return driver if driver in DRIVERS and driver else "other"


def soft_id(rdma_class: RdmaClass) -> str:
    """Return the identity of a device without PCI function."""
    return f"soft-{rdma_class.node_guid or rdma_class.name}"


def _pairs(facts: Mapping[str, str | None]) -> Pairs:
    return tuple((name, value) for name, value in facts.items() if value)


def _count(value: int | None) -> str | None:
    return None if value is None else str(value)


def _prefixes(ports: Iterable[DevicePort]) -> set[str]:
    """Return the subnet prefixes of InfiniBand ports."""
    return {subnet_prefix(p.gid) for p in ports if p.gid and p.link_layer == INFINIBAND}


def _common(
    rdma_class: RdmaClass, attributes: DeviceAttributes, nodes: RdmaNodes
) -> dict[str, str | None]:
    """Return the facts that all devices of the class have."""
    link_layers = {port.link_layer for port in attributes.ports if port.link_layer}
    mad_names = {
        node.path.rpartition("/")[2].rstrip("0123456789")
        for node in nodes.mad.get(rdma_class.name, ())
    }
    missing = [name for name in ("umad", "issm") if name not in mad_names]
    missing += [] if nodes.rdma_cm else ["rdma_cm"]
    return {
        "name": rdma_class.name,
        "netdevs": ",".join(attributes.netdevs),
        "node_guid": show_guid(rdma_class.node_guid or ""),
        "sys_image_guid": show_guid(rdma_class.sys_image_guid or ""),
        "firmware": rdma_class.firmware,
        "hca_type": rdma_class.hca_type,
        "board_id": rdma_class.board_id,
        "link_layer": ",".join(sorted(link_layers)),
        "subnet_prefix": ",".join(sorted(_prefixes(attributes.ports))),
        "pkeys": ",".join(sorted({key for port in attributes.ports for key in port.pkeys})),
        "missing": ",".join(missing),
        "netns_mode": "exclusive" if attributes.exclusive else "shared",
        "pod_limit": attributes.pod_limit,
    }


def _nodes(name: str, nodes: RdmaNodes) -> tuple[DeviceNode, ...]:
    uverbs = nodes.uverbs.get(name)
    other_nodes = (*nodes.mad.get(name, ()), *((nodes.rdma_cm,) if nodes.rdma_cm else ()))
    return ((uverbs,) if uverbs else ()) + tuple(sorted(other_nodes, key=lambda node: node.path))


def functions_of_card(nic: Nic, nics: Iterable[Nic]) -> tuple[str, ...]:
    """Return the other functions of a card that is connected to several roots (Socket Direct)."""
    guid, root = nic.primary.sys_image_guid, nic.function.root
    return tuple(
        other.function.address
        for other in nics
        if guid and other.primary.sys_image_guid == guid and other.function.root != root
    )


def describe_nic(
    nic: Nic,
    nodes: RdmaNodes,
    attributes: DeviceAttributes,
    vfs: VirtualFunctions,
    other_functions: Sequence[str],
) -> VendorDevice:
    """Describe a NIC whose RDMA device is in the class."""
    function = nic.function
    facts = _common(nic.primary, attributes, nodes) | {
        "driver": function.driver,
        "lag": "true" if nic.members else None,
        "members": ",".join(nic.members),
        "other_names": ",".join(nic.others),
        "subfunctions": ",".join(nic.subfunctions),
        "sriov_numvfs": _count(function.numvfs),
        "sriov_totalvfs": _count(function.totalvfs),
        "samecard": ",".join(other_functions),
    }
    return VendorDevice(
        kind=DeviceKind.RDMA,
        vendor=family(function.driver),
        bus_id=function.address,
        uuid=function.address,
        minor=attributes.minor,
        model=nic.primary.hca_type,
        health=attributes.health,
        resources=RESOURCES,
        labels=attributes.labels,
        facts=_pairs(facts),
        nodes=_nodes(nic.primary.name, nodes),
        ports=attributes.ports,
        vf_groups=vfs.groups,
    )


class DeviceAbsence(msgspec.Struct, frozen=True):
    """Why a function has no visible RDMA device."""

    health: Health | None  # None: as before, nothing is wrong
    managed: bool
    in_namespace: bool = False


def judge_absence(
    function: RdmaPciFunction, record: RdmaDeviceRecord | None, scan: RdmaScan
) -> DeviceAbsence:
    """Judge a function without RDMA device by its record of this boot.

    Where devices belong to one network namespace only, a bound driver with a loaded RDMA module
    means that a pod has the device.
    """
    if function.is_gone:
        return DeviceAbsence(health_of("DeviceGone", HealthState.FAILED), managed=True)
    driver = DRIVERS.get(function.driver or "")
    has_same_driver = record is not None and record.driver == function.driver is not None
    is_module_loaded = driver is not None and driver.module in scan.loaded_modules
    if scan.has_exclusive_netns and (has_same_driver or is_module_loaded):
        return DeviceAbsence(None, managed=True, in_namespace=True)
    if function.driver == "vfio-pci":
        return DeviceAbsence(health_of("BoundToVFIO", HealthState.SUSPECT), managed=False)
    if function.driver is None or (record is not None and not has_same_driver):
        return DeviceAbsence(health_of("DriverUnbound", HealthState.FAILED), managed=False)
    # one that never had a device since the boot is an Ethernet NIC as far as anybody can tell
    state = HealthState.FAILED if record is not None else HealthState.HEALTHY
    return DeviceAbsence(health_of("NoRdmaDevice", state), managed=record is not None)


def describe_absent_nic(
    function: RdmaPciFunction,
    record: RdmaDeviceRecord | None,
    attributes: DeviceAttributes,
    vfs: VirtualFunctions,
    absence: DeviceAbsence,
    last: VendorDevice | None = None,
) -> VendorDevice:
    """Describe a NIC whose RDMA device is not in the class: removed, unbound, or in a pod.

    The facts of the `last` description stay, without its ports.
    """
    facts = {
        "name": record.name if record else None,
        "node_guid": show_guid(record.guid or "") if record else None,
        "driver": function.driver,
        "netdevs": ",".join(function.netdevs),
        "netns_mode": "exclusive" if attributes.exclusive else "shared",
        "in_namespace": "true" if absence.in_namespace else None,
    }
    last_facts = dict(last.facts) if last else {}
    return VendorDevice(
        kind=DeviceKind.RDMA,
        vendor=family(function.driver or (record.driver if record else None)),
        bus_id=function.address,
        uuid=function.address,
        minor=attributes.minor,
        model=last.model if last else None,
        managed=absence.managed,
        health=attributes.health,
        resources=RESOURCES if absence.managed else (),
        labels=attributes.labels,
        facts=_pairs(last_facts | facts),
        nodes=last.nodes if last and absence.in_namespace else (),
        vf_groups=vfs.groups,
    )


def describe_soft_device(
    rdma_class: RdmaClass,
    nodes: RdmaNodes,
    attributes: DeviceAttributes,
    *,
    uuid: str,
    managed: bool,
) -> VendorDevice:
    """Describe a software device on a network device, such as soft-RoCE."""
    health = attributes.health
    if not managed and health.state is HealthState.HEALTHY:
        health = replace(health, reason="SoftDevice", message=SOFT_WORDS)
    facts = _common(rdma_class, attributes, nodes) | {
        "parent": rdma_class.parent,
        "parent_bus_id": rdma_class.origin.address,
    }
    return VendorDevice(
        kind=DeviceKind.RDMA,
        vendor=rdma_class.soft_family,
        bus_id=None,
        uuid=uuid,
        minor=attributes.minor,
        managed=managed,
        health=health,
        resources=RESOURCES if managed else (),
        labels=attributes.labels,
        facts=_pairs(facts),
        nodes=_nodes(rdma_class.name, nodes),
        ports=attributes.ports,
    )


def describe_other_device(rdma_class: RdmaClass) -> VendorDevice:
    """Describe an entry of the class that is neither a PCI function nor a known software device."""
    health = Health(
        state=HealthState.SUSPECT,
        reason="NotOnPCI",
        message="an RDMA device of unknown kind: listed only",
    )
    return VendorDevice(
        kind=DeviceKind.RDMA,
        vendor="other",
        bus_id=None,
        uuid=f"other-{rdma_class.name}",
        model=rdma_class.hca_type,
        managed=False,
        health=health,
        facts=_pairs({"name": rdma_class.name, "node_guid": show_guid(rdma_class.node_guid or "")}),
    )


def node_fault(host: HostFiles, name: str, nodes: RdmaNodes, *, replay: bool) -> Health | None:
    """Return the fault of a device that no application can open; `None` if it can be opened.

    Applications need its uverbs node. The numbers of the node are not compared on a recording, nor
    if the agent does not see the host's `/dev/infiniband`.
    """
    node = nodes.uverbs.get(name)
    if node is None:
        return _unusable(f"no uverbs device of {name}: is the module ib_uverbs loaded")
    if replay or not host.exists("/dev/infiniband"):
        return None
    actual = host.device_number(node.path)
    if actual is None:
        return _unusable(f"{node.path} is missing")
    if actual != (node.major, node.minor):
        comparison = f"{actual[0]}:{actual[1]}, the kernel says {node.major}:{node.minor}"
        return _unusable(f"{node.path} is {comparison}")
    return None


def _unusable(message: str) -> Health:
    return Health(state=HealthState.FAILED, reason="DeviceNodeMissing", message=message)


def soft_of(classes: Iterable[RdmaClass]) -> tuple[tuple[str, RdmaClass], ...]:
    """Return software devices with distinct identities: two on one MAC address share their GUID."""
    devices: dict[str, RdmaClass] = {}
    for rdma_class in classes:
        if rdma_class.origin.kind is ClassKind.SOFT:
            identity = soft_id(rdma_class)
            devices[identity if identity not in devices else f"{identity}-{rdma_class.name}"] = (
                rdma_class
            )
    return tuple(devices.items())
