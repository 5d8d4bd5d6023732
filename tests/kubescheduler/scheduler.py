"""The scheduling cycle: own filters, extenders one pod at a time, bindings in parallel."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import msgspec

from agent.wire_formats.quantities import parse_amount
from tests.apiserver import ApiServer
from tests.kubescheduler.configuration import ExtenderConfig, check
from tests.kubescheduler.extender import ExtenderFailed, HttpExtender

Object = dict[str, Any]
BACK_OFF_S = (1.0, 2.0, 4.0, 8.0)  # after an error, by its number
OWN_UPDATE_S = 0.005  # until kube-scheduler sees its own update of a pod's status
MAX_NOTE = 1024
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"
AFFINITY = "node(s) didn't match Pod's node affinity/selector"
UNSCHEDULABLE = "node(s) were unschedulable"


class SchedulingEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that kube-scheduler writes about a pod."""

    pod: str
    reason: str  # Scheduled, FailedScheduling
    note: str
    condition: str = ""  # reason of PodScheduled=False: Unschedulable, SchedulerError


class _Unschedulable(Exception):
    """No node is left; the text is that of the event."""


class _Pod:
    """One pod in the queues."""

    def __init__(self, namespace: str, name: str) -> None:
        self.namespace, self.name = namespace, name
        self.errors = 0
        self.due_s = 0.0
        self.seen_changes = -1  # refused: number of pods bound or deleted by then
        self.was_refused = False


class KubeScheduler:
    """Schedules the pods that `add` names, until nothing is left to do.

    `scale` shortens the back-off: 0.01 makes a second of it ten milliseconds.
    """

    def __init__(
        self, api: ApiServer, extenders: Sequence[ExtenderConfig], *, scale: float = 0.01
    ) -> None:
        check(tuple(extenders))
        # ignorable ones come last, whatever their order
        self._extenders = [
            HttpExtender(extender) for extender in sorted(extenders, key=lambda one: one.ignorable)
        ]
        self._api = api
        self._scale = scale
        self._waiting: list[_Pod] = []
        self._assumed: dict[str, str] = {}  # node by uid: bindings in flight, and hollow ones
        self._binds: set[Future[None]] = set()
        self._lock = threading.Lock()
        self._changes = 0  # pods that were bound or deleted: each wakes the refused ones
        self._rotation = 0
        self.most_binds = 0  # in flight at once
        self.events: list[SchedulingEvent] = []

    def add(self, *pods: Object) -> None:
        """Queue pods, in the order of their creation."""
        self._waiting += [
            _Pod(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in pods
        ]

    def run(self, *, patience_s: float) -> None:
        """Schedule until each pod is bound or refused and nothing wakes it."""
        until_s = time.monotonic() + patience_s
        with ThreadPoolExecutor(max_workers=64) as pool:
            while time.monotonic() < until_s:
                pod = self._next_due()
                if pod is not None:
                    self._schedule(pod, pool)
                    continue
                self._binds = {bind for bind in self._binds if not bind.done()}
                with self._lock:
                    idle = [one for one in self._waiting if one.was_refused]
                    is_quiet = len(idle) == len(self._waiting) and not self._any_awake(idle)
                if self._binds:
                    wait(self._binds, timeout=0.02)
                elif is_quiet:
                    return
                else:
                    time.sleep(0.001)
        raise TimeoutError(f"{len(self._waiting)} pods wait still")

    def wake(self) -> None:
        """Wake the refused pods, as any event about nodes and other pods does."""
        with self._lock:
            self._changes += 1

    def notes(self, pod: str) -> list[str]:
        """Return the texts of a pod's events."""
        return [event.note for event in self.events if event.pod == pod]

    def _any_awake(self, pods: Iterable[_Pod]) -> bool:
        return any(pod.seen_changes != self._changes for pod in pods)

    def _next_due(self) -> _Pod | None:
        now_s = time.monotonic()
        with self._lock:
            for index, pod in enumerate(self._waiting):
                is_awake = not pod.was_refused or pod.seen_changes != self._changes
                if is_awake and pod.due_s <= now_s:
                    return self._waiting.pop(index)
        return None

    def _schedule(self, pod: _Pod, pool: ThreadPoolExecutor) -> None:
        body = self._api.get("pod", pod.name, pod.namespace)
        if body is None or body["spec"].get("nodeName"):
            return
        with self._lock:
            changes = self._changes
        try:
            node = self._choose(body)
        except _Unschedulable as refused:
            is_new = self._fail(body, "Unschedulable", str(refused))
            with self._lock:
                # an update of its own status wakes it once more
                pod.seen_changes = -1 if is_new else changes
                pod.due_s = time.monotonic() + OWN_UPDATE_S if is_new else 0.0
                pod.was_refused = True
                self._waiting.append(pod)
        except ExtenderFailed as error:
            self._retry_later(pod, body, str(error))
        else:
            with self._lock:
                self._assumed[body["metadata"]["uid"]] = node
            self._binds.add(pool.submit(self._bind, pod, body, node))
            self.most_binds = max(self.most_binds, sum(not bind.done() for bind in self._binds))

    def _retry_later(self, pod: _Pod, body: Object, message: str) -> None:
        with self._lock:
            pause_s = BACK_OFF_S[min(pod.errors, len(BACK_OFF_S) - 1)]
            pod.errors += 1
            pod.was_refused = False
            pod.due_s = time.monotonic() + pause_s * self._scale
            self._waiting.append(pod)
        self._fail(body, "SchedulerError", message)

    def _fail(self, body: Object, reason: str, message: str) -> bool:
        """Write the pod's condition and the event; return whether the condition is a new one.

        A new condition moves the pod's resourceVersion.
        """
        metadata = body["metadata"]
        self.events.append(
            SchedulingEvent(
                pod=metadata["name"],
                reason="FailedScheduling",
                note=message[:MAX_NOTE],
                condition=reason,
            )
        )
        live = self._api.get("pod", metadata["name"], metadata["namespace"])
        if live is None:
            return False
        condition = {"type": "PodScheduled", "status": "False", "reason": reason}
        conditions = [{**condition, "message": message}]
        status = live.get("status") or {}
        if status.get("conditions") == conditions:
            return False
        self._api.put({**live, "kind": "Pod", "status": {**status, "conditions": conditions}})
        return True

    def _choose(self, body: Object) -> str:
        nodes, own = self._filter_own(body)
        if not nodes:
            raise _Unschedulable(self._preempt(body, own))
        total = len(nodes) + len(own)
        failed: dict[str, str] = {}
        is_final: set[str] = set()
        interested = [one for one in self._extenders if one.is_interested(body)]
        for extender in interested:
            if not nodes:
                break
            try:
                outcome = extender.filter(body, nodes)
            except ExtenderFailed:
                if extender.config.ignorable:
                    continue
                raise
            for name in nodes.keys() - set(outcome.kept):
                reason = outcome.unresolvable.get(name) or outcome.failed.get(name)
                failed |= {name: reason} if reason else {}
                is_final |= set() if name in outcome.failed else {name}
                is_final |= {name} if name in outcome.unresolvable else set()
            nodes = {name: nodes.get(name, {}) for name in outcome.kept}
        if not nodes:
            reasons = {**{name: [reason] for name, reason in failed.items()}, **own}
            helpless = total - len(failed.keys() - is_final)
            raise _Unschedulable(
                _summary(total, reasons) + _no_preemption(total, helpless, total - helpless)
            )
        return self._best(body, nodes, interested)

    def _best(
        self, body: Object, nodes: Mapping[str, Object], extenders: Iterable[HttpExtender]
    ) -> str:
        if len(nodes) == 1:
            return next(iter(nodes))
        scores = Counter[str](dict.fromkeys(nodes, 0))
        for extender in extenders:
            if extender.config.prioritize_verb:
                added = extender.prioritize(body, nodes) or {}
                scores.update({name: score for name, score in added.items() if name in nodes})
        best = max(scores.values())
        return next(name for name, score in scores.items() if score == best)

    def _filter_own(self, body: Object) -> tuple[dict[str, Object], dict[str, list[str]]]:
        """Return the nodes that pass kube-scheduler's own filters, and why others do not."""
        requested = _requested(body, self._ignored(body))
        usage = self._usage()
        listed = self._api.list("node")
        self._rotation += 1
        start = self._rotation % max(1, len(listed))
        nodes: dict[str, Object] = {}
        refused: dict[str, list[str]] = {}
        for node in listed[start:] + listed[:start]:
            name = node["metadata"]["name"]
            if reasons := _own_reasons(body, node, requested, usage.get(name, Counter())):
                refused[name] = reasons
            else:
                nodes[name] = node
        return nodes, refused

    def _ignored(self, body: Object) -> frozenset[str]:
        interested = (
            extender.config for extender in self._extenders if extender.is_interested(body)
        )
        return frozenset().union(*(one.ignored_resources for one in interested))

    def _usage(self, without: Iterable[str] = ()) -> dict[str, Counter[str]]:
        excluded, usage = set(without), dict[str, Counter[str]]()
        with self._lock:
            assumed = dict(self._assumed)
        for pod in self._api.list("pod"):
            uid = pod["metadata"]["uid"]
            node = pod["spec"].get("nodeName") or assumed.get(uid)
            if (
                node
                and uid not in excluded
                and (pod.get("status") or {}).get("phase")
                not in (
                    "Succeeded",
                    "Failed",
                )
            ):
                usage.setdefault(node, Counter()).update(_requested(pod, frozenset()))
        return usage

    def _preempt(self, body: Object, own: Mapping[str, list[str]]) -> str:
        """Delete the victims of the best node, if there is one; return the event's text."""
        text, total = _summary(len(own), own), len(own)
        candidates = self._candidates(body, own)
        if not candidates:
            return text + _no_preemption(total, total, 0)
        for extender in self._extenders:
            if extender.config.preempt_verb and extender.is_interested(body):
                try:
                    candidates = extender.preempt(body, candidates)
                except ExtenderFailed as error:
                    if not extender.config.ignorable:
                        return f"{text} preemption: {error}"
                if not candidates:
                    return (
                        f"{text} no new claims to deallocate, "
                        "preemption: no candidate node for preemption"
                    )
        chosen = min(candidates.values(), key=len)
        for victim in chosen:
            metadata = victim["metadata"]
            self._api.delete("pod", metadata["name"], metadata["namespace"])
        with self._lock:
            self._changes += len(chosen)
        return text

    def _candidates(self, body: Object, own: Mapping[str, list[str]]) -> dict[str, list[Object]]:
        """Return the nodes on which the pod would fit without all pods of lower priority."""
        priority = body["spec"].get("priority") or 0
        candidates: dict[str, list[Object]] = {}
        requested = _requested(body, self._ignored(body))
        for name, reasons in own.items():
            node = self._api.get("node", name)
            if node is None or AFFINITY in reasons or UNSCHEDULABLE in reasons:
                continue
            lower = [
                pod
                for pod in self._api.list("pod")
                if pod["spec"].get("nodeName") == name
                and (pod["spec"].get("priority") or 0) < priority
            ]
            usage = self._usage(pod["metadata"]["uid"] for pod in lower).get(name, Counter())
            if lower and not _own_reasons(body, node, requested, usage):
                candidates[name] = lower
        return candidates

    def _bind(self, pod: _Pod, body: Object, node: str) -> None:
        binders = [
            extender
            for extender in self._extenders
            if extender.config.bind_verb and extender.is_interested(body)
        ]
        try:
            self._bind_by(binders[0] if binders else None, body, node)
        except ExtenderFailed as error:
            with self._lock:
                self._assumed.pop(body["metadata"]["uid"], None)
                self._changes += 1  # room is free again
            self._retry_later(pod, body, str(error))
            return
        name = f"{pod.namespace}/{pod.name}"
        self.events.append(
            SchedulingEvent(
                pod=pod.name,
                reason="Scheduled",
                note=f"Successfully assigned {name} to {node}",
            )
        )
        with self._lock:
            self._changes += 1

    def _bind_by(self, extender: HttpExtender | None, body: Object, node: str) -> None:
        if extender is not None:
            try:
                extender.bind(body, node)
            except ExtenderFailed:
                if not extender.config.ignorable:
                    raise
            else:
                return
        live = self._api.get("pod", body["metadata"]["name"], body["metadata"]["namespace"])
        if live is None:
            raise ExtenderFailed(f'pods "{body["metadata"]["name"]}" not found')
        if live["spec"].get("nodeName"):
            name = body["metadata"]["name"]
            raise ExtenderFailed(
                f'Operation cannot be fulfilled on pods/binding "{name}": '
                f'pod {name} is already assigned to node "{live["spec"]["nodeName"]}"'
            )
        self._api.put({**live, "kind": "Pod", "spec": {**live["spec"], "nodeName": node}})


def _own_reasons(
    body: Object, node: Object, requested: Counter[str], usage: Counter[str]
) -> list[str]:
    labels = node["metadata"].get("labels") or {}
    selector = body["spec"].get("nodeSelector") or {}
    if (node.get("spec") or {}).get("unschedulable"):
        return [UNSCHEDULABLE]
    if any(labels.get(name) != value for name, value in selector.items()):
        return [AFFINITY]
    free = _quantities(node["status"].get("allocatable") or {})
    free.subtract(usage)
    return [
        "Too many pods" if name == "pods" else f"Insufficient {name}"
        for name, amount in sorted(requested.items())
        if amount > free[name]
    ]


def _requested(body: Object, ignored: frozenset[str]) -> Counter[str]:
    total = Counter[str]({"pods": 1000})
    for container in body["spec"].get("containers", ()):
        resources = container.get("resources") or {}
        amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        total.update(_quantities(amounts))
    return Counter({name: amount for name, amount in total.items() if name not in ignored})


def _quantities(texts: Mapping[str, str]) -> Counter[str]:
    """Return amounts in thousandths, which CPU is counted in."""
    amounts = {name: parse_amount(str(text)) for name, text in texts.items()}
    return Counter({name: int(one * 1000) for name, one in amounts.items() if one is not None})


def _summary(total: int, reasons: Mapping[str, Sequence[str]]) -> str:
    """Return kube-scheduler's sentence: each reason with its number of nodes, sorted as text."""
    counts = Counter(reason for of_node in reasons.values() for reason in of_node)
    parts = sorted(f"{count} {reason}" for reason, count in counts.items())
    return f"0/{total} nodes are available: {', '.join(parts)}."


def _no_preemption(total: int, helpless: int, others: int) -> str:
    parts = [f"{helpless} {NOT_HELPFUL}"] if helpless else []
    parts += [f"{others} {NO_VICTIMS}"] if others else []
    return (
        f" no new claims to deallocate, preemption: 0/{total} nodes are available: "
        f"{', '.join(parts)}."
    )
