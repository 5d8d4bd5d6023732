"""CPU burst on real groups of version 1, whose kernel refuses a wrong order of writes."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from agent.cgroup.writer import OUTDATED
from agent.qos.burst_values import RECHECK_S
from agent.snapshot.part import SnapshotPart
from agent.snapshot.self_check import StrategyState
from agent.wire_formats.pod import decode_pod
from tests.realgroups import UID, RealGroups, needs_v1, real_groups
from tests.unit.reconcile.limited_node import BURST, LimitedNode, memory_spec

pytestmark = [needs_v1, pytest.mark.root]


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    with real_groups() as created:
        yield created


def raised_node(groups: RealGroups, *, cycles: int) -> LimitedNode:
    """Return a node whose container was throttled for so many cycles."""
    node = LimitedNode(groups)
    node.spec, node.is_throttled = BURST, True
    for _ in range(cycles):
        node.cycle()
    return node


def test_quota_and_burst_of_a_throttled_container_go_up_and_down_without_a_refusal(
    groups: RealGroups,
) -> None:
    node = LimitedNode(groups)
    node.spec, node.is_throttled = BURST, True
    up = []
    for _ in range(8):
        assert node.cycle().unwritten == 0
        up.append(node.quotas())
        assert node.bursts() == [100000, 100000]
    assert up[0] == [120000, 120000]
    assert up[-1] == [300000, 300000]
    node.is_throttled, node.node_cores = False, 4.0
    for _ in range(12):
        assert node.cycle().unwritten == 0
    assert node.quotas() == [100000, 100000]
    assert node.bursts() == [100000, 100000]


def test_the_runtime_can_write_the_quota_of_the_limit_again_at_any_time(
    groups: RealGroups,
) -> None:
    node = LimitedNode(groups)
    node.spec, node.is_throttled = BURST, True
    for _ in range(4):
        assert node.cycle().unwritten == 0
    # as with each update of a container, also one of its memory or its CPUs
    groups.put(node.scene.container, "cpu.cfs_quota_us", "100000")
    assert node.cycle().unwritten == 0
    node.report_limit(500)
    node.is_throttled = False
    assert node.cycle().unwritten == 0
    node.resize(500)


@pytest.mark.parametrize("late_cycles", [0, 1, 3])
@pytest.mark.parametrize(
    "limit_milli",
    [1200, 1440, 1728, 2000],  # three values that the burst wrote, and another one
)
def test_after_a_resize_the_quota_of_the_new_limit_is_restored(
    groups: RealGroups, limit_milli: int, late_cycles: int
) -> None:
    node = raised_node(groups, cycles=3)
    assert node.quotas() == [172800, 172800]
    node.resize(limit_milli)
    for _ in range(late_cycles):  # until the kubelet reports it
        node.cycle()
    node.report_limit(limit_milli)
    node.cycle()
    node.spec = {}
    node.cycle()
    assert node.quotas() == [limit_milli * 100] * 2
    assert node.bursts() == [0, 0]


def test_after_a_resize_to_less_the_quota_of_the_new_limit_is_restored(groups: RealGroups) -> None:
    node = raised_node(groups, cycles=3)
    node.report_limit(500)
    node.cycle()  # the kernel refuses the kubelet's quota before the burst is smaller
    node.resize(500)
    node.cycle()
    node.spec = {}
    node.cycle()
    assert node.quotas() == [50000, 50000]


def explained(node: LimitedNode) -> str:
    """Return why the quota of the container is not written."""
    explainer = node.scene.reconciler.explainer()
    path = node.groups.path("cpu", node.scene.container) / "cpu.cfs_quota_us"
    explanation = None if explainer is None else explainer.explain_file(str(path))
    assert explanation is not None
    return explanation.refusal


def test_the_quota_that_a_runtime_sets_back_is_not_contested(groups: RealGroups) -> None:
    node = raised_node(groups, cycles=3)
    node.is_throttled = False
    node.cycle()
    for _ in range(4):  # with each change of the shared CPUs
        groups.put(node.scene.container, "cpu.cfs_quota_us", "100000")
        report = node.cycle()
        assert node.quotas()[1] == 100000
        assert report.conditions == ()
    assert explained(node) == OUTDATED
    node.is_throttled = True
    node.cycle()
    assert node.quotas() == [120000, 120000]
    assert explained(node) == ""
    node.is_throttled, node.spec = False, {}
    node.cycle()
    assert node.quotas() == [100000, 100000]


@pytest.mark.parametrize("order", ["reports first", "writes first"])
def test_after_a_resize_a_raised_quota_begins_at_that_of_the_new_limit(
    groups: RealGroups, order: str
) -> None:
    node = raised_node(groups, cycles=5)
    assert node.quotas() == [248832, 248832]
    node.is_throttled = False
    if order == "reports first":
        node.report_limit(1200)
        node.cycle()
    node.resize(1200)
    for _ in range(3):
        node.cycle()
    assert node.quotas() == [120000, 120000]
    node.report_limit(1200)
    node.cycle(RECHECK_S)
    assert node.quotas() == [120000, 120000]


def test_a_smaller_limit_of_a_container_that_the_runtime_has_set_back_is_no_refused_quota(
    groups: RealGroups,
) -> None:
    node = raised_node(groups, cycles=4)
    node.is_throttled = False
    groups.put(node.scene.container, "cpu.cfs_quota_us", "100000")
    node.cycle()
    node.report_limit(200)
    for _ in range(3):
        report = node.cycle()
        assert report.conditions == ()
        assert node.quotas()[0] >= node.quotas()[1] > 0
    node.resize(200)
    node.cycle(RECHECK_S)
    assert node.quotas() == [20000, 20000]


def test_a_larger_limit_on_a_busy_node_is_written_before_its_burst(groups: RealGroups) -> None:
    node = raised_node(groups, cycles=3)
    node.node_cores = 4.0
    for _ in range(6):
        node.cycle()
    node.resize(3000)
    for _ in range(3):
        node.cycle()
    assert node.quotas()[1] < 300000
    node.report_limit(3000)
    assert node.cycle().conditions == ()
    assert node.quotas() == [300000, 300000]
    assert node.bursts() == [300000, 300000]


def test_a_quota_that_stayed_another_programs_is_restored_after_a_later_burst(
    groups: RealGroups,
) -> None:
    node = raised_node(groups, cycles=3)
    node.spec = {}
    groups.put(node.scene.container, "cpu.cfs_quota_us", "110000")
    node.cycle()
    assert node.quotas()[1] == 110000
    node.spec = BURST
    node.cycle()
    assert node.quotas()[1] == 132000
    node.spec = {}
    node.cycle()
    assert node.quotas()[1] == 110000


def test_a_pods_quota_that_a_group_below_exceeds_for_a_moment_is_restored_soon(
    groups: RealGroups,
) -> None:
    node = raised_node(groups, cycles=3)
    groups.put(node.scene.sandbox, "cpu.cfs_quota_us", "150000")  # as a container removed just now
    node.spec = {}
    node.cycle()
    assert node.quotas() == [172800, 100000]
    groups.put(node.scene.sandbox, "cpu.cfs_quota_us", "-1")
    node.cycle()
    assert node.quotas() == [100000, 100000]


def test_a_resize_that_the_kubelet_deferred_gives_no_cpu(groups: RealGroups) -> None:
    node = LimitedNode(groups)
    node.spec = BURST
    pod = {
        "metadata": {"uid": UID, "name": "pod", "namespace": "default"},
        "spec": {"containers": [{"name": "app", "resources": {"limits": {"cpu": "3"}}}]},
        "status": {
            "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}],
            "containerStatuses": [{"name": "app", "resources": {"limits": {"cpu": "1"}}}],
        },
    }
    listed = decode_pod(json.dumps(pod).encode())
    view = node.scene.view(resources=listed.resources, compute_request=listed.compute_request)
    node.scene.snapshot = replace(node.scene.snapshot, pods=SnapshotPart((view,), 1.0))
    node.cycle()
    assert node.quotas() == [100000, 100000]
    node.is_throttled = True
    for _ in range(8):
        node.cycle()
    assert node.quotas() == [300000, 300000]


def test_a_resize_to_the_quota_in_force_while_no_agent_runs_is_noticed(groups: RealGroups) -> None:
    node = raised_node(groups, cycles=3)
    node.resize(1728)
    node.report_limit(1728)
    node.scene.again()
    node.cycle()
    node.spec = {}
    node.cycle()
    assert node.quotas() == [172800, 172800]


def test_a_quota_above_the_limit_that_another_program_had_set_is_restored(
    groups: RealGroups,
) -> None:
    node = LimitedNode(groups)
    node.resize(1500)
    node.spec, node.is_throttled = BURST, True
    for _ in range(3):
        node.cycle()
    assert node.quotas() == [259200, 259200]
    node.node_cores = 4.0
    for _ in range(12):
        node.cycle()
    assert node.quotas() == [100000, 100000]
    node.spec = {}
    node.cycle()
    assert node.quotas() == [150000, 150000]


def test_without_the_policy_nothing_of_it_remains(groups: RealGroups) -> None:
    node = raised_node(groups, cycles=3)
    node.spec = {}
    node.cycle()
    assert node.quotas() == [100000, 100000]
    assert node.bursts() == [0, 0]
    assert not node.scene.ledger.entries


def test_the_kernel_refuses_a_burst_above_the_quota(groups: RealGroups) -> None:
    node = LimitedNode(groups)
    with pytest.raises(OSError, match="Invalid argument") as error:
        groups.put(node.scene.container, "cpu.cfs_burst_us", "100001")
    assert error.value.errno == errno.EINVAL


def test_a_quota_that_the_kubelet_does_not_set_stays_unlimited(groups: RealGroups) -> None:
    node = LimitedNode(groups)
    for cgroup in (node.scene.container, node.scene.pod):
        groups.put(cgroup, "cpu.cfs_quota_us", "-1")
    node.spec, node.is_throttled = BURST, True
    for _ in range(3):
        node.cycle()
    assert node.quotas() == [-1, -1]


def test_a_kernel_without_files_of_memory_qos_is_named(groups: RealGroups) -> None:
    node = LimitedNode(groups)
    node.spec = memory_spec(minLimitPercent=50)
    node.cycle()
    _, memory = node.scene.view_of_strategies.strategies
    assert memory.state is StrategyState.UNSUPPORTED
    assert memory.values == 0


@pytest.mark.parametrize("with_pod", [False, True])
def test_a_raise_that_a_runtime_undid_is_made_again_while_the_container_is_throttled(
    groups: RealGroups, with_pod: bool
) -> None:
    node = LimitedNode(groups)
    node.spec, node.is_throttled = BURST, True
    while node.quotas()[1] != 120000:
        node.cycle()
    for _ in range(4):
        groups.put(node.scene.container, "cpu.cfs_quota_us", "100000")
        if with_pod:
            groups.put(node.scene.pod, "cpu.cfs_quota_us", "100000")
        node.cycle()
        node.cycle()
        assert node.quotas()[1] > 100000
