"""CPU burst: lets latency-sensitive containers use more CPU than their limit for a while.

Two means, by `policy`: a burst, which the kernel pays from unused run time of earlier periods, and
a larger quota, which grows while a container is throttled and the node has idle CPUs. Formulas are
those of Koordinator (`pkg/koordlet/qosmanager/plugins/cpuburst`); the differences are that the
burst never exceeds the quota, which the kernel refuses, that an unlimited quota stays unlimited,
and that a pod's quota follows from those of its containers instead of growing by increments.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

from agent.cgroup.keys import BURST
from agent.containers.cpu_quota import (
    NORMALIZED_CLASSES,
    RATIO,
    next_ratio,
    quota_of,
    scale_quota,
)
from agent.qos.burst_rules import (
    FULL_USAGE_PERCENT,
    BurstBucket,
    QuotaChange,
    granted_change,
    new_bucket,
    step_bucket,
    wished_change,
)
from agent.qos.burst_values import (
    BURST_POLICIES,
    NAME,
    QUOTA_POLICIES,
    RECHECK_S,
    BurstContainer,
    BurstPod,
    PodPlan,
    PodStep,
    plan_pod,
    pod_limit_milli,
)
from agent.qos.share_pool import PoolSample, PoolState, add_sample, pool_ratio, pool_state
from agent.qos.strategy import NOT_REQUESTED, QosInputs, QosPod, StrategyPlan
from agent.slo.overlay import overlay_annotation
from agent.snapshot.cpu import CpuSet
from agent.snapshot.pod import PodView
from agent.snapshot.self_check import StrategyState
from agent.snapshot.slo import CpuBurst
from agent.snapshot.usage import UsageSample
from agent.wire_formats.annotations import AnnotationError, parse_json_object
from agent.wire_formats.resource_status import RESOURCE_STATUS, parse_resource_status

ANNOTATION = "koordinator.sh/cpuBurst"
NODE_SOURCE = "NodeSLO spec.cpuBurstStrategy"
EXCLUDED_CLASSES = ("LSE", "LSR", "BE")


def pod_config(pod: QosPod, node: CpuBurst) -> tuple[CpuBurst, str]:
    """Return a pod's settings and the field that asks for them.

    Raises `AnnotationError` for an annotation that is not used.
    """
    text = pod.view.annotation(ANNOTATION)
    if text is None:
        return node, NODE_SOURCE
    members = {name.casefold(): value for name, value in parse_json_object(text).items()}
    members.pop("sharepoolthresholdpercent", None)  # the node's alone
    policy = members.get("policy")
    if isinstance(policy, str) and policy and policy not in (*BURST_POLICIES, *QUOTA_POLICIES):
        members["policy"] = "none"
    config = overlay_annotation(node, members, ANNOTATION)
    return config, f"Pod {pod.view.namespace}/{pod.view.name} annotation {ANNOTATION}"


def burst_pod(
    pod: QosPod, config: CpuBurst, source: str, ratio: float | None, version: int
) -> BurstPod | None:
    """Return the pod as the policy sees it; `None` if the policy does not apply.

    Pods with CPUs of their own have no quota. `ratio` scales quotas of the classes that the
    normalization hook scales.
    """
    if pod.label in EXCLUDED_CLASSES or not pod.is_active or config.policy == "none":
        return None
    own_cpus = _own_cpus(pod)
    if own_cpus or not pod.cgroup:
        return None
    if pod.label not in NORMALIZED_CLASSES or own_cpus is None:
        ratio = None
    containers = tuple(
        BurstContainer(
            container.id, container.cgroup, limit_milli, scale_quota(quota_of(limit_milli), ratio)
        )
        for container in pod.containers
        if container.resources.runs_beside_others
        and (limit_milli := container.resources.cpu_limit_milli or 0)
    )
    if not containers:
        return None
    return BurstPod(
        view=pod.view,
        config=config,
        source=source,
        containers=containers,
        limit_milli=pod_limit_milli(pod.view.resources or ()),
        ids=frozenset(container.id for container in containers),
        ratio=ratio,
        scales_pod=version == 2,
    )


def _own_cpus(pod: QosPod) -> CpuSet | None:
    """Return the CPUs that the scheduler gave the pod; `None` for a wrong annotation."""
    try:
        return parse_resource_status(pod.view.annotation(RESOURCE_STATUS)).cpus
    except AnnotationError:
        return None


class _Prepared(msgspec.Struct, frozen=True):
    """What a pod's spec makes of it, until the pod or the settings change."""

    view: PodView
    pod: BurstPod | None
    problem: str = ""


class BurstState(msgspec.Struct, frozen=True, kw_only=True):
    """What the strategy remembers between cycles."""

    seed: int = 0
    ratio: float | None = None
    node: CpuBurst | None = None
    qos_pods: tuple[QosPod, ...] | None = None
    prepared: Mapping[str, _Prepared] = {}  # by uid
    pods: tuple[BurstPod, ...] = ()
    problem: str = ""
    samples: tuple[PoolSample, ...] = ()
    taken_s: float | None = None
    buckets: Mapping[str, BurstBucket] = {}  # by container id
    plans: Mapping[str, PodPlan] = {}  # by uid
    plan: StrategyPlan | None = None


class CpuBurstStrategy:
    """The strategy. `scales_quota`: the hook of CPU normalization is on."""

    name = NAME

    def __init__(self, *, scales_quota: bool = False, seed: int | None = None) -> None:
        self._scales_quota = scales_quota
        self._seed = random.SystemRandom().getrandbits(32) if seed is None else seed

    def start(self) -> BurstState:
        """Return the state before the first cycle."""
        return BurstState(seed=self._seed)

    def plan(self, inputs: QosInputs, state: BurstState) -> tuple[StrategyPlan, BurstState]:
        """Decide once per usage sample, and when pods or settings change."""
        if not inputs.has_pods:
            values = state.plan.values if state.plan is not None else ()
            message = "the list of pods is not read yet"
            return StrategyPlan(values=values, state=StrategyState.WAITING, message=message), state
        prepared = self._prepare(inputs, state)
        if not prepared.pods:
            return NOT_REQUESTED, BurstState(
                seed=state.seed,
                ratio=prepared.ratio,
                node=prepared.node,
                qos_pods=prepared.qos_pods,
                prepared=prepared.prepared,
                problem=prepared.problem,
            )
        is_new = inputs.usage is not None and inputs.usage_taken_s != state.taken_s
        if state.plan is not None and prepared is state and not is_new:
            return state.plan, state
        return _decide(inputs, prepared, is_new=is_new)

    def _prepare(self, inputs: QosInputs, state: BurstState) -> BurstState:
        """Return the state with the pods of now; the same object if nothing changed."""
        ratio = self._ratio(inputs, state.ratio)
        node, pods = inputs.slo.cpu_burst, inputs.pods
        are_same_settings = node == state.node and ratio == state.ratio
        if are_same_settings and pods is state.qos_pods:
            return state
        before = state.prepared if are_same_settings else {}
        prepared: dict[str, _Prepared] = {}
        for pod in pods:
            last = before.get(pod.uid)
            prepared[pod.uid] = (
                last
                if last is not None and last.view is pod.view
                else _prepare_pod(pod, node, ratio, inputs.layout.version)
            )
        return msgspec.structs.replace(
            state,
            ratio=ratio,
            node=node,
            qos_pods=pods,
            prepared=prepared,
            pods=tuple(one.pod for one in prepared.values() if one.pod is not None),
            problem=next((one.problem for one in prepared.values() if one.problem), ""),
        )

    def _ratio(self, inputs: QosInputs, previous: float | None) -> float | None:
        """Return the ratio that quotas are scaled by; `None` while the hook does not scale them."""
        node = inputs.cluster.node.value
        if not self._scales_quota or node is None:
            return None
        return next_ratio(node.annotation(RATIO), previous)


def _prepare_pod(pod: QosPod, node: CpuBurst, ratio: float | None, version: int) -> _Prepared:
    problem = ""
    try:
        config, source = pod_config(pod, node)
    except AnnotationError as error:
        config, source = node, NODE_SOURCE
        problem = f"Pod {pod.view.namespace}/{pod.view.name}: {error}"
    return _Prepared(pod.view, burst_pod(pod, config, source, ratio, version), problem)


def _decide(
    inputs: QosInputs, state: BurstState, *, is_new: bool
) -> tuple[StrategyPlan, BurstState]:
    samples = add_sample(inputs, state.samples)
    ratio = pool_ratio(inputs, samples)
    pool = pool_state(ratio, inputs.slo.cpu_burst.share_pool_threshold_percent)
    buckets = _step_buckets(inputs, state) if is_new else state.buckets
    has_burst = inputs.current.value(inputs.layout.root or "", BURST) is not None
    usage = inputs.usage if is_new else None
    throttled = _throttled(usage) if pool is not PoolState.OVERLOADED else None
    plans: dict[str, PodPlan] = {}
    for number, pod in enumerate(state.pods):
        last = state.plans.get(pod.view.uid)
        if last is not None and _is_quiet(pod, last, throttled, inputs.now_s):
            plans[pod.view.uid] = last
            continue
        step = PodStep(
            pod=pod,
            changes=tuple(
                _change(container, pod, buckets, usage, pool) for container in pod.containers
            ),
            has_burst=has_burst and pod.has_burst,
            now_s=inputs.now_s,
            number=number,
        )
        plans[pod.view.uid] = plan_pod(step, last, inputs.current)
    plan = _strategy_plan(state, plans, ratio, buckets, has_burst=has_burst)
    return plan, msgspec.structs.replace(
        state,
        samples=samples,
        taken_s=inputs.usage_taken_s if is_new else state.taken_s,
        buckets=buckets,
        plans=plans,
        plan=plan,
    )


def _throttled(usage: UsageSample | None) -> frozenset[str]:
    """Return the ids of the containers that were throttled."""
    containers = usage.containers if usage is not None else {}
    return frozenset(one for one, sample in containers.items() if sample.throttled_ratio)


def _is_quiet(pod: BurstPod, last: PodPlan, throttled: frozenset[str] | None, now_s: float) -> bool:
    """Return whether nothing asks for a change of a pod; `throttled` is `None` on a busy node."""
    return (
        last.pod is pod
        and throttled is not None
        and pod.capacity is None
        and now_s - last.read_s < RECHECK_S
        and throttled.isdisjoint(pod.ids)
    )


def _strategy_plan(
    state: BurstState,
    plans: Mapping[str, PodPlan],
    ratio: float | None,
    buckets: Mapping[str, BurstBucket],
    *,
    has_burst: bool,
) -> StrategyPlan:
    """Return the plan of all pods; equal values are the same object as before."""
    last = state.plan
    is_same = len(plans) == len(state.plans) and all(
        uid in state.plans and plans[uid].values is state.plans[uid].values for uid in plans
    )
    if last is not None and is_same:
        values = last.values
    else:
        values = tuple(value for plan in plans.values() for value in plan.values)
    figures = [
        ("pods", float(len(plans))),
        ("raised_containers", float(sum(plan.raised for plan in plans.values()))),
        ("exhausted_containers", float(sum(not bucket.is_allowed for bucket in buckets.values()))),
    ]
    if ratio is not None:
        figures.append(("share_pool_usage_ratio", ratio))
    message = state.problem or ("" if has_burst else "the kernel has no CPU burst")
    return StrategyPlan(values=values, message=message, figures=tuple(figures))


def _step_buckets(inputs: QosInputs, state: BurstState) -> Mapping[str, BurstBucket]:
    """Return the buckets of all containers that need tokens, one step later."""
    now_s, buckets = inputs.now_s, {}
    for pod in state.pods:
        capacity = pod.capacity
        if capacity is None:
            continue
        for container in pod.containers:
            bucket = state.buckets.get(container.id)
            if bucket is None or bucket.capacity != capacity:
                fraction = random.Random(f"{state.seed}/{container.id}").random()  # noqa: S311 - not secret
                buckets[container.id] = new_bucket(capacity, now_s, fraction)
            else:
                buckets[container.id] = step_bucket(
                    bucket, _usage_percent(inputs.usage, container), now_s
                )
    return buckets


def _usage_percent(usage: UsageSample | None, container: BurstContainer) -> int:
    """Return the usage in percent of the limit; without a sample 100, which changes nothing."""
    sample = usage.containers.get(container.id) if usage is not None else None
    if sample is None or sample.cpu_cores is None:
        return FULL_USAGE_PERCENT
    return int(sample.cpu_cores * 1000 / container.limit_milli * 100)


def _change(
    container: BurstContainer,
    pod: BurstPod,
    buckets: Mapping[str, BurstBucket],
    usage: UsageSample | None,
    pool: PoolState,
) -> QuotaChange:
    if not pod.scales_quota:
        return QuotaChange.KEEP
    bucket = buckets.get(container.id)
    sample = usage.containers.get(container.id) if usage is not None else None
    wish = wished_change(
        sample.throttled_ratio if sample is not None else None,
        is_allowed=bucket is None or bucket.is_allowed,
    )
    return granted_change(wish, pool)
