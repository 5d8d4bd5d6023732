"""The strategies `cpu_eviction` and `memory_eviction`: their inputs, and what they report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from agent.config.containers import EvictionSettings
from agent.qos.eviction.candidacy import explain_rules
from agent.qos.eviction.decision import evict
from agent.qos.eviction.history import CPU_LOOP, MEMORY_LOOP
from agent.qos.eviction.state import (
    CpuSample,
    EvictionInputs,
    EvictionReport,
    EvictionRules,
    EvictionState,
    ReportState,
)
from agent.qos.eviction.victims import (
    CLASS_RESOURCES,
    CPU,
    EVICTION_ENABLED,
    EVICTION_POLICY,
    MEMORY,
    Amounts,
    EvictionPod,
)
from agent.qos.strategy import QosInputs, QosPod, StrategyPlan
from agent.snapshot.node import IdentityMemo
from agent.snapshot.pod import (
    CONFIG_SOURCE,
    STATIC_UID_KEYS,
    EvictionRuleView,
    PodRef,
    PodView,
)
from agent.snapshot.self_check import StrategyState
from agent.snapshot.usage import CgroupUsage, UsageSample

EVICTION_PRIORITY = "koordinator.sh/eviction-priority"  # annotation
POD_PRIORITY = "koordinator.sh/priority"  # label
RECLAIM_S = 10.0  # without an eviction, while memory is taken back otherwise
CRITICAL_PRIORITY = 2_000_000_000  # of system-cluster-critical, the lowest of Kubernetes' own
MAX_INT32, MAX_INT64 = 2**31 - 1, 2**63 - 1
DEFAULT_PRIORITIES = {
    "koord-prod": 9500,
    "koord-mid": 7500,
    "koord-batch": 5500,
    "koord-free": 3500,
}
NO_USAGE = UsageSample()
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_POLICY_DECODER = msgspec.json.Decoder(list[str])


class EvictionPodBuilder:
    """Builds the pods of both strategies; what does not change with usage only when pods change."""

    def __init__(self, protected_namespaces: frozenset[str], own_uid: str) -> None:
        """`own_uid` is that of the agent's own pod, which is never evicted."""
        self._protected_namespaces = protected_namespaces
        self._own_uid = own_uid
        self._unmeasured = IdentityMemo[tuple[EvictionPod, ...]]()
        self._measured = IdentityMemo[tuple[EvictionPod, ...]]()

    def build(self, pods: tuple[QosPod, ...], usage: UsageSample) -> tuple[EvictionPod, ...]:
        """Return the pods with their usage."""
        return self._measured.get((pods, usage), lambda: self._measure(pods, usage))

    def _measure(self, pods: tuple[QosPod, ...], usage: UsageSample) -> tuple[EvictionPod, ...]:
        unmeasured = self._unmeasured.get(
            (pods,), lambda: tuple(eviction_pod(pod, self._protection(pod.view)) for pod in pods)
        )
        return tuple(
            msgspec.structs.replace(one, used=_used(usage.pods.get(one.ref.uid)))
            for one in unmeasured
        )

    def _protection(self, pod: PodView) -> str:
        """Return why a pod is never evicted; empty if it may be."""
        if pod.namespace in self._protected_namespaces:
            return f"namespace {pod.namespace}"
        if self._own_uid and pod.uid == self._own_uid:
            return "the agent's own pod"
        if any(pod.annotation(key) is not None for key in STATIC_UID_KEYS):
            return "static pod"
        if (pod.annotation(CONFIG_SOURCE) or "api") != "api":
            return "static pod"
        if pod.priority is not None and pod.priority >= CRITICAL_PRIORITY:
            return "system-critical priority"
        if pod.is_of_daemon_set and pod.label(EVICTION_ENABLED) != "true":
            return "pod of a DaemonSet, which would start it again here"
        if pod.label(EVICTION_ENABLED) == "false":
            return f"label {EVICTION_ENABLED}"
        return ""


class EvictionStrategy:
    """One loop of evictions."""

    def __init__(self, name: str, rules: EvictionRules, pods: EvictionPodBuilder) -> None:
        self.name = name
        self._rules = rules
        self._pods = pods

    def start(self) -> EvictionState:
        """Return the state before the first cycle."""
        return EvictionState()

    def plan(self, inputs: QosInputs, state: EvictionState) -> tuple[StrategyPlan, EvictionState]:
        """Return the evictions of this cycle."""
        decision = evict(self._inputs(inputs), state)
        plan = StrategyPlan(
            evictions=decision.requests,
            state=_strategy_state(decision.reports),
            message=_message(decision.reports),
            figures=_figures(decision.reports),
        )
        return plan, decision.state

    def explain(
        self, uid: str, inputs: QosInputs, state: EvictionState, mode: str
    ) -> tuple[EvictionPod, tuple[EvictionRuleView, ...]] | None:
        """Return a pod and what the rules of this loop mean for it; `None`: it is not listed."""
        pods = self._pods.build(inputs.pods, inputs.usage or NO_USAGE)
        pod = next((one for one in pods if one.ref.uid == uid), None)
        if pod is None:
            return None
        of_loop = msgspec.structs.replace(self._inputs(inputs), pods=pods)
        return pod, explain_rules(of_loop, state, pod, mode)

    def _inputs(self, inputs: QosInputs) -> EvictionInputs:
        slo = inputs.slo.thresholds
        usage = inputs.usage if slo.enable else None
        return EvictionInputs(
            now_s=inputs.now_s,
            slo=slo,
            rules=self._rules,
            history=inputs.evictions,
            has_pods=inputs.cluster.has_pod_list,
            collect_s=inputs.interval_s,
            patience_s=self._rules.patience_s if inputs.layout.version == 2 else 0.0,
            sample=_cpu_sample(inputs),
            memory_used=usage.node.memory_bytes if usage is not None else None,
            cpu_capacity_milli=inputs.node.cpu_milli,
            memory_capacity=inputs.node.memory_bytes,
            allocatable=_class_resources(inputs),
            metric_published_s=inputs.metric_published_s,
            pods=self._pods.build(inputs.pods, usage) if usage is not None else (),
        )


def eviction_strategies(
    settings: EvictionSettings,
    own_uid: str,
    *,
    protected_namespaces: Iterable[str] = (),
    reclaims_first: bool = False,
) -> tuple[EvictionStrategy, EvictionStrategy]:
    """Return the strategies for CPU and memory.

    `protected_namespaces` are protected beside those of the settings of evictions.
    `reclaims_first`: before evictions, the strategy `memory_reclaim` takes memory back.
    """
    shared = EvictionRules(
        loop=CPU_LOOP,
        cool_s=settings.cpu_cool_s,
        features=frozenset(settings.features),
        max_per_minute=settings.max_per_minute,
        kill_fallback=settings.kill_fallback,
    )
    memory = msgspec.structs.replace(shared, loop=MEMORY_LOOP, cool_s=settings.memory_cool_s)
    if reclaims_first:
        memory = msgspec.structs.replace(memory, patience_s=RECLAIM_S)
    namespaces = frozenset((*settings.protected_namespaces, *protected_namespaces))
    pods = EvictionPodBuilder(namespaces, own_uid)
    return (
        EvictionStrategy("cpu_eviction", shared, pods),
        EvictionStrategy("memory_eviction", memory, pods),
    )


def eviction_pod(pod: QosPod, protection: str) -> EvictionPod:
    """Return what evictions need to know of a pod, without its usage."""
    view = pod.view
    return EvictionPod(
        ref=PodRef(namespace=view.namespace, name=view.name, uid=view.uid),
        is_best_effort=pod.label == "BE",
        is_active=pod.is_active,
        is_terminating=view.terminating,
        protection=protection,
        priority=_priority(pod),
        eviction_priority=_integer(view.annotation(EVICTION_PRIORITY), MAX_INT32) or 0,
        label_priority=_integer(view.label(POD_PRIORITY), MAX_INT64),
        is_enabled=view.label(EVICTION_ENABLED) == "true",
        features=_features(view.annotation(EVICTION_POLICY)),
        requests=_requests(pod),
        created=view.created,
        container_ids=tuple(container.id for container in pod.containers),
        grace_s=view.grace_s,
    )


def _priority(pod: QosPod) -> int:
    """Return the priority; that of the pod's class for a pod without one, or with 0."""
    return pod.view.priority or DEFAULT_PRIORITIES.get(pod.priority_class, 0)


def _integer(text: str | None, largest: int) -> int | None:
    """Return a whole number within the type's range; `None` without one."""
    if text is None or not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -largest - 1 <= number <= largest else None


def _features(text: str | None) -> frozenset[str] | None:
    """Return the rules that an annotation allows; `None`: all. An unreadable one allows none."""
    if text is None:
        return None
    try:
        return frozenset(_POLICY_DECODER.decode(text))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return frozenset()


def _used(measured: CgroupUsage | None) -> Amounts:
    if measured is None:
        return {}
    used: dict[str, int] = {}
    if measured.cpu_cores is not None:
        used[CPU] = int(measured.cpu_cores * 1000)
    if measured.memory_bytes is not None:
        used[MEMORY] = measured.memory_bytes
    return used


def _requests(pod: QosPod) -> Mapping[str, int]:
    """Return the batch CPU and memory, or those of the class mid, that a pod requests."""
    names = CLASS_RESOURCES.get(pod.priority_class)
    if names is None or pod.view.resources is None:
        return {}
    kind = "batch" if pod.priority_class == "koord-batch" else "mid"
    fields = (f"{kind}_cpu_milli", f"{kind}_memory_bytes")
    containers = [resource for resource in pod.view.resources if resource.runs_beside_others]
    return {
        name: sum(getattr(container, field) or 0 for container in containers)
        for name, field in zip(names, fields, strict=True)
    }


def _class_resources(inputs: QosInputs) -> Amounts:
    names = {name for pair in CLASS_RESOURCES.values() for name in pair}
    return {name: amount for name, amount in inputs.node.allocatable if name in names}


def _cpu_sample(inputs: QosInputs) -> CpuSample | None:
    usage, taken_s = inputs.usage, inputs.usage_taken_s
    if usage is None or taken_s is None:
        return None
    tier = usage.best_effort
    return CpuSample(
        taken_s=taken_s,
        node_cores=usage.node.cpu_cores,
        tier_cores=tier.use.cpu_cores if tier is not None and tier.use is not None else None,
        tier_request_milli=tier.request_milli if tier is not None else None,
        tier_limit_milli=tier.limit_milli if tier is not None else None,
    )


def _strategy_state(reports: tuple[EvictionReport, ...]) -> StrategyState:
    states = {report.state for report in reports}
    if states & {ReportState.EVICTING, ReportState.WAITING, ReportState.NO_VICTIM}:
        return StrategyState.ACTIVE
    if ReportState.CALM in states:
        return StrategyState.ACTIVE
    return StrategyState.WAITING if ReportState.UNMEASURED in states else StrategyState.IDLE


def _message(reports: tuple[EvictionReport, ...]) -> str:
    """Return how each rule stands that has anything to say; unset rules are left out."""
    lines = []
    for report in reports:
        if report.state not in (ReportState.OFF, ReportState.INVALID, ReportState.CALM):
            amounts = ", ".join(
                f"{amount} {_unit(name)} of {name}" for name, amount in report.release.items()
            )
            parts = (
                report.reason,
                f"to release: {amounts}" if amounts else "",
                " ".join(report.victims),
            )
            text = "; ".join(part for part in parts if part)
            lines.append(f"{report.feature.value} {report.state.value}: {text}")
    return " | ".join(lines)


def _figures(reports: tuple[EvictionReport, ...]) -> tuple[tuple[str, float], ...]:
    """Return the amounts to release, by the name of the rule."""
    return tuple(
        (f"{report.feature.value}_release_{_figure_name(name)}", float(amount))
        for report in reports
        for name, amount in report.release.items()
    )


def _figure_name(resource: str) -> str:
    return f"{resource.rpartition('/')[2].replace('-', '_')}_{_unit(resource)}"


def _unit(resource: str) -> str:
    return "bytes" if resource.endswith(MEMORY) else "milli"
