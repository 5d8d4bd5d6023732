"""Answers one pod's request for many nodes: which fit, why others do not, and how good each is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from plugins.scheduler.cluster_state import ClusterState
from plugins.scheduler.devices.allocator import (
    DEFAULT_RULES,
    Grant,
    NodeRefused,
    NodeState,
    Rules,
    allocate,
    check_request,
    filter_node,
)
from plugins.scheduler.devices.requests import DeviceRequest, InvalidRequest
from plugins.scheduler.devices.scores import ScoringStrategy, node_score

MAX_ANSWERS = 65536  # that are remembered: of all requests and signatures together


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
    """The answers of all nodes for one pod; scores are 0 to 100 of the best one."""

    nodes: Mapping[str, NodeAnswer]
    invalid: str = ""  # why no node can meet the request

    def reasons(self) -> tuple[tuple[str, int], ...]:
        """Return how many nodes were refused for each reason, the most frequent first."""
        counts = Counter(answer.reason for answer in self.nodes.values() if answer.reason)
        return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def scores(self) -> Mapping[str, int]:
        """Return the scores of the nodes that fit, so that the best one has 100."""
        raw = {name: answer.score for name, answer in self.nodes.items() if answer.fits}
        best = max(raw.values(), default=0)
        return {name: score * 100 // best if best else 0 for name, score in raw.items()}


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
        self._answers: dict[tuple[bytes, int], NodeAnswer] = {}

    def decide(self, request: DeviceRequest, names: Iterable[str]) -> PodAnswer:
        """Return the answer of each node."""
        try:
            check_request(request, self._rules)
        except InvalidRequest as error:
            refused = NodeAnswer(str(error), is_final=True)
            return PodAnswer(nodes=dict.fromkeys(names, refused), invalid=str(error))
        request_key = request_signature(request)
        answers: dict[str, NodeAnswer] = {}
        signature, remembered = self._state.signature, self._answers
        for name in names:
            key = (request_key, signature(name))
            answer = remembered.get(key)
            if answer is None:
                answer = self._remember(key, self._answer(self._state.state(name), request))
            answers[name] = answer
        return PodAnswer(nodes=answers)

    def allocate(self, request: DeviceRequest, name: str) -> Grant:
        """Return the devices of a node for a pod; raise `NodeRefused` or `InvalidRequest`."""
        check_request(request, self._rules)
        state = self._state.state(name)
        filter_node(state, request, self._rules)
        return allocate(state, request, self._rules, strategy=self._strategy)

    def fits_without(self, request: DeviceRequest, name: str, uids: Iterable[str]) -> bool:
        """Return whether a node would fit if these pods were gone."""
        return self._answer(self._state.state_without(name, uids), request).fits

    def _answer(self, state: NodeState, request: DeviceRequest) -> NodeAnswer:
        try:
            filter_node(state, request, self._rules)
        except NodeRefused as refused:
            return NodeAnswer(refused.reason, is_final=refused.is_final)
        if state.table is None:
            return NodeAnswer()
        return NodeAnswer(score=node_score(state.table, state.usage, request, self._strategy))

    def _remember(self, key: tuple[bytes, int], answer: NodeAnswer) -> NodeAnswer:
        if len(self._answers) >= MAX_ANSWERS:
            self._answers.clear()
        self._answers[key] = answer
        return answer


_ENCODER = msgspec.json.Encoder(order="sorted")


def request_signature(request: DeviceRequest) -> bytes:
    """Return bytes that are equal for equal requests."""
    return _ENCODER.encode(request)
