"""CPUs and memory nodes of one host; they are judged together because each explains the other."""

from __future__ import annotations

from agent.host.cpu import read_cpus
from agent.host.files import HostFiles, text
from agent.host.numa import read_numa
from agent.topology.cpu import CpuTopology
from agent.topology.cpu_build import build_cpus, build_levels
from agent.topology.numa import NumaTopology
from agent.topology.numa_build import build_numa, share_out


def read_cpu_numa(host: HostFiles) -> tuple[CpuTopology, NumaTopology]:
    """Read and judge CPUs and memory nodes. Nothing raises; a host without CPUs has none.

    A 192-CPU machine takes about 3000 small reads.
    """
    cmdline = text(host, "/proc/cmdline") or ""
    raw_cpus = read_cpus(host, cmdline)
    raw_numa = read_numa(host, cmdline, raw_cpus.present)
    levels = build_levels(raw_cpus.cpus)
    shares = share_out(raw_numa.nodes, frozenset(raw_cpus.cpus), levels.packages)
    return (
        build_cpus(raw_cpus, levels, shares.node_of),
        build_numa(raw_numa, shares, levels.packages),
    )
