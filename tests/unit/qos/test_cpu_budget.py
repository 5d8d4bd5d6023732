"""How much CPU best-effort pods may use, and the quota that grants it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.cgroup.cpu import Bandwidth
from agent.qos.cpu_budget import (
    NO_CUT,
    CpuUse,
    budget_milli,
    measured_use,
    next_quota_us,
    quota_us,
    react_to_stall,
    reserved_cores,
)
from agent.qos.inputs import qos_pods
from agent.qos.strategy import NodeCapacity
from agent.snapshot.pod import KubeQos
from agent.snapshot.slo import CgroupPath, HostApplication, ResourceThresholds
from agent.snapshot.usage import CgroupUsage, NodeUsage, UsageSample
from tests.clustered import pod


@pytest.mark.parametrize(
    ("capacity", "threshold", "node", "protected", "pods", "applications", "least", "budget"),
    [
        (20000, 70, 12.0, 8.0, 10.0, (0.0, 0.0), None, 4000),
        (20000, 70, 12.0, 8.0, 12.0, (0.0, 0.0), None, 6000),
        (20000, 70, 12.0, 8.0, 10.0, (1.0, 1.0), None, 4000),
        (20000, 70, 12.0, 8.0, 10.0, (0.0, 1.0), None, 5000),
        (20000, 70, 12.0, 8.0, 10.0, (0.0, 0.0), 60, 12000),
        (20000, 65, 12.0, 8.0, 10.0, (0.0, 0.0), None, 3000),
        (96000, 65, 80.0, 62.5, 75.25, (0.0, 0.0), None, -4850),
        (96000, 65, 80.0, 62.5, 75.25, (0.0, 0.0), 10, 9600),
        (8000, 65, 1.0, 3.0, 6.0, (0.0, 0.0), None, 2200),
    ],
)
def test_the_budget_is_what_others_leave_below_the_threshold(
    capacity: int,
    threshold: int,
    node: float,
    protected: float,
    pods: float,
    applications: tuple[float, float],
    least: int | None,
    budget: int,
) -> None:  # S1-S6, S8, S9, S11
    use = CpuUse(
        node_cores=node,
        pods_cores=pods,
        protected_pods_cores=protected,
        protected_applications_cores=applications[0],
        applications_cores=applications[1],
    )
    thresholds = ResourceThresholds(
        cpu_suppress_threshold_percent=threshold, cpu_suppress_min_percent=least
    )
    assert budget_milli(capacity, thresholds, use) == budget


@pytest.mark.parametrize(
    ("capacity", "node", "protected", "pods", "reserved", "budget"),
    [
        (20000, 12.0, 8.0, 10.0, 4.0, 1000),
        (4000, 1.2345, 0.6789, 1.0, 0.1, 1688),
    ],
)
def test_reserved_cores_are_not_left(
    capacity: int, node: float, protected: float, pods: float, reserved: float, budget: int
) -> None:  # S7, S10
    use = CpuUse(
        node_cores=node, pods_cores=pods, protected_pods_cores=protected, reserved_cores=reserved
    )
    assert budget_milli(capacity, ResourceThresholds(), use) == budget


def test_use_is_of_pods_by_label_and_class_and_of_applications() -> None:
    pods = qos_pods(
        (
            pod("labelled", qos="BE"),
            replace(pod("kubernetes"), qos=KubeQos.BEST_EFFORT),
            pod("sensitive", qos="LS"),
        )
    )
    cores = {
        "uid-labelled": 0.5,
        "uid-kubernetes": 0.5,
        "uid-sensitive": 2.0,
        "uid-not-listed": 4.0,
        "uid-new": None,
    }
    applications = (
        HostApplication(name="batch", qos="BE", cgroup_path=CgroupPath(base="KubepodsBesteffort")),
        HostApplication(name="elsewhere", qos="BE", cgroup_path=CgroupPath()),
        HostApplication(name="not-running", qos="LS"),
    )
    usage = UsageSample(
        node=NodeUsage(cpu_cores=20.0),
        pods={uid: CgroupUsage(cpu_cores=value) for uid, value in cores.items()},
        applications={
            "batch": CgroupUsage(cpu_cores=0.5),
            "elsewhere": CgroupUsage(cpu_cores=0.25),
        },
    )
    use = measured_use(usage, pods, applications, 3.0)
    assert use is not None
    assert (use.pods_cores, use.protected_pods_cores) == (7.0, 6.0)
    assert (use.applications_cores, use.protected_applications_cores) == (0.75, 0.25)
    assert use.system_cores == 20.0 - 7.0 - 0.75


def test_a_node_without_a_sample_has_no_use() -> None:
    assert measured_use(UsageSample(), (), (), 0.0) is None


@pytest.mark.parametrize(
    ("capacity", "allocatable", "annotated", "cores"),
    [
        (8000, 7000, 0.0, 1.0),
        (8000, 7000, 2.5, 2.5),
        (8000, None, 2.5, 2.5),
        (8000, 9000, 0.0, 0.0),
        (None, 7000, 0.5, 0.5),
    ],
)
def test_cores_are_reserved_by_the_node_or_its_annotation(
    capacity: int | None, allocatable: int | None, annotated: float, cores: float
) -> None:
    amounts = () if allocatable is None else (("cpu", allocatable),)
    node = NodeCapacity(cpu_milli=capacity, allocatable=amounts)
    assert reserved_cores(node, annotated) == cores


@pytest.mark.parametrize(
    ("budget", "cores", "current", "written"),
    [
        (20000, 80, 1000000, 1800000),
        (20000, 80, 1900000, 2000000),
        (20000, 80, 2400000, 2000000),
        (20000, 80, 1980000, 1980000),  # near enough: nothing is written
        (1, 80, 80000, 2000),
        (20000, 80, -1, 2000000),
        (3200, 16, 1000000, 320000),
        (-1500, 16, 400000, 2000),
        (15, 16, -1, 2000),
        (1200, 128, -1, 120000),  # Koordinator leaves best-effort pods unlimited
        (159, 16, -1, 15900),  # the same
        (6160, 16, 600000, 616000),
    ],
)
def test_a_quota_shrinks_at_once_and_grows_in_steps(
    budget: int, cores: int, current: int, written: int
) -> None:  # Q1-Q12
    now = Bandwidth(current)
    assert next_quota_us(budget, cores * 1000, now, now) == written


def test_within_one_step_a_quota_grows_from_where_the_step_began() -> None:
    base, now = Bandwidth(1000000), Bandwidth(1800000)
    assert next_quota_us(20000, 80000, base, now) == 1800000
    assert next_quota_us(20000, 80000, Bandwidth(-1), Bandwidth(1000000)) == 1800000


def test_a_quota_of_another_period_is_compared_by_its_share() -> None:
    assert quota_us(Bandwidth(50000, 50000)) == 100000
    assert quota_us(Bandwidth(-1, 50000)) == -1


def test_a_stall_halves_the_quota_which_is_held_and_then_grows() -> None:  # Z1
    cut = react_to_stall(NO_CUT, 800000, 16, 10.0, is_stalled=True)
    assert cut.quota_us == 400000
    quotas = []
    for second in range(11, 19):
        cut = react_to_stall(cut, 400000, 16, float(second), is_stalled=False)
        quotas.append(cut.quota_us)
    assert quotas == [400000] * 4 + [560000, 720000, 880000, 1040000]


def test_a_cut_grows_once_a_second_however_often_it_is_computed() -> None:
    cut = react_to_stall(NO_CUT, 800000, 16, 10.0, is_stalled=True)
    for step in range(100):
        cut = react_to_stall(cut, 400000, 16, 15.0 + step / 100, is_stalled=False)
    assert cut.quota_us == 400000 + 2 * 160000


def test_a_stall_halves_what_is_in_force_down_to_the_floor() -> None:  # Z2, Z3
    assert react_to_stall(NO_CUT, 16 * 100000, 16, 0.0, is_stalled=True).quota_us == 800000
    cut = react_to_stall(NO_CUT, 3000, 16, 0.0, is_stalled=True)
    assert cut.quota_us == 2000
    cut = react_to_stall(cut, 2000, 16, 1.0, is_stalled=True)
    assert (cut.quota_us, cut.cut_s) == (2000, 1.0)


def test_stalls_that_the_floor_does_not_end_are_ignored_for_a_while() -> None:
    cut = react_to_stall(NO_CUT, 4000, 16, 0.0, is_stalled=True)
    for half in range(1, 10):
        cut = react_to_stall(cut, 2000, 16, half / 2, is_stalled=True)
        assert cut.quota_us == 2000
    quotas = []
    for second in range(5, 13):
        cut = react_to_stall(cut, 2000, 16, float(second), is_stalled=True)
        quotas.append(cut.quota_us)
    # the last cut was made at 4.5 s and is held for five seconds
    assert quotas == [2000] * 5 + [162000, 322000, 482000]
    assert react_to_stall(cut, 482000, 16, 64.0, is_stalled=True).quota_us == 642000
    assert react_to_stall(cut, 482000, 16, 65.0, is_stalled=True).quota_us == 241000
