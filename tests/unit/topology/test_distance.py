from __future__ import annotations

import json
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.snapshot.cpu import NumaTopology
from agent.snapshot.device import DeviceLink
from agent.snapshot.pci import PciFunction, PciTree
from agent.topology.distance import PciPosition, pair_levels, pci_level, position_of
from agent.topology.placement import PlacementRules
from agent.topology.topology_file import parse_topology_file
from tests.captures import SHARED, needs_shared
from tests.machines import level, machine, nodes, tree_of

TWO = nodes(2)


def dgx2() -> PciTree:
    """Read the PCI objects of hwloc's picture of a DGX-2; packages are its memory nodes."""
    functions: dict[str, PciFunction] = {}

    def walk(element: ET.Element, root: str | None, above: tuple[str, ...], node: int) -> None:
        kind, address = element.get("type"), element.get("pci_busid")
        if kind == "Package":
            node = int(element.get("os_index", "-1"))
        if kind == "Bridge" and address is None:
            root, above = f"pci{element.get('bridge_pci', '')}", ()
        if address is not None:
            code = int(element.get("pci_type", "").split()[0], 16) << 8
            functions[address] = PciFunction(
                address=address, root=root, bridges=above, class_code=code, numa_node=node
            )
            above = (*above, address)
        for child in element:
            walk(child, root, above, node)

    path = SHARED / "captures" / "hwloc-xml" / "nvidiaDGX2.xml"
    walk(ET.parse(path).getroot(), None, (), -1)
    return PciTree(functions=functions)


def of_class(tree: PciTree, base: int) -> list[str]:
    return [f.address for f in tree.functions.values() if f.base_class == base]


def count(tree: PciTree, numa: NumaTopology, pairs: object) -> dict[str, int]:
    result: dict[str, int] = {}
    for a, b in pairs:  # type: ignore[attr-defined]  # any pairs of addresses
        name = level(tree, numa, a, b)
        assert level(tree, numa, b, a) == name
        result[name] = result.get(name, 0) + 1
    return result


PAIRS = [
    (49, "qemu", "0000:23:00.0", "0000:24:00.0", "PIX"),
    (49, "qemu", "0000:23:00.0", "0000:25:00.0", "PIX"),
    (50, "qemu", "0000:23:00.0", "0000:27:00.0", "PHB"),
    (50, "qemu", "0000:23:00.0", "0000:53:00.0", "SYS"),
    (52, "32intel64", "0000:1a:00.0", "0000:1e:00.0", "PIX"),
    (52, "32intel64", "0000:1a:00.0", "0000:3e:00.0", "NODE"),
    (52, "32intel64", "0000:60:00.0", "0000:60:00.1", "PIX"),
    (54, "40intel64", "0000:02:00.0", "0000:02:00.1", "PIX"),
    (54, "40intel64", "0000:01:00.0", "0000:03:00.0", "PHB"),
    (54, "40intel64", "0000:01:00.0", "0000:43:00.0", "SYS"),
]


@needs_shared
@pytest.mark.parametrize(
    ("name", "a", "b", "found"),
    [pytest.param(*row, id=f"vector {number} {row[1]} {row[2]}") for number, *row in PAIRS],
)
def test_two_functions_of_a_capture(name: str, a: str, b: str, found: str) -> None:
    observations = machine(name)
    assert level(observations.tree, observations.numa, a, b) == found
    assert level(observations.tree, observations.numa, b, a) == found


@needs_shared
def test_vector_51_all_pairs_of_the_guest() -> None:
    observations = machine("qemu")
    gpus = of_class(observations.tree, 0x0302)
    nics = [a for a in of_class(observations.tree, 0x0200) if observations.function(a).bridges]
    assert count(observations.tree, observations.numa, combinations(gpus, 2)) == {
        "PIX": 4,
        "SYS": 24,
    }
    pairs = [(gpu, nic) for gpu in gpus for nic in nics]
    assert count(observations.tree, observations.numa, pairs) == {"PIX": 8, "SYS": 24}


@needs_shared
def test_vector_53_vector_engines_and_their_nics() -> None:
    observations = machine("32intel64")
    engines = [f.address for f in observations.tree.functions.values() if f.vendor_id == 0x1BCF]
    nics = [f.address for f in observations.tree.functions.values() if f.vendor_id == 0x15B3]
    assert count(observations.tree, observations.numa, combinations(engines, 2)) == {
        "PIX": 12,
        "NODE": 16,
    }
    pairs = [(engine, nic) for engine in engines for nic in nics]
    assert count(observations.tree, observations.numa, pairs) == {"PIX": 8, "NODE": 8}


@needs_shared
@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        pytest.param("34", "36", "PIX", id="vector 55: one switch"),
        pytest.param("34", "39", "PXB", id="vector 55: two switches"),
        pytest.param("34", "57", "NODE", id="vector 55: two roots"),
        pytest.param("34", "b7", "SYS", id="vector 55: two sockets"),
        pytest.param("57", "61", "PXB", id="vector 56: GPU and NVSwitch"),
        pytest.param("b7", "e0", "NODE", id="vector 56: two roots"),
    ],
)
def test_two_functions_of_a_dgx_2(a: str, b: str, found: str) -> None:
    assert level(dgx2(), TWO, f"0000:{a}:00.0", f"0000:{b}:00.0") == found


@needs_shared
def test_vector_56_all_pairs_of_a_dgx_2() -> None:
    tree = dgx2()
    pairs = combinations(of_class(tree, 0x0302), 2)
    assert count(tree, TWO, pairs) == {"PIX": 8, "PXB": 16, "NODE": 32, "SYS": 64}


@needs_shared
def test_vector_57_a_guest_hides_what_its_host_has() -> None:
    path = SHARED / "captures" / "nccl-topo" / "h200-baremetal-and-vm.json"
    facts = json.loads(path.read_text())
    guest = tree_of(
        *(
            PciFunction(address=address, root="pci0000:00", bridges=(f"0000:00:{n:02x}.0",))
            for n, address in enumerate(facts["vm"]["gpu_bus"] + facts["vm"]["nic_bus"], 1)
        )
    )
    assert level(guest, TWO, "0000:05:00.0", "0000:0d:00.0") == "PHB"
    host = tree_of(
        *(
            PciFunction(
                address=device[bus],
                root=f"pci{device['switch'][:7]}",
                bridges=("0000:00:00.0", device["switch"], f"0000:ff:0{n}.0"),
                numa_node=device["numa"],
            )
            for device in facts["bare_metal"]["devices"]
            for n, bus in enumerate(("gpu_bus", "nic_bus"))
        )
    )
    assert level(host, TWO, "0000:18:00.0", "0000:19:00.0") == "PIX"
    assert level(host, TWO, "0000:18:00.0", "0000:2a:00.0") == "NODE"


@needs_shared
@pytest.mark.parametrize(
    ("other", "found"),
    [
        pytest.param("0000:10:1b.0", "PIX", id="vector 58: one virtual switch"),
        pytest.param("0000:20:1b.0", "PHB", id="vector 58: one virtual root"),
        pytest.param("0000:90:1b.0", "SYS", id="the other half"),
    ],
)
def test_a_topology_file_fills_gaps_of_sysfs(other: str, found: str) -> None:
    data = (SHARED / "captures" / "nccl-topo" / "aws-p4d-24xl.xml").read_bytes()
    file = parse_topology_file(data, "p4d.xml")
    tree = tree_of(
        *(PciFunction(address=a, root="pci0000:00", numa_node=-1) for a in sorted(file.places))
    )
    rules = PlacementRules(file=file.restricted_to(tree))
    assert level(tree, TWO, "0000:10:1c.0", other, rules=rules) == found


def gen5(address: str, subsystem: int, *above: str) -> PciFunction:
    return PciFunction(
        address=address,
        root="pci0000:15",
        bridges=above,
        vendor_id=0x1000,
        device_id=0xC030,
        subsystem_vendor_id=0x1000,
        subsystem_device_id=subsystem,
    )


def test_vector_59_one_chip_of_two_levels_is_near_for_rings() -> None:
    port, outer, down = "0000:15:01.0", "0000:16:00.0", "0000:17:00.0"
    inner = "0000:18:00.0"
    a = PciFunction(address="0000:1a:00.0", root="pci0000:15", bridges=(port, outer, down))
    above = (port, outer, "0000:17:01.0", inner, "0000:19:00.0")
    b = PciFunction(address="0000:1b:00.0", root="pci0000:15", bridges=above)
    tree = tree_of(gen5(outer, 0x0004, port), gen5(inner, 0x1004, *above[:3]), a, b)
    first, second = (position_of(tree, function, -1) for function in (a, b))
    assert pci_level(first, second) == "PXB"
    assert pci_level(first, second, by_chip=True) == "PIX"


def test_vector_60_an_unknown_memory_node_is_far() -> None:
    a = PciFunction(address="0000:18:00.0", root="pci0000:17", numa_node=-1)
    b = PciFunction(address="0000:3b:00.0", root="pci0000:3a", numa_node=0)
    assert level(tree_of(a, b), TWO, a.address, b.address) == "SYS"


def test_a_virtual_function_is_as_near_as_its_card() -> None:
    physical = PciFunction(address="0000:18:00.0", root="pci0000:17", bridges=("0000:17:00.0",))
    virtual = PciFunction(address="0000:18:01.3", root="pci0000:17", physfn=physical.address)
    tree = tree_of(physical, virtual)
    assert level(tree, TWO, physical.address, virtual.address) == "PIX"
    assert level(tree, TWO, virtual.address, virtual.address) == "X"


def test_cabled_switches_are_as_near_as_two_switches() -> None:
    def below(root: str, switch: str) -> PciPosition:
        return PciPosition(
            address=f"{switch[:5]}ff:00.0", card=switch, root=root, switches=(switch,)
        )

    a, b = below("pci0000:00", "0000:01:00.0"), below("pci0001:00", "0001:01:00.0")
    assert pci_level(a, b) == "SYS"
    assert pci_level(a, b, frozenset({("0000:01:00.0", "0001:01:00.0")})) == "PXB"


GPUS = ("0000:18:00.0", "0000:2a:00.0", "0000:3a:00.0")
A, B, C = GPUS
NVSWITCHES = ("0000:05:00.0", "0000:06:00.0")


def links(*rows: tuple[str, str, str, int]) -> tuple[DeviceLink, ...]:
    return tuple(DeviceLink(a=a, b=b, type=kind, count=n) for a, b, kind, n in rows)


@pytest.mark.parametrize(
    ("found", "given_links"),
    [
        pytest.param(
            "NV12",
            links(*((gpu, switch, "NVSwitch", 6) for gpu in GPUS for switch in NVSWITCHES)),
            id="vector 61: through NVSwitch",
        ),
        pytest.param(
            "NV4",
            links((A, NVSWITCHES[0], "NVSwitch", 4), (B, NVSWITCHES[0], "NVSwitch", 6)),
            id="the smaller of both",
        ),
        pytest.param("NV6", links((A, B, "NVLink", 4), (B, A, "NVLink", 2)), id="summed"),
        pytest.param("NV18", links((A, B, "NVSwitch", 18)), id="switched, as a pair"),
        pytest.param(
            "PIX",
            links((A, C, "NVSwitch", 18), (B, "0000:99:00.0", "NVSwitch", 18)),
            id="two fabrics",
        ),
        pytest.param("NVB", links((A, C, "NVLink", 2), (B, C, "NVLink", 2)), id="over a third"),
        pytest.param("HCCS", links((A, B, "HCCS", 1)), id="HCCS"),
        pytest.param("C2C", links((A, B, "C2C", 1)), id="C2C"),
        pytest.param("ML2", links((A, B, "MLULink", 2)), id="MLULink"),
        pytest.param("UALink", links((A, B, "UALink", 2)), id="a type of tomorrow"),
        pytest.param("PIX", links((A, B, "NVLink", 0), (A, A, "NVLink", 3)), id="no link counts"),
        pytest.param("PIX", links((A, C, "NVLink", 2)), id="one end elsewhere"),
    ],
)
def test_links_come_before_pci(found: str, given_links: tuple[DeviceLink, ...]) -> None:
    above = ("0000:15:00.0", "0000:16:00.0", "0000:17:00.0")
    tree = tree_of(*(PciFunction(address=a, root="pci0000:15", bridges=above) for a in GPUS))
    assert level(tree, TWO, A, B, given_links) == found


addresses = st.sampled_from([f"0000:0{bus}:00.{n}" for bus in range(4) for n in range(2)])
seats = st.builds(
    PciPosition,
    address=addresses,
    card=addresses,
    root=st.none() | st.sampled_from(["pci0000:00", "pci0000:01"]),
    bridges=st.lists(addresses, max_size=3).map(tuple),
    switches=st.lists(addresses, max_size=2).map(tuple),
    chips=st.lists(addresses, max_size=2).map(tuple),
    node=st.integers(-1, 1),
    virtual=st.sampled_from([(), ("numa0",), ("numa0", "ffff:ff:01.0")]),
)


@given(seats, seats, st.booleans())
def test_a_level_is_the_same_both_ways(a: PciPosition, b: PciPosition, by_chip: bool) -> None:
    result = pci_level(a, b, by_chip=by_chip)
    assert result == pci_level(b, a, by_chip=by_chip)
    assert (result == "X") == (a.address == b.address)


def test_a_matrix_has_each_pair_once_in_order() -> None:
    tree = tree_of(*(PciFunction(address=a) for a in ("10000:00:00.0", *GPUS)))
    result = pair_levels([position_of(tree, f, 0) for f in tree.functions.values()])
    assert list(result)[:3] == [(A, B), (A, C), (A, "10000:00:00.0")]
    assert len(result) == 6
