"""Memory nodes: who owns a CPU, what a node without CPUs is, and which node stands for it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.snapshot.cpu import CpuPackage, CpuSet, NumaNodeKind, NumaTopology
from agent.topology.numa import RawNode, RawNuma, assign_cpus, build_numa, near_by_distance
from agent.wire_formats.kernel_text import format_cpu_list, parse_cpu_list

GIB = 1 << 30


def node(number: int, cpus: str = "", memory_bytes: int | None = GIB) -> RawNode:
    return RawNode(id=number, cpus=parse_cpu_list(cpus), memory_bytes=memory_bytes)


def packages(*lists: str) -> tuple[CpuPackage, ...]:
    return tuple(
        CpuPackage(socket=socket, package_id=socket, cpus=parse_cpu_list(text))
        for socket, text in enumerate(lists)
    )


def built(
    *nodes: RawNode,
    sockets: tuple[str, ...] = ("0-7",),
    matrix: tuple[tuple[int, ...], ...] = (),
    facts: Mapping[str, object] = MappingProxyType({}),
) -> NumaTopology:
    if matrix:
        nodes = tuple(replace(n, distances=row) for n, row in zip(nodes, matrix, strict=True))
    raw = replace(RawNuma(nodes=nodes), **facts)
    places = packages(*sockets)
    usable: CpuSet = frozenset().union(*(package.cpus for package in places))
    return build_numa(raw, assign_cpus(nodes, usable, places), places)


def cpus_of(topology: NumaTopology) -> Mapping[int, str]:
    return {n.id: format_cpu_list(n.cpus) for n in topology.nodes}


def test_offline_cpus_leave_the_list_of_their_node() -> None:
    assert cpus_of(built(node(2, "4-5"), sockets=("5",))) == {2: "5"}


def test_the_lower_node_keeps_a_cpu_that_two_claim() -> None:
    topology = built(node(0, "0-7"), node(1, "0-7"), node(2, "6-7", 0))
    assert cpus_of(topology) == {0: "0-7", 1: "", 2: ""}
    assert [n.kind for n in topology.nodes] == [
        NumaNodeKind.CPU,
        NumaNodeKind.MEMORY,
        NumaNodeKind.MEMORY,
    ]
    assert [warning.partition(":")[0] for warning in topology.warnings] == ["numa_overlap"] * 2


@pytest.mark.parametrize(
    ("claims", "owner"),
    [(("0-3", "4-6"), 3), (("0-3,4", "5-6"), 1), (("0-3", ""), 1)],
    ids=["only node of its package", "package in two nodes", "package in no node"],
)
def test_a_cpu_that_no_node_claims_is_adopted(claims: tuple[str, str], owner: int) -> None:
    topology = built(node(1, claims[0]), node(3, claims[1]), sockets=("0-3", "4-7"))
    result = topology.node(owner)
    assert result is not None
    assert 7 in result.cpus
    assert "cpu_without_node: CPU 7 counts as of node " + str(owner) in topology.warnings


@pytest.mark.parametrize(
    ("sockets", "socket"),
    [(("0-7",), 0), (("0-3", "4-7"), -1), (("8-9", "0-7"), 1)],
    ids=["one package", "spans packages", "second package"],
)
def test_the_socket_of_a_node_is_the_package_of_its_cpus(
    sockets: tuple[str, ...], socket: int
) -> None:
    result = built(node(0, "0-7"), node(1, "8-9"), sockets=sockets).node(0)
    assert result is not None
    assert result.socket == socket


@pytest.mark.parametrize(
    ("raw", "fields", "kind", "zoned"),
    [
        (node(1, "", GIB), {}, NumaNodeKind.MEMORY, True),
        (node(1, "", 0), {}, NumaNodeKind.EMPTY, False),
        (node(1, "", None), {}, NumaNodeKind.EMPTY, False),
        (node(1, "", GIB), {"dax": frozenset({1})}, NumaNodeKind.DAX, True),
        (node(1, "", GIB), {"gpus": {1: ("0000:1b:00.0", None)}}, NumaNodeKind.GPU, False),
        (node(1, "", GIB), {"generic_initiators": frozenset({1})}, NumaNodeKind.MEMORY, False),
        (node(1, "4-7", 0), {"dax": frozenset({1})}, NumaNodeKind.CPU, True),
    ],
)
def test_the_kind_of_a_node_decides_whether_pods_may_use_it(
    raw: RawNode, fields: dict[str, object], kind: NumaNodeKind, zoned: bool
) -> None:
    result = built(node(0, "0-3"), raw, facts=fields).node(1)
    assert result is not None
    assert (result.kind, result.is_zone) == (kind, zoned)


V27 = ((10, 20, 20), (20, 10, 30), (20, 30, 10))
V28 = (
    (10, 20, 20, 20, 40),
    (20, 10, 20, 20, 40),
    (20, 20, 10, 40, 40),
    (20, 20, 40, 10, 40),
    (40, 40, 40, 40, 10),
)


@pytest.mark.parametrize(
    ("matrix", "number", "near"),
    [
        pytest.param(V27, 1, {0}, id="vector 27"),
        pytest.param(V28, 1, {0, 2, 3}, id="vector 28 node 1"),
        pytest.param(V28, 4, set(), id="vector 28 node 4"),
        pytest.param(((10, 10, 20), (10, 10, 20), (20, 20, 10)), 1, set(), id="as near as itself"),
        pytest.param(((10, 20), (20, 10)), 1, set(), id="only one other"),
    ],
)
def test_distances_name_the_nearest_nodes_or_none(
    matrix: tuple[tuple[int, ...], ...], number: int, near: set[int]
) -> None:
    assert near_by_distance(range(len(matrix)), number, matrix[number]) == frozenset(near)


def test_vector_27_a_node_without_cpus_is_near_the_closest() -> None:
    assert built(node(0, "0-3"), node(1), node(2, "4-7"), matrix=V27).near(1) == 0


def test_vector_28_the_lowest_node_with_cpus_stands_for_the_set() -> None:
    topology = built(node(0, "0-7"), *(node(n) for n in range(1, 5)), matrix=V28)
    assert [n.near for n in topology.nodes[:2]] == [0, 0]
    assert topology.near(4) == -1


FOUR = ((10, 20, 30, 20), (20, 10, 20, 30), (30, 20, 10, 20), (20, 30, 20, 10))


def memory_node(fields: Mapping[str, object]) -> NumaTopology:
    """Nodes 0 and 1 have CPUs, 2 and 3 have none; node 3 is at equal distance to 0 and 2."""
    facts = dict(fields)
    initiators = facts.pop("initiators", frozenset())
    last = replace(node(3), initiators=initiators)
    return built(node(0, "0-3"), node(1, "4-7"), node(2), last, matrix=FOUR, facts=facts)


@pytest.mark.parametrize(
    ("fields", "near"),
    [
        ({}, 0),
        ({"initiators": frozenset({1})}, 1),
        ({"initiators": frozenset({2})}, 0),
        ({"initiators": frozenset({1}), "fake": True}, -1),
        ({"gpus": {3: ("0000:1b:00.0", parse_cpu_list("5-6"))}}, 1),
        ({"gpus": {3: ("0000:1b:00.0", parse_cpu_list("0-7"))}, "initiators": frozenset({1})}, 1),
        ({"gpus": {3: ("0000:1b:00.0", None)}}, 0),
    ],
    ids=[
        "distances",
        "initiators before distances",
        "initiators without CPUs tell nothing",
        "invented nodes are near to none",
        "local CPUs of the card",
        "all CPUs are no local CPUs",
        "card without local CPUs",
    ],
)
def test_the_first_source_that_knows_names_the_near_node(
    fields: dict[str, object], near: int
) -> None:
    assert memory_node(fields).near(3) == near


def test_one_bad_row_leaves_no_matrix_at_all() -> None:
    good = (10, 20)
    topology = built(replace(node(0, "0-3"), distances=good), node(1, "4-7"))
    assert [n.distances for n in topology.nodes] == [None, None]
    assert topology.distance(0, 1) is None


def test_an_asymmetric_matrix_with_odd_diagonals_is_unchanged() -> None:
    topology = built(node(0, "0-3"), node(8, "4-7"), matrix=((11, 20), (30, 0)))
    assert (topology.distance(0, 8), topology.distance(8, 0), topology.distance(0, 0)) == (
        20,
        30,
        11,
    )


def test_more_nodes_than_the_scheduler_supports_are_reported() -> None:
    topology = built(*(node(n, str(n) if n < 8 else "") for n in range(65)))
    assert any(warning.startswith("numa_many_nodes") for warning in topology.warnings)


def test_a_node_of_unknown_memory_is_named() -> None:
    broken = replace(node(0, "0-7", None), memory_problem="node0/meminfo: unreadable")
    assert built(broken).warnings == ("numa_memory: node0/meminfo: unreadable",)


SETS = st.frozensets(st.integers(0, 9), max_size=10)
NODES = st.dictionaries(st.integers(0, 300), st.tuples(SETS, SETS), max_size=6)


@settings(deadline=None)
@given(claims=NODES, groups=st.lists(SETS, max_size=3), row=st.lists(st.integers(0, 255)))
def test_whatever_is_claimed_every_cpu_has_one_node(
    claims: dict[int, tuple[CpuSet, CpuSet]], groups: list[CpuSet], row: list[int]
) -> None:
    nodes = tuple(
        RawNode(
            id=number, cpus=cpus, initiators=initiators, distances=(*row, *range(9))[: len(claims)]
        )
        for number, (cpus, initiators) in sorted(claims.items())
    )
    places: list[CpuPackage] = []
    for group in groups:
        fresh = group.difference(*(package.cpus for package in places))
        places.append(CpuPackage(socket=len(places), package_id=-1, cpus=fresh))
    usable: CpuSet = frozenset().union(*(package.cpus for package in places))
    shares = assign_cpus(nodes, usable, places)
    assert shares.node_of.keys() == usable
    topology = build_numa(RawNuma(nodes=nodes), shares, places)
    cpu_nodes = {n.id for n in topology.nodes if n.cpus}
    assert all(n.near in cpu_nodes or n.near == -1 for n in topology.nodes)
