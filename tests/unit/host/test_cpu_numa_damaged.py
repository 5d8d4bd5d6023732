"""Captured machines with files missing, refused or garbled: read whole, and still one picture."""

from __future__ import annotations

import errno
import functools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.errors import HostFileError
from agent.host.cpu import read_cpu_numa
from agent.objects.node_resource_topology import TopologyPublisher
from agent.recording.tree import TreeFiles
from agent.snapshot.cpu import CpuTopology, NumaNodeKind, NumaTopology
from agent.snapshot.host_files import MAX_READ, HostFiles
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from tests.captures import capture, needs_shared

Damage = int | bytes | tuple[str, ...]  # errno, other contents, other names


class DamagedHost:
    """A host whose damaged paths answer an errno, other contents or other names."""

    def __init__(self, host: HostFiles, damage: dict[str, Damage]) -> None:
        self._host = host
        self._damage = damage
        self.asked: set[str] = set()

    def _refusal(self, path: str) -> Damage | None:
        self.asked.add(path)
        result = self._damage.get(path)
        if isinstance(result, int):
            raise HostFileError(path, result)
        return result

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        refusal = self._refusal(path)
        return refusal[:limit] if isinstance(refusal, bytes) else self._host.read(path, limit)

    def names(self, path: str) -> tuple[str, ...]:
        refusal = self._refusal(path)
        return refusal if isinstance(refusal, tuple) else self._host.names(path)

    def link(self, path: str) -> str | None:
        return self._host.link(path)

    def exists(self, path: str) -> bool:
        return path not in self._damage and self._host.exists(path)

    def device_number(self, path: str) -> tuple[int, int] | None:
        return self._host.device_number(path)


@functools.cache
def read_paths(name: str) -> tuple[str, ...]:
    """Every path that reading this machine asks for."""
    host = DamagedHost(capture(name), {})
    read_cpu_numa(host)
    return tuple(sorted(host.asked))


GARBAGE = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"0-3,7", b"ffffffff,ffffffff", b"0", b"1", b"-1", b"00000000,0000000c"]),
    st.sampled_from([b"MemTotal: 18446744073709551615 kB", b"\0" * 100, b"3" * 70_000]),
)
NAMES = st.lists(
    st.sampled_from(["cpu0", "cpu3", "cpu07", "cpu-1", "node0", "node5", "nodeX", "index0", "\n"]),
    max_size=5,
    unique=True,
).map(tuple)
DAMAGE = st.one_of(st.sampled_from([errno.ENOENT, errno.EACCES, errno.EIO]), GARBAGE, NAMES)


def check_cpus(cpus: CpuTopology) -> None:
    """Assert that every usable CPU is in exactly one core and one package, densely numbered."""
    assert [cpu.id for cpu in cpus.cpus] == sorted(cpus.usable)
    assert cpus.usable <= cpus.present
    assert sorted(n for core in cpus.cores for n in core) == sorted(cpus.usable)
    assert sorted(n for package in cpus.packages for n in package.cpus) == sorted(cpus.usable)
    assert [package.socket for package in cpus.packages] == list(range(len(cpus.packages)))
    assert {cpu.core for cpu in cpus.cpus} == set(range(len(cpus.cores)))
    assert all(cpu.id in cpus.cores[cpu.core] for cpu in cpus.cpus)
    assert all(cpu.id in cpus.packages[cpu.socket].cpus for cpu in cpus.cpus)


def check_nodes(cpus: CpuTopology, numa: NumaTopology) -> None:
    """Assert that every usable CPU is in exactly one node, and that references lead somewhere."""
    assert sorted(n for node in numa.nodes for n in node.cpus) == sorted(cpus.usable)
    assert {node.id for node in numa.nodes if node.cpus} == {cpu.node for cpu in cpus.cpus}
    for node in numa.nodes:
        assert (node.kind is NumaNodeKind.CPU) == bool(node.cpus)
        assert node.near == (node.id if node.cpus else node.near)
        assert node.near == -1 or numa.near(node.near) == node.near
        assert node.socket in range(-1, len(cpus.packages))
        assert node.distances is None or len(node.distances) == len(numa.nodes)


@needs_shared
@pytest.mark.parametrize("name", ["16em64t", "nvidiagpunumanodes", "qemu"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_damaged_machine_is_read_without_error_and_stays_consistent(
    name: str, data: st.DataObject
) -> None:
    paths = st.sampled_from(read_paths(name))
    damage = data.draw(st.dictionaries(paths, DAMAGE, max_size=40))
    cpus, numa = read_cpu_numa(DamagedHost(capture(name), damage))
    check_cpus(cpus)
    check_nodes(cpus, numa)
    snapshot = NodeSnapshot(
        node=NodeIdentity(name="node-1"), cpus=SnapshotPart(cpus, 1.0), numa=SnapshotPart(numa, 1.0)
    )
    for desired in TopologyPublisher().render(snapshot, 0.0):
        assert json.dumps(desired.body)


@needs_shared
def test_a_host_that_refuses_everything_has_no_cpus() -> None:
    damage: dict[str, Damage] = dict.fromkeys((*read_paths("qemu"), "/proc/meminfo"), errno.EACCES)
    cpus, numa = read_cpu_numa(DamagedHost(capture("qemu"), damage))
    assert (cpus.usable, [node.memory_bytes for node in numa.nodes]) == (frozenset(), [None])


def test_a_host_without_anything_has_no_cpus_and_one_empty_node() -> None:
    cpus, numa = read_cpu_numa(TreeFiles.from_entries({}))
    assert (cpus, [node.kind for node in numa.nodes]) == (CpuTopology(), [NumaNodeKind.EMPTY])
