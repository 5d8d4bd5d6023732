from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.devices.joiner import build_device_view
from agent.snapshot.cpu import CpuPackage, CpuTopology
from agent.snapshot.device import (
    DeviceKind,
    DeviceLink,
    Health,
    HealthState,
    Placement,
    VendorDevice,
)
from agent.snapshot.inventory import Inventory, Problem
from agent.snapshot.node import DeviceView
from agent.snapshot.pci import FilePlace, NumaOverride, PciFunction, PciLink, PciTree, TopologyFile
from agent.topology.placement import PlacementRules, PlacementSettings
from agent.topology.topology_file import parse_topology_file
from tests.captures import SHARED, needs_shared
from tests.machines import machine, nodes, tree_of

CPUS = CpuTopology(
    packages=tuple(
        CpuPackage(socket=i, package_id=10 + i, cpus=frozenset((2 * i, 2 * i + 1))) for i in (0, 1)
    )
)
TWO = nodes(2)


def card(bus_id: str | None, minor: int | None = 0, **facts: object) -> VendorDevice:
    base = {"kind": DeviceKind.GPU, "vendor": "nvidia", "bus_id": bus_id, "minor": minor}
    return VendorDevice(**{**base, **facts})  # type: ignore[arg-type]  # a test's own fields


def function(address: str, node: int = 0, **facts: object) -> PciFunction:
    base = {"address": address, "root": f"pci{address[:7]}", "numa_node": node}
    return PciFunction(**{**base, **facts})  # type: ignore[arg-type]  # a test's own fields


def joined(*devices: VendorDevice, tree: PciTree, **settings: object) -> DeviceView:
    return build_device_view(
        [Inventory(vendor="nvidia", devices=devices)],
        tree,
        CPUS,
        TWO,
        PlacementSettings(**settings),  # type: ignore[arg-type]  # a test's own fields
    )


def place_of(address: str, tree: PciTree, **settings: object) -> Placement:
    return joined(card(address), tree=tree, **settings).devices[0].place


@needs_shared
@pytest.mark.parametrize(
    ("address", "scope", "scope_id", "socket"),
    [
        pytest.param("0000:23:00.0", "root", "pci0000:20", 0, id="vector 29"),
        pytest.param("0000:23:00.0", "switch", "pci0000:20/0000:21:00.0", 0, id="vector 29 switch"),
        pytest.param("0000:b5:00.0", "root", "pci0000:b0", 1, id="vector 30"),
        pytest.param("0000:27:00.0", "switch", "pci0000:20", 0, id="vector 31: no switch"),
    ],
)
def test_a_device_of_the_guest_has_its_scope(
    address: str, scope: str, scope_id: str, socket: int
) -> None:
    observations = machine("qemu")
    inventory = Inventory(vendor="nvidia", devices=(card(address),))
    settings = PlacementSettings(pcie_scope=scope)
    device = build_device_view(
        [inventory], observations.tree, observations.cpus, observations.numa, settings
    ).devices[0]
    assert (device.pcie_scope_id, device.place.socket) == (scope_id, socket)


@needs_shared
@pytest.mark.parametrize(
    ("scope", "scope_ids"),
    [
        pytest.param("switch", ["numa0/ffff:ff:01.0"] * 2, id="vector 48: by the file"),
        pytest.param("root", ["pci0001:00", "pci0101:00"], id="vector 48: roots stay"),
    ],
)
def test_devices_of_one_virtual_switch_share_its_scope(scope: str, scope_ids: list[str]) -> None:
    path = SHARED / "captures" / "nccl-topo" / "azure-ndv5-h100.xml"
    rules = PlacementRules(file=parse_topology_file(path.read_bytes(), "ndv5.xml"))
    addresses = ("0001:00:00.0", "0101:00:00.0")
    tree = tree_of(*(function(address, -1, class_code=0x030200) for address in addresses))
    view = joined(
        *(card(a, n) for n, a in enumerate(addresses)), tree=tree, rules=rules, pcie_scope=scope
    )
    assert [device.pcie_scope_id for device in view.devices] == scope_ids
    assert [device.place.numa_node for device in view.devices] == [0, 0]
    assert view.devices[0].place.numa_source == "topology_file"
    assert (view.topology_file or "").startswith("ndv5.xml ")


def test_the_socket_and_its_package_are_those_of_the_memory_node() -> None:
    place = place_of("0000:18:00.0", tree_of(function("0000:18:00.0", 1)))
    assert (place.numa_node, place.socket, place.package_id) == (1, 1, 11)


def test_vector_46_too_few_lanes_show_at_once_and_low_speed_when_it_lasts() -> None:
    port = function("0000:17:00.0", link=PciLink(max_speed=320, max_width=16))
    narrow = PciLink(speed=320, width=8, max_speed=320, max_width=16)
    slow = PciLink(speed=25, width=16, max_speed=320, max_width=16)
    for link, lasting, verdict in (
        (narrow, False, "width"),
        (slow, False, None),
        (slow, True, "speed"),
    ):
        device = function("0000:18:00.0", bridges=(port.address,), link=link)
        place = place_of(
            device.address,
            tree_of(port, device),
            slow_links=frozenset({device.address} if lasting else ()),
        )
        assert place.link_degraded == verdict


def test_acs_words_are_those_of_the_bridges_and_unreadable_is_not_absent() -> None:
    port = function("0000:17:00.0", port_type=4, acs_control=0x1D)
    other = function("0000:18:00.0", bridges=(port.address,), port_type=5)
    device = function("0000:1a:00.0", bridges=(port.address, other.address))
    assert place_of(device.address, tree_of(port, other, device)).acs == (0x1D, None)
    assert place_of(device.address, tree_of(device)).acs is None


def test_soft_roce_sits_where_its_parent_does() -> None:
    rxe = card(None, kind=DeviceKind.RDMA, facts=(("parent_bus_id", "0000:25:00.0"),))
    device = joined(rxe, tree=tree_of(function("0000:25:00.0", 1))).devices[0]
    assert (device.place.numa_node, device.pcie_scope_id) == (1, "pci0000:25")
    assert device.info.bus_id is None


def test_a_device_without_any_function_has_no_place() -> None:
    device = joined(card(None, uuid="x"), tree=PciTree()).devices[0]
    assert (device.place, device.pcie_scope_id) == (Placement(), "")


def test_devices_come_by_type_minor_and_address_whatever_the_inventories_order() -> None:
    tree = tree_of(*(function(f"0000:{bus}:00.0") for bus in ("18", "2a", "3b", "4c")))
    gpus = Inventory(vendor="nvidia", devices=(card("0000:2a:00.0", 1), card("0000:18:00.0", 0)))
    nics = Inventory(
        vendor="rdma",
        devices=(
            card("0000:4c:00.0", None, kind=DeviceKind.RDMA),
            card("0000:3b:00.0", 0, kind=DeviceKind.RDMA),
        ),
    )
    views = [build_device_view(order, tree, CPUS, TWO) for order in ([gpus, nics], [nics, gpus])]
    assert views[0] == views[1]
    assert [device.key[5:7] for device in views[0].devices] == ["18", "2a", "3b", "4c"]


def test_of_two_equal_minors_the_later_in_pci_order_loses_its_own() -> None:
    tree = tree_of(function("0000:18:00.0"), function("0000:2a:00.0"))
    view = joined(card("0000:2a:00.0", 3), card("0000:18:00.0", 3), tree=tree)
    assert [(d.key, d.info.minor, d.info.health.reason) for d in view.devices] == [
        ("0000:18:00.0", 3, "DeviceHealthy"),
        ("0000:2a:00.0", None, "DuplicateMinor"),
    ]
    assert [(vendor, p.reason) for vendor, p in view.problems] == [("nvidia", "DuplicateMinor")]


def test_a_fault_is_a_better_reason_than_an_equal_minor() -> None:
    failed = Health(state=HealthState.FAILED, reason="Xid79")
    tree = tree_of(function("0000:18:00.0"), function("0000:2a:00.0"))
    view = joined(card("0000:18:00.0"), card("0000:2a:00.0", health=failed), tree=tree)
    assert (view.devices[1].info.minor, view.devices[1].info.health.reason) == (None, "Xid79")


def test_cards_of_two_vendors_count_on_and_nics_on_their_own() -> None:
    npu = Inventory(
        vendor="huawei",
        devices=tuple(
            card(f"0000:c{n}:00.0", n, kind=DeviceKind.NPU, vendor="huawei") for n in range(2)
        ),
    )
    gpu = Inventory(vendor="nvidia", devices=tuple(card(f"0000:1{n}:00.0", n) for n in range(3)))
    nic = Inventory(vendor="rdma", devices=(card("0000:20:00.0", 0, kind=DeviceKind.RDMA),))
    view = build_device_view([gpu, npu, nic], PciTree(), CPUS, TWO)
    assert [(d.key, d.info.minor) for d in view.devices] == [
        ("0000:c0:00.0", 0),
        ("0000:c1:00.0", 1),
        ("0000:12:00.0", 2),
        ("0000:10:00.0", 3),
        ("0000:11:00.0", 4),
        ("0000:20:00.0", 0),
    ]
    assert dict(view.devices[3].info.facts) == {"vendor_minor": "0"}


def reasons(view: DeviceView) -> list[str]:
    return [problem.reason for _, problem in view.problems]


def flat(count: int) -> PciTree:
    return tree_of(
        *(
            function(f"0000:0{n}:00.0", root="pci0000:00", bridges=(f"0000:00:0{n}.0",))
            for n in range(1, count + 1)
        )
    )


def test_accelerators_flat_below_one_root_are_reported() -> None:
    view = joined(card("0000:01:00.0", 0), card("0000:02:00.0", 1), tree=flat(2))
    assert reasons(view) == ["FlatPCITopology"]


def test_one_accelerator_is_not_flat_and_switches_of_a_file_count() -> None:
    assert reasons(joined(card("0000:01:00.0"), tree=flat(1))) == []
    places = {f"0000:0{n}:00.0": FilePlace(0, ("ffff:ff:01.0",)) for n in (1, 2)}
    rules = PlacementRules(file=TopologyFile(label="x", places=places))
    view = joined(card("0000:01:00.0", 0), card("0000:02:00.0", 1), tree=flat(2), rules=rules)
    assert reasons(view) == []


def test_unknown_memory_nodes_are_reported_once_a_root() -> None:
    tree = tree_of(
        *(function(f"0000:1{n}:00.0", -1, root="pci0000:10") for n in range(3)),
        function("0000:20:00.0", -1),
    )
    view = joined(*(card(a, n) for n, a in enumerate(tree.functions)), tree=tree)
    assert reasons(view) == ["UnknownNumaNode"] * 2
    assert view.problems[0][1].message.startswith("pci0000:10: the memory node of 3 devices")


def test_odd_settings_and_firmware_are_reported() -> None:
    rules = PlacementRules(overrides=(NumaOverride("0000:99:00.0", 0),))
    view = joined(card("0000:18:00.0"), tree=tree_of(function("0000:18:00.0", 7)), rules=rules)
    assert reasons(view) == ["NumaOverrideUnused", "NumaNodeMissing", "UnknownNumaNode"]


def test_an_absurd_topology_file_is_refused_and_the_facts_of_sysfs_stay() -> None:
    file = TopologyFile(label="x", places={"0000:18:00.0": FilePlace(1)})
    tree = tree_of(function("0000:18:00.0", 0, class_code=0x060000))
    view = joined(card("0000:18:00.0"), tree=tree, rules=PlacementRules(file=file))
    assert reasons(view) == ["TopologyFileRefused"]
    assert view.devices[0].place.numa_node == 0
    assert view.topology_file is None


def test_a_topology_file_that_could_not_be_parsed_is_reported() -> None:
    view = joined(tree=PciTree(), file_refusal="topology file x: has a DTD or an entity")
    assert reasons(view) == ["TopologyFileRefused"]


def test_problems_and_links_of_the_vendors_are_kept() -> None:
    problem = Problem(reason="LibraryMissing", message="no libnvidia-ml.so.1")
    link = DeviceLink(a="0000:18:00.0", b="0000:2a:00.0", type="NVLink", count=4)
    inventory = Inventory(vendor="nvidia", problems=(problem,), links=(link, link))
    view = build_device_view([inventory], PciTree(), CPUS, TWO)
    assert view == DeviceView(links=(link,), problems=(("nvidia", problem),))


infos = st.builds(
    card,
    st.none()
    | st.sampled_from(["0000:18:00.0", "0000:2a:00.0", "0000:3b:00.0"])
    | st.text(max_size=5),
    st.none() | st.integers(-1, 3),
    kind=st.sampled_from(DeviceKind),
    uuid=st.none() | st.text(max_size=5),
    facts=st.sampled_from([(), (("parent_bus_id", "0000:18:00.0"),), (("parent_bus_id", "x"),)]),
)
inventories = st.lists(
    st.builds(
        Inventory,
        vendor=st.sampled_from(["a", "b", "c"]),
        devices=st.lists(infos, max_size=5).map(tuple),
    ),
    max_size=3,
    unique_by=lambda inventory: inventory.vendor,
)


@given(inventories)
def test_no_function_is_lost_and_minors_are_unique(found: list[Inventory]) -> None:
    view = build_device_view(found, tree_of(function("0000:18:00.0", -1)), CPUS, TWO)
    reports = [device for inventory in found for device in inventory.devices]
    shown = [device.info for device in view.devices]
    assert {device.bus_id for device in shown} == {device.bus_id for device in reports}
    off_bus = [device.uuid for device in reports if not device.bus_id]
    assert sorted(off_bus, key=repr) == sorted((d.uuid for d in shown if not d.bus_id), key=repr)
    minors = [
        (device.info.kind.wire_type, device.info.minor)
        for device in view.devices
        if device.info.minor is not None
    ]
    assert len(minors) == len(set(minors))
    assert build_device_view(found[::-1], tree_of(function("0000:18:00.0", -1)), CPUS, TWO) == view
