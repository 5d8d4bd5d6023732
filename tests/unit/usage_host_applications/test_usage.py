from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from agent.recording.tree import TreeFiles
from agent.snapshot.slo import CgroupPath, HostApplication
from agent.snapshot.usage import UsageSample
from agent.usage.file_reader import DescriptorCache
from agent.usage.host_applications import HostApplicationReader
from agent.usage.monitor import UsageCollector
from tests.cgroups import PAGE, CgroupHost

SECOND_NS = 10**9
BY_CLASS = "/host-best-effort/spark"
SPARK = HostApplication(name="spark", qos="BE")
KIB = 1024


class Host(CgroupHost):
    """A host whose applications' groups are moved by hand."""

    def application(
        self, cgroup: str = BY_CLASS, cpu_ns: int = 0, anon: int = 0, whole: int = 0
    ) -> None:
        """Make a group anywhere below the root, or set its files; memory in pages."""
        self.group(f"/..{cgroup}", cpu_ns=cpu_ns, anon=anon)
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        self.write(f"{self.points['memory']}{cgroup}/{name}", f"{whole * PAGE}\n")

    def stop(self, cgroup: str = BY_CLASS) -> None:
        """Remove an application's group."""
        self.remove(f"/..{cgroup}")


@pytest.fixture(params=[1, 2], ids=["v1-comounted", "v2"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    return Host(tmp_path, version=request.param)


def measure(measuring: UsageCollector, now_s: float, *applications: HostApplication) -> UsageSample:
    return measuring.measure(now_s, applications=applications)


def test_an_application_is_measured_with_and_without_cache(host: Host) -> None:
    host.application(cpu_ns=SECOND_NS, anon=3, whole=9)
    measuring = UsageCollector(host.files)
    first = measure(measuring, 1.0, SPARK).applications["spark"]
    host.application(cpu_ns=4 * SECOND_NS, anon=4, whole=9)
    second = measure(measuring, 3.0, SPARK).applications["spark"]
    assert (first.cpu_cores, first.memory_bytes) == (None, 3 * PAGE)
    assert (second.memory_bytes, second.memory_with_cache_bytes) == (4 * PAGE, 9 * PAGE)
    assert second.cpu_cores == pytest.approx(1.5)
    assert measuring.applications == (("spark", BY_CLASS),)


def test_an_application_is_none_of_the_systems_use(host: Host) -> None:
    host.group("/poda", anon=10, cpu_ns=0)
    host.application(anon=20, whole=90)
    measuring = UsageCollector(host.files)
    measure(measuring, 1.0, SPARK)
    host.node(busy=400, free_kb=500)
    host.group("/poda", anon=10, cpu_ns=SECOND_NS)
    host.application(anon=20, whole=90, cpu_ns=2 * SECOND_NS)
    node = measure(measuring, 2.0, SPARK).node
    assert node.cpu_cores == pytest.approx(4.0)
    assert node.system_cpu_cores == pytest.approx(1.0)
    # what it has in the page cache is not subtracted from memory that is told without
    assert node.system_memory_bytes == 500 * KIB - 10 * PAGE - 20 * PAGE


def test_the_systems_use_is_never_less_than_nothing(host: Host) -> None:
    host.application(anon=1000)
    measuring = UsageCollector(host.files)
    measure(measuring, 1.0, SPARK)
    host.application(anon=1000, cpu_ns=9 * SECOND_NS)
    host.node(busy=100, free_kb=500)
    node = measure(measuring, 2.0, SPARK).node
    assert (node.system_cpu_cores, node.system_memory_bytes) == (0, 0)


def test_one_within_another_is_subtracted_once(host: Host) -> None:
    inner = HostApplication(name="inner", cgroup_path=CgroupPath(relative_path="x/y"))
    outer = HostApplication(name="outer", cgroup_path=CgroupPath(relative_path="x"))
    host.application("/x", anon=30)
    host.application("/x/y", anon=20)
    sample = measure(UsageCollector(host.files), 1.0, inner, outer)
    assert set(sample.applications) == {"inner", "outer"}
    assert sample.node.system_memory_bytes == 500 * KIB - 30 * PAGE


def test_two_names_of_one_directory_are_one_application(host: Host) -> None:
    other = HostApplication(name="other", cgroup_path=CgroupPath(relative_path=BY_CLASS[1:]))
    host.application(anon=20)
    measuring = UsageCollector(host.files)
    sample = measure(measuring, 1.0, SPARK, other)
    assert set(sample.applications) == {"spark"}
    assert sample.node.system_memory_bytes == 500 * KIB - 20 * PAGE
    assert set(measure(measuring, 2.0, other).applications) == {"other"}
    measuring.close()
    assert not open_files(host)


def test_a_stopped_application_is_left_out_and_a_started_one_noticed_within_ten_seconds(
    host: Host,
) -> None:
    measuring = UsageCollector(host.files)
    assert not measure(measuring, 1.0, SPARK).applications
    host.application(anon=1)
    assert not measure(measuring, 5.0, SPARK).applications
    assert set(measure(measuring, 11.0, SPARK).applications) == {"spark"}


def test_one_that_stops_is_left_out_in_the_next_cycle_and_may_start_again(host: Host) -> None:
    other = HostApplication(name="other", qos="LS")
    for path in (BY_CLASS, "/host-latency-sensitive/other"):
        host.application(path, cpu_ns=5 * SECOND_NS, anon=1)
    # without kept descriptors: an ordinary file that is gone would still answer through one
    by_path = DescriptorCache(host.files, limit=0)
    reader = HostApplicationReader(host.files, by_path)
    assert set(reader.read(1.0, None, (SPARK, other)).by_name) == {"spark", "other"}
    host.stop()
    after = reader.read(2.0, None, (SPARK, other))
    assert set(after.by_name) == {"other"}
    assert after.memory_bytes == PAGE
    host.application(cpu_ns=SECOND_NS, anon=2)
    assert set(reader.read(3.0, None, (SPARK, other)).by_name) == {
        "spark",
        "other",
    }  # it was looked for at once
    back = reader.read(4.0, None, (SPARK, other)).by_name["spark"]
    assert (back.cpu_cores, back.memory_bytes) == (0.0, 2 * PAGE)


def open_files(host: Host) -> list[str]:
    """Return the applications' files that this process has open."""
    result = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            result.append(os.readlink(f"/proc/self/fd/{name}"))
    return [path for path in result if path.startswith(str(host.root)) and "/host-" in path]


def test_one_without_a_memory_controller_has_its_cpu_and_hides_nothing(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.write(f"/sys/fs/cgroup{BY_CLASS}/cpu.stat", "usage_usec 7\n")
    sample = measure(UsageCollector(host.files), 1.0, SPARK)
    assert sample.applications["spark"].cpu_total_ns == 7000
    assert sample.applications["spark"].memory_bytes is None
    assert sample.node.system_memory_bytes == 500 * KIB


def test_files_that_no_kernel_prints_leave_the_application_out(tmp_path: Path) -> None:
    host = Host(tmp_path)
    for name in ("cpu.stat", "memory.stat", "memory.current"):
        host.write(f"/sys/fs/cgroup{BY_CLASS}/{name}", "x\n" * 1000)
    assert not measure(UsageCollector(host.files), 1.0, SPARK).applications


def test_the_requested_applications_may_change_at_any_time(host: Host) -> None:
    host.application(anon=1)
    host.application("/host-latency-sensitive/web", anon=2)
    measuring = UsageCollector(host.files)
    names = []
    for now_s, desired in enumerate(
        ((), (SPARK,), (SPARK, HostApplication(name="web", qos="LS")), (SPARK,), ())
    ):
        names.append(sorted(measure(measuring, float(now_s), *desired).applications))
    assert names == [[], ["spark"], ["spark", "web"], ["spark"], []]
    assert not open_files(host)


def test_rates_of_those_that_stay_survive_one_that_comes(host: Host) -> None:
    host.application(cpu_ns=SECOND_NS)
    host.application("/host-latency-sensitive/web")
    measuring = UsageCollector(host.files)
    measure(measuring, 1.0, SPARK)
    host.application(cpu_ns=2 * SECOND_NS)
    applications = measure(
        measuring, 2.0, HostApplication(name="web", qos="LS"), SPARK
    ).applications
    assert applications["spark"].cpu_cores == pytest.approx(1.0)
    assert applications["web"].cpu_cores is None


@pytest.mark.parametrize("pods", [True, False])
def test_applications_are_measured_before_the_kubelet_made_its_root_and_without_pods(
    tmp_path: Path, pods: bool
) -> None:
    host = Host(tmp_path)
    host.remove("")
    host.application("/kubepods-less/spark", anon=5)
    place = CgroupPath(parent_dir="kubepods-less", relative_path="spark")
    host_applications = (
        HostApplication(name="spark", cgroup_path=place),
        HostApplication(name="later", cgroup_path=CgroupPath(base="Kubepods", relative_path="l")),
    )
    measuring = UsageCollector(host.files, pods=pods)
    assert set(measure(measuring, 1.0, *host_applications).applications) == {"spark"}
    host.application("/kubepods/l", anon=1)
    assert set(measure(measuring, 12.0, *host_applications).applications) == {"spark", "later"}


def test_without_applications_the_host_is_not_read(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.application()
    measuring = UsageCollector(host.files)
    sample = measuring.measure(1.0)
    assert not sample.applications
    assert sample.node.system_memory_bytes == 500 * KIB
    assert not open_files(host)


def test_a_recorded_host_has_levels_of_its_applications() -> None:
    group = f"/sys/fs/cgroup{BY_CLASS}"
    host = TreeFiles.from_entries(
        {
            "/proc/mounts": b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
            f"{group}/cpu.stat": b"usage_usec 5\n",
            f"{group}/memory.current": b"8192\n",
        }
    )
    sample = measure(UsageCollector(host), 1.0, SPARK)
    use = sample.applications["spark"]
    assert (use.cpu_total_ns, use.memory_with_cache_bytes) == (5000, 8192)


def test_closing_releases_all_descriptors(host: Host) -> None:
    host.application()
    measuring = UsageCollector(host.files)
    measure(measuring, 1.0, SPARK)
    assert open_files(host)
    measuring.close()
    assert not open_files(host)
