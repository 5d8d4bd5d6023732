"""Decides which pods are evicted, each second, from measured usage and the NodeSLO.

The rules are those of Koordinator (`pkg/koordlet/qosmanager/plugins/{cpuevict,memoryevict}`). In
addition, a value that was not measured evicts nobody, pods that end already count as released, and
the number of evictions per minute is limited.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from agent.qos.eviction_amounts import CPU_FEATURES, MEMORY_FEATURES, EvictionFeature
from agent.qos.eviction_state import (
    PLAN,
    EvictedPod,
    EvictionDecision,
    EvictionInputs,
    EvictionReport,
    EvictionRules,
    EvictionState,
    ReportState,
)
from agent.qos.eviction_tasks import (
    REQUESTS,
    USAGE,
    EvictionTask,
    ReleaseTarget,
    TaskBuilder,
    averaging_window_s,
)
from agent.qos.eviction_victims import Amounts, EvictionPod
from agent.snapshot.eviction import EvictionOutcome, EvictionRequest, EvictionResult

REMEMBERED_S = 120.0  # an evicted pod counts as ending
KILLED_REMEMBERED_S = 30.0  # its containers may be started again after that
BLOCKED_S = 30.0  # a pod that a budget protects is not requested again
THROTTLED_S = 10.0  # without a wait from the API server
IN_FLIGHT_S = 60.0  # a request without a result counts as one without an answer
RATE_WINDOW_S = 60.0


def evict(inputs: EvictionInputs, state: EvictionState) -> EvictionDecision:
    """Return the evictions of this round, the next state, and how each rule stands."""
    state = _start(inputs, _record_results(inputs, state))
    requests: list[EvictionRequest] = []
    reports: list[EvictionReport] = []
    for features in (CPU_FEATURES, MEMORY_FEATURES):
        decision = _run_loop(features, inputs, state)
        requests += decision.requests
        reports += decision.reports
        state = decision.state
    return EvictionDecision(requests=tuple(requests), state=state, reports=tuple(reports))


def _run_loop(
    features: tuple[EvictionFeature, ...], inputs: EvictionInputs, state: EvictionState
) -> EvictionDecision:
    builder = TaskBuilder(inputs, state)
    reports = {feature: builder.add(feature) for feature in features}
    state = msgspec.structs.replace(state, over=builder.over)
    tasks = tuple(builder.tasks)
    obstacle = _obstacle(features, inputs, state)
    if not tasks or obstacle:
        for task in tasks:
            reports[task.feature] = msgspec.structs.replace(
                reports[task.feature], state=ReportState.WAITING, reason=obstacle
            )
        return EvictionDecision(state=state, reports=tuple(reports.values()))
    budget = inputs.rules.max_per_minute - len(state.times_s) - len(state.in_flight)
    choices = tuple(_choose(tasks, inputs, state, budget))
    for task in tasks:
        names = tuple(_name(pod) for pod, owner, _ in choices if owner is task)
        if names:
            change = {"state": ReportState.EVICTING, "victims": names}
        else:
            change = {"state": ReportState.NO_VICTIM}
        reports[task.feature] = msgspec.structs.replace(reports[task.feature], **change)
    requests = tuple(_request(pod, task, inputs.rules, kill=kill) for pod, task, kill in choices)
    in_flight = {one.pod.uid: (one, inputs.now_s) for one in requests}
    state = msgspec.structs.replace(state, in_flight={**state.in_flight, **in_flight})
    return EvictionDecision(requests=requests, state=state, reports=tuple(reports.values()))


def _name(pod: EvictionPod) -> str:
    return f"{pod.ref.namespace}/{pod.ref.name}"


def _request(
    pod: EvictionPod, task: EvictionTask, rules: EvictionRules, *, kill: bool
) -> EvictionRequest:
    return EvictionRequest(
        pod=pod.ref,
        feature=task.feature.value,
        is_planned=rules.mode_of(task.feature) == PLAN,
        container_ids=pod.container_ids if kill else (),
        grace_s=min(pod.grace_s, rules.max_kill_grace_s) if kill else 0,
    )


def _start(inputs: EvictionInputs, state: EvictionState) -> EvictionState:
    """Return the state with this round's sample, and without what is too old to count."""
    now_s = inputs.now_s
    window_s = averaging_window_s(inputs)
    samples = state.samples
    if inputs.sample is not None and (not samples or inputs.sample.taken_s > samples[-1].taken_s):
        samples = (*samples, inputs.sample)
    oldest_s = now_s - max(window_s, 2 * inputs.collect_s)
    ending = {uid: one for uid, one in state.ending.items() if _is_remembered(uid, one, inputs)}
    for pod in inputs.pods:
        if pod.is_terminating and pod.ref.uid not in ending:
            ending[pod.ref.uid] = EvictedPod(now_s, now_s + REMEMBERED_S)
    return msgspec.structs.replace(
        state,
        cpu_last_s=now_s if state.cpu_last_s is None else state.cpu_last_s,
        samples=tuple(one for one in samples if one.taken_s >= oldest_s),
        times_s=tuple(at_s for at_s in state.times_s if now_s - at_s < RATE_WINDOW_S),
        ending=ending,
        blocked={uid: until_s for uid, until_s in state.blocked.items() if until_s > now_s},
        zero_since_s=_zero_since_s(inputs, state),
    )


def _is_remembered(uid: str, one: EvictedPod, inputs: EvictionInputs) -> bool:
    """Return whether a pod still counts; a terminating one is remembered while it is listed.

    Otherwise it would count as ending for another two minutes.
    """
    is_terminating = any(pod.ref.uid == uid and pod.is_terminating for pod in inputs.pods)
    return is_terminating or one.until_s > inputs.now_s


def _zero_since_s(inputs: EvictionInputs, state: EvictionState) -> Mapping[str, float]:
    return {
        name: state.zero_since_s.get(name, inputs.now_s)
        for name, amount in inputs.allocatable.items()
        if amount == 0
    }


def _record_results(inputs: EvictionInputs, state: EvictionState) -> EvictionState:
    """Return the state after the results; a request without one counts as unanswered."""
    now_s, in_flight = inputs.now_s, dict(state.in_flight)
    results = [one for one in inputs.results if in_flight.pop(one.request.pod.uid, None)]
    for uid, (request, at_s) in tuple(in_flight.items()):
        if now_s - at_s > IN_FLIGHT_S:
            del in_flight[uid]
            results.append(EvictionResult(request=request, outcome=EvictionOutcome.UNKNOWN))
    state = msgspec.structs.replace(state, in_flight=in_flight)
    for result in results:
        state = _record_result(result, state, now_s)
    return state


_REMEMBERED_S: Final[Mapping[EvictionOutcome, float]] = {
    EvictionOutcome.EVICTED: REMEMBERED_S,
    EvictionOutcome.PLANNED: REMEMBERED_S,
    EvictionOutcome.GONE: REMEMBERED_S,
    EvictionOutcome.UNKNOWN: KILLED_REMEMBERED_S,
    EvictionOutcome.KILLED: KILLED_REMEMBERED_S,
}


def _record_result(result: EvictionResult, state: EvictionState, now_s: float) -> EvictionState:
    uid, outcome = result.request.pod.uid, result.outcome
    if outcome is EvictionOutcome.THROTTLED:
        wait_s = THROTTLED_S if result.retry_after_s is None else result.retry_after_s
        return msgspec.structs.replace(state, hold_until_s=max(state.hold_until_s, now_s + wait_s))
    remembered_s = _REMEMBERED_S.get(outcome)
    if remembered_s is None:
        return msgspec.structs.replace(state, blocked={**state.blocked, uid: now_s + BLOCKED_S})
    ending = {**state.ending, uid: EvictedPod(now_s, now_s + remembered_s)}
    state = msgspec.structs.replace(state, ending=ending)
    if outcome is EvictionOutcome.GONE:
        return state
    state = msgspec.structs.replace(state, times_s=(*state.times_s, now_s))
    if EvictionFeature(result.request.feature) in CPU_FEATURES:
        return msgspec.structs.replace(state, cpu_last_s=now_s)
    return msgspec.structs.replace(state, memory_last_s=now_s)


def _obstacle(
    features: tuple[EvictionFeature, ...], inputs: EvictionInputs, state: EvictionState
) -> str:
    """Return why nobody is evicted in this round, whatever has to be released."""
    rules, now_s = inputs.rules, inputs.now_s
    is_cpu = features == CPU_FEATURES
    last_s = state.cpu_last_s if is_cpu else state.memory_last_s
    cool_s = rules.cpu_cool_s if is_cpu else rules.memory_cool_s
    names = {feature.value for feature in features}
    if any(request.feature in names for request, _ in state.in_flight.values()):
        return "a request is in flight"
    if last_s is not None and now_s < last_s + cool_s:
        return f"an eviction is less than {cool_s:g} s ago"
    if len(state.times_s) + len(state.in_flight) >= rules.max_per_minute:
        return f"{rules.max_per_minute} evictions within a minute"
    if now_s < state.hold_until_s and not rules.kill_fallback:
        return "the API server takes no requests"
    return ""


def contribution(pod: EvictionPod, target: ReleaseTarget) -> Amounts:
    """Return what the end of a pod releases."""
    return pod.used if target == USAGE else pod.requests


Choice = tuple[EvictionPod, EvictionTask, bool]  # True: the runtime stops its containers


def _choose(
    tasks: Iterable[EvictionTask], inputs: EvictionInputs, state: EvictionState, budget: int
) -> Iterator[Choice]:
    """Yield at most `budget` victims; pods that end already count as released first."""
    counted = {uid for uid, one in state.ending.items() if one.until_s > inputs.now_s}
    counted |= state.in_flight.keys()
    excluded = counted | state.ending.keys()
    released: dict[ReleaseTarget, dict[str, int]] = {USAGE: {}, REQUESTS: {}}
    for pod in inputs.pods:
        if pod.ref.uid in counted:
            _add(released, pod)
    is_api_open = inputs.now_s >= state.hold_until_s
    for task in tasks:
        is_chosen = False
        open_pods = [pod for pod in task.victims if pod.ref.uid not in state.blocked]
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
                if pod.ref.uid in excluded or not is_useful:
                    continue
                excluded.add(pod.ref.uid)
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
