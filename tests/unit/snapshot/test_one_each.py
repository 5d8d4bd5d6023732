"""One device for each function, whoever lists it, and places that only a file tells."""

from __future__ import annotations

import itertools

import pytest

from agent.devices.joiner import build_device_view
from agent.snapshot.cpu import CpuTopology, NumaTopology
from agent.snapshot.device import Device, DeviceKind, VendorDevice
from agent.snapshot.inventory import Inventory
from agent.snapshot.pci import PciFunction, PciTree
from tests.captures import needs_shared
from tests.machines import Sysfs, machine, nodes, tree_of

ADDRESS = "0000:3b:00.0"
PLAIN = VendorDevice(kind=DeviceKind.XPU, vendor="metax", bus_id=ADDRESS, managed=False)
NO_TREE, NO_NODES = PciTree(), NumaTopology()
CORE = (("koordinator.sh/gpu-core", "100"),)


def described(**facts: object) -> VendorDevice:
    base = {"kind": DeviceKind.XPU, "vendor": "metax", "bus_id": ADDRESS}
    return VendorDevice(**{**base, **facts})  # type: ignore[arg-type]  # a test's own fields


def joined(
    result: dict[str, VendorDevice], tree: PciTree = NO_TREE, numa: NumaTopology = NO_NODES
) -> tuple[Device, ...]:
    inventories = [Inventory(vendor=name, devices=(device,)) for name, device in result.items()]
    views = {
        build_device_view(order, tree, CpuTopology(), numa)
        for order in itertools.permutations(inventories)
    }
    (view,) = views  # in whatever order the answers come
    return view.devices


@pytest.mark.parametrize(
    ("better", "other"),
    [
        pytest.param(described(), PLAIN, id="managed before listed"),
        pytest.param(described(minor=0), described(facts=(("a", "b"),)), id="with a number"),
        pytest.param(described(minor=0, resources=CORE), described(minor=1), id="with resources"),
        pytest.param(described(facts=(("a", "b"),)), described(), id="with more facts"),
    ],
)
def test_the_better_of_two_descriptions_is_kept(better: VendorDevice, other: VendorDevice) -> None:
    for names in (("a", "b"), ("b", "a")):
        (records,) = joined(dict(zip(names, (better, other), strict=True)))
        assert records.info == better


def test_of_two_equal_ones_the_first_vendor_counts() -> None:
    (records,) = joined({"b": described(model="b"), "a": described(model="a")})
    assert records.info.model == "a"


def test_one_spelling_of_an_address_is_every_spelling() -> None:
    (records,) = joined({"a": described(bus_id="00000000:3B:00.0"), "b": PLAIN})
    assert records.info.managed


def test_what_stands_beside_a_function_is_not_the_function() -> None:
    soft = VendorDevice(
        kind=DeviceKind.RDMA,
        vendor="rxe",
        bus_id=None,
        uuid="soft",
        facts=(("parent_bus_id", ADDRESS),),
    )
    assert len(joined({"a": PLAIN, "rdma": soft})) == 2


FACTS = (("told_numa_node", "1"), ("told_pcie_root", "pci0000:38"))


@pytest.mark.parametrize(
    ("tree", "numa", "place"),
    [
        pytest.param(PciTree(), NumaTopology(), (1, "pci0000:38"), id="sysfs shows nothing"),
        pytest.param(PciTree(), nodes(2), (1, "pci0000:38"), id="the node is there"),
        pytest.param(PciTree(), nodes(1), (0, "pci0000:38"), id="one node: no doubt"),
        pytest.param(
            tree_of(PciFunction(address=ADDRESS, root="pci0000:3a", numa_node=0)),
            nodes(2),
            (0, "pci0000:3a"),
            id="sysfs knows better",
        ),
    ],
)
def test_a_place_of_a_file_is_used_if_sysfs_has_none(
    tree: PciTree, numa: NumaTopology, place: tuple[int, str]
) -> None:
    (device,) = joined({"infofiles": described(facts=FACTS)}, tree, numa)
    assert (device.place.numa_node, device.pcie_scope_id) == place


@pytest.mark.parametrize(("file", "source"), [("a", "device_info_file"), (None, "library")])
def test_a_numa_node_of_a_vendor_names_its_source(file: str | None, source: str) -> None:
    facts = (*FACTS, *((("device_info_file", file),) if file else ()))
    (device,) = joined({"a": described(facts=facts)}, PciTree(), nodes(2))
    assert device.place.numa_source == source


@pytest.mark.parametrize("node", ["7", "-1", "x", "", "٣"])
def test_a_node_that_cannot_be_is_not_taken_over(node: str) -> None:
    (device,) = joined({"a": described(facts=(("told_numa_node", node),))}, numa=nodes(2))
    assert device.place.numa_node == -1


def test_disks_below_the_cards_switch_are_named_and_those_beyond_the_bridge_are_not() -> None:
    sysfs = Sysfs()
    above = "pci0000:20/0000:20:00.0/0000:21:00.0"
    for port, end, kind in (
        ("22:00.0", "23:00.0", "0x030200"),
        ("22:01.0", "24:00.0", "0x010802"),
        ("22:02.0", "25:00.0", "0x010601"),
        ("22:03.0", "26:00.0", "0x020700"),
    ):
        sysfs.function(f"{above}/0000:{port}/0000:{end}", **{"class": kind})
    sysfs.function("pci0000:20/0000:20:01.0/0000:27:00.0", **{"class": "0x010802"})
    tree = sysfs.read()
    gpu = VendorDevice(kind=DeviceKind.GPU, vendor="nvidia", bus_id="0000:23:00.0", minor=0)
    nic = VendorDevice(kind=DeviceKind.RDMA, vendor="mlx5_core", bus_id="0000:26:00.0", minor=0)
    result = {device.key: device.place.near_disks for device in joined({"a": gpu, "b": nic}, tree)}
    assert result == {"0000:23:00.0": ("0000:24:00.0",), "0000:26:00.0": ()}


@needs_shared
def test_the_disks_of_the_guest_are_beyond_the_bridge() -> None:
    result = machine("qemu")
    gpu = VendorDevice(kind=DeviceKind.GPU, vendor="nvidia", bus_id="0000:23:00.0", minor=0)
    (device,) = joined({"nvidia": gpu}, result.tree, result.numa)
    assert device.place.near_disks == ()
