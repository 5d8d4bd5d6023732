"""Which file answers which question about memory nodes; shown on a small invented machine."""

from __future__ import annotations

import errno

import pytest

from agent.host.cpu import read_cpu_numa
from agent.recording.tree import ErrorEntry, TreeEntry
from agent.snapshot.cpu import NumaNodeKind, NumaTopology
from tests.small_host import NODE, Changes, small_host


def read(changes: Changes) -> NumaTopology:
    return read_cpu_numa(small_host(changes))[1]


@pytest.mark.parametrize("name", ["node+1", "nodeX", "node01", "node70000"])
def test_names_that_are_no_node_are_skipped_and_counted(name: str) -> None:
    numa = read({f"{NODE}/{name}/cpumap": "1"})
    assert (numa.skipped, [n.id for n in numa.nodes]) == (1, [0, 1])


def test_a_kernel_without_nodes_has_one_with_all_cpus() -> None:
    numa = read(
        {
            NODE: None,
            "/proc/meminfo": "MemTotal: 4096 kB\n",
            "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "1",
        }
    )
    (node,) = numa.nodes
    assert (node.id, node.cpus, node.memory_bytes) == (0, frozenset(range(4)), 4 << 20)
    assert (node.hugepages, node.kind, numa.warnings) == (((2 << 20, 1),), NumaNodeKind.CPU, ())


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({f"{NODE}/online": "1"}, [1]),
        ({f"{NODE}/online": None}, [0, 1]),
        ({f"{NODE}/online": "7"}, [0, 1]),
        ({f"{NODE}/online": "garbage"}, [0, 1]),
    ],
)
def test_nodes_are_online_and_have_a_directory(changes: Changes, ids: list[int]) -> None:
    assert [n.id for n in read(changes).nodes] == ids


@pytest.mark.parametrize(
    ("meminfo", "memory_bytes"),
    [
        ("Node 0 MemTotal: 18446744073709551615 kB\n", None),
        ("Node 0 MemFree: 1 kB\n", 0),
        (None, None),
        (ErrorEntry(errno.EACCES), None),
    ],
)
def test_memory_of_unknown_size_causes_a_warning(
    meminfo: str | TreeEntry | None, memory_bytes: int | None
) -> None:
    numa = read({f"{NODE}/node0/meminfo": meminfo})
    assert numa.nodes[0].memory_bytes == memory_bytes
    assert any(warning.startswith("numa_memory") for warning in numa.warnings)


@pytest.mark.parametrize("row", ["10", "10 21 21", "10 -1", "10 1000000000", None])
def test_a_bad_row_of_distances_leaves_no_matrix(row: str | None) -> None:
    assert read({f"{NODE}/node0/distance": row}).distance(1, 0) is None


def test_memory_nodes_learn_their_kind_from_devices_and_initiators() -> None:
    numa = read(
        {
            f"{NODE}/online": "0-3",
            f"{NODE}/has_generic_initiator": "3",
            f"{NODE}/node2/meminfo": "Node 2 MemTotal: 1 kB\n",
            f"{NODE}/node2/access0/initiators/node0/x": "",
            f"{NODE}/node2/access1/initiators/node1/x": "",
            f"{NODE}/node3/meminfo": "Node 3 MemTotal: 0 kB\n",
            "/sys/bus/dax/devices/dax0.0/target_node": "2",
            "/sys/bus/dax/devices/dax1.0/target_node": "-1",
        }
    )
    far, last = numa.nodes[2:]
    assert (far.kind, far.near, far.is_zone) == (NumaNodeKind.DAX, 1, True)
    assert (last.kind, last.generic_initiator, last.is_zone) == (NumaNodeKind.EMPTY, True, False)


def test_invented_nodes_are_marked() -> None:
    assert read({"/proc/cmdline": "numa=fake=2"}).fake
