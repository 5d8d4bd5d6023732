from __future__ import annotations

import errno
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import HostFileError
from agent.host.pci import read_pci
from agent.recording.tree import ErrorEntry, LinkEntry, TreeBuilder
from agent.snapshot.host_files import MAX_READ, HostFiles
from agent.snapshot.pci import PciPath, PciTree, address_sort_key, parse_address, parse_device_link
from agent.topology.pci_config import CONFIG_BYTES
from tests.captures import capture, needs_shared
from tests.machines import Sysfs

BUS = "/sys/bus/pci/devices"
VF = {"class": "0x020000", "vendor": "0x15b3", "device": "0x101e", "numa_node": "-1"}


def with_vf(physfn: str, **pf: str) -> PciTree:
    """Return a physical function with what it says, and one function that says it is virtual."""
    host = Sysfs()
    host.function("pci0000:17/0000:18:00.0", **{**VF, "numa_node": "1", **pf})
    host.function("pci0000:17/0000:18:00.3", **VF, physfn=f">{physfn}")
    return host.read()


def test_a_virtual_function_belongs_to_its_physical_one() -> None:
    tree = with_vf("../0000:18:00.0", virtfn0=">../0000:18:00.3", sriov_totalvfs="8")
    function = tree.functions["0000:18:00.3"]
    assert tree.physical(function) is tree.functions["0000:18:00.0"]
    assert tree.functions["0000:18:00.0"].virtfns == ("0000:18:00.3",)


@pytest.mark.parametrize(
    "physfn",
    [
        pytest.param("../0000:18:00.3", id="hostile 7: itself"),
        pytest.param("../0000:99:00.0", id="hostile 7: nothing"),
        pytest.param("../../../etc", id="hostile 7: no address"),
    ],
)
def test_a_virtual_function_without_a_physical_one_is_an_orphan(physfn: str) -> None:
    tree = with_vf(physfn)
    function = tree.functions["0000:18:00.3"]
    assert tree.physical(function) is None
    assert tree.is_orphan(function) == (physfn != "../../../etc")


def test_hostile_7_a_virtual_function_of_a_virtual_function_is_an_orphan() -> None:
    host = Sysfs()
    host.function("pci0000:17/0000:18:00.0", **VF)
    host.function("pci0000:17/0000:18:00.1", **VF, physfn=">../0000:18:00.0")
    host.function("pci0000:17/0000:18:00.2", **VF, physfn=">../0000:18:00.1")
    tree = host.read()
    assert tree.is_orphan(tree.functions["0000:18:00.2"])
    assert tree.warnings == ("pci_orphan_vf: 0000:18:00.2 of 0000:18:00.1",)


def test_hostile_7_the_first_of_two_physical_functions_keeps_the_virtual_one() -> None:
    host = Sysfs()
    for function in ("0", "1"):
        path = f"pci0000:17/0000:18:00.{function}"
        host.function(path, **VF, virtfn0=">../0000:18:00.3", sriov_totalvfs="8")
    host.function("pci0000:17/0000:18:00.3", **VF, physfn=">../0000:18:00.1")
    tree = host.read()
    assert tree.functions["0000:18:00.0"].virtfns == ("0000:18:00.3",)
    assert tree.functions["0000:18:00.1"].virtfns == ()
    assert tree.functions["0000:18:00.3"].physfn == "0000:18:00.0"


@pytest.mark.parametrize(
    ("numvfs", "fact"), [("4", 4), ("-1", None), ("many", None), ("99999999999", None)]
)
def test_hostile_7_links_count_and_the_number_is_only_a_fact(numvfs: str, fact: int | None) -> None:
    tree = with_vf(
        "../0000:18:00.0", virtfn3=">../0000:18:00.3", sriov_numvfs=numvfs, sriov_totalvfs="8"
    )
    function = tree.functions["0000:18:00.0"]
    assert (function.virtfns, function.sriov_numvfs) == (("0000:18:00.3",), fact)


@pytest.mark.parametrize(
    "code", [errno.EACCES, errno.EIO, errno.EINVAL, errno.ENODEV], ids=errno.errorcode.get
)
def test_hostile_1_a_file_that_errs_is_an_unknown_fact(code: int) -> None:
    host = Sysfs()
    address = "0000:01:00.0"
    at = f"/sys/devices/pci0000:00/{address}"
    for name in ("numa_node", "config", "current_link_speed", "revision"):
        host.builder.put(f"{at}/{name}", ErrorEntry(code))
    host.function("pci0000:00/0000:01:00.0")
    function = host.read().functions[address]
    assert (function.numa_node, function.port_type, function.link.speed) == (None, None, None)
    assert function.vendor_id == 0x10DE


@pytest.mark.parametrize("data", [b"", b"\0" * 1000, b"\xff\xfe\xfd", b"x" * (1 << 20)])
def test_hostile_1_odd_bytes_are_unknown_facts(data: bytes) -> None:
    builder = TreeBuilder()
    for name in ("class", "vendor", "device", "numa_node", "local_cpus", "revision", "config"):
        builder.put(f"{BUS}/0000:01:00.0/{name}", data)
    function = read_pci(builder.build()).functions["0000:01:00.0"]
    assert (function.class_code, function.vendor_id, function.numa_node) == (None, None, None)
    assert function.local_cpus is None


def test_a_directory_that_may_not_be_listed_is_reported() -> None:
    builder = TreeBuilder()
    builder.put(BUS, ErrorEntry(errno.EACCES))
    tree = read_pci(builder.build())
    assert tree.functions == {}
    assert tree.warnings[0].startswith("pci_unreadable: ")


class Vanishing:
    """A host whose one function is pulled out after so many reads."""

    def __init__(self, reads: int) -> None:
        host = Sysfs()
        host.function("pci0000:00/0000:01:00.0")
        self._there = host.builder.build()
        self._gone = TreeBuilder().build()
        self._left = reads

    def _now(self) -> object:
        self._left -= 1
        return self._there if self._left >= 0 else self._gone

    def __getattr__(self, name: str) -> object:
        return getattr(self._now(), name)


@pytest.mark.parametrize("reads", [1, 2, 3, 4])
def test_hostile_16_a_function_that_vanishes_in_a_scan_is_left_out(reads: int) -> None:
    tree = read_pci(Vanishing(reads))  # type: ignore[arg-type]  # stands for all of the protocol
    assert tree.functions == {}
    assert tree.warnings == ("pci_vanished: 0000:01:00.0",)


addresses = st.sampled_from([f"0000:{bus:02x}:00.{fn}" for bus in range(3) for fn in range(3)])
texts = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"0x060400\n", b"0x020000\n", b"0x010802\n", b"0x15b3\n", b"-1\n", b"0\n"]),
    st.sampled_from([b"0xffff\n", b"16\n", b"8.0 GT/s PCIe\n", b"00ff\n", b"\x10" * CONFIG_BYTES]),
)
links = st.one_of(
    st.text(max_size=60),
    addresses.map(lambda address: f"../{address}"),
    st.lists(addresses | st.just("pci0000:00") | st.text(max_size=9), max_size=6).map("/".join),
)
NAMES = (
    "class",
    "vendor",
    "device",
    "numa_node",
    "local_cpus",
    "driver",
    "iommu_group",
    "physfn",
    "virtfn0",
    "virtfn1",
    "virtfn7",
    "sriov_numvfs",
    "sriov_totalvfs",
    "config",
    "power_state",
    "current_link_speed",
)
names = st.sampled_from(NAMES)
entries = texts | links.map(LinkEntry) | st.just(ErrorEntry(errno.EIO))
trees = st.lists(st.tuples(addresses, st.none() | names, entries), max_size=60)


class Mutant:
    """A captured machine some of whose files are deleted, refused, garbled or looped."""

    def __init__(self, host: HostFiles, seed: int) -> None:
        self._host = host
        self._seed = seed

    def _fate(self, path: str) -> float:
        # of all accesses a fifth goes wrong, and always the same way
        return random.Random(f"{self._seed} {path}").random() * 5

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        fate = self._fate(path)
        if fate < 0.3:
            raise HostFileError(path, errno.ENODEV)
        data = self._host.read(path, limit)
        if fate < 0.6:
            return data[::-1]
        return random.Random(self._seed).randbytes(len(data)) if fate < 1 else data

    def names(self, path: str) -> tuple[str, ...]:
        result = self._host.names(path)
        return tuple(name for name in result if self._fate(f"{path} {name}") > 0.2)

    def link(self, path: str) -> str | None:
        fate = self._fate(f"{path} link")
        if fate < 0.1:
            raise HostFileError(path, errno.EIO)
        text = self._host.link(path)
        return text if fate > 1 else (None, path, f"{text}/", "../" * 2000)[int(fate * 4) % 4]

    def exists(self, path: str) -> bool:
        return self._fate(path) > 0.3 and self._host.exists(path)

    def device_number(self, path: str) -> tuple[int, int] | None:
        return self._host.device_number(path)


def agrees_with_itself(tree: PciTree) -> None:
    assert list(tree.functions) == sorted(tree.functions, key=address_sort_key)
    for address, function in tree.functions.items():
        assert function.address == address
        assert len(function.bridges) <= 32
        assert address not in function.virtfns
        for virtual in function.virtfns:
            assert tree.physical(tree.functions[virtual]) is function
        if function.physfn is not None and not tree.is_orphan(function):
            assert tree.functions[function.physfn].physfn is None


@needs_shared
@pytest.mark.parametrize("name", ["qemu", "32intel64"])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_a_machine_that_breaks_at_random_is_read(name: str, seed: int) -> None:
    agrees_with_itself(read_pci(Mutant(capture(name), seed)))


@given(trees)
@settings(max_examples=300, deadline=None)
def test_any_tree_is_read_and_the_result_agrees_with_itself(
    puts: list[tuple[str, str | None, bytes | LinkEntry | ErrorEntry]],
) -> None:
    builder = TreeBuilder()
    for address, name, entry in puts:
        builder.put(f"{BUS}/{address}/{name}" if name else f"{BUS}/{address}", entry)
    tree = read_pci(builder.build())
    agrees_with_itself(tree)


@given(links, addresses)
def test_any_link_text_is_split_or_refused(text: str, own: str) -> None:
    try:
        path = parse_device_link(text, own)
    except ValueError:
        return
    assert path.outer_bridges <= len(path.bridges)
    assert all(parse_address(bridge) == bridge for bridge in path.bridges)
    assert isinstance(path, PciPath)
