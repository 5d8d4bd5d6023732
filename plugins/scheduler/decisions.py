"""Answers a pod's request for many nodes: which fit, why others do not, and their scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import compress, islice

import msgspec

from plugins.scheduler.cluster_state import Allocation, AssignedPod, ClusterState
from plugins.scheduler.devices.allocator import (
    DEFAULT_RULES,
    NodeRefused,
    NodeState,
    Rules,
    allocate,
    check_request,
    filter_node,
    has_local_choice,
)
from plugins.scheduler.devices.requests import InvalidRequest
from plugins.scheduler.devices.scores import MAX_SCORE, ScoringStrategy, node_score
from plugins.scheduler.numa.alignment import PodPlacement, align_pod
from plugins.scheduler.numa.cpu_choice import NumaState
from plugins.scheduler.numa.cpu_request import PodRequest

_Answers = dict[int | None, "NodeAnswer"]  # by signature

UNCERTAIN = "an earlier binding of the pod has no answer yet"
MAX_ANSWERS = 65536  # that are remembered, of all requests together


class NodeAnswer(msgspec.Struct, frozen=True):
    """Whether a node fits. `is_final`: removing pods from the node would not help."""

    reason: str = ""  # empty: it fits
    is_final: bool = False
    score: int = 0  # before it is normalized

    @property
    def fits(self) -> bool:
        """Return whether the node can give the devices now."""
        return not self.reason


class PodAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of all nodes for one pod. Nodes of one signature have one answer.

    There are far fewer signatures than nodes. Methods loop over signatures in Python, and over
    nodes only with `map` and `compress`: another loop over 10,000 nodes takes a millisecond.
    """

    names: Sequence[str]
    signatures: Sequence[int | None]  # of each name
    answers: Mapping[int | None, NodeAnswer]  # by signature
    invalid: str = ""  # why no node can meet the request
    error: str = ""  # why nothing can be decided now; the pod is to be tried again soon

    def of(self, name: str) -> NodeAnswer:
        """Return the answer of one node."""
        return self.answers[self.signatures[self.names.index(name)]]

    def with_refusals(self, refusals: Mapping[str, str]) -> PodAnswer:
        """Return the answer with more nodes refused, by name, for reasons that may be temporary."""
        if not refusals:
            return self
        keys = {reason: -1 - i for i, reason in enumerate(sorted(set(refusals.values())))}
        pairs = zip(self.names, self.signatures, strict=True)
        return msgspec.structs.replace(
            self,
            signatures=[keys[refusals[name]] if name in refusals else one for name, one in pairs],
            answers={**self.answers, **{key: NodeAnswer(text) for text, key in keys.items()}},
        )

    def fitting(self) -> list[str]:
        """Return the nodes that fit, in their order."""
        fit = {signature for signature, answer in self.answers.items() if not answer.reason}
        if len(fit) == len(self.answers):
            return list(self.names)
        return list(self.names_with(fit))

    def names_with(self, signatures: Collection[int | None]) -> Iterator[str]:
        """Yield the nodes that have one of these signatures, in their order."""
        return compress(self.names, map(signatures.__contains__, self.signatures))

    def refused(self, *, is_final: bool, note: str = "") -> dict[str, str]:
        """Return the reasons of the nodes that are refused finally, or only for now."""
        reasons = {
            signature: f"{answer.reason} ({note})" if note else answer.reason
            for signature, answer in self.answers.items()
            if answer.reason and answer.is_final is is_final
        }
        if not reasons:
            return {}
        of_names = list(map(reasons.get, self.signatures))
        return dict(zip(compress(self.names, of_names), filter(None, of_names), strict=True))

    def reasons(self) -> tuple[tuple[str, int], ...]:
        """Return how many nodes were refused for each reason, the most frequent first."""
        reasons = {key: answer.reason for key, answer in self.answers.items() if answer.reason}
        if not reasons:
            return ()
        of_signatures = Counter(self.signatures)
        counts = Counter[str]()
        for signature, reason in reasons.items():
            counts[reason] += of_signatures[signature]
        return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def best(self, count: int) -> tuple[tuple[str, int], ...]:
        """Return some of the nodes with the highest scores, and the scores."""
        scores = self._signature_scores()
        best: list[tuple[str, int]] = []
        for score in sorted(set(scores.values()), reverse=True):
            if len(best) >= count:
                break
            names = self.names_with({key for key, one in scores.items() if one == score})
            best += ((name, score) for name in islice(names, count - len(best)))
        return tuple(best)

    def scores(self) -> dict[str, int]:
        """Return the scores of the nodes that fit, so that the best one has 100."""
        scores = self._signature_scores()
        pairs = zip(self.names, self.signatures, strict=True)
        return {name: scores[signature] for name, signature in pairs if signature in scores}

    def scores_in_order(self) -> Iterator[int]:
        """Yield the score of each node, in their order; 0 for those that do not fit."""
        scores = {**dict.fromkeys(self.answers, 0), **self._signature_scores()}
        return map(scores.__getitem__, self.signatures)

    def _signature_scores(self) -> dict[int | None, int]:
        raw = {key: answer.score for key, answer in self.answers.items() if not answer.reason}
        best = max(raw.values(), default=0)
        return {key: score * 100 // best if best else 0 for key, score in raw.items()}


def refuse_all(names: Sequence[str], reason: str) -> PodAnswer:
    """Return the answer for a request that no node can meet."""
    answers: dict[int | None, NodeAnswer] = {None: NodeAnswer(reason, is_final=True)}
    return PodAnswer(names=names, signatures=[None] * len(names), answers=answers, invalid=reason)


class DecisionMaker:
    """Decides on nodes of one cluster state. For one thread.

    Equal requests on nodes of equal signature are decided once.
    """

    def __init__(
        self,
        state: ClusterState,
        rules: Rules = DEFAULT_RULES,
        strategy: ScoringStrategy | None = None,
    ) -> None:
        self._state = state
        self._rules = rules
        self._strategy = strategy or ScoringStrategy()
        self._answers: dict[bytes, _Answers] = {}  # by request, the last used one last
        self._answer_count = 0  # of all requests

    def is_concerned(self, request: PodRequest) -> bool:
        """Return whether devices, CPUs or NUMA nodes decide on a pod; any node can have others."""
        is_plain = request.devices is None and not request.needs_numa
        return not is_plain or bool(self._state.nodes_with_numa_policy())

    def is_planned(self, uid: str) -> bool:
        """Return whether a plan holds devices for a pod."""
        return self._state.plan_of(uid) is not None

    def decide(self, request: PodRequest, names: Sequence[str], uid: str = "") -> PodAnswer:
        """Return the answer of each node.

        With the uid of a pod for which devices are held, only their node fits, and with these.
        """
        try:
            self._check(request)
        except InvalidRequest as error:
            return refuse_all(names, str(error))
        hold = self._state.hold_of(uid)
        if hold is not None:
            return self._answer_for_hold(request, names, hold)
        # pods that differ in amounts of NUMA nodes alone have one answer where no policy holds
        whole_key = request_signature(request)
        plain_key = whole_key if request.has_numa_policy else _plain_signature(request)
        signatures = self._state.signatures(names, with_numa=request.needs_numa)
        present = set(signatures)
        of_request = self._answers_to(plain_key)
        pairs = zip(present, map(of_request.get, present), strict=True)
        answers = {signature: answer for signature, answer in pairs if answer is not None}
        missing = present - answers.keys()
        if missing:
            with_policy = self._state.nodes_with_numa_policy()
            of_whole = self._answers_to(whole_key) if with_policy else of_request
            examples = dict(zip(signatures, names, strict=True))  # one node of each signature
            for signature in missing:
                answer = of_whole.get(signature)
                if answer is None:
                    name = examples[signature]
                    memo = of_whole if name in with_policy else of_request
                    answer = memo[signature] = self._answer(request, name)
                    self._answer_count += 1
                answers[signature] = answer
        self._drop_old_answers()
        return PodAnswer(names=names, signatures=signatures, answers=answers)

    def allocate(self, request: PodRequest, name: str, uid: str = "") -> PodPlacement:
        """Return the allocation for a pod on a node; raises `NodeRefused` or `InvalidRequest`."""
        self._check(request)
        if not self._state.has_node(name):
            raise NodeRefused("the node does not exist")
        hold = self._state.hold_of(uid)
        without: Collection[str] = ()
        if hold is not None and hold.node == name:
            request, without = designate(request, hold.allocation), (uid,)
        state = self._device_state(name, without)
        if request.devices is not None:
            filter_node(state, request.devices, self._rules)
        if self._needs_numa(request, name):
            numa = self._numa_state(name, without)
            return align_pod(state, numa, request, self._rules, self._strategy)
        if request.devices is None:
            return PodPlacement()
        return PodPlacement(
            devices=allocate(state, request.devices, self._rules, strategy=self._strategy)
        )

    def fits_without(self, request: PodRequest, name: str, uids: Collection[str]) -> bool:
        """Return whether a node would fit without these pods."""
        return self._answer(request, name, uids).fits

    def _check(self, request: PodRequest) -> None:
        if request.devices is not None:
            check_request(request.devices, self._rules)

    def _needs_numa(self, request: PodRequest, name: str) -> bool:
        return request.needs_numa or name in self._state.nodes_with_numa_policy()

    def _device_state(self, name: str, without: Collection[str]) -> NodeState:
        return self._state.state_without(name, without) if without else self._state.state(name)

    def _numa_state(self, name: str, without: Collection[str]) -> NumaState:
        if without:
            return self._state.numa_state_without(name, without)
        return self._state.numa_state(name)

    def _answer_for_hold(
        self, request: PodRequest, names: Sequence[str], hold: AssignedPod
    ) -> PodAnswer:
        """Return the answer for a pod for which devices are held: they are not in its own way."""
        plan = self._state.plan_of(hold.key.uid)
        own = self._answer(designate(request, hold.allocation), hold.node, (hold.key.uid,))
        why = UNCERTAIN if plan is None else f"{plan.name}: planned on {hold.node}"
        is_error = plan is None and not (own.fits and hold.node in names)
        return PodAnswer(
            names=names,
            signatures=[int(name == hold.node) for name in names],
            answers={0: NodeAnswer(why, is_final=True), 1: own},
            error=why if is_error else "",
        )

    def _answer(self, request: PodRequest, name: str, without: Collection[str] = ()) -> NodeAnswer:
        state = self._device_state(name, without)
        try:
            if request.devices is not None:
                filter_node(state, request.devices, self._rules)
            if self._needs_numa(request, name):
                numa = self._numa_state(name, without)
                align_pod(state, numa, request, self._rules, self._strategy, is_trial=True)
        except NodeRefused as refused:
            return NodeAnswer(refused.reason, is_final=refused.is_final)
        if state.table is None or request.devices is None:
            return NodeAnswer()
        score = node_score(state.table, state.usage, request.devices, self._strategy)
        if has_local_choice(state, request.devices, self._rules):
            score += MAX_SCORE * len(request.devices.kinds)  # above all other nodes
        return NodeAnswer(score=score)

    def _answers_to(self, key: bytes) -> _Answers:
        """Return the answers to a request, which becomes the last used one."""
        answers = self._answers[key] = self._answers.pop(key, {})
        return answers

    def _drop_old_answers(self) -> None:
        """Drop the answers to the requests that were not used for the longest time."""
        while self._answer_count + len(self._answers) > MAX_ANSWERS:
            key = next(iter(self._answers))
            self._answer_count -= len(self._answers.pop(key))


def designate(request: PodRequest, allocation: Allocation) -> PodRequest:
    """Return the request for exactly these devices; nothing changes for a pod without devices."""
    if request.devices is None:
        return request
    devices = msgspec.structs.replace(request.devices, designation=allocation)
    return msgspec.structs.replace(request, devices=devices)


_ENCODER = msgspec.json.Encoder(order="sorted")


def request_signature(request: PodRequest) -> bytes:
    """Return bytes that are equal for equal requests."""
    return _ENCODER.encode(request)


def _plain_signature(request: PodRequest) -> bytes:
    """Return bytes that are equal for requests of the same devices and CPU set."""
    return _ENCODER.encode((request.numa if request.needs_numa else None, request.devices))
