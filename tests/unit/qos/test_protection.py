"""Pods whose own files no strategy writes."""

from __future__ import annotations

import pytest

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import CPUS, QUOTA
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.write_plan import DesiredValue
from agent.qos.engine import PodProtection
from agent.qos.strategy import QosContainer, QosInputs, QosPod, StrategyPlan
from agent.snapshot.pod import ContainerResources, KubeQos, PodView
from agent.snapshot.slo import NodeSlo
from tests.unit.qos.qos_node import V1, V2, DictFiles


def pod(namespace: str, cgroup: str) -> QosPod:
    view = PodView(uid="u", qos=KubeQos.BEST_EFFORT, name="p", namespace=namespace, cgroup=cgroup)
    container = QosContainer(id="c", cgroup=f"{cgroup}/c", resources=ContainerResources(name="app"))
    return QosPod(
        view=view,
        label="",
        qos_class="BE",
        priority_class="koord-batch",
        is_active=True,
        containers=(container,),
    )


def quota(cgroup: str, quota_us: int = 50000) -> DesiredValue:
    return DesiredValue(cgroup=cgroup, key=QUOTA, value=Bandwidth(quota_us), owner="cpu_burst")


def cpus(cgroup: str) -> DesiredValue:
    return DesiredValue(cgroup=cgroup, key=CPUS, value=frozenset({0}), owner="cpu_suppression")


def inputs(layout: CgroupLayout = V1, own_quota_us: int = 50000) -> QosInputs:
    files = DictFiles(values={("/kubepods/pod1", QUOTA.name): Bandwidth(own_quota_us)})
    return QosInputs(now_s=1.0, slo=NodeSlo(), layout=layout, current=files, pods=PODS)


PODS = (pod("kube-system", "/kubepods/pod1"), pod("shop", "/kubepods/pod2"))
PLAN = StrategyPlan(
    values=(
        quota("/kubepods/besteffort"),
        quota("/kubepods/pod1"),
        quota("/kubepods/pod1/c"),
        cpus("/kubepods/pod1"),
        quota("/kubepods/pod2"),
    )
)


INPUTS = inputs()


def test_no_strategy_writes_files_of_a_pod_in_a_protected_namespace() -> None:
    plan = PodProtection(frozenset({"kube-system"})).apply("cpu_burst", PLAN, INPUTS)
    assert [(value.cgroup, value.key) for value in plan.values] == [
        ("/kubepods/besteffort", QUOTA),
        ("/kubepods/pod1", CPUS),  # else the group above could not be narrowed
        ("/kubepods/pod2", QUOTA),
    ]


def test_an_unchanged_plan_stays_the_same_object() -> None:
    protection = PodProtection(frozenset({"kube-system"}))
    first = protection.apply("cpu_burst", PLAN, INPUTS)
    assert protection.apply("cpu_burst", PLAN, INPUTS) is first
    assert protection.apply("memory_qos", PLAN, INPUTS) == first
    assert protection.apply("cpu_burst", PLAN, INPUTS) is first


def test_without_a_protected_pod_the_plan_is_not_touched() -> None:
    assert PodProtection(frozenset()).apply("cpu_burst", PLAN, INPUTS) is PLAN
    assert PodProtection(frozenset({"other"})).apply("cpu_burst", PLAN, INPUTS) is PLAN


@pytest.mark.parametrize(
    ("layout", "group_us", "own_us", "ends"),
    [
        pytest.param(V1, 20000, 50000, True, id="the kernel would refuse the quota of the group"),
        pytest.param(V1, 50000, 50000, False, id="its own quota fits"),
        pytest.param(V1, 20000, -1, False, id="it has no quota"),
        pytest.param(V1, -1, 50000, False, id="the group has no quota"),
        pytest.param(V2, 20000, 50000, False, id="version 2 accepts the quota of the group"),
    ],
)
def test_the_quota_of_a_protected_pod_ends_only_if_it_exceeds_that_of_the_group_above(
    layout: CgroupLayout, group_us: int, own_us: int, ends: bool
) -> None:
    child = quota("/kubepods/pod1", -1)
    plan = StrategyPlan(values=(quota("/kubepods", group_us), child, quota("/kubepods/pod1/c", -1)))
    protection = PodProtection(frozenset({"kube-system"}))
    values = protection.apply("cpu_suppression", plan, inputs(layout, own_us)).values
    assert values == (plan.values[:2] if ends else plan.values[:1])
