"""Hosts with cards of several makers: a container gets the nodes and names of its own devices.

Published minors are unique across vendors, drivers' numbers are not. So a mixed host renumbers
cards, and nothing that reaches a driver, a runtime or a container may use the published number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.allocation.cdi_files import build_cdi_files
from agent.config.containers import DevicePluginSettings
from agent.devices.minors import assign_minors
from agent.snapshot.allocation import AllocatedDevice, AllocationRefused, DeviceAllocation
from agent.snapshot.container import ContainerSpec
from agent.snapshot.device import Device, DeviceKind, DeviceNode, VendorDevice, pci_address_of
from agent.snapshot.edits import ContainerEdits
from agent.snapshot.host_devices import CdiDevice, CdiSpec, HostDevices, HostDevicesView
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import NodeIdentity, NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.vendor import injecting_vendors
from agent.workers.load import load_vendors
from plugins.vendors.ascend.kubelet import kubelet_units
from plugins.vendors.nvidia.settings import NvidiaSettings

VENDORS = load_vendors()


class Maker(msgspec.Struct, frozen=True):
    """How one maker's driver, runtime and CDI files call its cards."""

    plugin: str  # name of the vendor plug-in
    vendor: str
    kind: DeviceKind
    node: str  # before the driver's number
    major: int
    handler: str  # of the maker's container runtime
    variable: str
    cdi_kind: str
    cdi_prefix: str


MAKERS = (
    Maker(
        *("nvidia", "nvidia", DeviceKind.GPU, "/dev/nvidia", 195, "nvidia"),
        *("NVIDIA_VISIBLE_DEVICES", "nvidia.com/gpu", ""),
    ),
    Maker(
        *("ascend", "huawei", DeviceKind.NPU, "/dev/davinci", 238, "ascend"),
        *("ASCEND_VISIBLE_DEVICES", "ascend.com/npu", ""),
    ),
    Maker(
        *("cambricon", "cambricon", DeviceKind.MLU, "/dev/cambricon_dev", 239, "cambricon"),
        *("CAMBRICON_VISIBLE_DEVICES", "cambricon.com/mlu", "mlu-"),
    ),
)
BY_VENDOR = {maker.vendor: maker for maker in MAKERS}
CONTROL = (
    DeviceNode(path="/dev/nvidiactl", major=195, minor=255),
    DeviceNode(path="/dev/nvidia-uvm", major=511, minor=0),
    DeviceNode(path="/dev/davinci_manager", major=237, minor=0),
    DeviceNode(path="/dev/cambricon_ctl", major=236, minor=0),
)
MAJORS = (("nvidia", 195), ("nvidia-uvm", 511))


def card(maker: Maker, place: int, number: int) -> VendorDevice:
    """Describe a card as its vendor's worker does, at its place in the PCI order."""
    bus = MAKERS.index(maker) * 0x20 + place
    return VendorDevice(
        kind=maker.kind,
        vendor=maker.vendor,
        bus_id=f"0000:{bus:02x}:00.0",
        uuid=f"{maker.vendor}-card-{number}",
        minor=number,
        vendor_minor=number,
        resources=(("koordinator.sh/gpu-core", "100"),),
        facts=(("family", "910B"),) if maker.vendor == "huawei" else (),
        nodes=(DeviceNode(path=f"{maker.node}{number}", major=maker.major, minor=number),),
    )


def numbers_of_one_maker() -> st.SearchStrategy[list[int]]:
    """Draw the driver's numbers of a maker's cards in PCI order: often 0 to n, not always."""
    return st.integers(0, 6).map(lambda count: list(range(count))) | st.lists(
        st.integers(0, 11), max_size=6, unique=True
    )


def devices_of(numbers: Sequence[Sequence[int]], shift: int) -> tuple[VendorDevice, ...]:
    """Return the devices of a host as the agent publishes them.

    `shift` is added to each minor: an earlier state of the host may have left any numbers.
    """
    items = [
        (maker.plugin, card(maker, place, number))
        for maker, of_maker in zip(MAKERS, numbers, strict=True)
        for place, number in enumerate(of_maker)
    ]
    devices, problems = assign_minors(items, pci_address_of)
    assert not problems
    minors = [device.minor for device in devices]
    assert len(set(minors)) == len(minors)
    return tuple(replace(device, minor=shift + (device.minor or 0)) for device in devices)


HOSTS = st.builds(
    devices_of, st.tuples(*(numbers_of_one_maker() for _ in MAKERS)), st.integers(0, 3)
)
Devices = Sequence[VendorDevice]


def host_of(devices: Sequence[VendorDevice], **changes: object) -> HostDevices:
    own = tuple(node for device in devices for node in device.nodes)
    return replace(HostDevices(nodes=(*CONTROL, *own), majors=MAJORS), **changes)


def specs_of(devices: Sequence[VendorDevice]) -> tuple[CdiSpec, ...]:
    """Return the makers' CDI files: names are the drivers' numbers."""
    return tuple(
        CdiSpec(
            path=f"/etc/cdi/{maker.plugin}.yaml",
            kind=maker.cdi_kind,
            devices=tuple(
                CdiDevice(
                    name=f"{maker.cdi_prefix}{node.path.removeprefix(maker.node)}",
                    nodes=(node.path,),
                )
                for device in devices
                if device.vendor == maker.vendor
                for node in device.nodes
            ),
        )
        for maker in MAKERS
    )


def edits_of(
    vendor_device: VendorDevice,
    devices: Sequence[VendorDevice],
    host: HostDevices,
    *,
    handler: str = "",
    by_id: bool = True,
) -> ContainerEdits:
    maker = BY_VENDOR[vendor_device.vendor]
    entry = AllocatedDevice(
        type="gpu", id=vendor_device.uuid or "" if by_id else "", minor=vendor_device.minor
    )
    container = ContainerSpec(name="worker", runtime_handler=handler)
    own = [device for device in devices if device.vendor == maker.vendor]
    return injecting_vendors(VENDORS)[maker.plugin].edits(
        own, DeviceAllocation(devices=(entry,)), container, host
    )


def foreign_nodes(edits: ContainerEdits, vendor_device: VendorDevice) -> set[tuple[str, int, int]]:
    """Return the nodes in `edits` that belong to neither the driver as a whole nor the device."""
    common = {(node.path, node.major, node.minor) for node in (*CONTROL, *vendor_device.nodes)}
    return {(node.host_path, node.major, node.minor) for node in edits.nodes} - common


@given(HOSTS, st.booleans())
def test_each_granted_device_comes_with_its_own_nodes(devices: Devices, by_id: bool) -> None:
    host = host_of(devices)
    for device in devices:
        edits = edits_of(device, devices, host, by_id=by_id)
        assert {node.path for node in device.nodes} <= {node.host_path for node in edits.nodes}
        assert not foreign_nodes(edits, device)


@given(HOSTS)
def test_each_granted_device_is_named_to_its_runtime_as_its_driver_does(devices: Devices) -> None:
    for device in devices:
        maker = BY_VENDOR[device.vendor]
        edits = edits_of(device, devices, host_of(devices), handler=maker.handler)
        own = device.nodes[0].path.removeprefix(maker.node)
        value = device.uuid if maker.plugin == "nvidia" else own
        assert dict(edits.env)[maker.variable] == value
        settings = NvidiaSettings(upstream_compatible=True)
        edits = edits_of(
            device, devices, host_of(devices, settings=settings), handler=maker.handler
        )
        if maker.plugin == "nvidia":
            assert dict(edits.env)[maker.variable] == own


@given(HOSTS)
def test_each_granted_device_has_the_cdi_name_whose_nodes_are_its_own(devices: Devices) -> None:
    specs = specs_of(devices)
    host = host_of(devices, cdi=specs, cdi_enabled=True)
    nodes = {f"{spec.kind}={one.name}": one.nodes for spec in specs for one in spec.devices}
    for device in devices:
        own = VENDORS[BY_VENDOR[device.vendor].plugin].description.settings()
        cdi_host = replace(host, settings=own.with_injection("cdi"))
        (name,) = edits_of(device, devices, cdi_host).cdi
        assert nodes[name] == tuple(node.path for node in device.nodes)


@given(HOSTS)
def test_the_agents_own_cdi_files_name_each_device_by_its_drivers_number(devices: Devices) -> None:
    host = host_of(devices)
    states = tuple(
        VendorState(
            vendor=maker.plugin,
            inventory=SnapshotPart(
                Inventory(
                    vendor=maker.plugin,
                    devices=tuple(device for device in devices if device.vendor == maker.vendor),
                ),
                1.0,
            ),
        )
        for maker in MAKERS
    )
    snapshot = NodeSnapshot(
        node=NodeIdentity(name="a"),
        vendors=states,
        host_devices=SnapshotPart(
            HostDevicesView(vendors={maker.plugin: host for maker in MAKERS}), 1.0
        ),
    )
    cdi_files = build_cdi_files(snapshot, VENDORS)
    assert not cdi_files.problems
    for maker in MAKERS[1:]:  # NVIDIA's file needs the driver's files
        own = [device for device in devices if device.vendor == maker.vendor]
        files = [file for file in cdi_files.files if file.name == f"xpu-agent-{maker.plugin}.json"]
        assert bool(files) is bool(own)
        spec = json.loads(files[0].text) if files else {"devices": []}
        paths = {
            device["name"]: {node["path"] for node in device["containerEdits"]["deviceNodes"]}
            for device in spec["devices"]
        }
        control = {node.path for node in CONTROL}
        expected = {
            f"{maker.cdi_prefix}{one.vendor_minor}": {node.path for node in one.nodes}
            for one in own
        }
        assert {name: cdi_files - control for name, cdi_files in paths.items()} == expected


@given(HOSTS)
def test_chips_have_the_ids_of_huaweis_plug_in_at_the_kubelet(devices: Devices) -> None:
    chips = [Device(info=device) for device in devices if device.kind is DeviceKind.NPU]
    units = [unit for _, unit in kubelet_units(chips, DevicePluginSettings(), [])]
    ids = {unit.id: unit.device.info.nodes[0].path for unit in units}
    assert ids == {f"Ascend910-{chip.info.vendor_minor}": chip.info.nodes[0].path for chip in chips}


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.plugin)
def test_a_device_whose_driver_gave_no_number_is_refused(maker: Maker) -> None:
    allocations = replace(card(maker, 0, 0), vendor_minor=None)
    host = host_of([allocations])
    with pytest.raises(AllocationRefused, match="DeviceUnknown"):
        edits_of(allocations, [allocations], host)
