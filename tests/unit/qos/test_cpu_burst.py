"""What the CPU burst strategy wants of a node's files, cycle after cycle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import BURST, QUOTA
from agent.cgroup.write_plan import plan_writes
from agent.containers.cpu_quota import RATIO
from agent.qos.burst_values import pod_limit_milli
from agent.qos.cpu_burst import ANNOTATION, CpuBurstStrategy
from agent.qos.strategy import StrategyPlan
from agent.snapshot.pod import KubeQos, PodView
from agent.snapshot.self_check import StrategyState
from agent.snapshot.slo import CpuBurst, NodeSlo
from agent.wire_formats.annotations import QOS_LABEL
from agent.wire_formats.resource_status import RESOURCE_STATUS
from tests.unit.qos.qos_node import ROOT, V1, QosNode, by_target, cgroup_of, container_id, limited
from tests.unit.qos.qos_node import pod as make_pod

AUTO = CpuBurst(policy="auto", cpu_burst_percent=100)


class Burst:
    """The strategy on a node; its values are written after each cycle."""

    def __init__(self, node: QosNode, *, scales_quota: bool = False) -> None:
        self.node = node
        self.strategy = CpuBurstStrategy(scales_quota=scales_quota, seed=1)
        self.state = self.strategy.start()
        self.plan = StrategyPlan()

    def cycle(self, seconds: float = 1.0) -> dict[tuple[str, str], Any]:
        self.plan, self.state = self.strategy.plan(self.node.inputs(seconds), self.state)
        self.node.files.apply(self.plan.values)
        return by_target(self.plan)


def scene(config: CpuBurst, *views: PodView, **more: Any) -> Burst:
    node = QosNode(slo=NodeSlo(cpu_burst=config), **more)
    node.add(*views)
    return Burst(node)


def throttle(burst: Burst, uid: str, *names: str, ratio: float = 0.5) -> None:
    burst.node.throttled.update({container_id(uid, name): ratio for name in names})


def quota(burst: Burst, view: PodView, name: str | None = None) -> int:
    return burst.node.files.quota(view.cgroup if name is None else cgroup_of(view, name))


def test_without_a_policy_nothing_is_desired_and_nothing_is_read() -> None:
    burst = scene(CpuBurst(), make_pod("a", limited("c", 1000)))
    assert burst.cycle() == {}
    assert burst.plan.state is StrategyState.IDLE
    assert burst.node.files.reads == 0


def test_bursts_of_containers_and_of_their_pod() -> None:
    view = make_pod("a", limited("x", 5000), limited("y", 3000))
    burst = scene(CpuBurst(policy="cpuBurstOnly", cpu_burst_percent=50), view)
    assert burst.cycle() == {
        (view.cgroup, BURST.name): 400000,
        (cgroup_of(view, "x"), BURST.name): 250000,
        (cgroup_of(view, "y"), BURST.name): 150000,
    }


def test_a_burst_above_the_quota_is_cut_to_the_quota() -> None:
    view = make_pod("a", limited("x", 5000), limited("y", 3000))
    values = scene(CpuBurst(policy="cpuBurstOnly", cpu_burst_percent=500), view).cycle()
    assert values[cgroup_of(view, "x"), BURST.name] == 500000
    assert values[cgroup_of(view, "y"), BURST.name] == 300000
    assert values[view.cgroup, BURST.name] == 800000


def test_a_container_without_a_limit_has_no_burst() -> None:
    view = make_pod("a", limited("x", 400), limited("y", None))
    values = scene(CpuBurst(policy="cpuBurstOnly", cpu_burst_percent=100), view).cycle()
    assert values == {
        (view.cgroup, BURST.name): 40000,
        (cgroup_of(view, "x"), BURST.name): 40000,
    }


def test_quotas_of_two_throttled_containers_and_of_their_pod_grow() -> None:
    view = make_pod("a", limited("x", 2000), limited("y", 3000))
    burst = scene(replace(AUTO, policy="cfsQuotaBurstOnly"), view)
    throttle(burst, "a", "x", "y")
    assert burst.cycle() == {
        (view.cgroup, QUOTA.name): Bandwidth(600000),
        (cgroup_of(view, "x"), QUOTA.name): Bandwidth(240000),
        (cgroup_of(view, "y"), QUOTA.name): Bandwidth(360000),
    }


def test_an_unlimited_pod_stays_unlimited_while_a_container_grows() -> None:
    view = make_pod("a", limited("x", 2000), limited("y", None))
    burst = scene(AUTO, view)
    throttle(burst, "a", "x")
    values = burst.cycle()
    assert values[cgroup_of(view, "x"), QUOTA.name] == Bandwidth(240000)
    assert (view.cgroup, QUOTA.name) not in values
    assert (cgroup_of(view, "y"), QUOTA.name) not in values


def test_a_quota_that_the_kubelet_does_not_set_is_not_imposed() -> None:
    view = make_pod("a", limited("x", 1000))
    for policy in ("none", "auto", "cpuBurstOnly", "cfsQuotaBurstOnly"):
        burst = scene(replace(AUTO, policy=policy), view)
        burst.node.files.put(cgroup_of(view, "x"), QUOTA, Bandwidth(-1))
        throttle(burst, "a", "x")
        values = burst.cycle()
        assert (cgroup_of(view, "x"), QUOTA.name) not in values
        assert (cgroup_of(view, "x"), BURST.name) not in values


def test_a_raised_quota_comes_down_on_an_overloaded_node_and_leaves_nothing_behind() -> None:
    view = make_pod("a", limited("x", 1000))
    burst = scene(AUTO, view)
    throttle(burst, "a", "x")
    ladder = []
    for _ in range(8):
        burst.cycle()
        ladder.append(quota(burst, view, "x"))
    assert ladder == [120000, 144000, 172800, 207360, 248832, 298598, 300000, 300000]
    assert quota(burst, view) == 300000
    burst.node.node_cores = 15.0
    down = []
    for _ in range(10):
        values = burst.cycle()
        down.append(quota(burst, view, "x"))
        assert quota(burst, view) == quota(burst, view, "x")
    assert down[down.index(240000) :][:6] == [240000, 192000, 153600, 122880, 100000, 100000]
    assert not [key for key in values if key[1] == QUOTA.name]
    assert not [key for key in burst.node.files.originals if key[1] == QUOTA.name]


def test_the_state_of_the_node_is_a_mean_of_five_seconds() -> None:
    view = make_pod("a", limited("x", 1000))
    burst = scene(AUTO, view)
    throttle(burst, "a", "x")
    burst.node.node_cores = 1.0
    for _ in range(5):
        burst.cycle()
    before = quota(burst, view, "x")
    burst.node.node_cores = 16.0  # mean (5 x 1 + 16) / 6: still idle
    burst.cycle()
    assert quota(burst, view, "x") > before
    for _ in range(3):
        burst.cycle()
    assert dict(burst.plan.figures)["share_pool_usage_ratio"] > 0.5


def test_use_of_pinned_and_best_effort_pods_does_not_count_for_the_shared_cpus() -> None:
    pinned = make_pod("p", limited("c", 8000), label="LSR", request_cores=8.0)
    batch = make_pod("b", limited("c", None), label="BE", qos=KubeQos.BEST_EFFORT)
    burst = scene(AUTO, make_pod("a", limited("x", 1000)), pinned, batch)
    burst.node.node_cores = 10.0
    burst.node.pod_cores = {"p": 6.0, "b": 1.0}
    burst.cycle()
    assert dict(burst.plan.figures)["share_pool_usage_ratio"] == 0.375


def test_an_ended_pinned_pod_gives_its_cpus_back() -> None:
    pinned = make_pod("p", limited("c", 8000), label="LSR", request_cores=8.0, phase="Succeeded")
    burst = scene(AUTO, make_pod("a", limited("x", 1000)), pinned)
    burst.node.node_cores = 8.0
    burst.cycle()
    assert dict(burst.plan.figures)["share_pool_usage_ratio"] == 0.5


@pytest.mark.parametrize("label", ["LSE", "LSR", "BE"])
def test_pinned_and_best_effort_pods_do_not_burst(label: str) -> None:
    burst = scene(AUTO, make_pod("a", limited("x", 1000), label=label))
    assert burst.cycle() == {}


@pytest.mark.parametrize("label", ["LS", "SYSTEM", "", "other"])
def test_all_other_pods_burst(label: str) -> None:
    assert scene(AUTO, make_pod("a", limited("x", 1000), label=label)).cycle()


def test_pods_that_ended_or_have_cpus_of_their_own_do_not_burst() -> None:
    ended = make_pod("a", limited("x", 1000), phase="Succeeded")
    own = make_pod("b", limited("x", 1000), annotations={RESOURCE_STATUS: '{"cpuset":"2-3"}'})
    assert scene(AUTO, ended, own).cycle() == {}


def test_a_status_of_the_scheduler_that_is_wrong_does_not_stop_the_strategy() -> None:
    wrong = make_pod("a", limited("x", 1000), annotations={RESOURCE_STATUS: "{"})
    right = make_pod("b", limited("x", 1000))
    values = scene(AUTO, wrong, right).cycle()
    assert values[wrong.cgroup, BURST.name] == values[right.cgroup, BURST.name] == 100000


def test_a_sidecar_that_is_an_init_container_bursts_and_one_that_ends_does_not() -> None:
    view = make_pod(
        "a",
        limited("init", 1000, is_init=True),
        limited("side", 1000, is_init=True, is_sidecar=True),
        limited("x", 1000),
    )
    values = scene(AUTO, view).cycle()
    assert (cgroup_of(view, "side"), BURST.name) in values
    assert (cgroup_of(view, "init"), BURST.name) not in values


@pytest.mark.parametrize(
    ("annotation", "burst_us"),
    [
        ('{"policy":"cpuBurstOnly","cpuBurstPercent":80}', 80000),
        ('{"POLICY":"cpuBurstOnly","CPUburstPERCENT":80}', 80000),  # as Go reads it
        ('{"policy":"cpuBurstOnly"}', 100000),
        ('{"cpuBurstPercent":50,"policy":null}', None),
        ('{"policy":"none"}', None),
        ('{"policy":"sometimes"}', None),
        ('{"policy":""}', None),
        ("nope", None),
        ('{"policy":"cpuBurstOnly","cpuBurstPercent":"80"}', None),
        ('{"policy":"cpuBurstOnly","cpuBurstPercent":80,"sharePoolThresholdPercent":"x"}', 80000),
    ],
)
def test_a_pods_annotation_over_a_node_without_a_policy(
    annotation: str, burst_us: int | None
) -> None:
    view = make_pod("a", limited("x", 1000), annotations={ANNOTATION: annotation})
    values = scene(CpuBurst(cpu_burst_percent=100), view).cycle()
    assert values.get((view.cgroup, BURST.name)) == burst_us


def test_a_pods_annotation_may_switch_the_node_policy_off() -> None:
    off = make_pod("a", limited("x", 1000), annotations={ANNOTATION: '{"policy":"none"}'})
    on = make_pod("b", limited("x", 1000), annotations={ANNOTATION: '{"cpuBurstPercent":10}'})
    values = scene(AUTO, off, on).cycle()
    assert (off.cgroup, BURST.name) not in values
    assert values[on.cgroup, BURST.name] == 10000


def test_a_wrong_annotation_counts_as_absent_and_is_named() -> None:
    view = make_pod("a", limited("x", 1000), annotations={ANNOTATION: '{"cpuBurstPercent":"80"}'})
    burst = scene(AUTO, view)
    assert burst.cycle()[view.cgroup, BURST.name] == 100000
    assert "default/pod-a" in burst.plan.message
    assert "cpuBurstPercent" in burst.plan.message


def test_the_source_names_the_field_that_asks() -> None:
    node = make_pod("a", limited("x", 1000))
    own = make_pod("b", limited("x", 1000), annotations={ANNOTATION: '{"cpuBurstPercent":10}'})
    burst = scene(AUTO, node, own)
    burst.cycle()
    sources = {value.cgroup: value.source for value in burst.plan.values}
    assert sources[node.cgroup] == "NodeSLO spec.cpuBurstStrategy"
    assert sources[own.cgroup] == f"Pod default/pod-b annotation {ANNOTATION}"


@pytest.mark.parametrize("policy", ["cpuBurstOnly", "none"])
def test_a_policy_that_scales_no_quota_gives_raised_ones_back_at_once(policy: str) -> None:  # F1
    view = make_pod("a", limited("x", 2000))
    burst = scene(AUTO, view)
    throttle(burst, "a", "x")
    for _ in range(4):
        burst.cycle()
    assert quota(burst, view, "x") == 414720
    burst.node.slo = NodeSlo(cpu_burst=replace(AUTO, policy=policy))
    values = burst.cycle()
    assert quota(burst, view, "x") == quota(burst, view) == 200000
    assert ((view.cgroup, BURST.name) in values) is (policy == "cpuBurstOnly")


def test_when_the_policy_goes_what_was_changed_is_restored_and_nothing_else() -> None:
    view, other = make_pod("a", limited("x", 1000)), make_pod("b", limited("x", 1000))
    burst = scene(AUTO, view, other)
    burst.node.files.put(cgroup_of(other, "x"), QUOTA, Bandwidth(150000))  # set by somebody else
    throttle(burst, "a", "x")
    for _ in range(3):
        burst.cycle()
    assert quota(burst, view, "x") == 172800
    burst.node.slo = NodeSlo()
    assert burst.cycle() == {}
    assert quota(burst, view, "x") == quota(burst, view) == 100000
    assert quota(burst, other, "x") == 150000


def test_a_container_that_another_program_resets_starts_again_from_there() -> None:
    view = make_pod("a", limited("x", 1000))
    burst = scene(AUTO, view)
    throttle(burst, "a", "x")
    for _ in range(3):
        burst.cycle()
    burst.node.files.put(cgroup_of(view, "x"), QUOTA, Bandwidth(100000))
    burst.node.files.put(view.cgroup, QUOTA, Bandwidth(100000))
    burst.cycle()
    assert quota(burst, view, "x") == quota(burst, view) == 120000


def test_a_refused_container_quota_does_not_let_the_pods_quota_drift() -> None:
    view = make_pod("a", limited("x", 1000))
    burst = scene(AUTO, view)
    throttle(burst, "a", "x")
    for _ in range(20):
        burst.cycle()
        burst.node.files.put(cgroup_of(view, "x"), QUOTA, Bandwidth(100000))
    assert quota(burst, view) <= 120000


def test_a_pod_with_a_limit_of_its_own_gets_what_its_containers_get_more() -> None:
    view = make_pod("a", limited("x", 1000), limited("y", 1000))
    burst = scene(AUTO, view)
    burst.node.files.put(view.cgroup, QUOTA, Bandwidth(150000))  # below the sum
    burst.cycle()
    assert quota(burst, view) == 150000
    throttle(burst, "a", "x")
    burst.cycle()
    assert quota(burst, view) == 170000


def test_the_base_is_the_scaled_limit_where_quotas_are_normalized() -> None:
    view = make_pod("a", limited("x", 2000))
    node = QosNode(slo=NodeSlo(cpu_burst=AUTO), annotations={RATIO: "1.2"})
    node.add(view)
    burst = Burst(node, scales_quota=True)
    hook = Bandwidth(166667)
    for cgroup in (view.cgroup, cgroup_of(view, "x")):  # as the hook left them
        node.files.put(cgroup, QUOTA, hook)
        node.files.originals[cgroup, QUOTA.name] = Bandwidth(200000)
    throttle(burst, "a", "x")
    burst.cycle()
    assert quota(burst, view, "x") == quota(burst, view) == 200000
    for _ in range(9):
        burst.cycle()
    assert quota(burst, view, "x") == 500001  # three times the base
    node.node_cores = 16.0
    for _ in range(12):
        values = burst.cycle()
    assert values[cgroup_of(view, "x"), QUOTA.name] == hook
    assert values[view.cgroup, QUOTA.name] == hook


def test_on_version_1_the_pods_quota_is_not_scaled() -> None:
    view = make_pod("a", limited("x", 2000))
    node = QosNode(slo=NodeSlo(cpu_burst=AUTO), annotations={RATIO: "1.2"}, layout=V1)
    node.add(view)
    burst = Burst(node, scales_quota=True)
    node.files.put(cgroup_of(view, "x"), QUOTA, Bandwidth(166667))
    node.files.originals[cgroup_of(view, "x"), QUOTA.name] = Bandwidth(200000)
    throttle(burst, "a", "x")
    burst.cycle()
    assert quota(burst, view, "x") == 200000
    assert quota(burst, view) == 200000 + 33333


def test_a_container_with_tokens_bursts_until_they_are_used_up() -> None:
    config = replace(AUTO, cfs_quota_burst_period_s=10)
    view = make_pod("a", limited("x", 1000))
    burst = scene(config, view)
    burst.node.container_cores = {container_id("a", "x"): 0.1}
    for _ in range(5):
        burst.cycle()  # 90 tokens a second
    throttle(burst, "a", "x")
    burst.node.container_cores = {container_id("a", "x"): 3.0}
    quotas = []
    for _ in range(30):
        burst.cycle()
        quotas.append(quota(burst, view, "x"))
    assert max(quotas) == 144000  # 450 tokens, 200 a second less
    assert quotas[-1] == 100000
    assert dict(burst.plan.figures)["exhausted_containers"] == 1


def test_a_period_of_zero_gives_no_tokens() -> None:
    view = make_pod("a", limited("x", 1000))
    burst = scene(replace(AUTO, cfs_quota_burst_period_s=0), view)
    throttle(burst, "a", "x")
    for _ in range(3):
        burst.cycle()
    assert quota(burst, view, "x") == 100000


def test_a_missing_sample_changes_no_quota() -> None:
    view = make_pod("a", limited("x", 1000))
    burst = scene(AUTO, view)
    throttle(burst, "a", "x")
    burst.cycle()
    burst.node.has_sample = False
    before = burst.plan
    for _ in range(5):
        burst.cycle()
    assert burst.plan is before
    assert quota(burst, view, "x") == 120000


def test_without_a_list_of_pods_the_last_values_stay() -> None:
    view = make_pod("a", limited("x", 1000))
    burst = scene(AUTO, view)
    before = burst.cycle()
    burst.node.has_pods = False
    assert burst.cycle() == before
    assert burst.plan.state is StrategyState.WAITING


def test_a_kernel_without_bursts_still_scales_quotas() -> None:
    view = make_pod("a", limited("x", 1000))
    burst = scene(AUTO, view)
    del burst.node.files.values[ROOT, BURST.name]
    throttle(burst, "a", "x")
    assert {key for _, key in burst.cycle()} == {QUOTA.name}
    assert "no CPU burst" in burst.plan.message


def test_a_quiet_node_costs_no_reads_and_keeps_the_same_values() -> None:
    views = [make_pod(f"p{n}", limited("x", 1000), limited("y", 500)) for n in range(100)]
    burst = scene(AUTO, *views)
    burst.cycle()
    first, burst.node.files.reads = burst.plan.values, 0
    for _ in range(4):
        burst.cycle()
    assert burst.plan.values is first
    read_in_four_cycles = burst.node.files.reads
    for _ in range(12):
        burst.cycle()
    assert burst.plan.values is first
    # a few pods in each cycle, of three groups each; each of them once in 30 seconds
    assert read_in_four_cycles < 100
    assert burst.node.files.reads > 150


def test_a_limit_that_changes_moves_the_base() -> None:
    view = make_pod("a", limited("x", 1000))
    burst = scene(AUTO, view)
    burst.cycle()
    resized = replace(view, resources=(limited("x", 2000),))
    burst.node.replace(resized)
    for cgroup in (view.cgroup, cgroup_of(view, "x")):
        burst.node.files.put(cgroup, QUOTA, Bandwidth(200000))
    throttle(burst, "a", "x")
    burst.cycle()
    assert quota(burst, resized, "x") == quota(burst, resized) == 240000


def test_the_limit_of_a_pod_is_the_one_that_the_kubelet_computes() -> None:
    app, first = limited("x", 1000), limited("first", 2500, is_init=True)
    side = limited("side", 500, is_init=True, is_sidecar=True)
    assert pod_limit_milli((app, limited("y", 300))) == 1300
    assert pod_limit_milli((side, app)) == 1500
    assert pod_limit_milli((first, side, app)) == 2500
    assert pod_limit_milli((side, first, app)) == 3000
    assert pod_limit_milli((app, limited("y", None))) is None


def test_an_init_container_with_the_largest_limit_decides_what_a_pod_gets_back() -> None:
    first = limited("first", 2500, is_init=True)
    view = make_pod("a", first, limited("x", 1000))
    burst = scene(AUTO, view)
    burst.node.files.put(view.cgroup, QUOTA, Bandwidth(250000))
    throttle(burst, "a", "x")
    burst.cycle()
    assert quota(burst, view) == 270000
    for limit_milli, pod_quota_us in ((1300, None), (3000, 300000)):
        burst.node.replace(replace(view, resources=(first, limited("x", limit_milli))))
        burst.cycle()
        originals = {value.target: value.original for value in burst.plan.values}
        expected = None if pod_quota_us is None else Bandwidth(pod_quota_us)
        assert originals[view.cgroup, QUOTA.name] == expected


def files_in_order(
    burst: Burst, before: Mapping[tuple[str, str], Any], view: PodView
) -> list[tuple[str, str]]:
    """Return the writes of the last plan as (level, file)."""
    steps = plan_writes(burst.plan.values, before, 2)
    return [("pod" if step.desired.cgroup == view.cgroup else "app", step.file) for step in steps]


def test_bursts_stay_while_quotas_are_raised_and_lowered() -> None:
    view = make_pod("a", limited("x", 1200))
    burst = scene(replace(AUTO, cpu_burst_percent=200), view)
    files = burst.node.files
    for cgroup in (view.cgroup, cgroup_of(view, "x")):
        files.put(cgroup, BURST, 0)
    burst.cycle()
    throttle(burst, "a", "x")
    before = dict(files.values)
    burst.cycle()
    raised = files_in_order(burst, before, view)
    assert raised == [("pod", "cpu.max"), ("app", "cpu.max")]
    for _ in range(2):
        burst.cycle()
    burst.node.node_cores = 16.0
    for _ in range(4):
        before = dict(files.values)
        burst.cycle()
    lowered = files_in_order(burst, before, view)
    assert lowered == [("app", "cpu.max"), ("pod", "cpu.max")]


def test_a_pod_is_found_by_its_label_not_by_the_class_of_its_cgroup() -> None:
    view = replace(make_pod("a", limited("x", 1000)), labels=((QOS_LABEL, "LS"),))
    assert scene(AUTO, replace(view, qos=KubeQos.BEST_EFFORT)).cycle()
