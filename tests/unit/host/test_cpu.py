"""Which file answers which question about CPUs; shown on a small invented machine."""

from __future__ import annotations

import errno

import pytest

from agent.host.cpu import read_cpu_numa
from agent.recording.tree import ErrorEntry
from agent.snapshot.cpu import CpuTopology
from agent.wire_formats.kernel_text import format_cpu_list
from tests.small_host import CPU, Changes, small_host


def read(changes: Changes) -> CpuTopology:
    return read_cpu_numa(small_host(changes))[0]


def usable(changes: Changes) -> str:
    return format_cpu_list(read(changes).usable)


def cores(changes: Changes) -> list[str]:
    return [format_cpu_list(core) for core in read(changes).cores]


@pytest.mark.parametrize(
    ("changes", "printed"),
    [
        ({}, "0-3"),
        ({f"{CPU}/online": "0,2-9"}, "0,2-3"),
        ({f"{CPU}/online": None, f"{CPU}/cpu3/online": "0", f"{CPU}/cpu2/online": "1"}, "0-2"),
        ({f"{CPU}/online": "3-1", f"{CPU}/cpu1/online": "0"}, "0,2-3"),
        ({f"{CPU}/online": " \n\0"}, "0-3"),
        ({f"{CPU}/cpu2/topology": None, f"{CPU}/cpu2/uevent": "x"}, "0-1,3"),
    ],
    ids=["all", "listed", "each one's file", "list refused", "blank list", "no topology"],
)
def test_usable_cpus_exist_are_online_and_have_a_topology(changes: Changes, printed: str) -> None:
    assert usable(changes) == printed


def test_an_online_cpu_without_topology_is_listed_separately() -> None:
    cpus = read({f"{CPU}/cpu2/topology": None, f"{CPU}/cpu2/uevent": "x"})
    assert (cpus.without_topology, len(cpus.present)) == (frozenset({2}), 4)


@pytest.mark.parametrize("name", ["cpu-1", "cpu01", "cpu999999", "cpu65536", "cpu0x1", "cpu٣"])
def test_names_that_are_no_cpu_are_skipped_and_counted(name: str) -> None:
    cpus = read({f"{CPU}/{name}/topology/core_cpus": "1", f"{CPU}/cpuidle/current": "x"})
    assert (cpus.skipped, len(cpus.present)) == (1, 4)


def test_a_malformed_cache_index_is_skipped_and_counted() -> None:
    cache = f"{CPU}/cpu0/cache"
    cpus = read({f"{cache}/index1a/level": "1", f"{cache}/index0/level": "1"})
    assert (cpus.skipped, cpus.caches) == (1, ())


@pytest.mark.parametrize(
    ("changes", "printed"),
    [
        ({"core_cpus": None, "core_cpus_list": "0-1"}, ["0-1", "2-3"]),
        ({"core_cpus": None, "thread_siblings": "3", "core_siblings": "f"}, ["0-1", "2-3"]),
        ({"core_cpus": "3", "core_cpus_list": "0-3"}, ["0-1", "2-3"]),
        ({"core_cpus": ErrorEntry(errno.EIO)}, ["0", "1", "2-3"]),
        ({"core_cpus": "g"}, ["0", "1", "2-3"]),
    ],
    ids=["list without mask", "old name", "mask before list", "unreadable", "refused"],
)
def test_the_first_file_with_the_core_is_used(changes: Changes, printed: list[str]) -> None:
    assert (
        cores({f"{CPU}/cpu0/topology/{name}": entry for name, entry in changes.items()}) == printed
    )


@pytest.mark.parametrize(
    ("changes", "printed"),
    [
        ({f"{CPU}/isolated": "2-3", "/proc/cmdline": "isolcpus=1"}, "2-3"),
        ({"/proc/cmdline": "quiet isolcpus=nohz,1"}, "1"),
        ({"/proc/cmdline": "isolcpus=x"}, ""),
        ({}, ""),
    ],
)
def test_isolated_cpus_come_from_the_kernel_then_from_its_command_line(
    changes: Changes, printed: str
) -> None:
    assert format_cpu_list(read(changes).isolated) == printed


@pytest.mark.parametrize(("text", "printed"), [("  (null)\n", ""), ("1-3\n", "1-3")])
def test_nohz_full_is_a_list_or_null(text: str, printed: str) -> None:
    assert format_cpu_list(read({f"{CPU}/nohz_full": text}).nohz_full) == printed


@pytest.mark.parametrize(
    ("files", "printed"),
    [
        ({"kubepods.slice/cpuset.cpus.effective": "0-1", "cpuset.cpus.effective": "0-3"}, "0-1"),
        ({"cpuset/kubepods/cpuset.cpus": "2", "cpuset/cpuset.cpus": "0-3"}, "2"),
        ({"cpuset.cpus.effective": "0-9"}, "0-3"),
    ],
    ids=["version 2", "version 1", "root"],
)
def test_the_limit_of_kubepods_is_recorded_and_hides_nothing(
    files: dict[str, str], printed: str
) -> None:
    cpus = read({f"/sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert cpus.allowed is not None
    assert (format_cpu_list(cpus.allowed), len(cpus.usable)) == (printed, 4)


def test_hybrid_kinds_and_smt_are_read() -> None:
    cpus = read(
        {
            "/sys/devices/cpu_core/cpus": "0-1",
            "/sys/devices/cpu_atom/cpus": "2-3",
            f"{CPU}/smt/active": "0",
            f"{CPU}/smt/control": "forceoff",
        }
    )
    assert [name for name, _ in cpus.kinds] == ["cpu_atom", "cpu_core"]
    assert (cpus.smt_active, cpus.smt_control) == (False, "forceoff")


def test_capacities_distinguish_kinds_on_arm() -> None:
    cpus = read({f"{CPU}/cpu{n}/cpu_capacity": "1024" if n else "446" for n in range(4)})
    assert [name for name, _ in cpus.kinds] == ["capacity-446", "capacity-1024"]
