"""What people are told about one pod: may it be evicted, by which rule, in which order, and why."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agent.config.containers import BrakeSettings, EvictionSettings
from agent.qos.engine import QosEngine
from agent.qos.eviction.strategies import eviction_strategies
from agent.snapshot.cluster import ClusterView, NodeView
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import (
    EvictionFeedback,
    EvictionOutcome,
    EvictionResult,
    EvictionRuleView,
    PodEvictionView,
    PodView,
)
from agent.snapshot.slo import NodeSlo, NodeSloView, ResourceThresholds
from agent.snapshot.usage import CgroupUsage, NodeUsage, UsageSample
from tests.unit.qos.qos_node import V2, DictFiles
from tests.unit.qos_eviction.test_strategies import batch

GIB = 1 << 30
MEMORY_RULE = "BEMemoryEvict"
SLO = ResourceThresholds(
    enable=True, memory_evict_threshold_percent=80, evict_enabled_priority_threshold=5999
)
ENABLED = ("koordinator.sh/eviction-enabled", "true")
BEST_EFFORT = ("koordinator.sh/qosClass", "BE")
WITH_BRAKE = BrakeSettings(max_refusals=1, max_evictions=1, window_s=600, hold_s=60)


class Node:
    """A node of 100 GiB, of which `used` are used, with strategies in these modes."""

    def __init__(
        self, *pods: PodView, used: int = 50 * GIB, mode: str = "on", **thresholds: Any
    ) -> None:
        strategies = eviction_strategies(EvictionSettings(), "")
        modes = {strategy.name: mode for strategy in strategies}
        self.engine = QosEngine(strategies, modes, 1.0, 1800.0, WITH_BRAKE)
        self.pods, self.used, self.now_s = pods, used, 100.0
        self.slo = replace(SLO, **thresholds)
        self.memory = {pod.uid: GIB for pod in pods}
        self.feedback = EvictionFeedback()

    def cycle(self, seconds: float = 1.0, *, slo_age_s: float = 0.0) -> None:
        """Let the strategies decide once."""
        self.now_s += seconds
        usage = UsageSample(
            node=NodeUsage(memory_bytes=self.used, cpu_cores=1.0),
            pods={uid: CgroupUsage(memory_bytes=size) for uid, size in self.memory.items()},
        )
        node = NodeView(name="n", uid="u", capacity={"cpu": "4", "memory": "100Gi"})
        view = NodeSloView(slo=NodeSlo(thresholds=self.slo))
        snapshot = NodeSnapshot(
            node=NodeIdentity(name="n"),
            pods=SnapshotPart(self.pods, self.now_s),
            usage=SnapshotPart(usage, self.now_s),
            cluster=ClusterView(
                has_pod_list=True,
                node=SnapshotPart(node, self.now_s),
                slo=SnapshotPart(view, self.now_s - slo_age_s),
            ),
        )
        feedback, self.feedback = self.feedback, EvictionFeedback()
        plan = self.engine.plan(snapshot, V2, DictFiles(), self.now_s, feedback)
        self.requests = plan.evictions

    def answer(self, outcome: EvictionOutcome) -> None:
        """Answer the requests of the last cycle."""
        results = tuple(
            EvictionResult(request=request, outcome=outcome) for request in self.requests
        )
        self.feedback = EvictionFeedback(results=results)

    def explain(self, uid: str = "a") -> PodEvictionView:
        view = self.engine.explain_eviction(uid)
        assert view is not None
        return view

    def rule(self, uid: str = "a", name: str = MEMORY_RULE) -> EvictionRuleView:
        return next(one for one in self.explain(uid).rules if one.rule == name)


def explained(pod: PodView, rule: str = MEMORY_RULE, **thresholds: Any) -> EvictionRuleView:
    node = Node(pod, **thresholds)
    node.cycle()
    return node.rule(name=rule)


def test_candidates_have_their_place_in_the_order_of_evictions() -> None:
    node = Node(batch("a"), batch("b"), batch("c", priority=5100))
    node.memory = {"a": GIB, "b": 3 * GIB, "c": GIB}
    node.cycle()
    places = {uid: node.rule(uid).place for uid in "abc"}
    assert places == {"c": 1, "b": 2, "a": 3}
    assert {node.rule(uid).candidates for uid in "abc"} == {3}
    node.used = 95 * GIB
    node.cycle()
    assert [request.pod.uid for request in node.requests] == sorted(places, key=places.__getitem__)


def test_what_decides_the_order_is_shown() -> None:
    annotations = (("koordinator.sh/eviction-priority", "-3"),)
    labels = (BEST_EFFORT, ("koordinator.sh/priority", "77"))
    node = Node(batch("a", annotations=annotations, labels=labels, priority=5200))
    node.cycle()
    view = node.explain()
    assert (view.eviction_priority, view.priority, view.label_priority) == (-3, 5200, 77)
    assert dict(view.used) == {"memory_bytes": GIB}
    assert dict(view.requested)["kubernetes.io/batch-cpu"] == 1500
    assert (view.protection, view.recently) == ("", "")


@pytest.mark.parametrize(
    ("changes", "rule", "words"),
    [
        ({"namespace": "kube-system"}, MEMORY_RULE, "protected: namespace kube-system"),
        ({"phase": "Succeeded"}, MEMORY_RULE, "neither pending nor running"),
        ({"terminating": True}, MEMORY_RULE, "terminates already"),
        (
            {"annotations": (("koordinator.sh/eviction-policy", '["MemoryEvict"]'),)},
            MEMORY_RULE,
            "annotation koordinator.sh/eviction-policy does not list this rule",
        ),
        ({"labels": ()}, MEMORY_RULE, "no label koordinator.sh/qosClass: BE"),
        ({"labels": (ENABLED,), "priority": 7000}, "MemoryEvict", "priority 7000 is above 5999"),
        ({"priority": 5500}, "MemoryEvict", 'no label koordinator.sh/eviction-enabled: "true"'),
        ({"labels": (BEST_EFFORT, ENABLED)}, "MemoryAllocatableEvict", "no priority up to which"),
        ({"labels": (BEST_EFFORT, ENABLED)}, "MemoryEvict", ""),
        ({}, "BECPUEvict", ""),
    ],
)
def test_a_pod_that_a_rule_must_not_evict_is_told_why(
    changes: dict[str, Any], rule: str, words: str
) -> None:
    view = explained(batch("a", **changes), rule)
    assert words in view.exclusion
    assert (not view.exclusion, view.place) == (not words, 0 if words else 1)


def test_a_pod_that_was_not_measured_is_no_candidate_of_a_rule_by_usage() -> None:
    node = Node(batch("a"))
    node.memory = {}
    node.cycle()
    assert node.rule().exclusion == "its usage is not measured"


def test_a_quiet_rule_says_how_near_the_usage_is_to_its_threshold() -> None:
    view = explained(batch("a"))
    assert view.state == "calm"
    assert view.reason == "50 % of the node's memory is used; it evicts from 80 % down to 78 %"
    assert view.release == ()


def test_a_rule_that_the_node_slo_does_not_set_says_which_field_is_missing() -> None:
    view = explained(batch("a"), "CPUEvict")
    assert (view.state, view.reason) == ("not configured", "cpuEvictThresholdPercent is not set")


def test_what_has_to_be_released_and_the_wait_for_a_second_sample_are_shown() -> None:
    node = Node(batch("a"), used=85 * GIB)
    node.cycle()
    view = node.rule()
    assert (view.state, dict(view.release)) == ("waiting", {"memory": 7 * GIB})
    assert view.reason.startswith("the next sample has to confirm it; 85 % of the node's memory")


def test_after_an_eviction_the_cool_down_is_shown_also_where_nothing_has_to_go() -> None:
    node = Node(batch("a"), batch("b"), used=95 * GIB)
    node.memory["a"] = 30 * GIB
    node.cycle()
    assert node.explain("a").recently == "its eviction is requested, and not answered"
    node.answer(EvictionOutcome.EVICTED)
    node.used = 50 * GIB
    node.cycle()
    assert "counts as released" in node.explain("a").recently
    assert "counts as released" in node.rule("a").exclusion
    assert (node.rule("b").place, node.rule("b").candidates) == (1, 1)
    assert node.explain("b").recently == ""
    assert "the last eviction, or the start, is less than 4 s ago" in node.rule("b").reason
    node.cycle(10.0)
    assert "less than" not in node.rule("b").reason


def test_a_pod_that_a_budget_protects_says_until_when() -> None:
    node = Node(batch("a"), used=95 * GIB)
    node.cycle()
    node.answer(EvictionOutcome.BLOCKED)
    node.cycle()
    assert node.explain().recently.endswith("disruption budget; next try in 30 s")


@pytest.mark.parametrize("mode", ["off", "plan"])
def test_the_mode_is_shown_and_the_order_also_where_no_pod_is_evicted(mode: str) -> None:
    node = Node(batch("a"), batch("b"), mode=mode)
    node.cycle()
    view = node.rule()
    assert (view.mode, view.candidates, view.exclusion) == (mode, 2, "")
    assert (view.state == "off") is (mode == "off")
    if mode == "off":
        assert view.reason == "enforce.strategies.memory_eviction or enforce.mode is off"


def test_without_a_node_slo_that_asks_for_it_the_order_is_shown_all_the_same() -> None:
    view = explained(batch("a"), enable=False)
    assert (view.state, view.place) == ("off", 1)
    assert view.reason == "resourceUsedThresholdWithBE.enable is false"


def test_while_nothing_is_decided_the_reason_is_that() -> None:
    node = Node(batch("a"), batch("b"), used=95 * GIB)
    node.cycle(slo_age_s=4000.0)
    assert node.rule().state == "frozen"
    assert "has not confirmed the NodeSLO" in node.rule().reason
    node.cycle()
    assert node.rule().state != "frozen"
    node.engine.record_refusals(5, node.now_s)
    node.cycle()
    assert (node.rule().state, node.rule().reason) == (
        "stopped",
        "5 writes were refused within 10 minutes",
    )


def test_to_explain_changes_no_decision() -> None:
    quiet, requests = Node(batch("a"), used=85 * GIB), Node(batch("a"), used=85 * GIB)
    for _ in range(3):
        quiet.cycle()
        requests.cycle()
        for _ in range(5):
            requests.explain()
        assert [request.pod for request in requests.requests] == [
            request.pod for request in quiet.requests
        ]


def test_a_pod_that_is_not_listed_and_a_start_have_no_explanation() -> None:
    node = Node(batch("a"))
    assert node.engine.explain_eviction("a") is None
    node.cycle()
    assert node.engine.explain_eviction("other") is None
