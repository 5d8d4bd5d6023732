"""What evictions take from pods, usage and settings."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from agent.config.containers import EnforceSettings, EvictionSettings
from agent.qos.eviction.strategies import EvictionPodBuilder, eviction_pod, eviction_strategies
from agent.qos.inputs import qos_pods
from agent.qos.strategies import strategies
from agent.qos.strategy import AnyStrategy, NodeCapacity, QosInputs, StrategyPlan
from agent.snapshot.cluster import ClusterView, NodeView
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ContainerResources, PodView
from agent.snapshot.self_check import StrategyState
from agent.snapshot.slo import NodeSlo, ResourceThresholds
from agent.snapshot.usage import BestEffortUsage, CgroupUsage, NodeUsage, UsageSample
from tests.unit.qos.qos_node import V2, DictFiles
from tests.unit.qos.qos_node import pod as make_pod

GIB = 1 << 30
OWN_UID = "own"
POLICY = "koordinator.sh/eviction-policy"
THRESHOLDS = ResourceThresholds(enable=True, memory_evict_threshold_percent=80)


def batch(uid: str, /, **changes: Any) -> PodView:
    """A best-effort pod of one container and a sidecar, with batch resources."""
    resources = (
        ContainerResources(name="init", is_init=True, batch_cpu_milli=8000),
        ContainerResources(name="proxy", is_init=True, is_sidecar=True, batch_cpu_milli=500),
        ContainerResources(name="main", batch_cpu_milli=1000, batch_memory_bytes=GIB),
    )
    view = make_pod(uid, *resources, label="BE")
    return replace(view, **changes)


def decoded(text: str | None) -> Any:
    annotations = () if text is None else ((POLICY, text),)
    (one,) = qos_pods((batch("a", annotations=annotations),))
    return eviction_pod(one, "").features


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        pytest.param(None, True, id="O5-absent"),
        pytest.param('["X"]', True, id="O5-X"),
        pytest.param('["Y","X"]', True, id="O5-Y-X"),
        pytest.param('["Y"]', False, id="O5-Y"),
        pytest.param("[]", False, id="O5-none"),
        pytest.param("", False, id="O5-empty-text"),
        pytest.param('"X"', False, id="O5-text"),
        pytest.param("bad", False, id="O5-bad"),
        pytest.param('["X", 1]', False, id="mixed"),
        pytest.param("[" * 100000, False, id="deep"),
    ],
)
def test_o5_an_annotation_limits_the_rules_that_may_evict_the_pod(
    text: str | None, is_allowed: bool
) -> None:
    features = decoded(text)
    assert (features is None or "X" in features) is is_allowed


def test_a_pod_s_requests_are_those_of_its_class_and_of_containers_that_stay() -> None:
    (one,) = qos_pods((batch("a"),))
    assert eviction_pod(one, "").requests == {
        "kubernetes.io/batch-cpu": 1500,
        "kubernetes.io/batch-memory": GIB,
    }


@pytest.mark.parametrize(
    ("priority", "label", "expected"),
    [(7001, "", 7001), (0, "", 5500), (None, "", 5500), (None, "koord-mid", 7500),
     (None, "koord-prod", 9500)],
)  # fmt: skip
def test_a_pod_without_a_priority_has_that_of_its_class(
    priority: int | None, label: str, expected: int
) -> None:
    view = batch("a", priority=priority)
    if label:
        view = replace(view, labels=(*view.labels, ("koordinator.sh/priority-class", label)))
    (one,) = qos_pods((view,))
    assert eviction_pod(one, "").priority == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("-5", -5), ("x", 0), ("", 0), ("2147483648", 0), ("-2147483648", -(2**31)), ("1.5", 0),
     ("٣", 0)],
)  # fmt: skip
def test_an_eviction_priority_is_a_whole_number_of_32_bits(text: str, expected: int) -> None:
    (one,) = qos_pods((batch("a", annotations=(("koordinator.sh/eviction-priority", text),)),))
    assert eviction_pod(one, "").eviction_priority == expected


def test_namespaces_that_no_strategy_touches_are_protected_as_well() -> None:
    enforce = EnforceSettings(protected_namespaces=("default",))
    strategy = next(one for one in strategies(enforce, OWN_UID) if one.name == "memory_eviction")
    node = MemoryNode(
        batch("a"), batch("b", namespace="other"), batch("c", namespace="kube-system")
    )
    node.strategy, node.state = strategy, strategy.start()
    node.run()
    assert node.run() == ["b"]


class MemoryNode:
    """A node of 100 GiB whose memory is used up."""

    def __init__(self, *views: PodView, **settings: Any) -> None:
        self.strategy: AnyStrategy
        _, self.strategy = eviction_strategies(EvictionSettings(**settings), OWN_UID)
        self.state = self.strategy.start()
        self.pods = qos_pods(views)
        self.plan = StrategyPlan()
        self.now_s = 100.0
        usage = {view.uid: CgroupUsage(memory_bytes=GIB, cpu_cores=0.5) for view in views}
        cluster = ClusterView(
            has_pod_list=True, node=SnapshotPart(NodeView(name="n", uid="u"), 1.0)
        )
        self.inputs = QosInputs(
            now_s=0.0,
            slo=NodeSlo(thresholds=THRESHOLDS),
            usage=UsageSample(node=NodeUsage(memory_bytes=95 * GIB), pods=usage),
            node=NodeCapacity(cpu_milli=1000, memory_bytes=100 * GIB),
            pods=self.pods,
            cluster=cluster,
            layout=V2,
            current=DictFiles(),
        )

    def run(self, **changes: Any) -> list[str]:
        """Run a cycle; return the evicted pods."""
        self.now_s += 1.0
        given = {"now_s": self.now_s, "usage_taken_s": self.now_s, **changes}
        inputs = msgspec.structs.replace(self.inputs, **given)
        self.plan, self.state = self.strategy.plan(inputs, self.state)
        return [eviction.pod.uid for eviction in self.plan.evictions]


STATIC = (("kubernetes.io/config.mirror", "0" * 32),)


@pytest.mark.parametrize(
    "changes",
    [
        {"namespace": "kube-system"},
        {"uid": OWN_UID},
        {"annotations": STATIC},
        {"annotations": (("kubernetes.io/config.hash", "0" * 32),)},
        {"annotations": (("kubernetes.io/config.source", "file"),)},
        {"is_of_daemon_set": True},
        {"priority": 2_000_000_000},
        {"priority": 2_000_001_000},
        {"labels": (("koordinator.sh/qosClass", "BE"),
                    ("koordinator.sh/eviction-enabled", "false"))},
        {"terminating": True},
        {"phase": "Succeeded"},
    ],
)  # fmt: skip
def test_a_protected_pod_is_never_evicted(changes: dict[str, Any]) -> None:
    other = batch("b")
    node = MemoryNode(batch("a", **changes), other)
    node.run()
    assert node.run() == ["b"]


def test_a_pod_of_a_daemon_set_is_evicted_only_if_its_label_says_so() -> None:
    labels = batch("a").labels
    enabled = (*labels, ("koordinator.sh/eviction-enabled", "true"))
    node = MemoryNode(batch("a", is_of_daemon_set=True, labels=enabled))
    node.run()
    assert node.run() == ["a"]


def test_namespaces_of_the_settings_are_protected() -> None:
    node = MemoryNode(
        batch("a", namespace="kube-system"), batch("b"), protected_namespaces=("default",)
    )
    node.run()
    assert node.run() == ["a"]


@pytest.mark.parametrize(
    "changes",
    [
        {"usage": None},
        {"usage_taken_s": None},
        {"usage": UsageSample(node=NodeUsage())},
        {"usage": UsageSample(node=NodeUsage(memory_bytes=95 * GIB))},  # no pod was measured
        {"node": NodeCapacity()},
        {"cluster": ClusterView(node=SnapshotPart(NodeView(name="n", uid="u"), 1.0))},
        {"slo": NodeSlo()},
    ],
)
def test_without_an_input_nobody_is_evicted(changes: dict[str, Any]) -> None:
    node = MemoryNode(batch("a"))
    assert [node.run(**changes) for _ in range(5)] == [[]] * 5


def test_the_state_says_what_the_rules_do() -> None:
    node = MemoryNode(batch("a"))
    used = UsageSample(
        node=NodeUsage(memory_bytes=88 * GIB), pods={"a": CgroupUsage(memory_bytes=GIB)}
    )
    node.run(usage=used)
    plan = node.plan
    assert (plan.state, plan.figures) == (
        StrategyState.ACTIVE,
        (("BEMemoryEvict_release_memory_bytes", float(10 * GIB)),),
    )
    assert plan.message == (
        f"BEMemoryEvict waiting: the next sample has to confirm it; to release: {10 * GIB} bytes of"
        " memory; default/pod-a"
    )


@pytest.mark.parametrize(
    ("changes", "state"),
    [({"slo": NodeSlo()}, StrategyState.IDLE), ({"usage": None}, StrategyState.WAITING)],
)
def test_without_a_node_slo_the_strategy_is_idle_and_without_usage_it_waits(
    changes: dict[str, Any], state: StrategyState
) -> None:
    node = MemoryNode(batch("a"))
    node.run(**changes)
    assert node.plan.state is state


def test_best_effort_cpu_is_taken_from_the_measured_tier() -> None:
    strategy, _ = eviction_strategies(EvictionSettings(), OWN_UID)
    slo = ResourceThresholds(
        enable=True,
        cpu_evict_satisfaction_lower_percent=30,
        cpu_evict_satisfaction_upper_percent=40,
    )
    node = MemoryNode(batch("a"), batch("b"))
    tier = BestEffortUsage(use=CgroupUsage(cpu_cores=9.5), request_milli=50000, limit_milli=10000)
    usage = replace(node.inputs.usage or UsageSample(), best_effort=tier)
    state = strategy.start()
    evicted = []
    for second in range(30):
        inputs = msgspec.structs.replace(
            node.inputs, now_s=float(second), usage_taken_s=float(second), usage=usage,
            slo=NodeSlo(thresholds=slo),
        )  # fmt: skip
        plan, state = strategy.plan(inputs, state)
        evicted += [(second, eviction.pod.uid) for eviction in plan.evictions]
    assert evicted[:2] == [(20, "a"), (20, "b")] or evicted[:2] == [(20, "b"), (20, "a")]


def test_pods_are_built_once_while_they_do_not_change() -> None:
    pods, usage = qos_pods(tuple(batch(f"p{n}") for n in range(3))), UsageSample()
    builder = EvictionPodBuilder(frozenset(), OWN_UID)
    assert builder.build(pods, usage) is builder.build(pods, usage)
