"""The CPUs that pods share, by socket and memory node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from agent.model.cluster.pod_cpus import EXCLUSIVE, PodCpus
from agent.topology.cpu import Cpu, CpuSet


class Pool(msgspec.Struct, frozen=True):
    """The shared CPUs of one memory node of one socket."""

    socket: int
    node: int
    cpus: CpuSet


class Pools(msgspec.Struct, frozen=True, kw_only=True):
    """What latency-sensitive pods share, and what best-effort pods do."""

    ls: tuple[Pool, ...]
    be: tuple[Pool, ...]


def shared_pools(
    machine: Iterable[Cpu],
    scheduled: Iterable[PodCpus],
    kubelet: Iterable[PodCpus],
    withheld: CpuSet,
) -> Pools:
    """Return both pools; `withheld` are CPUs that no pod may use at all.

    What the kubelet reserves stays in: it must leave something where others hold all. CPUs of a
    pod are missing for latency-sensitive pods; best-effort pods run there while it idles, unless
    it asked for them alone.
    """
    machine, scheduled = tuple(machine), tuple(scheduled)
    gone = withheld.union(*(pod.cpus for pod in kubelet))
    held = frozenset[int]().union(*(pod.cpus for pod in scheduled))
    alone = frozenset[int]().union(*(pod.cpus for pod in scheduled if pod.label == EXCLUSIVE))
    return Pools(ls=_pools(machine, gone | held), be=_pools(machine, gone | alone))


def _pools(machine: Iterable[Cpu], without: CpuSet) -> tuple[Pool, ...]:
    groups: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for cpu in machine:
        if cpu.id not in without:
            groups[cpu.socket, cpu.node].add(cpu.id)
    return tuple(Pool(*place, frozenset(cpus)) for place, cpus in sorted(groups.items()))
