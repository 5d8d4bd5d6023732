"""Grouping of CPUs: sets count when all members agree, numbers follow the smallest CPU."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.snapshot.cpu import CpuSet, CpuTopology
from agent.topology.cpu import RawCache, RawCpu, RawCpus, build_cpus, group_cpus
from agent.wire_formats.kernel_text import format_cpu_list, parse_cpu_list


def cpus(text: str) -> CpuSet:
    return parse_cpu_list(text)


def raw_cpu(**fields: str) -> RawCpu:
    sets = {name: cpus(text) for name, text in fields.items()}
    return RawCpu(**sets)  # type: ignore[arg-type]  # every field that is given is a set


def two_sockets() -> dict[int, RawCpu]:
    """Eight CPUs: two packages of two cores with two threads, numbered as Linux does."""
    cores = ("0,4", "1,5", "2,6", "3,7")
    packages = ("0-1,4-5", "2-3,6-7")
    return {
        n: replace(
            raw_cpu(core=cores[n % 4], package=packages[n % 4 // 2]), package_id=8 * (n % 4 // 2)
        )
        for n in range(8)
    }


def built(raw: dict[int, RawCpu], **fields: object) -> CpuTopology:
    node_of = dict.fromkeys(raw, 0)
    whole = replace(RawCpus(cpus=raw), **fields)
    return build_cpus(whole, group_cpus(raw), node_of)


def printed(groups: tuple[CpuSet, ...]) -> list[str]:
    return [format_cpu_list(group) for group in groups]


def test_cores_are_numbered_through_the_node_by_their_smallest_cpu() -> None:
    assert [cpu.core for cpu in built(two_sockets()).cpus] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_sockets_are_ordinals_and_packages_keep_the_kernels_id() -> None:
    topology = built(two_sockets())
    assert [(p.socket, p.package_id, format_cpu_list(p.cpus)) for p in topology.packages] == [
        (0, 0, "0-1,4-5"),
        (1, 8, "2-3,6-7"),
    ]


def test_packages_with_one_id_in_two_drawers_stay_apart() -> None:
    raw = {n: replace(cpu, package_id=0) for n, cpu in two_sockets().items()}
    assert len(built(raw).packages) == 2


def test_an_offline_sibling_leaves_a_core_of_one() -> None:
    raw = two_sockets()
    del raw[4], raw[7]
    topology = built(raw)
    assert printed(topology.cores) == ["0", "1,5", "2,6", "3"]
    assert topology.warnings == ()


def test_a_package_without_online_cpus_is_not_listed() -> None:
    raw = {n: cpu for n, cpu in two_sockets().items() if n in (2, 3, 6, 7)}
    assert [(p.socket, p.package_id) for p in built(raw).packages] == [(0, 8)]


@pytest.mark.parametrize(
    ("level", "claims", "kept"),
    [
        ("die", {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, ["0-1", "2-3"]),
        ("die", dict.fromkeys(range(4), "0-3"), []),
        ("die", {n: str(n) for n in range(4)}, []),
        ("cluster", {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, ["0-1", "2-3"]),
        ("cluster", dict.fromkeys(range(4), "0-3"), []),
        ("cluster", {n: str(n) for n in range(4)}, []),
        ("cluster", {}, []),
    ],
)
def test_a_level_that_says_nothing_new_is_dropped(
    level: str, claims: dict[int, str], kept: list[str]
) -> None:
    raw = {
        n: raw_cpu(core=str(n), package="0-3", **({level: claims[n]} if n in claims else {}))
        for n in range(4)
    }
    topology = built(raw)
    assert printed(topology.dies if level == "die" else topology.clusters) == kept


def test_a_cluster_that_equals_the_core_or_the_die_is_dropped() -> None:
    halves = ("0-1", "2-3")
    raw = {n: raw_cpu(core=halves[n // 2], cluster=halves[n // 2], package="0-3") for n in range(4)}
    assert built(raw).clusters == ()
    raw = {
        n: raw_cpu(core=str(n), cluster=halves[n // 2], die=halves[n // 2], package="0-3")
        for n in range(4)
    }
    assert (built(raw).clusters, printed(built(raw).dies)) == ((), ["0-1", "2-3"])


def test_contradicted_cores_are_one_cpu_each_and_named_once() -> None:
    raw = two_sockets()
    raw[1] = replace(raw[1], core=cpus("1-2,5"))
    raw[3] = replace(raw[3], core=cpus("3"))
    topology = built(raw)
    assert printed(topology.cores) == ["0,4", "1", "2,6", "3", "5", "7"]
    assert topology.warnings == ("cpu_topology_inconsistent: first at CPU 1",)


def test_contradicted_packages_are_grouped_by_their_id() -> None:
    raw = two_sockets()
    raw[0] = replace(raw[0], package=cpus("0-7"))
    assert printed(tuple(p.cpus for p in built(raw).packages)) == ["0-1,4-5", "2-3,6-7"]


def test_contradicted_packages_without_an_id_are_one_cpu_each() -> None:
    raw = {n: replace(cpu, package_id=-1) for n, cpu in two_sockets().items()}
    raw[0] = replace(raw[0], package=cpus("0-7"))
    assert printed(tuple(p.cpus for p in built(raw).packages)) == ["0", "1", "2-3,6-7", "4", "5"]


def test_cpus_without_package_sets_are_grouped_by_id() -> None:
    raw = {n: RawCpu(package_id=n % 2) for n in range(4)}
    topology = built(raw)
    assert printed(tuple(p.cpus for p in topology.packages)) == ["0,2", "1,3"]
    assert topology.warnings == ()


def test_cpus_without_facts_are_one_package_of_single_cores() -> None:
    topology = built({n: RawCpu() for n in range(4)})
    assert [(p.socket, p.package_id, len(p.cpus)) for p in topology.packages] == [(0, -1, 4)]
    assert len(topology.cores) == 4
    assert (topology.warnings, topology.smt_active) == ((), False)


def l3(text: str, number: int | None = None) -> tuple[RawCache, ...]:
    return (RawCache(level=3, kind="Unified", cpus=cpus(text), id=number, size_bytes=1 << 20),)


@pytest.mark.parametrize(
    ("ids", "published"),
    [
        ((7, 7, 9, 9), [7, 9]),
        ((None, None, None, None), [0, 1]),
        ((7, 7, 7, 7), [0, 1]),
        ((7, 8, 9, 9), [0, 1]),
        ((7, 7, None, None), [0, 1]),
    ],
    ids=["told apart", "not told", "one for two units", "two for one unit", "half told"],
)
def test_kernel_cache_ids_are_used_only_if_they_name_units(
    ids: tuple[int | None, ...], published: list[int]
) -> None:
    halves = ("0-1", "2-3")
    raw = {n: RawCpu(caches=l3(halves[n // 2], ids[n])) for n in range(4)}
    topology = built(raw)
    assert [cache.id for cache in topology.caches] == published
    assert [cpu.l3 for cpu in topology.cpus] == [published[n // 2] for n in range(4)]


def test_a_cache_without_a_map_is_the_cores() -> None:
    cache = RawCache(level=1, kind="Data", cpus=frozenset())
    raw = {n: replace(raw_cpu(core="0-1" if n < 2 else "2-3"), caches=(cache,)) for n in range(4)}
    assert printed(tuple(c.cpus for c in built(raw).caches)) == ["0-1", "2-3"]


def test_a_contradicted_cache_shrinks_to_its_core() -> None:
    raw = {
        n: replace(raw_cpu(core="0-1" if n < 2 else "2-3"), caches=l3("0-3" if n else "0-2"))
        for n in range(4)
    }
    topology = built(raw)
    assert printed(tuple(c.cpus for c in topology.caches)) == ["0-1", "2-3"]
    assert topology.warnings == ("cpu_topology_inconsistent: first at CPU 0",)


def test_a_cpu_without_l3_has_l3_zero() -> None:
    assert [cpu.l3 for cpu in built({0: RawCpu(), 1: RawCpu()}).cpus] == [0, 0]


def test_published_sets_hold_usable_cpus_only() -> None:
    topology = built(
        {0: RawCpu(), 1: RawCpu()},
        present=cpus("0-3"),
        isolated=cpus("1-2"),
        nohz_full=cpus("3"),
        allowed=cpus("0-9"),
        kinds=(("cpu_core", cpus("0,2")), ("cpu_atom", cpus("1,3")), ("cpu_lowpower", cpus("2"))),
    )
    assert (topology.isolated, topology.nohz_full) == (cpus("1"), cpus(""))
    assert topology.allowed == cpus("0-1")
    assert topology.kinds == (("cpu_atom", cpus("1")), ("cpu_core", cpus("0")))


def test_kinds_without_names_are_distinguished_by_capacity() -> None:
    raw = {n: RawCpu(capacity=1024 if n < 2 else 446) for n in range(4)}
    assert built(raw).kinds == (("capacity-446", cpus("2-3")), ("capacity-1024", cpus("0-1")))
    assert built({n: RawCpu(capacity=1024) for n in range(4)}).kinds == ()


@pytest.mark.parametrize(("said", "active"), [(None, True), (False, False), (True, True)])
def test_the_kernels_smt_state_counts_more_than_core_sizes(said: bool | None, active: bool) -> None:
    assert built(two_sockets(), smt_active=said).smt_active is active


SETS = st.none() | st.frozensets(st.integers(0, 9), max_size=10)
CACHES = st.builds(
    RawCache,
    level=st.integers(1, 3),
    kind=st.sampled_from(["Data", "Unified"]),
    cpus=SETS,
    id=st.none() | st.integers(0, 3),
)
CPUS = st.builds(
    RawCpu,
    core=SETS,
    cluster=SETS,
    die=SETS,
    package=SETS,
    package_id=st.none() | st.integers(-1, 2),
    caches=st.lists(CACHES, max_size=3).map(tuple),
)


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 9), CPUS, max_size=8))
def test_for_any_input_every_cpu_has_one_core_one_package_one_cache_of_a_kind(
    raw: dict[int, RawCpu],
) -> None:
    topology = built(raw)
    assert sorted(n for core in topology.cores for n in core) == sorted(raw)
    assert sorted(n for package in topology.packages for n in package.cpus) == sorted(raw)
    assert [min(core) for core in topology.cores] == sorted(min(core) for core in topology.cores)
    assert [package.socket for package in topology.packages] == list(range(len(topology.packages)))
    assert all(cpu.id in topology.cores[cpu.core] for cpu in topology.cpus)
    assert all(cpu.id in topology.packages[cpu.socket].cpus for cpu in topology.cpus)
    for level, kind in {(cache.level, cache.kind) for cache in topology.caches}:
        same = [cache for cache in topology.caches if (cache.level, cache.kind) == (level, kind)]
        members = [n for cache in same for n in cache.cpus]
        assert len(members) == len(set(members))
        assert len({cache.id for cache in same}) == len(same)
