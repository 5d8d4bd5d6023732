"""Pods whose own files no strategy writes."""

from __future__ import annotations

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import CPUS, QUOTA
from agent.cgroup.write_plan import DesiredValue
from agent.qos.engine import PodProtection
from agent.qos.strategy import QosContainer, QosPod, StrategyPlan
from agent.snapshot.pod import ContainerResources, KubeQos, PodView


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


def quota(cgroup: str) -> DesiredValue:
    return DesiredValue(cgroup=cgroup, key=QUOTA, value=Bandwidth(50000), owner="cpu_burst")


def cpus(cgroup: str) -> DesiredValue:
    return DesiredValue(cgroup=cgroup, key=CPUS, value=frozenset({0}), owner="cpu_suppression")


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


def test_no_strategy_writes_files_of_a_pod_in_a_protected_namespace() -> None:
    plan = PodProtection(frozenset({"kube-system"})).apply("cpu_burst", PLAN, PODS)
    assert [(one.cgroup, one.key) for one in plan.values] == [
        ("/kubepods/besteffort", QUOTA),
        ("/kubepods/pod1", CPUS),  # else the group above could not be narrowed
        ("/kubepods/pod2", QUOTA),
    ]


def test_an_unchanged_plan_stays_the_same_object() -> None:
    protection = PodProtection(frozenset({"kube-system"}))
    first = protection.apply("cpu_burst", PLAN, PODS)
    assert protection.apply("cpu_burst", PLAN, PODS) is first
    assert protection.apply("memory_qos", PLAN, PODS) == first
    assert protection.apply("cpu_burst", PLAN, PODS) is first


def test_without_a_protected_pod_the_plan_is_not_touched() -> None:
    assert PodProtection(frozenset()).apply("cpu_burst", PLAN, PODS) is PLAN
    assert PodProtection(frozenset({"other"})).apply("cpu_burst", PLAN, PODS) is PLAN
