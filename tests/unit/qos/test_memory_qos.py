"""What the memory QoS strategy wants of a node's files, cycle after cycle."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agent.cgroup.keys import (
    ALL_KEYS,
    HIGH,
    LOW,
    MIN,
    NO_LIMIT,
    OOM_GROUP,
    OOM_PRIORITY,
    PAGE_CACHE_ENABLE,
    PAGE_CACHE_SIZE,
    USES_OOM_PRIORITY,
    WATERMARK_RATIO,
    CgroupKey,
)
from agent.qos.memory_qos import MemoryQosStrategy
from agent.qos.memory_rules import ANNOTATION
from agent.qos.strategy import StrategyPlan
from agent.snapshot.pod import KubeQos, PodView
from agent.snapshot.self_check import StrategyState
from agent.snapshot.slo import MemoryQos, NodeSlo, QosClass, ResourceQos, settle_classes
from tests.unit.qos.qos_node import ROOT, QosNode, by_target, cgroup_of, limited
from tests.unit.qos.qos_node import pod as make_pod

MI, GI = 1 << 20, 1 << 30
MAINLINE = (MIN, LOW, HIGH, OOM_GROUP)
PREFIXES = ("memory.wmark", "memory.pri", "memory.use", "memory.pagecache")
NUMBERS = tuple(key for key in ALL_KEYS if key.name.startswith(PREFIXES))


def neutral(key: CgroupKey) -> int:
    return NO_LIMIT if key is HIGH else 0


class Memory:
    """The strategy on a node; its values are written after each cycle."""

    def __init__(self, strategy: ResourceQos, *views: PodView, anolis: bool = False) -> None:
        self.node = QosNode(slo=slo(strategy))
        self.keys = (*MAINLINE, *NUMBERS) if anolis else MAINLINE
        for key in self.keys:
            for cgroup in (ROOT, f"{ROOT}/burstable", f"{ROOT}/besteffort"):
                self.node.files.put(cgroup, key, neutral(key))
        self.add(*views)
        self.strategy = MemoryQosStrategy()
        self.state = self.strategy.start()
        self.plan = StrategyPlan()

    def add(self, *views: PodView) -> None:
        self.node.add(*views, quotas=False)
        for view in views:
            for cgroup in (view.cgroup, *(container.cgroup for container in view.containers)):
                for key in self.keys:
                    self.node.files.put(cgroup, key, neutral(key))

    def cycle(self, seconds: float = 1.0, *, is_written: bool = True) -> dict[tuple[str, str], Any]:
        self.plan, self.state = self.strategy.plan(self.node.inputs(seconds), self.state)
        if is_written:
            self.node.files.apply(self.plan.values)
        return by_target(self.plan)


def slo(strategy: ResourceQos) -> NodeSlo:
    return NodeSlo(resource_qos=settle_classes(strategy))


def ls(**fields: Any) -> ResourceQos:
    return ResourceQos(ls_class=QosClass(memory=MemoryQos(enable=True, **fields)))


def burstable(uid: str, request: int, limit: int | None = None, **more: Any) -> PodView:
    container = limited("x", None, memory_request_bytes=request, memory_limit_bytes=limit)
    return make_pod(uid, container, request_bytes=request, **more)


def test_nothing_is_desired_and_read_while_all_classes_are_disabled() -> None:
    memory = Memory(ResourceQos(), burstable("a", GI))
    assert memory.cycle() == {}
    assert memory.plan.state is StrategyState.IDLE
    assert memory.node.files.reads == 0


def test_min_of_containers_pod_and_directories() -> None:
    view = make_pod(
        "a",
        limited("x", None, memory_request_bytes=1000),
        limited("y", None, memory_request_bytes=1001),
        request_bytes=2001,
    )
    values = Memory(ls(min_limit_percent=50), view).cycle()
    assert values == {
        (ROOT, MIN.name): 1000,
        (f"{ROOT}/burstable", MIN.name): 1000,
        (view.cgroup, MIN.name): 1000,
        (cgroup_of(view, "x"), MIN.name): 500,
        (cgroup_of(view, "y"), MIN.name): 500,
    }


def test_directories_have_the_sums_of_the_pods_below_them() -> None:
    every = MemoryQos(enable=True, min_limit_percent=100)
    strategy = ResourceQos(
        lsr_class=QosClass(memory=every),
        ls_class=QosClass(memory=every),
        be_class=QosClass(memory=every),
    )
    batch = make_pod(
        "c", limited("x", None, batch_memory_bytes=GI), label="BE", qos=KubeQos.BEST_EFFORT
    )
    memory = Memory(
        strategy,
        burstable("a", 4 * GI, label="", qos=KubeQos.GUARANTEED),
        burstable("b", 2 * GI),
        batch,
        burstable("ended", 8 * GI, phase="Succeeded"),
    )
    values = memory.cycle()
    assert values[ROOT, MIN.name] == 7516192768
    assert values[f"{ROOT}/burstable", MIN.name] == 2147483648
    assert values[f"{ROOT}/besteffort", MIN.name] == 1073741824


def test_the_larger_one_of_the_kubelets_protection_and_the_sum() -> None:
    memory = Memory(ls(min_limit_percent=100), burstable("a", 2 * GI))
    files = memory.node.files
    files.put(ROOT, MIN, 5 * GI)
    files.put(f"{ROOT}/burstable", MIN, GI)
    values = memory.cycle()
    assert (ROOT, MIN.name) not in values  # the kubelet's own is larger
    assert values[f"{ROOT}/burstable", MIN.name] == 2 * GI
    files.put(f"{ROOT}/burstable", MIN, 3 * GI)  # the kubelet writes a new one
    assert memory.cycle()[f"{ROOT}/burstable", MIN.name] == 3 * GI
    assert memory.cycle()[f"{ROOT}/burstable", MIN.name] == 3 * GI
    files.put(f"{ROOT}/burstable", MIN, GI)
    assert memory.cycle()[f"{ROOT}/burstable", MIN.name] == 2 * GI


def test_an_own_sum_that_could_not_be_lowered_is_not_taken_for_the_kubelets() -> None:
    first, second = burstable("a", 2 * GI), burstable("b", GI)
    memory = Memory(ls(min_limit_percent=100), first, second)
    target = f"{ROOT}/burstable", MIN.name
    assert memory.cycle()[target] == 3 * GI
    memory.node.replace(replace(first, phase="Succeeded"), second)
    for _ in range(3):  # as while the brake holds, or while the ledger cannot be written
        assert memory.cycle(is_written=False)[target] == GI
    assert memory.cycle()[target] == GI
    memory.node.files.put(f"{ROOT}/burstable", MIN, 4 * GI)  # that is the kubelet's
    assert memory.cycle(is_written=False)[target] == 4 * GI
    assert memory.cycle()[target] == 4 * GI


def test_a_protection_that_the_kubelet_set_on_a_pod_stays() -> None:
    view = burstable("a", GI, 2 * GI)
    memory = Memory(ls(min_limit_percent=50, throttling_percent=80), view)
    memory.node.files.put(view.cgroup, MIN, GI)
    memory.node.files.put(cgroup_of(view, "x"), HIGH, GI)
    values = memory.cycle()
    assert (view.cgroup, MIN.name) not in values
    assert (cgroup_of(view, "x"), HIGH.name) not in values
    assert values[cgroup_of(view, "x"), MIN.name] == GI // 2
    assert dict(memory.plan.figures)["files_of_other_programs"] == 2


def test_memory_high_of_containers_only() -> None:
    view = burstable("a", 512 * MI, 2 * GI)
    values = Memory(ls(throttling_percent=90), view).cycle()
    assert values == {(cgroup_of(view, "x"), HIGH.name): 1986420736}


def test_without_the_allocatable_memory_the_last_values_stay() -> None:
    memory = Memory(ls(throttling_percent=80), burstable("a", 0))
    before = memory.cycle()
    assert before
    memory.node.allocatable_memory = None
    assert memory.cycle() == before
    assert memory.plan.state is StrategyState.WAITING
    memory.node.allocatable_memory = GI
    assert set(memory.cycle().values()) == {858992640}


def test_without_a_list_of_pods_the_last_values_stay() -> None:
    memory = Memory(ls(min_limit_percent=50), burstable("a", GI))
    before = memory.cycle()
    memory.node.has_pods = False
    assert memory.cycle() == before
    assert memory.plan.state is StrategyState.WAITING


def test_anolis_files_only_where_the_kernel_has_them() -> None:
    strategy = ls(wmark_ratio=90, priority_enable=1, priority=5, oom_kill_group=1)
    view = burstable("a", GI)
    plain = Memory(strategy, view).cycle()
    assert {key for _, key in plain} == {OOM_GROUP.name}
    anolis = Memory(strategy, view, anolis=True).cycle()
    assert anolis[view.cgroup, WATERMARK_RATIO.name] == 90
    assert anolis[cgroup_of(view, "x"), OOM_PRIORITY.name] == 5
    assert anolis[f"{ROOT}/burstable", USES_OOM_PRIORITY.name] == 1
    assert (ROOT, OOM_PRIORITY.name) not in anolis  # that is of the class LSR


def test_a_group_above_pods_is_never_killed_as_a_whole() -> None:
    every = QosClass(memory=MemoryQos(enable=True, oom_kill_group=1))
    strategy = ResourceQos(lsr_class=every, ls_class=every, be_class=every)
    view = burstable("a", GI)
    values = Memory(strategy, view, anolis=True).cycle()
    groups = {cgroup for cgroup, key in values if key == OOM_GROUP.name}
    assert groups == {view.cgroup, cgroup_of(view, "x")}


def test_page_cache_limits_of_pods() -> None:
    view = burstable("a", GI, 2 * GI)
    strategy = ls(page_cache_limit_percent=50)
    assert Memory(strategy, view).cycle() == {}
    values = Memory(strategy, view, anolis=True).cycle()
    assert values[view.cgroup, PAGE_CACHE_SIZE.name] == GI
    assert values[view.cgroup, PAGE_CACHE_ENABLE.name] == 1
    assert not [key for cgroup, key in values if cgroup != view.cgroup]


def test_a_kernel_without_any_of_the_files_is_named() -> None:
    memory = Memory(ls(min_limit_percent=50), burstable("a", GI))
    for key in MAINLINE:
        del memory.node.files.values[ROOT, key.name]
    assert memory.cycle() == {}
    assert memory.plan.state is StrategyState.UNSUPPORTED
    memory.node.files.put(ROOT, MIN, 0)  # the controller is enabled later
    assert memory.cycle(61.0)


def test_an_annotation_on_a_node_without_a_request() -> None:
    text = '{"policy":"auto","minLimitPercent":100}'
    own = burstable("a", GI, annotations={ANNOTATION: text})
    memory = Memory(ResourceQos(), own, burstable("b", GI), anolis=True)
    values = memory.cycle()
    assert values[own.cgroup, MIN.name] == GI
    assert values[own.cgroup, WATERMARK_RATIO.name] == 95
    assert (own.cgroup, LOW.name) not in values
    assert (cgroup_of(own, "x"), HIGH.name) not in values
    assert not [cgroup for cgroup, _ in values if "podb" in cgroup]
    sources = {value.source for value in memory.plan.values if value.cgroup == own.cgroup}
    assert sources == {f"Pod default/pod-a annotation {ANNOTATION}"}


def test_a_wrong_annotation_counts_as_absent_and_is_named() -> None:
    view = burstable("a", GI, annotations={ANNOTATION: '{"minLimitPercent":"5"}'})
    memory = Memory(ls(min_limit_percent=50), view)
    assert memory.cycle()[view.cgroup, MIN.name] == GI // 2
    assert "default/pod-a" in memory.plan.message


def test_when_the_class_is_disabled_everything_is_restored() -> None:
    view = burstable("a", GI, 2 * GI)
    memory = Memory(ls(min_limit_percent=50, throttling_percent=80), view)
    before = dict(memory.node.files.values)
    memory.cycle()
    assert memory.node.files.values != before
    memory.node.slo = slo(ResourceQos())
    assert memory.cycle() == {}
    assert memory.node.files.values == before


def test_a_pod_that_ends_gives_its_protection_back() -> None:
    memory = Memory(ls(min_limit_percent=100), burstable("a", GI), burstable("b", 2 * GI))
    assert memory.cycle()[ROOT, MIN.name] == 3 * GI
    a, b = memory.node.views
    memory.node.replace(a, replace(b, phase="Succeeded"))
    values = memory.cycle()
    assert values[ROOT, MIN.name] == GI
    assert (b.cgroup, MIN.name) not in values


def test_an_unchanged_node_keeps_the_same_values_and_reads_little() -> None:
    views = [burstable(f"p{n}", GI, 2 * GI) for n in range(100)]
    memory = Memory(ls(min_limit_percent=50, low_limit_percent=60, throttling_percent=80), *views)
    memory.cycle()
    first, memory.node.files.reads = memory.plan.values, 0
    for _ in range(3):
        memory.cycle()
    assert memory.plan.values is first
    assert memory.node.files.reads == 3 * 6  # the QoS directories
    for _ in range(70):
        memory.cycle()
    assert memory.plan.values is first


@pytest.mark.parametrize("label", ["LSE", "LSR", "LS", "BE", "SYSTEM", ""])
def test_each_class_has_the_settings_of_its_part(label: str) -> None:
    parts = {"lsr_class": 10, "ls_class": 20, "be_class": 30, "system_class": 40}
    classes: dict[str, Any] = {
        name: QosClass(memory=MemoryQos(enable=True, min_limit_percent=percent))
        for name, percent in parts.items()
    }
    container = limited("x", None, memory_request_bytes=1000, batch_memory_bytes=1000)
    view = make_pod("a", container, label=label, request_bytes=1000)
    values = Memory(ResourceQos(**classes), view).cycle()
    expected = {"LSE": 100, "LSR": 100, "LS": 200, "BE": 300, "SYSTEM": 400, "": 200}[label]
    assert values[view.cgroup, MIN.name] == expected
