"""What the suppression of best-effort CPU wants of a node's files, cycle after cycle."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import CPUS, IDLE, QUOTA, SHARES
from agent.cgroup.layout import CgroupLayout
from agent.config.containers import CpuSuppressionSettings
from agent.qos.cpu_suppression import CpuSuppression
from agent.qos.strategy import StrategyPlan
from agent.snapshot.cluster import KubeletView
from agent.snapshot.cpu import Cpu
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ContainerView, KubeQos, PodView
from agent.snapshot.self_check import StrategyState
from agent.snapshot.slo import NodeSlo, ResourceThresholds
from agent.snapshot.usage import PressureWatch
from agent.wire_formats.annotations import RESERVATION, SYSTEM_QOS
from agent.wire_formats.kernel_text import format_cpu_list, parse_cpu_list
from agent.wire_formats.resource_status import RESOURCE_STATUS
from tests.unit.qos.qos_node import ROOT, V1, V2, QosNode, by_target, cgroup_of, limited
from tests.unit.qos.qos_node import pod as make_pod

A8 = tuple(Cpu(id=i, core=i // 2, socket=i // 4, node=i // 4, l3=0) for i in range(8))
BEST_EFFORT = f"{ROOT}/besteffort"
ALL = frozenset(range(8))
QUOTA_POLICY = ResourceThresholds(enable=True, cpu_suppress_policy="cfsQuota")
WHOLE_NODE = ResourceThresholds(enable=True, cpu_suppress_threshold_percent=100)
ENABLED, NO_OPTIONS = ResourceThresholds(enable=True), CpuSuppressionSettings()
STATIC = SnapshotPart(KubeletView(cpu_manager_policy="static", topology_policy="none"), 1.0)


class Suppression:
    """The strategy on a node of eight CPUs; its values are written after each cycle."""

    def __init__(self, node: QosNode, settings: CpuSuppressionSettings) -> None:
        self.node = node
        self.strategy = CpuSuppression(settings)
        self.state = self.strategy.start()
        self.plan = StrategyPlan()

    def cycle(self, seconds: float = 1.0) -> dict[tuple[str, str], Any]:
        self.plan, self.state = self.strategy.plan(self.node.inputs(seconds), self.state)
        self.node.files.apply(self.plan.values)
        return by_target(self.plan)

    def load(self, protected_cores: float, *, node_cores: float | None = None) -> None:
        """Let the latency-sensitive pod use so much; the node uses no more."""
        self.node.pod_cores["ls"] = protected_cores
        self.node.node_cores = protected_cores if node_cores is None else node_cores

    def cpus(self, cgroup: str = BEST_EFFORT) -> str:
        value = self.node.files.values[cgroup, CPUS.name]
        assert isinstance(value, frozenset)
        return format_cpu_list(value)

    def quota(self, cgroup: str = BEST_EFFORT) -> int:
        return self.node.files.quota(cgroup)

    def figure(self, name: str) -> float | None:
        return dict(self.plan.figures).get(name)

    def stall(self) -> None:
        self.node.pressure = PressureWatch(
            method="triggers", groups=1, stalls=self.node.pressure.stalls + 1
        )


def latency_sensitive(cpus: str = "", label: str = "LS", uid: str = "ls") -> PodView:
    status = {RESOURCE_STATUS: f'{{"cpuset":"{cpus}"}}'} if cpus else None
    return make_pod(uid, limited("c", 1000), label=label, annotations=status)


def best_effort(uid: str = "be", **more: Any) -> PodView:
    return make_pod(uid, limited("c", None), label="BE", qos=KubeQos.BEST_EFFORT, **more)


def scene(
    *views: PodView,
    thresholds: ResourceThresholds = ENABLED,
    layout: CgroupLayout = V2,
    settings: CpuSuppressionSettings = NO_OPTIONS,
    **more: Any,
) -> Suppression:
    node = QosNode(slo=NodeSlo(thresholds=thresholds), layout=layout, cpus=8, topology=A8, **more)
    node.add(*(views or (latency_sensitive(), best_effort())))
    node.files.put(BEST_EFFORT, QUOTA, Bandwidth(-1))
    for cgroup in (ROOT, BEST_EFFORT, *cgroups_of(node)):
        is_empty = layout.version == 2 and cgroup != ROOT
        node.files.put(cgroup, CPUS, frozenset() if is_empty else ALL)
        node.files.put(cgroup, IDLE, 0)
    one = Suppression(node, settings)
    one.load(2.2)  # 8 x 65 % - 2.2 = 3 CPUs
    return one


def cgroups_of(node: QosNode) -> list[str]:
    return [
        cgroup
        for pod in node.views
        if pod.qos is KubeQos.BEST_EFFORT
        for cgroup in (pod.cgroup, *(container.cgroup for container in pod.containers))
    ]


def test_nothing_is_desired_without_a_node_slo() -> None:
    one = scene(thresholds=ResourceThresholds())
    assert one.cycle() == {}
    assert one.plan.state is StrategyState.IDLE


def test_on_version_2_one_list_of_cpus_is_enough() -> None:
    one = scene()
    assert one.cycle() == {(BEST_EFFORT, CPUS.name): parse_cpu_list("0-1,4")}
    desired = one.plan.values[0]
    assert desired.message == "update BE group to cpuset: 0-1,4"
    assert desired.source == "NodeSLO spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPercent"
    assert one.figure("cpuset_cpus") == 3.0
    assert one.figure("budget_cores") == 3.0


def test_usage_of_best_effort_pods_is_not_that_of_protected_pods() -> None:
    one = scene()
    one.node.pod_cores["be"] = 1.5
    one.load(2.2, node_cores=3.7)
    one.cycle()
    assert one.figure("protected_pods_cores") == 2.2
    assert one.figure("budget_cores") == 3.0


def test_on_version_1_each_group_below_has_the_list() -> None:
    view = best_effort()
    nameless = PodView(uid="new", qos=KubeQos.BEST_EFFORT, cgroup=f"{BEST_EFFORT}/podnew")
    sandbox = ContainerView(id="f" * 64, cgroup=f"{view.cgroup}/{'f' * 64}")
    view = replace(view, containers=(*view.containers, sandbox))
    one = scene(latency_sensitive(), view, nameless, layout=V1)
    desired = one.cycle()
    groups = (BEST_EFFORT, view.cgroup, cgroup_of(view, "c"), sandbox.cgroup, nameless.cgroup)
    assert desired == {(cgroup, CPUS.name): parse_cpu_list("0-1,4") for cgroup in groups}


@pytest.mark.parametrize(
    ("views", "reserved", "budget", "old", "written"),
    [
        ((("0,6", "LSR"), ("7", "LSE")), "", 3.0, "0-3", "2-4"),
        ((("0,6", "LSR"), ("7", "LSE")), "3", 3.0, "0-3", "0,4-5"),
        ((("0,6", "LSR"), ("7", "LSE")), "1-6", 3.0, "0-3", "0"),
        ((("0,6", "LSR"), ("7", "LSE")), "0-1,5-6", 3.0, "0-3", "2-4"),
        ((), "", 7.4, "0-1", "0-1,4"),
        ((), "", -3.0, "0-7", "0-1"),
        ((("0-3", "LSR"),), "", 6.0, "0-7", "0-2,4-6"),
        ((("0-3", "LSR"), ("4-5", "LSE")), "", 6.0, "0-3,6-7", "0-3,6-7"),
    ],
)
def test_cpus_of_other_classes_and_reserved_ones_are_respected(
    views: tuple[tuple[str, str], ...], reserved: str, budget: float, old: str, written: str
) -> None:  # P8-P15
    owners = (latency_sensitive(*view, uid=f"own{i}") for i, view in enumerate(views))
    one = scene(latency_sensitive(), best_effort(), *owners, thresholds=WHOLE_NODE)
    one.node.files.put(BEST_EFFORT, CPUS, parse_cpu_list(old))
    one.load(8 - len(parse_cpu_list(reserved)) - budget)
    one.node.annotations = {RESERVATION: f'{{"reservedCPUs":"{reserved}"}}'} if reserved else {}
    one.cycle()
    assert one.cpus() == written


def test_without_a_candidate_the_limits_stay_and_that_is_reported() -> None:  # P16
    one = scene()
    one.cycle()
    one.node.add(latency_sensitive("0-7", "LSE", uid="all"))
    one.cycle()
    assert one.cpus() == "0-1,4"
    assert one.plan.state is StrategyState.WAITING
    assert "BENoCandidates" in one.plan.message


def test_exclusive_cpus_of_system_services_are_no_candidates() -> None:
    one = scene(annotations={SYSTEM_QOS: '{"cpuset":"0-1"}'})
    one.cycle()
    assert one.cpus() == "2,4-5"


def test_cpus_that_the_kernel_balances_no_load_on_are_no_candidates() -> None:
    one = scene(isolated=parse_cpu_list("0-3"))  # as of isolcpus=0-3
    one.cycle()
    assert one.cpus() == "4-6"
    one.node.isolated = ALL
    one.cycle()
    assert one.cpus() == "4-6"
    assert "BENoCandidates" in one.plan.message


def test_cpus_that_the_root_of_all_pods_lacks_are_no_candidates() -> None:
    one = scene(layout=V1)
    one.node.files.put(ROOT, CPUS, parse_cpu_list("2-3,6"))
    one.cycle()
    assert one.cpus() == "2-3,6"


def test_a_set_shrinks_at_once_and_grows_by_a_tenth_of_the_node_a_second() -> None:
    one = scene()
    one.load(8.0)
    one.cycle()
    assert one.cpus() == "0-1"
    one.load(0.0)
    sizes = []
    for _ in range(6):
        one.cycle()
        sizes.append(len(parse_cpu_list(one.cpus())))
    assert sizes == [3, 4, 5, 6, 6, 6]


def test_many_cycles_within_a_second_grow_no_faster() -> None:
    one = scene()
    one.load(8.0)
    one.cycle()
    one.load(0.0)
    for _ in range(20):
        one.cycle(0.05)
    assert len(parse_cpu_list(one.cpus())) <= 4


def test_cpus_stay_the_same_where_they_can() -> None:
    one = scene()
    one.cycle()
    before = parse_cpu_list(one.cpus())
    one.node.add(latency_sensitive("0-1", "LSE", uid="exclusive"))
    one.cycle()
    assert 4 in before & parse_cpu_list(one.cpus())
    assert not parse_cpu_list(one.cpus()) & {0, 1}


def test_a_quota_limits_the_class_and_the_list_of_cpus_is_restored() -> None:
    one = scene()
    one.cycle()
    one.node.slo = NodeSlo(thresholds=QUOTA_POLICY)
    assert one.cycle() == {(BEST_EFFORT, QUOTA.name): Bandwidth(300000)}
    assert (one.cpus(), one.quota()) == ("", 300000)
    assert one.plan.values[0].message == "update BE group to cfs_quota: 300000"
    one.node.slo = NodeSlo(thresholds=ENABLED)
    one.cycle()
    assert (one.cpus(), one.quota()) == ("0-1,4", -1)


def test_on_version_1_no_pod_keeps_a_quota_below_that_of_its_class() -> None:
    view = best_effort()
    one = scene(latency_sensitive(), view, thresholds=QUOTA_POLICY, layout=V1)
    one.node.files.put(view.cgroup, QUOTA, Bandwidth(400000))
    desired = one.cycle()
    assert desired[BEST_EFFORT, QUOTA.name] == Bandwidth(300000)
    assert desired[view.cgroup, QUOTA.name] == Bandwidth(-1)
    assert desired[cgroup_of(view, "c"), QUOTA.name] == Bandwidth(-1)


def test_a_small_change_of_the_quota_is_not_written_and_the_old_one_stays_desired() -> None:
    one = scene(thresholds=QUOTA_POLICY)
    one.cycle()
    one.load(2.25)
    assert one.cycle() == {(BEST_EFFORT, QUOTA.name): Bandwidth(300000)}


def test_a_quota_that_the_kubelet_removed_is_desired_again() -> None:
    one = scene(thresholds=QUOTA_POLICY)
    one.cycle()
    one.node.files.put(BEST_EFFORT, QUOTA, Bandwidth(-1))
    one.cycle()
    assert one.quota() == 300000


def test_where_the_kubelet_allocates_cpus_a_quota_is_used_instead() -> None:
    one = scene(kubelet=STATIC, is_clustered=True)
    assert one.cycle() == {(BEST_EFFORT, QUOTA.name): Bandwidth(300000)}
    assert "static policy" in one.plan.message


def test_until_the_kubelet_answers_nothing_is_decided_but_not_for_ever() -> None:
    one = scene(is_clustered=True)
    assert one.cycle() == {}
    assert one.plan.state is StrategyState.WAITING
    one.cycle(11.0)
    assert one.cpus() == "0-1,4"


def test_a_kubelet_that_never_answers_delays_the_first_decision_only() -> None:
    one = scene(is_clustered=True)
    one.cycle()
    one.cycle(11.0)
    one.node.slo = NodeSlo()
    one.cycle()
    assert one.cpus() == ""
    one.node.slo = NodeSlo(thresholds=ENABLED)
    one.cycle()
    assert one.cpus() == "0-1,4"


def test_a_quota_does_not_wait_for_the_kubelet() -> None:
    one = scene(is_clustered=True, thresholds=QUOTA_POLICY)
    assert one.cycle() == {(BEST_EFFORT, QUOTA.name): Bandwidth(300000)}


@pytest.mark.parametrize("lacks", ["a sample", "the list of pods", "the group", "CPUs"])
def test_without_an_input_the_last_limits_stay(lacks: str) -> None:
    one = scene()
    one.cycle()
    if lacks == "a sample":
        one.node.has_sample = False
    elif lacks == "the list of pods":
        one.node.has_pods = False
    elif lacks == "the group":
        del one.node.files.values[BEST_EFFORT, QUOTA.name]
    else:
        one.node.topology = ()
    one.cycle()
    assert one.plan.state is StrategyState.WAITING
    assert one.cpus() == "0-1,4"


def test_a_node_whose_use_is_not_measured_is_no_idle_node() -> None:
    one = scene()
    one.node.node_cores = None
    assert one.cycle() == {}
    assert one.plan.state is StrategyState.WAITING


def measured_scene() -> Suppression:
    """A node of which best-effort pods may use 5 CPUs of 8, and use 2."""
    one = scene(thresholds=WHOLE_NODE)
    one.node.pod_cores["be"] = 2.0
    one.load(2.0, node_cores=5.0)  # the system uses 1
    one.cycle()
    assert one.figure("budget_cores") == 5.0
    return one


def test_the_unmeasured_use_of_a_new_best_effort_pod_takes_no_cpu_from_its_class() -> None:
    one = measured_scene()
    one.node.add(best_effort("new"))
    one.load(2.0, node_cores=8.0)  # the new pod used 3, and has no sample yet
    one.cycle()
    assert one.figure("budget_cores") == 5.0
    one.node.pod_cores["new"] = 3.0
    one.cycle()
    assert one.figure("budget_cores") == 5.0


def test_what_a_best_effort_pod_used_before_its_end_takes_no_cpu_from_its_class() -> None:
    one = measured_scene()
    del one.node.pod_cores["be"]
    one.node.replace(latency_sensitive(), best_effort("other"))
    one.node.pod_cores["other"] = 0.0
    one.cycle()
    assert one.figure("budget_cores") == 5.0
    one.cycle(0.0)  # another decision by the same sample
    assert one.figure("budget_cores") == 5.0
    one.cycle()  # the node uses as much as before: it is not the pod that ended
    assert one.figure("budget_cores") == 3.0


def test_a_best_effort_pod_that_is_never_measured_counts_as_the_system_after_a_while() -> None:
    one = measured_scene()
    one.node.add(best_effort("new"))
    one.load(2.0, node_cores=8.0)
    budgets = []
    for _ in range(8):
        one.cycle()
        budgets.append(one.figure("budget_cores"))
    assert budgets == [5.0] * 5 + [2.0] * 3


def test_while_a_protected_pod_is_not_measured_all_that_is_unknown_counts_as_protected() -> None:
    one = measured_scene()
    one.node.add(best_effort("new"), latency_sensitive(uid="starting"))
    one.load(2.0, node_cores=8.0)
    one.cycle()
    assert one.figure("budget_cores") == 2.0


def test_without_any_pod_all_limits_are_restored() -> None:
    one = scene()
    one.cycle()
    one.node.replace()
    assert one.cycle() == {}
    assert (one.plan.state, one.cpus()) == (StrategyState.IDLE, "")


def test_an_unchanged_plan_is_the_same_object() -> None:
    one = scene(layout=V1)
    one.cycle()
    values = one.plan.values
    one.cycle()
    assert one.plan.values is values


def test_a_group_that_began_suppressed_gets_what_its_class_had() -> None:
    first, second = best_effort("one"), best_effort("two")
    one = scene(latency_sensitive(), first, layout=V1)
    one.cycle()
    one.node.add(second)
    for cgroup in (second.cgroup, cgroup_of(second, "c")):
        one.node.files.put(cgroup, CPUS, parse_cpu_list("0-1,4"))  # as runtimes copy it
    one.cycle()
    originals = {desired.cgroup: desired.original for desired in one.plan.values}
    assert originals[cgroup_of(second, "c")] == originals[second.cgroup] == ALL
    assert originals[cgroup_of(first, "c")] is None


def test_cpus_that_the_scheduler_chose_for_a_best_effort_pod_are_narrowed_not_replaced() -> None:
    placed = best_effort("placed", annotations={RESOURCE_STATUS: '{"cpuset":"4-7"}'})
    lost = best_effort("lost", annotations={RESOURCE_STATUS: '{"cpuset":"6-7"}'})
    one = scene(latency_sensitive(), placed, lost, layout=V1)
    one.cycle()
    assert one.cpus(cgroup_of(placed, "c")) == "4"
    assert one.cpus(cgroup_of(lost, "c")) == "0-1,4"


@pytest.mark.parametrize(("idle", "groups"), [("off", 0), ("pods", 1), ("class", 2)])
def test_best_effort_groups_are_idle_by_a_setting(idle: str, groups: int) -> None:  # O1
    one = scene(settings=CpuSuppressionSettings(idle=idle))
    desired = one.cycle()
    assert [value for (_, key), value in desired.items() if key == IDLE.name] == [1] * groups
    assert ((BEST_EFFORT, IDLE.name) in desired) is (idle == "class")


def test_the_weight_of_a_group_that_becomes_idle_stays_desired() -> None:
    one = scene(settings=CpuSuppressionSettings(idle="class"))
    one.node.files.put(BEST_EFFORT, SHARES, 1)
    one.cycle()
    (weight,) = [desired for desired in one.plan.values if desired.key is SHARES]
    assert (weight.cgroup, weight.value) == (BEST_EFFORT, 1)
    assert weight.is_met(0)  # as the kernel prints it then


def test_a_kernel_without_idle_groups_is_named() -> None:
    one = scene(settings=CpuSuppressionSettings(idle="class"))
    del one.node.files.values[BEST_EFFORT, IDLE.name]
    one.cycle()
    assert "no cpu.idle" in one.plan.message


PRESSURE = CpuSuppressionSettings(pressure=True)


def test_a_stall_halves_what_best_effort_pods_may_use_within_the_cycle() -> None:  # Z1, Z2
    one = scene(thresholds=QUOTA_POLICY, settings=PRESSURE)
    one.cycle()
    one.stall()
    one.cycle(0.05)
    assert one.quota() == 150000
    quotas = []
    for _ in range(8):
        one.cycle()
        quotas.append(one.quota())
    # held for five seconds; then it grows by a tenth of the node a second up to the budget
    assert quotas == [150000] * 4 + [230000, 300000, 300000, 300000]


def test_under_the_policy_of_cpu_sets_a_stall_adds_a_quota_for_a_while() -> None:
    one = scene(settings=PRESSURE)
    one.cycle()
    one.stall()
    assert one.cycle(0.05)[BEST_EFFORT, QUOTA.name] == Bandwidth(150000)
    assert one.figure("pressure_cut_cores") == 1.5
    for _ in range(8):
        one.cycle()
    assert (one.cpus(), one.quota()) == ("0-1,4", -1)


def test_further_stalls_cut_further_down_to_the_floor() -> None:  # Z3
    one = scene(thresholds=QUOTA_POLICY, settings=PRESSURE)
    one.cycle()
    quotas = []
    for _ in range(9):
        one.stall()
        one.cycle(0.5)
        quotas.append(one.quota())
    assert quotas == [150000, 75000, 37500, 18750, 9375, 4687, 2343, 2000, 2000]
    for _ in range(30):
        one.stall()
        one.cycle(0.5)
    assert "stalls are ignored" in one.plan.message
    assert one.quota() == 300000


def test_a_kernel_without_pressure_files_is_named_and_the_formula_works_on() -> None:
    one = scene(thresholds=QUOTA_POLICY, settings=PRESSURE)
    one.node.pressure = PressureWatch(method="unsupported", reason="started with psi=0")
    one.cycle()
    assert one.quota() == 300000
    assert one.plan.message == "CPU pressure, unsupported: started with psi=0"


def test_stalls_of_before_the_node_slo_and_without_the_setting_cut_nothing() -> None:
    one = scene(thresholds=QUOTA_POLICY, settings=PRESSURE)
    one.stall()
    one.cycle()
    assert one.quota() == 300000
    other = scene(thresholds=QUOTA_POLICY)
    other.cycle()
    other.stall()
    other.cycle()
    assert other.quota() == 300000


events = st.lists(
    st.tuples(
        st.sampled_from(("load", "policy", "stall", "owner", "sample", "wait")),
        st.floats(0.0, 9.0),
    ),
    max_size=30,
)


@given(events, st.sampled_from((V1, V2)), st.sampled_from(("off", "pods", "class")))
def test_after_any_sequence_limits_are_sound_and_all_are_restored(
    events: list[tuple[str, float]], layout: CgroupLayout, idle: str
) -> None:
    one = scene(layout=layout, settings=CpuSuppressionSettings(idle=idle, pressure=True))
    before = dict(one.node.files.values)
    for kind, number in events:
        if kind == "load":
            one.load(number)
        elif kind == "policy":
            one.node.slo = NodeSlo(thresholds=QUOTA_POLICY if number > 4 else ENABLED)
        elif kind == "stall":
            one.stall()
        elif kind == "owner":
            cpus = f"0-{int(number)}" if number < 8 else ""
            one.node.replace(latency_sensitive(cpus, "LSE"), *one.node.views[1:])
        elif kind == "sample":
            one.node.has_sample = number > 2
        old = one.node.files.effective_cpus(BEST_EFFORT)
        desired = one.cycle(0.05 if kind == "stall" else 1.0)
        for (cgroup, key), value in desired.items():
            if key == CPUS.name:
                assert value
                assert value <= ALL
                assert old is not None
                assert cgroup != BEST_EFFORT or len(value) <= max(len(old) + 1, 2)
            if key == QUOTA.name and cgroup == BEST_EFFORT:
                assert value.quota_us >= 2000
    one.node.slo = NodeSlo()
    one.cycle()
    assert one.node.files.values == before
