"""The last decisions about pods, for people who want to know why a pod waits. Bounded."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

from plugins.scheduler.decisions import PodAnswer
from plugins.scheduler.pod_object import PodKey
from plugins.scheduler.reasons import explain_reason
from plugins.scheduler.server.extender_wire import BindRequest

MAX_PODS = 2048
MAX_NODES_OF_REASON = 16  # named for each reason; all are counted
MAX_BEST_NODES = 16
MAX_REASONS = 64  # that are counted apart
FILTER, BIND = "filter", "bind"
FITS, INVALID, NO_NODES, OTHER = "fits", "invalid request", "no nodes", "other"


class RefusalGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that were refused for one reason."""

    reason: str
    count: int
    is_final: bool  # removing pods would not help
    nodes: tuple[str, ...]  # some of them
    meaning: str = ""


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The last call about one pod."""

    namespace: str
    pod: str
    uid: str
    wall_s: float
    verb: str
    resources: tuple[str, ...] = ()  # that the pod requests of devices
    offered: int = 0  # nodes that kube-scheduler asked about
    fitting: int = 0
    best: tuple[tuple[str, int], ...] = ()  # nodes with their scores, the best first
    refusals: tuple[RefusalGroup, ...] = ()  # the most frequent reason first
    error: str = ""  # why no node can help, or why the binding failed
    node: str = ""  # of a binding
    note: str = ""  # what else decides about the pod
    attempts: int = 1  # calls with this verb so far

    def summary(self) -> str:
        """Return one line for an event: `2/5 nodes fit: 3 Insufficient GPU Devices`."""
        if self.error:
            return self.error
        reasons = ", ".join(f"{group.count} {group.reason}" for group in self.refusals)
        return f"{self.fitting}/{self.offered} nodes fit" + (f": {reasons}" if reasons else "")


class DecisionLog:
    """Stores the last decision of each verb about each pod; the oldest pods are dropped."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()  # of pods' filter calls, by their first reason
        self.binds: Counter[str] = Counter()  # by outcome
        self._records: OrderedDict[tuple[str, str], dict[str, DecisionRecord]] = OrderedDict()

    def record(self, record: DecisionRecord) -> DecisionRecord:
        """Store a decision; return it with the number of attempts."""
        if record.verb == FILTER:
            self._count(record)
        key = (record.namespace, record.pod)
        # a later pod may have the name of an earlier one
        of_name = self._records.pop(key, {})
        of_pod = {verb: one for verb, one in of_name.items() if one.uid == record.uid}
        before = of_pod.get(record.verb)
        if before is not None:
            record = msgspec.structs.replace(record, attempts=before.attempts + 1)
        self._records[key] = {**of_pod, record.verb: record}
        while len(self._records) > MAX_PODS:
            self._records.popitem(last=False)
        return record

    def count_binding(self, outcome: str) -> None:
        """Count a call of bind."""
        self.binds[outcome] += 1

    def _count(self, record: DecisionRecord) -> None:
        """Count a decision that fits, or by the reason of most nodes. Reasons are bounded."""
        if record.fitting:
            reason = FITS
        elif record.error:
            reason = INVALID
        else:
            reason = record.refusals[0].reason if record.refusals else NO_NODES
        is_bounded = reason in self.reasons or len(self.reasons) < MAX_REASONS
        self.reasons[reason if is_bounded else OTHER] += 1

    def of_pod(self, namespace: str, name: str) -> Mapping[str, DecisionRecord]:
        """Return the last decision of each verb about a pod; empty for an unknown one."""
        return self._records.get((namespace, name), {})


def filter_record(
    key: PodKey, resources: tuple[str, ...], answer: PodAnswer, wall_s: float, note: str = ""
) -> DecisionRecord:
    """Return the record of a filter call."""
    reasons = answer.reasons()
    return DecisionRecord(
        namespace=key.namespace,
        pod=key.name,
        uid=key.uid,
        wall_s=wall_s,
        verb=FILTER,
        resources=resources,
        offered=len(answer.names),
        fitting=len(answer.names) - sum(count for _, count in reasons),
        best=answer.best(MAX_BEST_NODES),
        refusals=tuple(_refusal_groups(answer, reasons)),
        error=answer.invalid,
        note=note,
    )


def bind_record(request: BindRequest, error: str, wall_s: float) -> DecisionRecord:
    """Return the record of a bind call; without an error the pod is bound."""
    return DecisionRecord(
        namespace=request.namespace,
        pod=request.name,
        uid=request.uid,
        wall_s=wall_s,
        verb=BIND,
        error=error,
        node=request.node,
    )


def _refusal_groups(
    answer: PodAnswer, reasons: tuple[tuple[str, int], ...]
) -> Iterator[RefusalGroup]:
    """Yield the reasons, each with a few of its nodes."""
    signatures: dict[str, set[int | None]] = {}
    for key, one in answer.answers.items():
        signatures.setdefault(one.reason, set()).add(key)
    for reason, count in reasons:
        of_reason = signatures[reason]
        names = answer.names_with(of_reason)
        yield RefusalGroup(
            reason=reason,
            count=count,
            is_final=all(answer.answers[key].is_final for key in of_reason),
            nodes=tuple(islice(names, min(count, MAX_NODES_OF_REASON))),
            meaning=explain_reason(reason),
        )
