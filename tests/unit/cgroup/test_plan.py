from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cgroup import cpu
from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import (
    BURST,
    BVT,
    CPUS,
    IDLE,
    KEYS_BY_NAME,
    MEMORY,
    QUOTA,
    SHARES,
    CgroupKey,
    CgroupValue,
)
from agent.cgroup.write_plan import CgroupWrite, DesiredValue, WriteTarget, plan_writes

POD, ONE, TWO = "/k/pod1", "/k/pod1/c1", "/k/pod1/c2"


def wish(cgroup: str, key: CgroupKey, value: CgroupValue) -> DesiredValue:
    return DesiredValue(cgroup=cgroup, key=key, value=value, owner="test")


def order(steps: tuple[CgroupWrite, ...]) -> list[tuple[str, str]]:
    return [(step.desired.cgroup, step.text) for step in steps]


def test_equal_values_need_no_write() -> None:
    assert plan_writes([wish(POD, BVT, 2)], {(POD, BVT.name): 2}, 1) == ()


def test_what_could_not_be_read_is_left_out() -> None:
    assert plan_writes([wish(POD, BVT, 2)], {}, 1) == ()


def test_a_quota_grows_from_the_outside_in_and_then_the_burst() -> None:  # Z8
    result: dict[WriteTarget, CgroupValue] = {
        (POD, QUOTA.name): Bandwidth(100000),
        (ONE, QUOTA.name): Bandwidth(100000),
        (ONE, BURST.name): 100000,
    }
    wishes = [
        wish(ONE, BURST, 144000),
        wish(ONE, QUOTA, Bandwidth(144000)),
        wish(POD, QUOTA, Bandwidth(144000)),
    ]
    steps = plan_writes(wishes, result, 1)
    assert [(s.desired.cgroup, s.file) for s in steps] == [
        (POD, "cpu.cfs_quota_us"),
        (ONE, "cpu.cfs_quota_us"),
        (ONE, "cpu.cfs_burst_us"),
    ]


def test_a_quota_shrinks_after_the_burst_and_from_the_inside_out() -> None:  # Z9
    result: dict[WriteTarget, CgroupValue] = {
        (POD, QUOTA.name): Bandwidth(144000),
        (ONE, QUOTA.name): Bandwidth(144000),
        (ONE, BURST.name): 144000,
    }
    wishes = [
        wish(POD, QUOTA, Bandwidth(115200)),
        wish(ONE, QUOTA, Bandwidth(115200)),
        wish(ONE, BURST, 115200),
    ]
    steps = plan_writes(wishes, result, 2)
    assert [(s.desired.cgroup, s.file) for s in steps] == [
        (ONE, "cpu.max.burst"),
        (ONE, "cpu.max"),
        (POD, "cpu.max"),
    ]


def test_a_group_stops_being_idle_before_it_gets_its_weight() -> None:  # Z10
    result = {(POD, IDLE.name): 1, (POD, SHARES.name): 3}
    wishes = [wish(POD, SHARES, 2), wish(POD, IDLE, 0)]
    assert [s.file for s in plan_writes(wishes, result, 1)] == ["cpu.idle", "cpu.shares"]


def test_a_weight_with_the_desired_value_is_written_again_when_idle_ends() -> None:
    result = {(POD, IDLE.name): 1, (POD, SHARES.name): 3}
    wishes = [wish(POD, SHARES, 3), wish(POD, IDLE, 0)]
    assert [s.file for s in plan_writes(wishes, result, 1)] == ["cpu.idle", "cpu.shares"]


def test_a_group_that_stays_idle_is_given_no_weight() -> None:
    result = {(POD, IDLE.name): 1, (POD, SHARES.name): 3}
    assert plan_writes([wish(POD, SHARES, 2), wish(POD, IDLE, 1)], result, 1) == ()


def test_cpus_that_move_are_both_old_and_new_in_between() -> None:
    result = {(POD, CPUS.name): frozenset({0, 1}), (ONE, CPUS.name): frozenset({0})}
    wishes = [wish(POD, CPUS, frozenset({2, 3})), wish(ONE, CPUS, frozenset({3}))]
    steps = plan_writes(wishes, result, 1)
    assert order(steps) == [(POD, "0-3"), (ONE, "3"), (POD, "2-3")]
    assert [step.is_last for step in steps] == [False, True, True]


POD_CPUS, ONE_CPUS = (POD, CPUS), (ONE, CPUS)
POD_QUOTA, ONE_QUOTA = (POD, QUOTA), (ONE, QUOTA)
POD_MIN, ONE_MIN = (POD, KEYS_BY_NAME["memory.min"]), (ONE, KEYS_BY_NAME["memory.min"])
CPU_0_3, CPU_4_7 = frozenset(range(4)), frozenset(range(4, 8))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("changes", "writes"),
    [
        pytest.param(
            {POD_CPUS: (CPU_0_3, CPU_4_7), ONE_CPUS: (frozenset({0, 1}), frozenset({4, 5}))},
            [(*POD_CPUS, CPU_0_3 | CPU_4_7), (*ONE_CPUS, {4, 5}), (*POD_CPUS, CPU_4_7)],
            id="V80",
        ),
        pytest.param(
            {
                ONE_QUOTA: (Bandwidth(100000), Bandwidth(150000)),
                POD_QUOTA: (Bandwidth(100000), Bandwidth(200000)),
            },
            [(*POD_QUOTA, Bandwidth(200000)), (*ONE_QUOTA, Bandwidth(150000))],
            id="V81",
        ),
        pytest.param(
            {
                POD_QUOTA: (Bandwidth(200000), Bandwidth(100000)),
                ONE_QUOTA: (Bandwidth(150000), Bandwidth(50000)),
            },
            [(*ONE_QUOTA, Bandwidth(50000)), (*POD_QUOTA, Bandwidth(100000))],
            id="V82",
        ),
        pytest.param(
            {POD_QUOTA: (Bandwidth(100000), Bandwidth(40000)), (POD, BURST): (50000, 20000)},
            [(POD, BURST, 20000), (*POD_QUOTA, Bandwidth(40000))],
            id="V83",
        ),
        pytest.param(
            {ONE_MIN: (0, 1 << 30), POD_MIN: (0, 2 << 30)},
            [(*POD_MIN, 2 << 30), (*ONE_MIN, 1 << 30)],
            id="V84",
        ),
    ],
)
def test_changes_of_a_pod_and_its_container_come_in_the_order_of_the_vectors(
    version: int,
    changes: Mapping[tuple[str, CgroupKey], tuple[CgroupValue, CgroupValue]],
    writes: list[tuple[str, CgroupKey, CgroupValue]],
) -> None:
    result = {(cgroup, key.name): old for (cgroup, key), (old, _) in changes.items()}
    wishes = [wish(cgroup, key, new) for (cgroup, key), (_, new) in changes.items()]
    steps = plan_writes(wishes, result, version)
    assert [(step.desired.cgroup, step.desired.key, step.value_after) for step in steps] == writes


def test_memory_that_shrinks_does_so_in_the_containers_first() -> None:
    result: dict[WriteTarget, CgroupValue] = {(POD, MEMORY.name): -1, (ONE, MEMORY.name): -1}
    wishes = [wish(POD, MEMORY, 1 << 30), wish(ONE, MEMORY, 1 << 29)]
    steps = plan_writes(wishes, result, 2)
    assert order(steps) == [(ONE, "536870912"), (POD, "1073741824")]


class Model:
    """What the kernel of version 1 takes for one pod with two containers."""

    def __init__(self, values: Mapping[WriteTarget, CgroupValue]) -> None:
        self.now = dict(values)

    @classmethod
    def made_legal(cls, values: Mapping[WriteTarget, CgroupValue]) -> Model:
        """Cut what the containers have down to what the kernel takes."""
        model = cls(values)
        pod_cpus, pod_quota = values[POD, CPUS.name], values[POD, QUOTA.name]
        assert isinstance(pod_cpus, frozenset)
        assert isinstance(pod_quota, Bandwidth)
        for child in (ONE, TWO):
            cpus, quota, burst = (values[child, k.name] for k in (CPUS, QUOTA, BURST))
            assert isinstance(cpus, frozenset)
            assert isinstance(quota, Bandwidth)
            assert isinstance(burst, int)
            if quota.quota_us != -1 and quota.is_looser(pod_quota):
                quota = pod_quota
            model.now[child, CPUS.name] = cpus & pod_cpus or pod_cpus
            model.now[child, QUOTA.name] = quota
            model.now[child, BURST.name] = (
                burst if quota.quota_us == -1 else min(burst, quota.quota_us)
            )
        return model

    def legal(self) -> bool:
        return all(self._within(child) for child in (ONE, TWO))

    def _within(self, child: str) -> bool:
        pod_cpus, cpus = self.now[POD, CPUS.name], self.now[child, CPUS.name]
        pod_quota, quota = self.now[POD, QUOTA.name], self.now[child, QUOTA.name]
        burst = self.now[child, BURST.name]
        assert isinstance(pod_cpus, frozenset)
        assert isinstance(cpus, frozenset)
        assert isinstance(pod_quota, Bandwidth)
        assert isinstance(quota, Bandwidth)
        assert isinstance(burst, int)
        inside = quota.quota_us == -1 or not quota.is_looser(pod_quota)
        bursting = quota.quota_us == -1 or burst <= quota.quota_us
        return cpus <= pod_cpus and inside and bursting


sets = st.frozensets(st.integers(0, 7), min_size=1)
bands = st.builds(
    Bandwidth, st.one_of(st.just(-1), st.integers(1000, 9000)), st.sampled_from((1000, 2500, 10000))
)
targets: dict[WriteTarget, st.SearchStrategy[CgroupValue]] = {
    **{(cgroup, CPUS.name): sets for cgroup in (POD, ONE, TWO)},
    **{(cgroup, QUOTA.name): bands for cgroup in (POD, ONE, TWO)},
    **{(cgroup, BURST.name): st.integers(0, 9000) for cgroup in (ONE, TWO)},
}

KEYS = {key.name: key for key in (CPUS, QUOTA, BURST)}


@settings(max_examples=200, deadline=None)
@given(st.fixed_dictionaries(targets), st.fixed_dictionaries(targets))
def test_every_prefix_of_a_plan_is_legal_if_both_ends_are(
    before: dict[WriteTarget, CgroupValue], after: dict[WriteTarget, CgroupValue]
) -> None:
    kernel, desired = Model.made_legal(before), Model.made_legal(after).now
    found = dict(kernel.now)
    wishes = [wish(cgroup, KEYS[name], value) for (cgroup, name), value in desired.items()]
    for step in plan_writes(wishes, found, 1):
        kernel.now[step.desired.target] = step.value_after
        assert kernel.legal(), (step, kernel.now)
    for (cgroup, name), value in desired.items():
        assert KEYS[name].is_equivalent(value, kernel.now[cgroup, name])


@given(bands, bands)
def test_a_plan_of_version_2_writes_both_numbers_at_once(old: Bandwidth, new: Bandwidth) -> None:
    steps = plan_writes([wish(POD, QUOTA, new)], {(POD, QUOTA.name): old}, 2)
    assert len(steps) == (0 if new.is_equivalent(old) else 1)
    assert all(step.file == cpu.V2_FILE and len(step.text.split()) == 2 for step in steps)
