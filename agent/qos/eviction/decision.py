"""Decides which pods are evicted, each second, from measured usage and the NodeSLO.

The rules are those of Koordinator (`pkg/koordlet/qosmanager/plugins/{cpuevict,memoryevict}`). In
addition, a value that was not measured evicts no pod, pods that end already count as released, and
the number of evictions per minute is limited.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.qos.eviction.history import CPU_LOOP
from agent.qos.eviction.state import (
    EndedPod,
    EvictionDecision,
    EvictionInputs,
    EvictionRules,
    EvictionState,
    ReportState,
)
from agent.qos.eviction.tasks import (
    REQUESTS,
    USAGE,
    EvictionTask,
    ReleaseTarget,
    TaskBuilder,
    averaging_window_s,
    samples_since,
)
from agent.qos.eviction.victims import Amounts, EvictionPod
from agent.snapshot.pod import EvictionRequest

NOT_CONFIRMED = "the next sample has to confirm it"


def evict(inputs: EvictionInputs, state: EvictionState) -> EvictionDecision:
    """Return the evictions of one loop in this round, the next state, and how each rule stands."""
    state = _advance(inputs, state)
    builder = TaskBuilder(inputs, state)
    reports = {feature: builder.add(feature) for feature in inputs.rules.loop_features}
    state = msgspec.structs.replace(state, sample_counts=builder.sample_counts)
    tasks = tuple(builder.tasks)
    obstacle = eviction_obstacle(inputs, state)
    confirmed = tuple(task for task in tasks if task.is_confirmed)
    choices = tuple(_choose(confirmed, inputs, state))
    for task in tasks:
        reason = obstacle if task.is_confirmed else NOT_CONFIRMED
        expected = choices if task.is_confirmed else tuple(_choose((task,), inputs, state))
        names = tuple(_name(pod) for pod, owner, _ in expected if owner is task)
        reports[task.feature] = msgspec.structs.replace(
            reports[task.feature], state=_state_of(names, reason), reason=reason, victims=names
        )
    choices = () if obstacle else choices
    return EvictionDecision(
        requests=tuple(_request(pod, task, inputs.rules, kill) for pod, task, kill in choices),
        state=state,
        reports=tuple(reports.values()),
    )


def _state_of(names: tuple[str, ...], obstacle: str) -> ReportState:
    if obstacle:
        return ReportState.WAITING
    return ReportState.EVICTING if names else ReportState.NO_VICTIM


def _name(pod: EvictionPod) -> str:
    return f"{pod.ref.namespace}/{pod.ref.name}"


def _request(
    pod: EvictionPod, task: EvictionTask, rules: EvictionRules, kill: bool
) -> EvictionRequest:
    return EvictionRequest(
        pod=pod.ref,
        feature=task.feature.value,
        container_ids=pod.container_ids if kill else (),
        grace_s=min(pod.grace_s, rules.max_kill_grace_s) if kill else 0,
    )


def _advance(inputs: EvictionInputs, state: EvictionState) -> EvictionState:
    """Return the state with this round's sample, without samples that are too old."""
    samples = state.samples
    if inputs.sample is not None and (not samples or inputs.sample.taken_s > samples[-1].taken_s):
        samples = (*samples, inputs.sample)
    oldest_s = inputs.now_s - max(averaging_window_s(inputs), 2 * inputs.collect_s)
    return msgspec.structs.replace(
        _follow_pods(inputs, state),
        started_s=inputs.now_s if state.started_s is None else state.started_s,
        samples=samples_since(samples, oldest_s),
        zero_since_s={
            name: state.zero_since_s.get(name, inputs.now_s)
            for name, amount in inputs.allocatable.items()
            if amount == 0
        },
    )


def _follow_pods(inputs: EvictionInputs, state: EvictionState) -> EvictionState:
    """Return the state with the pods that ended since the last sample was taken."""
    sample = inputs.sample
    if sample is None or not (inputs.slo.enable and inputs.has_pods and inputs.is_measured):
        return state  # the inputs have no pods, or not all of them
    active = {pod.ref.uid: pod for pod in inputs.pods if pod.is_active}
    ended = (EndedPod(pod, inputs.now_s) for uid, pod in state.active.items() if uid not in active)
    return msgspec.structs.replace(
        state,
        active=active,
        ended=tuple(one for one in (*state.ended, *ended) if one.at_s > sample.taken_s),
    )


def eviction_obstacle(inputs: EvictionInputs, state: EvictionState) -> str:
    """Return why no pod is evicted in this round, whatever has to be released."""
    rules, history, now_s = inputs.rules, inputs.history, inputs.now_s
    last_s = history.last_s.get(rules.loop)
    if rules.loop == CPU_LOOP and state.started_s is not None:  # no sample from before the start
        last_s = max(state.started_s, last_s or 0.0)
    if history.is_in_flight(rules.loop):
        return "a request is in flight"
    if last_s is not None and now_s < last_s + rules.cool_s:
        return f"the last eviction, or the start, is less than {rules.cool_s:g} s ago"
    if history.spent() >= rules.max_per_minute:
        return f"{rules.max_per_minute} evictions within a minute"
    if now_s < history.hold_until_s and not rules.kill_fallback:
        return "the API server takes no requests, or does not permit them"
    return ""


def contribution(pod: EvictionPod, target: ReleaseTarget) -> Amounts:
    """Return what the end of a pod releases."""
    return pod.used if target == USAGE else pod.requests


Choice = tuple[EvictionPod, EvictionTask, bool]  # True: the runtime stops its containers


def _choose(
    tasks: Iterable[EvictionTask], inputs: EvictionInputs, state: EvictionState
) -> Iterator[Choice]:
    """Yield victims within this minute's limit.

    Pods that end already, or that ended since the last sample, count as released first.
    """
    history = inputs.history
    budget = inputs.rules.max_per_minute - history.spent()
    ending_uids = history.ending(inputs.now_s)
    excluded_uids = {*ending_uids, *history.ending_until_s}
    released: dict[ReleaseTarget, dict[str, int]] = {USAGE: {}, REQUESTS: {}}
    for pod in inputs.pods:
        if pod.ref.uid in ending_uids and pod.is_active:
            _add(released, pod)
    for one in state.ended:
        _add(released, one.pod)
    is_api_open = inputs.now_s >= history.hold_until_s
    for task in tasks:
        is_chosen = False
        open_pods = [pod for pod in task.victims if pod.ref.uid not in history.blocked_until_s]
        rounds = [(open_pods, False)] if is_api_open else []
        if task.may_kill:
            rounds.append(([pod for pod in task.victims if pod.container_ids], True))
        for pods, kill in rounds:
            for pod in pods if not (kill and is_chosen) else ():
                deficit = _deficit(task, released[task.target])
                if not deficit or budget <= 0:
                    break
                amounts = contribution(pod, task.target)
                is_useful = any(amounts.get(name, 0) > 0 for name in deficit)
                if pod.ref.uid in excluded_uids or not is_useful:
                    continue
                excluded_uids.add(pod.ref.uid)
                _add(released, pod)
                is_chosen = True
                budget -= 1
                yield pod, task, kill


def _deficit(task: EvictionTask, released: Mapping[str, int]) -> Amounts:
    missing = {name: amount - released.get(name, 0) for name, amount in task.release.items()}
    return {name: amount for name, amount in missing.items() if amount > 0}


def _add(released: Mapping[ReleaseTarget, dict[str, int]], pod: EvictionPod) -> None:
    for target, amounts in released.items():
        for name, amount in contribution(pod, target).items():
            amounts[name] = amounts.get(name, 0) + amount
