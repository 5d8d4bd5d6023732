"""CPUs and memory nodes of captured machines."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from agent.host.cpu import read_cpu_numa
from agent.snapshot.cpu import CpuTopology, NumaNode, NumaNodeKind, NumaTopology
from agent.snapshot.host_files import MAX_READ, HostFiles
from agent.topology.numa import near_by_distance
from agent.wire_formats.kernel_text import format_cpu_list
from tests.captures import capture, needs_shared

pytestmark = needs_shared


@functools.cache
def read(name: str) -> tuple[CpuTopology, NumaTopology]:
    return read_cpu_numa(capture(name))


def place(name: str, number: int) -> tuple[int, int, int]:
    """Core, socket and node of one CPU."""
    cpu = next(cpu for cpu in read(name)[0].cpus if cpu.id == number)
    return cpu.core, cpu.socket, cpu.node


def node(name: str, number: int) -> NumaNode:
    result = read(name)[1].node(number)
    assert result is not None
    return result


def units(name: str, level: int) -> int:
    return sum(cache.level == level for cache in read(name)[0].caches)


@pytest.mark.parametrize(
    ("name", "present", "usable", "cores", "package_ids", "smt"),
    [
        ("16em64t", 16, "0-1,3-4,6-12,15", 7, [0, 1, 3, 2], True),
        ("16amd64", 16, "0-3,5-15", 15, list(range(8)), False),
        ("32amd64", 32, "0-31", 32, [0, 1, 2, 3], False),
        ("96em64t", 96, "0-95", 96, [1, 0, *range(2, 16)], False),
        ("40intel64", 40, "0-39", 40, [0, 1, 2, 3], False),
        ("nri-2socket", 80, "0-79", 40, [0, 1], True),
        ("32intel64", 32, "0-31", 16, [0, 1], True),
        ("2pa", 2, "0-1", 2, [0, 1], False),
        ("nvidiagpunumanodes", 32, "0-15,88-103", 8, [0, 8], True),
        ("qemu", 8, "0-7", 8, [0, 1], False),
    ],
)
def test_a_captured_machine_has_its_cpus_cores_and_packages(
    name: str, present: int, usable: str, cores: int, package_ids: list[int], smt: bool
) -> None:
    cpus, _ = read(name)
    assert (len(cpus.present), format_cpu_list(cpus.usable), len(cpus.cores)) == (
        present,
        usable,
        cores,
    )
    assert [package.package_id for package in cpus.packages] == package_ids
    assert (cpus.smt_active, cpus.warnings) == (smt, ())


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("16em64t", {0: 16772456}),
        ("32intel64", {0: 47925628, 1: 49519964}),
        (
            "nvidiagpunumanodes",
            {0: 129839104, 8: 133952000, **dict.fromkeys(range(250, 256), 15728640)},
        ),
        ("16amd64", {0: 8386704, **dict.fromkeys(range(1, 8), 8388608)}),
    ],
)
def test_a_captured_machine_has_its_memory_nodes(name: str, nodes: dict[int, int]) -> None:
    assert {n.id: (n.memory_bytes or 0) // 1024 for n in read(name)[1].nodes} == nodes


@pytest.mark.parametrize(
    ("name", "number", "where"),
    [
        pytest.param("16em64t", 15, (5, 2, 0), id="vector 17 CPU 15"),
        pytest.param("16em64t", 12, (3, 0, 0), id="vector 17 CPU 12"),
        pytest.param("16amd64", 5, (4, 2, 2), id="vector 19 CPU 5"),
        pytest.param("16amd64", 15, (14, 7, 7), id="vector 19 CPU 15"),
        pytest.param("nri-2socket", 79, (39, 1, 3), id="vector 22 CPU 79"),
        pytest.param("nvidiagpunumanodes", 103, (7, 1, 8), id="vector 24 CPU 103"),
    ],
)
def test_a_cpu_has_its_core_socket_and_node(
    name: str, number: int, where: tuple[int, int, int]
) -> None:
    assert place(name, number) == where


def test_vector_17_caches_are_counted_by_unit() -> None:
    assert (units("16em64t", 3), units("16em64t", 2)) == (4, 7)


@pytest.mark.parametrize(
    ("name", "sockets"),
    [
        pytest.param("16em64t", [-1], id="vector 18"),
        pytest.param("96em64t", [-1, -1, -1, -1], id="vector 20"),
        pytest.param("32amd64", [0, 0, 1, 1, 2, 2, 3, 3], id="vector 21"),
        pytest.param("nri-2socket", [0, 0, 1, 1], id="vector 22"),
    ],
)
def test_a_node_has_the_socket_of_its_cpus(name: str, sockets: list[int]) -> None:
    assert [n.socket for n in read(name)[1].nodes] == sockets


def test_vector_19_offline_cpus_leave_their_node_and_no_l3_is_zero() -> None:
    assert format_cpu_list(node("16amd64", 2).cpus) == "5"
    assert {cpu.l3 for cpu in read("16amd64")[0].cpus} == {0}


def test_vector_20_sockets_are_not_package_ids() -> None:
    assert [place("96em64t", cpu)[1] for cpu in (0, 1, 95)] == [0, 1, 15]
    assert (units("96em64t", 2), units("96em64t", 3)) == (48, 16)


def test_vector_21_a_row_of_distances_is_in_node_order() -> None:
    assert node("32amd64", 3).distances == (22, 16, 16, 10, 22, 16, 22, 16)
    assert [cache.size_bytes for cache in read("32amd64")[0].caches[-8:]] == [5118 * 1024] * 8


def test_vector_22_nodes_of_a_package_interleave() -> None:
    cpus = "3-4,7-9,13-14,17-19,43-44,47-49,53-54,57-59"
    assert format_cpu_list(node("nri-2socket", 1).cpus) == cpus


def test_vector_23_threads_share_a_core_and_the_die_says_nothing_new() -> None:
    cpus, _ = read("32intel64")
    assert (place("32intel64", 0)[0], place("32intel64", 16)[0]) == (0, 0)
    assert format_cpu_list(node("32intel64", 1).cpus) == "8-15,24-31"
    assert cpus.dies == ()


def test_vector_24_only_nodes_with_cpus_are_zones_here() -> None:
    assert [n.id for n in read("nvidiagpunumanodes")[1].nodes if n.is_zone] == [0, 8]


@pytest.mark.parametrize(
    ("number", "card", "near"), [(255, "0004:05:00.0", 0), (250, "0035:05:00.0", 8)]
)
def test_vector_25_memory_of_a_card_is_near_its_local_cpus(
    number: int, card: str, near: int
) -> None:
    result = node("nvidiagpunumanodes", number)
    assert (result.kind, result.gpu, result.near) == (NumaNodeKind.GPU, card, near)


def test_vector_25_distances_alone_give_no_result() -> None:
    numa = read("nvidiagpunumanodes")[1]
    row = node("nvidiagpunumanodes", 250).distances
    assert row is not None
    assert near_by_distance([n.id for n in numa.nodes], 250, row) == frozenset()


def test_vector_26_levels_that_say_nothing_new_are_dropped() -> None:
    cpus, numa = read("qemu")
    assert (len(cpus.cores), cpus.clusters, cpus.dies) == (8, (), ())
    assert (numa.distance(0, 1), numa.distance(0, 2)) == (12, 32)


def test_cache_ids_of_a_guest_that_do_not_name_units_are_replaced() -> None:
    assert [c.id for c in read("qemu")[0].caches if c.level == 3] == [0, 1, 2, 3]


def test_the_processors_description_of_itself_is_kept() -> None:
    info = read("32intel64")[0].info
    assert (info.vendor, info.turbo) == ("GenuineIntel", True)
    assert info.model == "Intel(R) Xeon(R) Silver 4108 CPU @ 1.80GHz"


class CountingHost:
    """Passes everything on and counts reads by path."""

    def __init__(self, host: HostFiles) -> None:
        self._host = host
        self.reads: Counter[str] = Counter()

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        self.reads[path] += 1
        return self._host.read(path, limit)

    def names(self, path: str) -> tuple[str, ...]:
        return self._host.names(path)

    def link(self, path: str) -> str | None:
        return self._host.link(path)

    def exists(self, path: str) -> bool:
        return self._host.exists(path)

    def device_number(self, path: str) -> tuple[int, int] | None:
        return self._host.device_number(path)


def test_every_file_is_read_once_and_few_for_each_cpu() -> None:
    host = CountingHost(capture("nri-2socket"))
    read_cpu_numa(host)
    assert set(host.reads.values()) == {1}
    assert sum("/cpu/cpu79/" in path for path in host.reads) <= 15
