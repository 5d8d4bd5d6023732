"""Groups of linked devices, cliques, and NVIDIA's partition table from the links of the cards."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import msgspec

from agent.snapshot.device import DeviceLink
from agent.snapshot.inventory import DeviceGroup, Problem

Adjacency = Mapping[str, frozenset[str]]

MAX_SEARCHED = 32  # devices of one component; in larger ones cliques are not searched


class DeviceGrouping(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of a node by size and members, and why there are no more."""

    groups: tuple[DeviceGroup, ...] = ()
    problems: tuple[Problem, ...] = ()


def adjacency(keys: Iterable[str], pairs: Iterable[tuple[str, str]]) -> Adjacency:
    """Return each key's neighbours.

    Pairs with an unlisted key or of a key with itself are dropped.
    """
    neighbours: dict[str, set[str]] = {key: set() for key in keys}
    for a, b in pairs:
        if a in neighbours and b in neighbours and a != b:
            neighbours[a].add(b)
            neighbours[b].add(a)
    return {key: frozenset(linked_keys) for key, linked_keys in neighbours.items()}


def components(graph: Adjacency) -> tuple[frozenset[str], ...]:
    """Return the connected components, also single nodes, in the order of the graph's keys."""
    groups: list[frozenset[str]] = []
    visited: set[str] = set()
    for start in graph:
        if start in visited:
            continue
        members, queue = {start}, [start]
        while queue:
            unvisited = graph[queue.pop()] - members
            members |= unvisited
            queue += unvisited
        visited |= members
        groups.append(frozenset(members))
    return tuple(groups)


def is_complete(graph: Adjacency, members: Collection[str]) -> bool:
    """Return whether every two of the members are linked."""
    return all(b in graph[a] for a, b in combinations(members, 2))


def cliques(graph: Adjacency, members: Iterable[str], size: int) -> Iterator[tuple[str, ...]]:
    """Yield the sets of that size in which all are linked; members in the given order."""
    ordered = tuple(members)
    positions = {key: index for index, key in enumerate(ordered)}

    def grow(clique: tuple[str, ...], candidates: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if len(clique) == size:
            yield clique
            return
        for index, key in enumerate(candidates[: len(candidates) - (size - len(clique)) + 1]):
            neighbours = graph[key]
            yield from grow(
                (*clique, key), tuple(k for k in candidates[index + 1 :] if k in neighbours)
            )

    yield from grow((), tuple(sorted(positions, key=positions.__getitem__)))


def largest_cliques(graph: Adjacency, members: frozenset[str]) -> tuple[frozenset[str], ...]:
    """Return all cliques of the greatest size among the members (Bron and Kerbosch, pivoted).

    Takes at most `MAX_SEARCHED` members: the work may triple with every three more.
    """
    cliques: list[frozenset[str]] = []

    def extend(clique: frozenset[str], candidates: set[str], excluded: set[str]) -> None:
        if cliques and len(clique) + len(candidates) < len(cliques[0]):
            return
        if not candidates and not excluded:
            if cliques and len(clique) > len(cliques[0]):
                cliques.clear()
            cliques.append(clique)
            return
        pivot = max(sorted(candidates | excluded), key=lambda key: len(graph[key] & candidates))
        for key in sorted(candidates - graph[pivot]):
            extend(clique | {key}, candidates & graph[key], excluded & graph[key])
            candidates.discard(key)
            excluded.add(key)

    extend(frozenset(), set(members), set())
    return tuple(cliques)


LINKS_WITHOUT_GROUPS = "LinksWithoutGroups"


def clique_groups(
    keys: Sequence[str], pairs: Iterable[tuple[str, str]], link_type: str
) -> DeviceGrouping:
    """Return each connected component's largest cliques, if they are disjoint and cover it.

    `keys` are `VendorDevice.key`s in the order of members, for example by minor; `pairs` are the
    linked devices, of any type of link, each pair once or twice. If one component has no such
    cliques, the node has no groups, and one problem: an incomplete table would refuse pods that
    fit. Devices without links are in no group. `link_type` is the label of the groups.
    """
    graph = adjacency(keys, pairs)
    positions = {key: index for index, key in enumerate(keys)}
    groups: list[tuple[str, ...]] = []
    for component in components(graph):
        if len(component) < 2:
            continue
        cliques = _disjoint_cliques(graph, component)
        if cliques is None:
            first, *_ = sorted(component, key=positions.__getitem__)
            message = (
                f"links of the {len(component)} devices around {first} form no disjoint groups"
            )
            return DeviceGrouping(problems=(Problem(reason=LINKS_WITHOUT_GROUPS, message=message),))
        groups += [tuple(sorted(clique, key=positions.__getitem__)) for clique in cliques]
    groups.sort(key=lambda members: (len(members), [positions[key] for key in members]))
    return DeviceGrouping(groups=tuple(DeviceGroup(keys=g, link_type=link_type) for g in groups))


def _disjoint_cliques(
    graph: Adjacency, component: frozenset[str]
) -> tuple[frozenset[str], ...] | None:
    if is_complete(graph, component):
        return (component,)
    if len(component) > MAX_SEARCHED:
        return None
    cliques = largest_cliques(graph, component)
    disjoint = sum(map(len, cliques)) == len(frozenset().union(*cliques))
    return cliques if disjoint and len(frozenset().union(*cliques)) == len(component) else None


PARTITION_LINK_TYPE = "NVLink"

# sizes that pods request; an island as a whole is listed with any size
PARTITION_SIZES = (2, 4, 8, 16)
MAX_MINOR = 62  # the scheduler stores minors as bits of a signed 64-bit number
MAX_MIXED = 16  # cards of an island whose cliques are listed individually
MAX_OF_SIZE = 256  # partitions; more would not help


class LinkedCard(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a card that partitions depend on."""

    key: str
    minor: int
    module_id: int | None = None
    whole: bool = True  # False: partitioned by MIG; it keeps its rank and is in no partition


class _LinkedCards(msgspec.Struct, frozen=True):
    """Ranks of all cards, links of the whole cards by pair, speed of one link if requested."""

    ranks: Mapping[str, int]
    counts: Mapping[tuple[str, str], int]
    minors: Mapping[str, int]
    link_bytes_per_s: int | None

    def links(self, a: str, b: str) -> int:
        return self.counts.get((a, b), 0) or self.counts.get((b, a), 0)

    def fewest(self, members: Sequence[str]) -> int:
        return min((self.links(a, b) for a, b in combinations(members, 2)), default=0)

    def group(self, members: Iterable[str]) -> DeviceGroup:
        keys = tuple(sorted(members, key=lambda key: self.minors[key]))
        speed = self.fewest(keys) * (self.link_bytes_per_s or 0)
        return DeviceGroup(
            keys=keys, link_type=PARTITION_LINK_TYPE, bandwidth_bytes_per_s=speed or None
        )


def partition_groups(
    cards: Sequence[LinkedCard],
    links: Iterable[DeviceLink],
    link_bytes_per_s: int | None = None,
) -> DeviceGrouping:
    """Return the partitions of a node's cards, by size, then by minors; none without links.

    `cards` have distinct keys and minors. If all pairs of an island have as many links, partitions
    of two, four, eight and sixteen are blocks in the board's order (module ids, else minors);
    otherwise they are the cliques whose weakest pair is the strongest. Each island as a whole is a
    partition, and so is every card alone, so that a policy that honours the table admits single
    cards. `link_bytes_per_s` is the speed of one link in one direction, given if groups have the
    bandwidth of their weakest pair.
    """
    if any(card.minor > MAX_MINOR for card in cards):
        message = f"a minor is greater than {MAX_MINOR}: the scheduler would take it for another"
        return DeviceGrouping(problems=(Problem(reason="MinorTooLarge", message=message),))
    whole_keys = {card.key for card in cards if card.whole}
    counts = {
        (k.a, k.b): k.count
        for k in links
        if k.a in whole_keys and k.b in whole_keys and k.count > 0
    }
    minors = {card.key: card.minor for card in cards}
    node = _LinkedCards(_ranks(cards), counts, minors, link_bytes_per_s)
    graph = adjacency(sorted(whole_keys, key=lambda key: minors[key]), counts)
    islands = [partitions for partitions in components(graph) if len(partitions) > 1]
    if not islands:
        return DeviceGrouping()
    members: set[frozenset[str]] = {frozenset((key,)) for key in whole_keys}
    problems: list[Problem] = []
    for island in islands:
        has_equal_links = is_complete(graph, island) and len({*_link_counts(node, island)}) == 1
        partitions = (
            _aligned_blocks(node, island)
            if has_equal_links
            else _strongest_cliques(node, island, problems)
        )
        members |= partitions | {island}
    groups = sorted(
        (node.group(m) for m in members), key=lambda g: (len(g.keys), [minors[k] for k in g.keys])
    )
    return DeviceGrouping(groups=tuple(groups), problems=tuple(problems))


def _ranks(cards: Sequence[LinkedCard]) -> dict[str, int]:
    """Return the positions of cards on the board; partitioned cards keep theirs."""
    modules = [card.module_id for card in cards if card.module_id is not None]
    by_module = len(set(modules)) == len(cards)

    def order(card: LinkedCard) -> int:
        return card.module_id if by_module and card.module_id is not None else card.minor

    return {card.key: rank for rank, card in enumerate(sorted(cards, key=order))}


def _link_counts(node: _LinkedCards, island: frozenset[str]) -> list[int]:
    return [node.links(a, b) for a, b in combinations(sorted(island), 2)]


def _aligned_blocks(node: _LinkedCards, island: frozenset[str]) -> set[frozenset[str]]:
    aligned: set[frozenset[str]] = set()
    for size in (s for s in PARTITION_SIZES if s <= len(island)):
        blocks: dict[int, set[str]] = {}
        for key in island:
            blocks.setdefault(node.ranks[key] // size, set()).add(key)
        aligned |= {frozenset(block) for block in blocks.values() if len(block) == size}
    return aligned


def _strongest_cliques(
    node: _LinkedCards, island: frozenset[str], problems: list[Problem]
) -> set[frozenset[str]]:
    """Return for each size the cliques whose weakest pair has the most links."""
    if len(island) > MAX_MIXED:
        message = f"{len(island)} cards with unequal links: only listed as a whole"
        problems.append(Problem(reason="PartitionsUnlisted", message=message))
        return set()
    ordered = sorted(island, key=lambda key: node.minors[key])
    strongest: set[frozenset[str]] = set()
    for size in (s for s in PARTITION_SIZES if s <= len(island)):
        for min_links in sorted({*_link_counts(node, island)} - {0}, reverse=True):
            strong_pairs = [
                pair for pair in combinations(ordered, 2) if node.links(*pair) >= min_links
            ]
            sets = list(cliques(adjacency(ordered, strong_pairs), ordered, size))
            if not sets:
                continue
            if len(sets) <= MAX_OF_SIZE:
                strongest |= {frozenset(clique) for clique in sets}
            else:
                message = f"{len(sets)} equal partitions of {size} cards are left out"
                problems.append(Problem(reason="PartitionsUnlisted", message=message))
            break
    return strongest
