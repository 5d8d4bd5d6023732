from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.cli.topology import matrix_text, topology_json, tree_text
from agent.cli.topology_tree import build_branches
from agent.devices.joiner import build_device_view
from agent.snapshot.device import DeviceKind, DeviceLink, Health, HealthState, VendorDevice
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import DeviceView, NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciFunction, PciTree
from tests import factory
from tests.captures import needs_shared
from tests.machines import machine

EMPTY = NodeSnapshot(node=NodeIdentity(name="bare"))


def guest() -> NodeSnapshot:
    """The eight-card guest with its soft-RoCE devices, two cards linked, one broken."""
    observations = machine("qemu")
    gpus = [f.address for f in observations.tree.functions.values() if f.base_class == 0x0302]
    nics = [f.address for f in observations.tree.functions.values() if f.base_class == 0x0200]
    cards = [
        VendorDevice(kind=DeviceKind.GPU, vendor="nvidia", bus_id=a, minor=n, model="H100")
        for n, a in enumerate(gpus)
    ]
    broken = Health(state=HealthState.FAILED, reason="Xid79")
    cards[3] = replace(cards[3], health=broken)
    rxes = [
        VendorDevice(
            kind=DeviceKind.RDMA,
            vendor="rxe",
            bus_id=None,
            uuid=f"rxe{n}",
            minor=n,
            facts=(("parent_bus_id", a), ("name", f"rxe{n}")),
        )
        for n, a in enumerate(a for a in nics if observations.function(a).bridges)
    ]
    link = DeviceLink(a=gpus[0], b=gpus[1], type="NVLink", count=18)
    view = build_device_view(
        [
            Inventory(vendor="nvidia", devices=tuple(cards), links=(link,)),
            Inventory(vendor="rdma", devices=tuple(rxes)),
        ],
        observations.tree,
        observations.cpus,
        observations.numa,
    )
    return NodeSnapshot(
        node=NodeIdentity(name="guest", source="a recording"),
        cpus=SnapshotPart(observations.cpus),
        numa=SnapshotPart(observations.numa),
        pci=SnapshotPart(observations.tree),
        devices=SnapshotPart(view),
    )


TREE_START = """\
guest (a recording)
├─ socket 0: CPUs 0-3
│  ├─ NUMA node 0: CPUs 0-1, 0.7 GiB
│  │  └─ pci0000:20
│  │     ├─ 0000:20:00.0 root port
│  │     │  └─ 0000:21:00.0 switch, Texas Instruments (often emulated)
│  │     │     ├─ 0000:22:00.0 switch port
│  │     │     │  └─ 0000:23:00.0 GPU 0, H100, healthy
│  │     │     ├─ 0000:22:01.0 switch port
│  │     │     │  └─ 0000:24:00.0 GPU 1, H100, healthy
│  │     │     └─ 0000:22:02.0 switch port
│  │     │        └─ 0000:25:00.0 NIC 0, rxe0 rxe, healthy
│  │     └─ 0000:20:01.0 root port
│  │        └─ 0000:27:00.0 NVMe 1b36:0010
│  └─ NUMA node 1: CPUs 2-3, 0.7 GiB
"""


@needs_shared
def test_the_tree_shows_sockets_nodes_bridges_and_devices() -> None:
    text = tree_text(guest())
    assert text.startswith(TREE_START)
    assert "0000:54:00.0 GPU 3, H100, failed: Xid79" in text
    assert text.endswith("└─ 0000:b5:00.0 NIC 3, rxe3 rxe, healthy\n")


@needs_shared
def test_the_matrix_has_a_row_and_a_column_a_device() -> None:
    lines = matrix_text(guest()).splitlines()
    names = [f"GPU{n}" for n in range(8)] + [f"NIC{n}" for n in range(4)]
    assert lines[0].split() == [*names, "CPUs", "NUMA", "node"]
    assert lines[1].split() == ["GPU0", "X", "NV18", *["SYS"] * 6, "PIX", *["SYS"] * 3, "0-1", "0"]
    cells = [line.split()[1:13] for line in lines[1:13]]
    assert cells == [list(column) for column in zip(*cells, strict=True)]
    assert any(line.split() == ["NIC0", "0000:25:00.0", "rxe0", "rxe"] for line in lines)


@needs_shared
def test_json_has_the_documented_members_only() -> None:
    result: Any = topology_json(guest())
    assert list(result) == ["sockets", "numa_nodes", "pci", "distances"]
    assert result["sockets"][1] == {
        "id": 1,
        "package_id": 1,
        "cpus": "4-7",
        "numa_nodes": [2, 3],
    }
    assert result["numa_nodes"][0] == {
        "id": 0,
        "cpus": "0-1",
        "memory_bytes": 790970368,
        "distances": [10, 12, 32, 32],
    }
    assert result["distances"]["0000:23:00.0 0000:24:00.0"] == "NV18"
    assert result["distances"]["0000:23:00.0 0000:25:00.0"] == "PIX"
    assert len(result["distances"]) == 12 * 11 // 2


@needs_shared
def test_json_holds_every_function_at_its_place_in_the_tree() -> None:
    result: Any = topology_json(guest())
    nodes = list(walk(result["pci"], ()))
    functions = machine("qemu").tree.functions
    assert {path[-1]: path for path, _ in nodes if path[-1] in functions} == {
        address: function.path for address, function in functions.items()
    }
    by_address = {path[-1]: node for path, node in nodes}
    assert by_address["0000:23:00.0"] == {
        "address": "0000:23:00.0",
        "class": "0x030200",
        "vendor_id": "0x10de",
        "device_id": "0x2330",
        "numa_node": 0,
        "children": [],
    }
    assert by_address["0000:00:1f.2"]["numa_node"] is None


def walk(
    result: list[dict[str, Any]], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    for node in result:
        path = (*above, node["address"])
        yield path, node
        yield from walk(node["children"], path)


def tree_of(machine_name: str) -> str:
    observations = machine(machine_name)
    snapshot = replace(
        EMPTY,
        cpus=SnapshotPart(observations.cpus),
        numa=SnapshotPart(observations.numa),
        pci=SnapshotPart(observations.tree),
    )
    return tree_text(snapshot)


@needs_shared
def test_an_unlisted_bridge_is_marked() -> None:
    assert "0000:5f:03.0 switch port, not shown by sysfs" in tree_of("32intel64")


@needs_shared
def test_memory_of_cards_is_distinguished_from_memory_of_the_node() -> None:
    assert "NUMA node 255: no CPUs, 15.0 GiB, gpu memory" in tree_of("nvidiagpunumanodes")


def test_a_node_without_anything_has_views() -> None:
    assert tree_text(EMPTY) == "bare (this machine)\n"
    assert matrix_text(EMPTY) == "no accelerator or RDMA device\n"
    assert topology_json(EMPTY) == {"sockets": [], "numa_nodes": [], "pci": [], "distances": {}}


def test_devices_that_the_tree_does_not_hold_are_drawn_from_their_paths() -> None:
    snapshot = factory.snapshot()
    assert "0000:1b:00.0 GPU 0, NVIDIA H100 80GB HBM3, healthy" in tree_text(snapshot)
    assert " NV18 " in matrix_text(snapshot).splitlines()[1]


def test_devices_without_a_place_come_last_and_have_no_distance() -> None:
    loose = VendorDevice(kind=DeviceKind.XPU, vendor="acme", bus_id=None, uuid="a", managed=False)
    view = build_device_view(
        [Inventory(vendor="acme", devices=(loose,))],
        PciTree(),
        EMPTY.cpus.value,
        EMPTY.numa.value,
    )
    snapshot = replace(EMPTY, devices=SnapshotPart(view))
    assert tree_text(snapshot).endswith("└─ not on PCI\n   └─ XPU a, acme, healthy, not managed\n")
    assert topology_json(snapshot)["distances"] == {}


def test_devices_without_a_minor_have_narrow_names_and_no_address_twice() -> None:
    snapshot = factory.snapshot((factory.gpu(0, minor=None), factory.gpu(1)))
    assert matrix_text(snapshot).split()[:2] == ["GPU?0", "GPU1"]
    assert "0000:1b:00.0 GPU, NVIDIA" in tree_text(snapshot)


def test_a_narrow_link_is_shown() -> None:
    device = factory.gpu(0)
    narrow = replace(
        device,
        place=replace(
            device.place, link=replace(device.place.link, width=8), link_degraded="width"
        ),
    )
    assert "31507 MB/s (width degraded)" in tree_text(factory.snapshot((narrow,)))


addresses = st.sampled_from([f"0000:0{bus}:00.{n}" for bus in range(4) for n in range(2)])
functions = st.builds(
    PciFunction,
    address=addresses,
    root=st.none() | st.sampled_from(["pci0000:00", "pci10000:00"]),
    bridges=st.lists(addresses, max_size=4).map(tuple),
    class_code=st.sampled_from([None, 0x030200, 0x060400, 0x010802]),
    vendor_id=st.none() | st.just(0x10DE),
    numa_node=st.integers(-1, 3),
    port_type=st.none() | st.integers(0, 15),
)


@given(st.lists(functions, max_size=8, unique_by=lambda f: f.address))
def test_a_tree_that_contradicts_itself_is_drawn(found: list[PciFunction]) -> None:
    tree = PciTree(functions={function.address: function for function in found})
    cards = tuple(
        VendorDevice(kind=DeviceKind.GPU, vendor="x", bus_id=f.address) for f in found[:3]
    )
    view: DeviceView = build_device_view(
        [Inventory(vendor="x", devices=cards)], tree, EMPTY.cpus.value, EMPTY.numa.value
    )
    snapshot = replace(EMPTY, pci=SnapshotPart(tree), devices=SnapshotPart(view))
    assert all(card.key in tree_text(snapshot) for card in cards)
    assert matrix_text(snapshot)
    assert json.dumps(topology_json(snapshot))


def test_roots_are_in_order_of_their_numbers() -> None:
    roots = ("pci0000:80", "pci0000:09", "pci10000:00")
    branches = build_branches(PciFunction(address=f"{root[3:]}:00.0", root=root) for root in roots)
    assert [branch.address for branch in branches] == ["pci0000:09", "pci0000:80", "pci10000:00"]
