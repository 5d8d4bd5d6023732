"""Aligns the resources of a pod to NUMA nodes: hints of each resource, merged under a policy.

Rules as in Koordinator's `pkg/scheduler/frameworkext/topologymanager`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

import msgspec

NodeSet = frozenset[int]

BEST_EFFORT, RESTRICTED, SINGLE = "BestEffort", "Restricted", "SingleNUMANode"


class NumaHint(msgspec.Struct, frozen=True):
    """A set of NUMA nodes that have the resource; `None`: every node is suitable."""

    nodes: NodeSet | None
    is_preferred: bool = True
    score: int = 0


ANY_NODE = NumaHint(None)
NO_NODE_SUFFICES = NumaHint(None, is_preferred=False)
MAX_COMBINED_NODES = 8
ResourceHints = Mapping[str, tuple[NumaHint, ...]]  # by resource; none: it cannot be had


class NumaAffinity(msgspec.Struct, frozen=True, kw_only=True):
    """The merged hint. `is_satisfied`: no resource needs more nodes than these."""

    nodes: NodeSet | None  # None: there is no constraint
    is_satisfied: bool = True


class Exclusive(msgspec.Struct, frozen=True, kw_only=True):
    """NUMA nodes in use by pods of one node alone, and by pods that span nodes."""

    is_required: bool = False
    is_preferred: bool = False
    single: NodeSet = frozenset()
    shared: NodeSet = frozenset()

    def conflicts(self, nodes: NodeSet) -> bool:
        """Return whether a pod on these nodes would share one with pods of the other kind."""
        return not nodes.isdisjoint(self.single if len(nodes) > 1 else self.shared)

    def forbids(self, nodes: NodeSet) -> bool:
        """Return whether the pod must not be on these nodes."""
        return self.is_required and self.conflicts(nodes)


class Alignment(msgspec.Struct, frozen=True, kw_only=True):
    """The result: an affinity, or the reasons of the refusal."""

    affinity: NumaAffinity | None = None
    reasons: tuple[str, ...] = ()


def node_sets(nodes: Iterable[int]) -> Iterator[NodeSet]:
    """Yield the sets of nodes that are not empty, by size and then by number.

    Of more than eight nodes only the single ones and all together are tried: the number of all
    sets doubles with each node.
    """
    ordered = sorted(nodes)
    total = len(ordered)
    sizes = range(1, total + 1) if total <= MAX_COMBINED_NODES else (1, total)
    for size in sizes:
        yield from map(frozenset, combinations(ordered, size))


def prefer_smallest(hints: Iterable[tuple[NodeSet, int]]) -> tuple[NumaHint, ...]:
    """Return hints of sets and scores in which the smallest sets are preferred."""
    listed = list(hints)
    smallest = min((len(nodes) for nodes, _ in listed), default=0)
    return tuple(NumaHint(nodes, len(nodes) == smallest, score) for nodes, score in listed)


def align(
    policy: str, providers: Iterable[ResourceHints], all_nodes: NodeSet, exclusive: Exclusive
) -> Alignment:
    """Merge the hints of all providers under a policy, and admit the result or refuse it."""
    lists: list[tuple[str, tuple[NumaHint, ...]]] = []
    for provider in providers:
        if not provider:
            lists.append(("", (ANY_NODE,)))
        lists += provider.items()
    reasons = tuple(f"Unsatisfied NUMA {name}" for name, hints in lists if not hints)
    is_strict = policy in (RESTRICTED, SINGLE)
    if reasons and is_strict:
        return Alignment(reasons=reasons)
    usable = [_usable(hints, policy) if hints else (NO_NODE_SUFFICES,) for _, hints in lists]
    best = _best_common_set(usable, all_nodes, exclusive)
    if best is None and is_strict:
        return Alignment(reasons=(f"Unaligned NUMA Hint cause {_summary(lists)}",))
    if best is None:
        best = _narrowest_overlap(usable, all_nodes, exclusive)
    is_satisfied = best.is_satisfied and not reasons
    if policy == SINGLE and best.nodes == all_nodes:
        return Alignment(affinity=NumaAffinity(nodes=None))
    return Alignment(affinity=best if is_satisfied else NumaAffinity(nodes=all_nodes))


def _usable(hints: Iterable[NumaHint], policy: str) -> tuple[NumaHint, ...]:
    """Return the hints that a policy considers."""
    return tuple(
        hint
        for hint in hints
        if policy != SINGLE or (hint.is_preferred and (hint.nodes is None or len(hint.nodes) == 1))
    )


def _best_common_set(
    lists: Iterable[tuple[NumaHint, ...]], all_nodes: NodeSet, exclusive: Exclusive
) -> NumaAffinity | None:
    """Return the best set that every resource prefers; `None` if there is none.

    The smallest one is best, of several the one with the highest sum of scores.
    """
    scores: dict[NodeSet, int] | None = None
    for hints in lists:
        preferred = {hint.nodes: hint.score for hint in hints if hint.is_preferred}
        if None in preferred:
            continue
        own = {nodes: score for nodes, score in preferred.items() if nodes is not None}
        if scores is None:
            scores = own
        else:
            scores = {nodes: scores[nodes] + own[nodes] for nodes in scores.keys() & own.keys()}
    if scores is None:  # no resource depends on nodes
        scores = {all_nodes: 0}
    allowed = [nodes for nodes in scores if not exclusive.forbids(nodes)]
    if not allowed:
        return None
    best = min(allowed, key=lambda nodes: _rank(nodes, scores[nodes], exclusive))
    return NumaAffinity(nodes=best)


def _narrowest_overlap(
    lists: Iterable[tuple[NumaHint, ...]], all_nodes: NodeSet, exclusive: Exclusive
) -> NumaAffinity:
    """Return the smallest overlap of one hint of each list; all nodes if none overlap.

    It is satisfied if no resource needs more nodes than it has.
    """
    # by overlap and by the size of the largest set: the score of the hints that equal the overlap
    scores: dict[tuple[NodeSet, int], int] = {(all_nodes, 0): 0}
    for hints in lists:
        merged: dict[tuple[NodeSet, int], int] = {}
        for (nodes, largest), score in scores.items():
            for hint in hints:
                own = all_nodes if hint.nodes is None else hint.nodes
                overlap = nodes & own
                size = largest if hint.nodes is None else max(largest, len(own))
                if overlap:
                    total = (score if overlap == nodes else 0) + (
                        hint.score if overlap == hint.nodes else 0
                    )
                    key = (overlap, size)
                    merged[key] = max(merged.get(key, 0), total)
        scores = merged
    if not scores:
        return NumaAffinity(nodes=all_nodes)
    nodes, largest = min(scores, key=lambda key: (*_rank(key[0], scores[key], exclusive), key[1]))
    return NumaAffinity(nodes=nodes, is_satisfied=largest in (0, len(nodes)))


def _rank(nodes: NodeSet, score: int, exclusive: Exclusive) -> tuple[int, ...]:
    is_shared = exclusive.is_preferred and exclusive.conflicts(nodes)
    return len(nodes), is_shared, -score, sum(1 << node for node in nodes)


def _summary(lists: Iterable[tuple[str, tuple[NumaHint, ...]]]) -> str:
    """Return which hints each resource had: `cpu prefer [01] among [01 10 11]`."""
    parts = []
    for name, hints in lists:
        if name:
            preferred = " ".join(_bits(hint) for hint in hints if hint.is_preferred)
            parts.append(f"{name} prefer [{preferred}] among [{' '.join(map(_bits, hints))}]")
    return ",".join(parts)


def _bits(hint: NumaHint) -> str:
    number = sum(1 << node for node in hint.nodes or ())
    return f"{number:02b}"
