from __future__ import annotations

import pytest

from agent.host.pci import read_pci
from agent.recording.tree import LinkEntry, TreeBuilder
from agent.snapshot.pci import PciFunction, PciTree, parse_device_link
from agent.topology.pcie_link import bandwidth_mb_s, degradation
from agent.topology.switches import switches_above
from tests.captures import needs_shared
from tests.machines import Sysfs, machine, numa_node_of

BUS = "/sys/bus/pci/devices"


PLACES = {
    29: ("qemu", "0000:23:00.0", "pci0000:20", "0000:21:00.0", (0, "firmware")),
    30: ("qemu", "0000:b5:00.0", "pci0000:b0", "0000:b1:00.0", (3, "firmware")),
    31: ("qemu", "0000:27:00.0", "pci0000:20", None, (0, "firmware")),
    32: ("qemu", "0000:00:1f.2", "pci0000:00", None, (-1, "unknown")),
    33: ("2pa", "10000:00:04.0", "pci10000:00", None, (0, "single")),
    34: ("32intel64", "0000:1a:00.0", "pci0000:17", "0000:18:00.0", (0, "firmware")),
    35: ("32intel64", "0000:60:00.1", "pci0000:5d", "0000:5e:00.0", (0, "firmware")),
    36: ("40intel64", "0000:43:00.0", "pci0000:40", None, (2, "firmware")),
    37: ("40intel64", "0000:40:07.0", "pci0000:40", None, (2, "siblings")),
    38: ("40intel64", "0000:02:00.0", "pci0000:00", None, (-1, "unknown")),
    39: ("nvidiagpunumanodes", "0035:04:00.0", None, None, (8, "local_cpus")),
}


@needs_shared
@pytest.mark.parametrize(
    ("name", "address", "root", "above", "node"),
    [pytest.param(*row, id=f"vector {number}") for number, row in PLACES.items()],
)
def test_a_function_has_its_place(
    name: str, address: str, root: str | None, above: str | None, node: tuple[int, str]
) -> None:
    observations = machine(name)
    function = observations.function(address)
    result = switches_above(observations.tree, function)
    assert function.root == root
    assert (result[-1] if result else None) == above
    assert numa_node_of(observations.tree, observations.numa, address) == node


@needs_shared
def test_vectors_29_and_30_sockets_follow_the_memory_nodes() -> None:
    numa = machine("qemu").numa
    assert [node.socket for node in numa.nodes] == [0, 0, 1, 1]


@needs_shared
def test_vector_31_virtual_functions_can_be_switched_on() -> None:
    function = machine("qemu").function("0000:27:00.0")
    assert (function.sriov_numvfs, function.sriov_totalvfs, function.virtfns) == (0, 4, ())


@needs_shared
def test_vector_34_the_link_runs_as_fast_as_it_can() -> None:
    observations = machine("32intel64")
    link = observations.function("0000:1a:00.0").link
    assert (link.speed, link.width, link.max_speed, link.max_width) == (80, 16, 80, 16)
    assert bandwidth_mb_s(link.speed, link.width) == 15753


@needs_shared
def test_vector_35_a_bridge_that_only_a_path_names_is_a_phantom() -> None:
    observations = machine("32intel64")
    function = observations.function("0000:60:00.1")
    assert function.bridges[-1] == "0000:5f:03.0"
    assert observations.tree.get("0000:5f:03.0") is None
    assert function.link.speed == 25
    assert degradation(function.link, None) is None


@needs_shared
def test_vector_47_config_space_distinguishes_the_ports() -> None:
    observations = machine("qemu")
    addresses = ("0000:20:00.0", "0000:21:00.0", "0000:22:00.0", "0000:25:00.0")
    assert [observations.function(address).port_type for address in addresses] == [4, 5, 6, 0]
    assert observations.function("0000:20:00.0").acs_control == 0
    assert observations.function("0000:21:00.0").acs_control is None


@needs_shared
@pytest.mark.parametrize(
    ("name", "count"), [("qemu", 50), ("2pa", 9), ("32intel64", 28), ("40intel64", 37)]
)
def test_every_function_of_a_capture_is_read(name: str, count: int) -> None:
    tree = machine(name).tree
    assert (len(tree.functions), tree.skipped, tree.warnings) == (count, 0, ())


@pytest.mark.parametrize(
    ("path", "root", "bridges"),
    [
        pytest.param(
            "../../../devices/pci000c:00/000c:00:00.0/000c:01:00.0",
            "pci000c:00",
            ("000c:00:00.0",),
            id="vector 40: hexadecimal domain",
        ),
        pytest.param(
            "../../../devices/pci0000:ae/0000:ae:05.5/pci10001:00/10001:00:02.0/10001:01:00.0",
            "pci0000:ae",
            ("0000:ae:05.5", "10001:00:02.0"),
            id="vector 41: VMD",
        ),
        pytest.param(
            "../../../devices/LNXSYSTM:00/VMBUS:00/47505500-0001/pci0001:00/0001:00:00.0",
            "pci0001:00",
            (),
            id="vector 42: Hyper-V",
        ),
        pytest.param(
            "../../..//devices/pci0000:00//0000:00:02.0/",
            "pci0000:00",
            (),
            id="hostile 6: doubled and trailing slashes",
        ),
    ],
)
def test_a_link_is_split_as_text(path: str, root: str, bridges: tuple[str, ...]) -> None:
    builder = TreeBuilder()
    address = path.rstrip("/").rpartition("/")[2]
    builder.put(f"{BUS}/{address}", LinkEntry(path))
    tree = read_pci(builder.build())
    assert (tree.functions[address].root, tree.functions[address].bridges) == (root, bridges)
    assert switches_above(tree, tree.functions[address]) == ()


def test_vector_41_ports_are_counted_below_the_last_root() -> None:
    path = parse_device_link(
        "pci0000:ae/0000:ae:05.5/pci10001:00/10001:00:02.0/10001:01:00.0/10001:02:00.0/10001:03:00.0",
        "10001:03:00.0",
    )
    function = PciFunction(
        address="10001:03:00.0", bridges=path.bridges, outer_bridges=path.outer_bridges
    )
    assert switches_above(PciTree(), function) == ("10001:01:00.0",)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("../../../devices/pci0000:00/0000:02:00.0", id="vector 43: other function"),
        pytest.param("../../../etc/passwd", id="hostile 6: no function"),
        pytest.param("/" + "a" * 10_000, id="hostile 6: 10 KiB"),
        pytest.param("0000:01:00.0", id="hostile 6: itself, without a root"),
        pytest.param(
            "pci0000:00/" + "/".join(f"0000:{n:02x}:00.0" for n in range(33, 66)) + "/0000:01:00.0",
            id="deeper than 32 bridges",
        ),
    ],
)
def test_a_link_that_cannot_be_gives_no_root(text: str) -> None:
    builder = TreeBuilder()
    builder.put(f"{BUS}/0000:01:00.0", LinkEntry(text))
    function = read_pci(builder.build()).functions["0000:01:00.0"]
    assert (function.root, function.bridges) == (None, ())


def test_vector_43_a_mismatch_is_reported() -> None:
    builder = TreeBuilder()
    builder.put(f"{BUS}/0000:01:00.0", LinkEntry("../../../devices/pci0000:00/0000:02:00.0"))
    assert read_pci(builder.build()).warnings == ("pci_link_mismatch: 0000:01:00.0",)


@pytest.mark.parametrize("vendor", ["0x0000", "0xffff"])
def test_a_function_that_fell_off_the_bus_is_gone(vendor: str) -> None:
    host = Sysfs()
    address = host.function("pci0000:00/0000:01:00.0", vendor=vendor)
    assert host.read().functions[address].gone


@pytest.mark.parametrize("text", ["-2", "2147483648", "1\n1", "", "one"])
def test_hostile_8_a_memory_node_that_cannot_be_is_unknown(text: str) -> None:
    host = Sysfs()
    address = host.function("pci0000:00/0000:01:00.0", numa_node=text)
    assert host.read().functions[address].numa_node is None


@pytest.mark.parametrize("text", ["0x20000", "0xzz", "0x123456789"])
def test_hostile_9_a_bad_class_keeps_the_function(text: str) -> None:
    host = Sysfs()
    address = host.function("pci0000:00/0000:01:00.0", **{"class": text})
    function = host.read().functions[address]
    assert (function.class_code, function.vendor_id) == (None, 0x10DE)


def test_hostile_5_more_functions_than_anybody_has_are_cut() -> None:
    builder = TreeBuilder()
    for number in range(10_000):
        address = f"0000:{number >> 8:02x}:{number >> 3 & 0x1F:02x}.{number & 7}"
        builder.put(f"{BUS}/{address}/class", b"0x020000\n")
    tree = read_pci(builder.build())
    assert len(tree.functions) == 8192
    assert tree.warnings == ("pci_limit: 8192 or more entries, the rest is left out",)


def test_names_that_are_no_address_are_counted() -> None:
    host = Sysfs()
    host.function("pci0000:00/0000:01:00.0")
    host.builder.put(f"{BUS}/nonsense/class", b"0x030200\n")
    assert host.read().skipped == 1


def test_cabled_switches_are_pairs() -> None:
    host = Sysfs()
    links = "/sys/kernel/pci_switch_link/virtual_switch_links"
    host.builder.put(f"{links}/0000:41:00.0/0000:01:00.0", b"")
    host.builder.put(f"{links}/0000:01:00.0/0000:41:00.0", b"")
    host.builder.put(f"{links}/0000:01:00.0/nobody", b"")
    assert host.read().switch_links == {("0000:01:00.0", "0000:41:00.0")}


def test_devices_have_a_driver_and_an_iommu_group_with_its_type() -> None:
    host = Sysfs()
    address = host.function(
        "pci0000:00/0000:01:00.0",
        driver=">../../../bus/pci/drivers/vfio-pci",
        iommu_group=">../../../kernel/iommu_groups/17",
        power_state="D0",
    )
    host.builder.put("/sys/kernel/iommu_groups/17/type", b"DMA-FQ\n")
    tree = host.read()
    function = tree.functions[address]
    assert (function.driver, function.iommu_group) == ("vfio-pci", 17)
    assert function.power_state == "D0"
    assert tree.iommu_types == ((17, "DMA-FQ"),)
