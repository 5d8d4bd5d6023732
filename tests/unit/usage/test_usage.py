from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.recording.tree import TreeFiles
from agent.snapshot.inventory import DeviceSample, ProcessSample
from agent.snapshot.pod import ContainerView, KubeQos, PodView
from agent.usage.monitor import UsageCollector
from tests.cgroups import PAGE, CgroupHost, container_id

A, B = container_id(10), container_id(11)
SECOND_NS = 10**9


@pytest.fixture(params=[1, 2], ids=["v1-comounted", "v2"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> CgroupHost:
    return CgroupHost(tmp_path, version=request.param)


def test_the_first_cycle_has_levels_and_no_rates(host: CgroupHost) -> None:
    host.group("/poda", cpu_ns=5 * SECOND_NS, anon=3, cache=4, throttling=(8, 2))
    sample = UsageCollector(host.files).measure(100.0)
    use = sample.pods["a"]
    assert (use.cpu_cores, use.throttled_ratio, sample.node.cpu_cores) == (None, None, None)
    assert (use.cpu_total_ns, use.periods, use.throttled_periods) == (5 * SECOND_NS, 8, 2)
    assert (use.memory_bytes, use.memory_with_cache_bytes) == (3 * PAGE, 7 * PAGE)
    assert sample.node.memory_bytes == 500 * 1024
    assert sample.node.memory_with_cache_bytes == 750 * 1024
    assert sample.node.memory_total_bytes == 1000 * 1024


def test_a_collector_that_is_dropped_leaves_no_descriptor_open(host: CgroupHost) -> None:
    host.group("/poda", cpu_ns=SECOND_NS)
    host.group(f"/poda/{A}", cpu_ns=SECOND_NS)
    before = set(os.listdir("/proc/self/fd"))
    collector = UsageCollector(host.files)
    collector.measure(1.0)
    assert len(os.listdir("/proc/self/fd")) > len(before) + 5
    del collector
    assert set(os.listdir("/proc/self/fd")) == before


def test_rates_are_those_since_the_previous_cycle(host: CgroupHost) -> None:
    host.group("/poda", cpu_ns=SECOND_NS, throttling=(10, 1))
    host.group(f"/poda/{A}", cpu_ns=SECOND_NS)
    collector = UsageCollector(host.files)
    collector.measure(100.0)
    host.group("/poda", cpu_ns=4 * SECOND_NS, throttling=(30, 6))
    host.group(f"/poda/{A}", cpu_ns=2 * SECOND_NS)
    host.node(busy=400, free_kb=500)
    sample = collector.measure(102.0)
    assert sample.pods["a"].cpu_cores == pytest.approx(1.5)
    assert sample.pods["a"].throttled_ratio == pytest.approx(0.25)
    assert sample.containers[A].cpu_cores == pytest.approx(0.5)
    assert sample.containers[A].throttled_ratio == 0.0  # no period ended
    assert sample.node.cpu_cores == pytest.approx(2.0)
    assert sample.node.system_cpu_cores == pytest.approx(0.5)


@pytest.mark.parametrize("elapsed_s", [0.0, -1.0])
def test_without_time_between_two_cycles_there_are_no_rates(
    host: CgroupHost, elapsed_s: float
) -> None:
    host.group("/poda", cpu_ns=SECOND_NS)
    collector = UsageCollector(host.files)
    collector.measure(100.0)
    sample = collector.measure(100.0 + elapsed_s)
    use = sample.pods["a"]
    assert (use.cpu_cores, use.throttled_ratio) == (None, None)
    assert (sample.node.cpu_cores, sample.node.system_cpu_cores) == (None, None)


def test_a_counter_that_fell_skips_one_sample(host: CgroupHost) -> None:
    host.group("/poda", cpu_ns=9 * SECOND_NS, throttling=(9, 9))
    collector = UsageCollector(host.files)
    collector.measure(1.0)
    host.group("/poda", cpu_ns=SECOND_NS, throttling=(1, 1))
    fallen = collector.measure(2.0).pods["a"]
    host.group("/poda", cpu_ns=2 * SECOND_NS, throttling=(3, 1))
    after = collector.measure(3.0).pods["a"]
    assert (fallen.cpu_cores, fallen.throttled_ratio) == (None, None)
    assert after.cpu_cores == pytest.approx(1.0)
    assert after.throttled_ratio == 0.0


def test_the_system_is_what_the_pods_leave_and_never_less_than_nothing(host: CgroupHost) -> None:
    host.group("/poda", anon=100)
    collector = UsageCollector(host.files)
    assert collector.measure(1.0).node.system_memory_bytes == 100 * 1024
    host.group("/poda", anon=1000)
    assert collector.measure(2.0).node.system_memory_bytes == 0


def test_pods_with_unreadable_files_leave_the_system_unknown(host: CgroupHost) -> None:
    for point in set(host.points.values()):
        host.path(f"{point}/kubepods/poda").mkdir()
    collector = UsageCollector(host.files)
    collector.measure(1.0)
    host.node(busy=100, free_kb=500)
    sample = collector.measure(2.0)
    assert sample.node.cpu_cores == pytest.approx(1.0)
    assert sample.node.system_cpu_cores is None
    assert sample.node.system_memory_bytes is None
    assert sample.pods["a"].memory_bytes is None


def test_a_host_without_pods_is_all_system(tmp_path: Path) -> None:
    host = CgroupHost(tmp_path)
    sample = UsageCollector(host.files).measure(1.0)
    assert sample.node.system_memory_bytes == sample.node.memory_bytes == 500 * 1024
    assert not sample.pods


def test_a_pod_that_goes_between_listing_and_reading_skips_itself_only(host: CgroupHost) -> None:
    for name in ("a", "b"):
        host.group(f"/pod{name}", cpu_ns=SECOND_NS)
    collector = UsageCollector(host.files)
    collector.measure(1.0)
    # the directory stays, as while the kernel takes it down: its files do not answer
    for point in set(host.points.values()):
        for file in host.path(f"{point}/kubepods/poda").iterdir():
            file.unlink()
    host.group("/podb", cpu_ns=2 * SECOND_NS)
    collector.measure(2.0)
    host.remove("/poda")
    host.group("/podb", cpu_ns=3 * SECOND_NS)
    sample = collector.measure(3.0)
    assert list(sample.pods) == ["b"]
    assert sample.pods["b"].cpu_cores == pytest.approx(1.0)


def test_pods_that_come_keep_the_rates_of_those_that_stay(host: CgroupHost) -> None:
    host.group("/podb", cpu_ns=SECOND_NS)
    collector = UsageCollector(host.files)
    collector.measure(1.0)
    host.group("/poda", cpu_ns=SECOND_NS)
    host.group("/podb", cpu_ns=2 * SECOND_NS)
    sample = collector.measure(2.0)
    assert sample.pods["a"].cpu_cores is None
    assert sample.pods["b"].cpu_cores == pytest.approx(1.0)


def test_the_root_of_pods_may_appear_later(tmp_path: Path) -> None:
    host = CgroupHost(tmp_path)
    root = host.path("/sys/fs/cgroup/kubepods")
    root.rename(root.with_name("later"))
    collector = UsageCollector(host.files)
    assert not collector.measure(1.0).pods
    root.with_name("later").rename(root)
    host.group("/poda")
    assert not collector.measure(5.0).pods
    assert list(collector.measure(11.0).pods) == ["a"]


def test_the_kubelets_other_driver_is_noticed_once_its_pods_are_gone(tmp_path: Path) -> None:
    host = CgroupHost(tmp_path)
    host.group("/poda")
    collector = UsageCollector(host.files)
    assert list(collector.measure(1.0).pods) == ["a"]
    host.remove("")
    host.path("/sys/fs/cgroup/kubepods.slice/kubepods-podb.slice").mkdir(parents=True)
    assert not collector.measure(2.0).pods
    assert list(collector.measure(11.0).pods) == ["b"]


def test_a_controller_that_is_not_mounted_leaves_its_values_unknown(tmp_path: Path) -> None:
    host = CgroupHost(tmp_path, version=1)
    host.write("/proc/mounts", "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n")
    host.group("/poda", anon=2)
    collector = UsageCollector(host.files)
    collector.measure(1.0)
    use = collector.measure(2.0).pods["a"]
    assert use.memory_bytes == 2 * PAGE
    assert (use.cpu_cores, use.cpu_total_ns, use.periods) == (None, None, None)


def test_pods_and_pressure_can_be_left_out(tmp_path: Path) -> None:
    host = CgroupHost(tmp_path)
    host.group("/poda")
    line = "some avg10=1.00 avg60=0.00 avg300=0.00 total=1\n"
    for directory in ("/proc/pressure/cpu", "/sys/fs/cgroup/kubepods/poda/cpu.pressure"):
        host.write(directory, line)
    host.write("/sys/fs/cgroup/kubepods/cpu.pressure", line)
    bare = UsageCollector(host.files, pods=False).measure(1.0)
    assert not bare.pods
    assert bare.node.memory_bytes is not None
    assert bare.node.system_memory_bytes is None
    silent = UsageCollector(host.files, pressure_interval_s=None).measure(1.0)
    assert (silent.node.pressure, silent.pods["a"].pressure) == (None, None)
    reports = UsageCollector(host.files).measure(1.0)
    assert reports.node.pressure is not None
    assert reports.pods["a"].pressure is not None


def test_a_sample_is_not_changed_by_later_cycles(host: CgroupHost) -> None:
    host.group("/poda", anon=1)
    collector = UsageCollector(host.files)
    first = collector.measure(1.0)
    host.group("/poda", anon=2)
    host.group("/podb", anon=2)
    collector.measure(2.0)
    assert list(first.pods) == ["a"]
    assert first.pods["a"].memory_bytes == PAGE


def test_known_pods_are_joined_with_the_cgroups(host: CgroupHost) -> None:
    host.group(f"/burstable/podu1/{A}")
    pod_view = PodView(
        uid="u1",
        qos=KubeQos.BURSTABLE,
        name="web",
        namespace="shop",
        containers=(ContainerView(id=A, name="main"), ContainerView(id=B, name="done")),
    )
    collector = UsageCollector(host.files)
    collector.measure(1.0, (pod_view,))
    (pod,) = collector.pods
    assert (pod.name, pod.cgroup) == ("web", "/kubepods/burstable/podu1")
    assert [(c.name, bool(c.cgroup)) for c in pod.containers] == [("main", True), ("done", False)]


def test_a_recorded_host_is_measured_by_levels() -> None:
    host = TreeFiles.from_entries(
        {
            "/proc/mounts": b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
            "/sys/fs/cgroup/kubepods/poda/cpu.stat": b"usage_usec 5\n",
            "/proc/meminfo": b"MemTotal: 10 kB\nMemFree: 1 kB\nMemAvailable: 4 kB\n",
        }
    )
    sample = UsageCollector(host).measure(1.0)
    assert sample.pods["a"].cpu_total_ns == 5000
    assert sample.node.memory_bytes == 6 * 1024
    assert sample.node.cpu_cores is None
    assert sample.node.pressure is None


def test_device_processes_are_owned_by_the_pod_of_their_cgroup(host: CgroupHost) -> None:
    host.write("/proc/7/cgroup", f"0::/kubepods/burstable/podu1/{A}/container\n")
    host.write("/proc/8/cgroup", "3:cpu,cpuacct:/system.slice/x.service\n0::/\n")
    processes = tuple(ProcessSample(pid=pid) for pid in (7, 8, 9))
    samples = [DeviceSample(key="d", processes=processes), DeviceSample(key="e")]
    assert UsageCollector(host.files).process_owners(samples) == {7: ("u1", A)}


def test_pressure_is_read_at_once_and_then_in_turns(tmp_path: Path) -> None:
    host = CgroupHost(tmp_path)
    line = "some avg10={} avg60=0.00 avg300=0.00 total=1\n"
    for name in ("", "/poda"):
        for resource in ("cpu", "memory", "io"):
            host.write(f"/sys/fs/cgroup/kubepods{name}/{resource}.pressure", line.format("1.00"))
    host.group("/poda")
    collector = UsageCollector(host.files)
    first = collector.measure(0.0).pods["a"].pressure
    host.write("/sys/fs/cgroup/kubepods/poda/cpu.pressure", line.format("9.00"))
    later = [collector.measure(float(i)).pods["a"].pressure for i in range(1, 11)]
    assert first is not None
    assert first["cpu"].some_avg10 == 1.0
    some_avg10s = [pressure["cpu"].some_avg10 for pressure in later if pressure is not None]
    assert some_avg10s[0] == 1.0
    assert some_avg10s[-1] == 9.0
