"""Which CPUs best-effort pods get, on machines of several shapes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.qos.cpu_choice import (
    CandidateCpus,
    adjust_choice,
    candidate_cpus,
    choose_cpu_count,
    choose_cpus,
    growth_step,
    select_cpus,
)
from agent.snapshot.cpu import Cpu
from agent.wire_formats.kernel_text import format_cpu_list, parse_cpu_list

A8 = tuple(Cpu(id=i, core=i // 2, socket=i // 4, node=i // 4, l3=0) for i in range(8))
H8 = tuple(Cpu(id=i, core=i % 4, socket=i % 4 // 2, node=i % 4 // 2, l3=0) for i in range(8))
A16 = tuple(Cpu(id=i, core=i // 2, socket=i // 4, node=i // 8, l3=0) for i in range(16))
ALL_OF_A16 = (0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15)


def without(cpus: tuple[Cpu, ...], *numbers: int) -> tuple[Cpu, ...]:
    return tuple(cpu for cpu in cpus if cpu.id not in numbers)


@pytest.mark.parametrize(
    ("pool", "count", "chosen", "text"),
    [
        (H8, 3, (0, 4, 2), "0,2,4"),
        (A8, 3, (0, 1, 4), "0-1,4"),
        (A16, 5, (0, 1, 4, 5, 8), "0-1,4-5,8"),
        (A16, 8, (0, 1, 4, 5, 8, 9, 12, 13), "0-1,4-5,8-9,12-13"),
        (A16, 16, ALL_OF_A16, "0-15"),
        (A8, 9, (), ""),
        (without(A8, 0, 6, 7), 4, (2, 3, 4, 5), "2-5"),
        (A8, 0, (), ""),
        ((), 1, (), ""),
    ],
)
def test_whole_cores_are_taken_from_each_numa_node_in_turn(
    pool: tuple[Cpu, ...], count: int, chosen: tuple[int, ...], text: str
) -> None:  # P1-P7
    assert choose_cpus(pool, count) == chosen
    assert format_cpu_list(frozenset(chosen)) == text


@pytest.mark.parametrize(
    ("lsr", "excluded", "budget", "old", "count", "of_lsr", "text"),
    [
        ("0,6", "7", 3000, 4, 3, 0, "2-4"),
        ("0,6", "3,7", 3000, 4, 3, 1, "0,4-5"),
        ("0,6", "1-7", 3000, 4, 1, 1, "0"),  # Koordinator leaves the larger set of before
        ("0,6", "0-1,5-7", 3000, 4, 3, 0, "2-4"),
        ("", "", 7400, 2, 3, 0, "0-1,4"),
        ("", "", -3000, 8, 2, 0, "0-1"),
        ("0-3", "", 6000, 8, 6, 3, "0-2,4-6"),
        ("0-3", "4-5", 6000, 6, 6, 4, "0-3,6-7"),
        ("", "0-7", 2000, 2, 0, 0, ""),  # Koordinator divides by zero
    ],
)
def test_both_pools_give_cpus_in_proportion(
    lsr: str, excluded: str, budget: int, old: int, count: int, of_lsr: int, text: str
) -> None:  # P8-P16
    owned = parse_cpu_list(lsr)
    candidates = candidate_cpus(A8, parse_cpu_list(excluded), owned)
    cpu_count = choose_cpu_count(budget, old + growth_step(len(A8)), candidates.count)
    chosen = select_cpus(candidates, cpu_count, frozenset())
    assert (cpu_count, len(chosen & owned), format_cpu_list(chosen)) == (count, of_lsr, text)


def test_buckets_of_a_short_list_are_those_of_memory_node_and_socket() -> None:
    # by (node + length) * (socket + 1), socket 1 of node 0 and socket 0 of node 2 are one bucket
    cpus = (
        Cpu(id=0, core=0, socket=1, node=0, l3=0),
        Cpu(id=1, core=1, socket=0, node=2, l3=0),
        Cpu(id=2, core=1, socket=0, node=2, l3=0),
    )
    assert choose_cpus(cpus, 2) == (1, 2)


def test_cpus_in_use_stay_when_the_set_shrinks_and_when_it_grows() -> None:
    candidates = CandidateCpus(shared=A8)
    before = frozenset({2, 3, 6})
    assert select_cpus(candidates, 2, before) == {2, 3}
    assert select_cpus(candidates, 4, before) == {2, 3, 6, 7}  # the core of CPU 6 first
    assert select_cpus(candidates, 6, before) > before


def test_a_cpu_that_is_no_candidate_any_more_is_replaced() -> None:
    candidates = candidate_cpus(A8, frozenset({3}), frozenset())
    assert select_cpus(candidates, 3, frozenset({2, 3, 6})) >= {2, 6}
    assert 3 not in select_cpus(candidates, 7, frozenset({2, 3, 6}))


machines = st.builds(
    lambda sockets, nodes, cores, threads: tuple(
        Cpu(id=n, core=core, socket=s, node=s * nodes + d, l3=0)
        for n, (s, d, core, _) in enumerate(
            (s, d, (s * nodes + d) * cores + c, t)
            for s, d, c, t in itertools.product(
                range(sockets), range(nodes), range(cores), range(threads)
            )
        )
    ),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 4),
    st.integers(1, 4),
)


@given(st.data())
def test_a_choice_has_the_requested_size_and_keeps_as_many_cpus_as_possible(
    data: st.DataObject,
) -> None:
    cpus = data.draw(machines)
    numbers = st.frozensets(st.sampled_from([cpu.id for cpu in cpus]))
    excluded, lsr, before = data.draw(numbers), data.draw(numbers), data.draw(numbers)
    candidates = candidate_cpus(cpus, excluded, lsr)
    count = data.draw(st.integers(0, len(cpus) + 2))
    chosen = select_cpus(candidates, count, before)
    usable = frozenset(cpu.id for cpu in (*candidates.lsr, *candidates.shared))
    assert chosen <= usable
    assert len(chosen) == min(count, candidates.count)
    for pool in (candidates.lsr, candidates.shared):
        owned = before & {cpu.id for cpu in pool}
        size = len(chosen & {cpu.id for cpu in pool})
        adjusted = frozenset(adjust_choice(pool, size, before))
        assert adjusted <= owned or adjusted >= owned
