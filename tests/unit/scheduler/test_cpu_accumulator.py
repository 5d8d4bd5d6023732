"""Which CPUs the worked vectors of Koordinator's unit tests give."""

from __future__ import annotations

from random import Random

import pytest

from agent.wire_formats.kernel_text import format_cpu_list, parse_cpu_list
from plugins.scheduler.numa.cpu_accumulator import CpuPlace, CpuSearch
from plugins.scheduler.numa.cpu_request import CpuBindPolicy, ExclusivePolicy


def machine(sockets: int, nodes: int, cores: int, threads: int) -> dict[int, CpuPlace]:
    """Return a machine with consecutive numbers: threads of a core, then cores, nodes, sockets."""
    places: dict[int, CpuPlace] = {}
    for cpu in range(sockets * nodes * cores * threads):
        core = cpu // threads
        node = core // cores
        places[cpu] = CpuPlace(node // nodes, node, core, cpu)
    return places


FULL: CpuBindPolicy = "FullPCPUs"
SPREAD: CpuBindPolicy = "SpreadByPCPUs"

# machine, in use, needed, bind policy, exclusive policy of those in use and of the pod; results
VECTORS: dict[str, tuple[str, str, int, CpuBindPolicy, str, ExclusivePolicy, str, str]] = {
    "C01": ("1142", "0-1", 2, FULL, "", "", "2-3", ""),
    "C02": ("2142", "", 12, FULL, "", "", "0-11", ""),
    "C03": ("2142", "0-1", 8, FULL, "", "", "8-15", ""),
    "C04": ("2242", "0-5,16-23", 6, FULL, "", "", "24-29", "8-13"),
    "C05": ("2242", "0-5,16-23", 12, FULL, "", "", "6-15,24-25", ""),
    "C06": ("2242", "0-3,8-11", 4, FULL, "", "", "4-7", "16-19"),
    "C07": ("2222", "0,2,4,8,12", 4, FULL, "", "", "10-11,14-15", ""),
    "C08": ("2222", "0,2,4,8,10,12", 6, FULL, "", "", "5-7,13-15", "1,3,6-7,14-15"),
    "C09": ("2142", "0,2", 4, SPREAD, "", "", "1,3-4,6", "8,10,12,14"),
    "C10": ("2142", "0-3", 4, SPREAD, "", "", "8,10,12,14", ""),
    "C11": ("2142", "0,2", 6, SPREAD, "", "", "1,3-7", "8-12,14"),
    "C12": ("2142", "0,2", 4, SPREAD, "PCPULevel", "PCPULevel", "8,10,12,14", ""),
    "C13": ("2142", "", 10, SPREAD, "", "PCPULevel", "0-4,6,8,10,12,14", ""),
    "C14": ("2182", "0,2", 4, SPREAD, "PCPULevel", "PCPULevel", "4,6,8,10", ""),
    "C15": ("2142", "0,2", 4, FULL, "NUMANodeLevel", "NUMANodeLevel", "8-11", ""),
    "C16": ("2142", "0,2", 4, FULL, "NUMANodeLevel", "None", "4-7", ""),
}


@pytest.mark.parametrize("number", VECTORS)
def test_the_cpus_of_the_vector(number: str) -> None:
    shape, in_use, need, bind, used_policy, policy, most, least = VECTORS[number]
    places = machine(*map(int, shape))
    used = parse_cpu_list(in_use)
    for prefers_full, expected in ((True, most), (False, least)):
        search = CpuSearch(
            places=places,
            exclusive_cpus={used_policy: used} if used_policy else {},
            bind_policy=bind,
            exclusive_policy=policy,
            prefers_full=prefers_full,
        )
        chosen = search.choose(set(places) - used, need)
        if expected:
            assert chosen is not None
            assert format_cpu_list(chosen) == expected


def test_too_few_cpus_are_no_answer() -> None:
    places = machine(1, 1, 2, 2)
    assert CpuSearch(places=places).choose([0, 1, 2], 4) is None
    assert CpuSearch(places=places).choose([0, 1, 2], 3) == frozenset((0, 1, 2))


@pytest.mark.parametrize("shape", ["1142", "2142", "2242", "1241", "2222"])
def test_any_request_that_the_free_cpus_can_meet_gets_exactly_so_many_free_ones(shape: str) -> None:
    places = machine(*map(int, shape))
    for seed in range(40):
        random = Random(seed)
        free = frozenset(cpu for cpu in places if random.random() < 0.7)
        count = random.randint(0, len(free))
        search = CpuSearch(
            places=places,
            exclusive_cpus={"PCPULevel": frozenset(places) - free},
            bind_policy=random.choice((FULL, SPREAD)),
            exclusive_policy=random.choice(("", "PCPULevel", "NUMANodeLevel")),
            prefers_full=random.random() < 0.5,
        )
        chosen = search.choose(free, count)
        assert chosen is not None
        assert len(chosen) == count
        assert chosen <= free
