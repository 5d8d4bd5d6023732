"""Devices as nodes and links as edges: what hangs together, and who is joined with everybody."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import combinations

import msgspec

from agent.model.inventory import DeviceGroup, Problem

Adjacency = Mapping[str, frozenset[str]]
MAX_SEARCHED = 32  # devices of one component; beyond that cliques are not searched for


class Grouping(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of a node in the order of size and members, and why there are not more."""

    groups: tuple[DeviceGroup, ...] = ()
    problems: tuple[Problem, ...] = ()


def adjacency(keys: Iterable[str], pairs: Iterable[tuple[str, str]]) -> Adjacency:
    """Return each key's neighbours; pairs with a key that is not listed, or with itself, go."""
    known: dict[str, set[str]] = {key: set() for key in keys}
    for a, b in pairs:
        if a in known and b in known and a != b:
            known[a].add(b)
            known[b].add(a)
    return {key: frozenset(others) for key, others in known.items()}


def components(graph: Adjacency) -> tuple[frozenset[str], ...]:
    """Return what hangs together, single nodes too, in the order of the graph's keys."""
    found: list[frozenset[str]] = []
    seen: set[str] = set()
    for start in graph:
        if start in seen:
            continue
        members, edge = {start}, [start]
        while edge:
            fresh = graph[edge.pop()] - members
            members |= fresh
            edge += fresh
        seen |= members
        found.append(frozenset(members))
    return tuple(found)


def complete(graph: Adjacency, members: Collection[str]) -> bool:
    """Say whether every two of the members are joined."""
    return all(b in graph[a] for a, b in combinations(members, 2))


def cliques(graph: Adjacency, members: Iterable[str], size: int) -> Iterator[tuple[str, ...]]:
    """Yield the sets of that size in which all are joined; members in the order given."""
    ordered = tuple(members)
    place = {key: index for index, key in enumerate(ordered)}

    def grow(chosen: tuple[str, ...], left: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if len(chosen) == size:
            yield chosen
            return
        for index, key in enumerate(left[: len(left) - (size - len(chosen)) + 1]):
            near = graph[key]
            yield from grow((*chosen, key), tuple(k for k in left[index + 1 :] if k in near))

    yield from grow((), tuple(sorted(place, key=place.__getitem__)))


def largest_cliques(graph: Adjacency, members: frozenset[str]) -> tuple[frozenset[str], ...]:
    """Return all cliques of the greatest size among the members (Bron and Kerbosch, pivoted).

    Takes at most `MAX_SEARCHED` members: the work may triple with every three more.
    """
    found: list[frozenset[str]] = []

    def extend(clique: frozenset[str], open_: set[str], done: set[str]) -> None:
        if found and len(clique) + len(open_) < len(found[0]):
            return
        if not open_ and not done:
            if found and len(clique) > len(found[0]):
                found.clear()
            found.append(clique)
            return
        pivot = max(sorted(open_ | done), key=lambda key: len(graph[key] & open_))
        for key in sorted(open_ - graph[pivot]):
            extend(clique | {key}, open_ & graph[key], done & graph[key])
            open_.discard(key)
            done.add(key)

    extend(frozenset(), set(members), set())
    return tuple(found)
