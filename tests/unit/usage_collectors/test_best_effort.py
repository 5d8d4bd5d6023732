from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.layout import CgroupLayout, detect_layout
from agent.clock import ManualClock
from agent.snapshot.pod import ContainerView, KubeQos, PodView
from agent.snapshot.usage import BestEffortUsage
from agent.usage.best_effort import BestEffortCollector, limit_milli, request_milli
from agent.usage.collector import CollectorInput
from agent.wire_formats.pod import decode_pod
from tests.cgroups import PAGE, CgroupHost, container_id

A, B = container_id(1), container_id(2)
BE = (("koordinator.sh/qosClass", "BE"),)
SECOND_NS = 10**9


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> CgroupHost:
    host = CgroupHost(tmp_path, version=request.param)
    if host.version == 1:
        with host.path("/proc/mounts").open("a") as mounts:
            mounts.write("cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n")
        host.path("/sys/fs/cgroup/cpuset/kubepods/besteffort").mkdir(parents=True)
    host.group("/besteffort")
    quota(host, "max" if host.version == 2 else "-1")
    return host


def layout(host: CgroupHost) -> CgroupLayout:
    cgroups = detect_layout(host.files)
    assert cgroups is not None
    return cgroups


def quota(host: CgroupHost, text: str, period: str = "100000") -> None:
    folder = f"{host.points['cpu']}/kubepods/besteffort"
    if host.version == 2:
        host.write(f"{folder}/cpu.max", f"{text} {period}\n")
    else:
        host.write(f"{folder}/cpu.cfs_quota_us", f"{text}\n")
        host.write(f"{folder}/cpu.cfs_period_us", f"{period}\n")


def cpus(host: CgroupHost, cgroup: str, text: str) -> None:
    if host.version == 2:
        host.write(f"/sys/fs/cgroup/kubepods/besteffort{cgroup}/cpuset.cpus.effective", text)
    else:
        host.write(f"/sys/fs/cgroup/cpuset/kubepods/besteffort{cgroup}/cpuset.cpus", text)


def pod(uid: str = "a", **changes: object) -> PodView:
    containers = tuple(
        ContainerView(id=one, cgroup=f"/kubepods/besteffort/pod{uid}/{one}") for one in (A, B)
    )
    base = PodView(
        uid=uid,
        name=f"spark-{uid}",
        namespace="x",
        qos=KubeQos.BEST_EFFORT,
        labels=BE,
        containers=containers,
    )
    return msgspec.structs.replace(base, **changes)


def measure(host: CgroupHost, *pods: PodView) -> BestEffortUsage:
    cycle = CollectorInput(now_s=1.0, layout=layout(host), pods=pods)
    return collected(BestEffortCollector(host.files, ManualClock()), cycle)


def collected(collector: BestEffortCollector, cycle: CollectorInput) -> BestEffortUsage:
    value = collector.collect(cycle)
    assert value is not None
    return value


@pytest.mark.parametrize(
    ("counts", "bandwidth", "expected"),
    [
        ([8, 4], None, 4000),
        ([8], Bandwidth(-1), 8000),
        ([8], Bandwidth(250_000), 2500),
        ([1], Bandwidth(250_000), 1000),
        ([8], Bandwidth(150_000, 50_000), 3000),
        ([None, 0, 3], Bandwidth(-1), 3000),
        ([None, 0], Bandwidth(200_000), 2000),
        ([None, 0], Bandwidth(-1), None),
        ([], None, None),
        ([8], Bandwidth(0), None),
    ],
)
def test_the_real_limit_is_the_smaller_of_cpu_sets_and_quota(
    counts: list[int | None], bandwidth: Bandwidth | None, expected: int | None
) -> None:
    assert limit_milli(counts, bandwidth) == expected


def test_the_limit_is_that_of_the_smallest_cpu_set_below_the_tier(host: CgroupHost) -> None:
    cpus(host, "", "0-7\n")
    cpus(host, f"/poda/{A}", "0-3,6\n")
    cpus(host, f"/poda/{B}", "0-6\n")
    assert measure(host, pod()).limit_milli == 5000
    quota(host, "450000")
    assert measure(host, pod()).limit_milli == 4500


@pytest.mark.parametrize("text", ["", "\n", "0-", "0-7", "7-0\n", "x\n", "-1\n", "0-99999999\n"])
def test_a_broken_cpu_set_costs_itself_only(host: CgroupHost, text: str) -> None:
    cpus(host, "", "0-7\n")
    cpus(host, f"/poda/{A}", text)
    assert measure(host, pod()).limit_milli == 8000


@pytest.mark.parametrize("text", ["", "x", "-2", "99999999999999999999", "100000 100000"])
def test_with_a_broken_quota_the_limit_is_not_known(host: CgroupHost, text: str) -> None:
    cpus(host, "", "0-7\n")
    quota(host, text)
    assert measure(host, pod()).limit_milli is None


@pytest.mark.parametrize("period", ["0", "-5", "", "x"])
def test_with_a_broken_period_the_limit_is_not_known(host: CgroupHost, period: str) -> None:
    quota(host, "100000", period)
    assert measure(host, pod()).limit_milli is None


def test_a_group_without_quota_files_has_the_limit_of_its_cpu_set(host: CgroupHost) -> None:
    for name in ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"):
        host.path(f"{host.points['cpu']}/kubepods/besteffort/{name}").unlink(missing_ok=True)
    cpus(host, "", "0-1\n")
    assert measure(host).limit_milli == 2000


def test_usage_is_a_rate_and_the_first_cycle_has_none(host: CgroupHost) -> None:
    collector = BestEffortCollector(host.files, ManualClock())
    host.group("/besteffort", cpu_ns=SECOND_NS, anon=3, cache=4, throttling=(10, 1))
    cycle = CollectorInput(now_s=100.0, layout=layout(host))
    first = collected(collector, cycle).use
    assert first is not None
    assert (first.cpu_cores, first.throttled_ratio) == (None, None)
    assert (first.memory_bytes, first.memory_with_cache_bytes) == (3 * PAGE, 7 * PAGE)
    host.group("/besteffort", cpu_ns=4 * SECOND_NS, throttling=(20, 6))
    second = collected(collector, msgspec.structs.replace(cycle, now_s=102.0)).use
    assert second is not None
    assert (second.cpu_cores, second.throttled_ratio) == (1.5, 0.5)
    host.group("/besteffort", cpu_ns=0)
    fallen = collected(collector, msgspec.structs.replace(cycle, now_s=103.0)).use
    assert fallen is not None
    assert fallen.cpu_cores is None


class SlowClock(ManualClock):
    """A clock by which each file takes longer than one call may."""

    def monotonic(self) -> float:
        self.advance(0.01)
        return super().monotonic()


def test_the_cpu_sets_of_many_containers_are_read_in_several_cycles(host: CgroupHost) -> None:
    cpus(host, "", "0-7\n")
    cpus(host, f"/poda/{A}", "0-3\n")
    cpus(host, f"/poda/{B}", "0-1\n")
    collector = BestEffortCollector(host.files, SlowClock())
    cycle = CollectorInput(now_s=1.0, layout=layout(host), pods=(pod(),))
    assert [collector.collect(cycle) for _ in range(2)] == [None, None]
    assert collected(collector, cycle).limit_milli == 2000
    assert collector.collect(cycle) is None  # the next round


def test_a_tier_that_goes_has_no_values_left(host: CgroupHost) -> None:
    collector = BestEffortCollector(host.files, ManualClock())
    host.group("/besteffort", cpu_ns=SECOND_NS, anon=3)
    cycle = CollectorInput(now_s=1.0, layout=layout(host))
    collected(collector, cycle)
    for point in {*host.points.values(), "/sys/fs/cgroup/cpuset"}:
        for path in host.path(f"{point}/kubepods/besteffort").glob("*"):
            path.unlink()
    collector.close()  # a deleted file keeps its content for a descriptor; a cgroup's does not
    ended = collected(collector, msgspec.structs.replace(cycle, now_s=30.0))
    assert ended.use is not None
    assert (ended.use.cpu_total_ns, ended.use.memory_bytes, ended.limit_milli) == (None, None, None)


def test_a_node_without_a_kubelet_has_a_request_only(tmp_path: Path) -> None:
    host = CgroupHost(tmp_path)
    cycle = CollectorInput(now_s=1.0, pods=(pod(),))
    value = BestEffortCollector(host.files, ManualClock()).collect(cycle)
    assert value == BestEffortUsage(request_milli=0)


def test_the_request_is_that_of_pods_with_the_label() -> None:
    pods = (
        pod("a", batch_cpu_milli=1500),
        pod("b", batch_cpu_milli=500),
        pod("c", batch_cpu_milli=4000, labels=()),
        pod("d", batch_cpu_milli=8000, phase="Succeeded"),
        pod("e", batch_cpu_milli=0),
    )
    assert request_milli(pods) == 2000
    assert request_milli(()) == 0


def test_a_pod_that_only_its_cgroup_shows_makes_the_request_unknown() -> None:
    assert request_milli((pod("a", batch_cpu_milli=1), pod("b", name="", labels=()))) is None
    other = pod("b", name="", labels=(), qos=KubeQos.BURSTABLE)
    assert request_milli((pod("a", batch_cpu_milli=1), other)) == 1


def test_a_malformed_request_makes_the_sum_unknown() -> None:
    assert request_milli((pod("a", batch_cpu_milli=1), pod("b", batch_cpu_milli=None))) is None


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, 0),
        ({"requests": {"cpu": "4"}}, 0),
        ({"requests": {"kubernetes.io/batch-cpu": "1500"}}, 3000),
        ({"requests": {"kubernetes.io/batch-cpu": "2k"}}, 4000),
        ({"limits": {"kubernetes.io/batch-cpu": 700}}, 1400),
        (
            {
                "limits": {"kubernetes.io/batch-cpu": "9"},
                "requests": {"kubernetes.io/batch-cpu": "5"},
            },
            10,
        ),
        ({"requests": {"kubernetes.io/batch-cpu": "-5"}}, None),
        ({"requests": {"kubernetes.io/batch-cpu": "x"}}, None),
        ({"requests": {"kubernetes.io/batch-cpu": "99999999999999999999"}}, None),
    ],
)
def test_the_request_is_read_from_the_containers_of_the_spec(
    resources: dict[str, object], expected: int | None
) -> None:
    container = {"name": "c", "resources": resources}
    data = {
        "metadata": {"uid": "u" * 8, "name": "n", "namespace": "s"},
        "spec": {
            "containers": [container, {**container, "name": "d"}],
            "initContainers": [{**container, "name": "i"}],
        },
    }
    assert decode_pod(msgspec.json.encode(data)).batch_cpu_milli == expected
