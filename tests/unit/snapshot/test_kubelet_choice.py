"""The CPUs that a static policy keeps back where it was told only how many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.snapshot.cpu import Cpu, CpuPackage, CpuTopology
from agent.topology.cpu_manager import UNSUPPORTED_OPTIONS, reserved_cpus
from agent.wire_formats.kernel_text import format_cpu_list


def machine(
    sockets: int, cores: int, threads: int = 2, nodes: int = 1, first: tuple[int, ...] = ()
) -> CpuTopology:
    """Number threads as Linux on x86 does: first all cores, then their second threads.

    `cores` and `nodes` are those of a socket; `first` are the kernel's ids of the sockets.
    """
    total = sockets * cores
    cpus = tuple(
        Cpu(
            id=number,
            core=number % total,
            socket=number % total // cores,
            node=number % total * nodes // cores,
            l3=0,
        )
        for number in range(total * threads)
    )
    packages = tuple(
        CpuPackage(
            socket=socket,
            package_id=first[socket] if first else socket,
            cpus=frozenset(cpu.id for cpu in cpus if cpu.socket == socket),
        )
        for socket in range(sockets)
    )
    return CpuTopology(cpus=cpus, packages=packages, usable=frozenset(cpu.id for cpu in cpus))


SMALL = machine(1, 4)
DUAL = machine(2, 6)
NUMA = machine(2, 4, nodes=2)


@pytest.mark.parametrize(
    ("topology", "milli", "cpus"),
    [
        (SMALL, 2000, "0,4"),  # the kubelet's own example
        (SMALL, 1000, "0"),
        (SMALL, 1001, "0,4"),
        (SMALL, 3000, "0-1,4"),
        (SMALL, 8000, "0-7"),
        (DUAL, 2000, "0,12"),
        (DUAL, 5000, "0-2,12-13"),
        (DUAL, 12000, "0-5,12-17"),
        (DUAL, 13000, "0-6,12-17"),
        (DUAL, 14000, "0-6,12-18"),
        (NUMA, 4000, "0-1,8-9"),  # a NUMA node
        (NUMA, 8000, "0-3,8-11"),  # a socket
        (NUMA, 9000, "0-4,8-11"),
        (NUMA, 3000, "0-1,8"),
        (machine(1, 4, threads=1), 2000, "0-1"),
        (machine(2, 4, nodes=2, first=(1, 0)), 3000, "4-5,12"),  # the second socket is 0
    ],
)
def test_choices(topology: CpuTopology, milli: int, cpus: str) -> None:
    result = reserved_cpus(topology, milli, {})
    assert result is not None
    assert format_cpu_list(result) == cpus


@pytest.mark.parametrize("milli", [None, 0, 8001])
def test_impossible_reservations_have_no_result(milli: int | None) -> None:
    assert reserved_cpus(SMALL, milli, {}) is None
    assert reserved_cpus(CpuTopology(), 1000, {}) is None


@pytest.mark.parametrize("option", UNSUPPORTED_OPTIONS)
def test_orders_that_differ_between_releases_are_not_guessed(option: str) -> None:
    assert reserved_cpus(SMALL, 1000, {option: "true"}) is None
    assert reserved_cpus(SMALL, 1000, {option: "false", "full-pcpus-only": "true"})


def test_uneven_cores_and_sockets_are_not_guessed() -> None:
    without_a_thread = tuple(cpu for cpu in SMALL.cpus if cpu.id != 6)
    assert reserved_cpus(CpuTopology(cpus=without_a_thread), 1000, {}) is None
    without_a_core = tuple(cpu for cpu in DUAL.cpus if cpu.core != 11)
    assert reserved_cpus(CpuTopology(cpus=without_a_core), 1000, {}) is None


@given(
    st.builds(
        machine,
        sockets=st.integers(1, 4),
        cores=st.sampled_from([2, 4, 6]),
        threads=st.integers(1, 2),
        nodes=st.sampled_from([1, 2]),
    ),
    st.data(),
)
def test_as_many_as_requested_and_of_the_fewest_nodes(
    topology: CpuTopology, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(topology.cpus)))
    result = reserved_cpus(topology, count * 1000, {})
    assert result is not None
    assert len(result) == count
    nodes = {cpu.node for cpu in topology.cpus}
    of_one = len(topology.cpus) // len(nodes)
    assert len({cpu.node for cpu in topology.cpus if cpu.id in result}) == -(-count // of_one)
