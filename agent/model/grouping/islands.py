"""NVIDIA's partition table from the links of the cards, whatever board they sit on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import msgspec

from agent.model.device import DeviceLink
from agent.model.grouping.graph import Grouping, adjacency, cliques, complete, components
from agent.model.inventory import DeviceGroup, Problem

LINK_TYPE = "NVLink"
SIZES = (2, 4, 8, 16)  # that pods ask for; the whole island comes with whatever size it has
MAX_MINOR = 62  # the scheduler keeps minors as bits of a signed 64-bit number
MAX_MIXED = 16  # cards of an island whose cliques are listed one by one
MAX_OF_SIZE = 256  # partitions; more would be no help to anybody


class IslandCard(msgspec.Struct, frozen=True, kw_only=True):
    """One card of a node, as far as partitions go."""

    key: str
    minor: int
    module_id: int | None = None
    whole: bool = True  # False: cut by MIG; it keeps its rank and belongs to no partition


class _Node(msgspec.Struct, frozen=True):
    """Ranks of all cards, links of the whole ones by pair, speed of one link if it is wanted."""

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
        return DeviceGroup(keys=keys, link_type=LINK_TYPE, bandwidth_bytes_per_s=speed or None)


def island_groups(
    cards: Sequence[IslandCard],
    links: Iterable[DeviceLink],
    link_bytes_per_s: int | None = None,
) -> Grouping:
    """Return the partitions of a node's cards, by size, then by minors; none without links.

    `cards` have distinct keys and minors. Partitions of two, four, eight and sixteen are blocks
    of the board's order (module ids, else minors) where all pairs of an island have as many
    links, and else the cliques whose weakest pair is the strongest; each island is one as a
    whole, and every card alone, so that a policy that honours the table admits single cards.
    `link_bytes_per_s` is the speed of one link in one direction, given if groups are to carry
    the bandwidth of their weakest pair.
    """
    if any(card.minor > MAX_MINOR for card in cards):
        told = f"a minor is greater than {MAX_MINOR}: the scheduler would take it for another"
        return Grouping(problems=(Problem(reason="MinorTooLarge", message=told),))
    whole = {card.key for card in cards if card.whole}
    counts = {(k.a, k.b): k.count for k in links if k.a in whole and k.b in whole and k.count > 0}
    minors = {card.key: card.minor for card in cards}
    node = _Node(_ranks(cards), counts, minors, link_bytes_per_s)
    graph = adjacency(sorted(whole, key=lambda key: minors[key]), counts)
    islands = [found for found in components(graph) if len(found) > 1]
    if not islands:
        return Grouping()
    members: set[frozenset[str]] = {frozenset((key,)) for key in whole}
    problems: list[Problem] = []
    for island in islands:
        uniform = complete(graph, island) and len({*_pairs(node, island)}) == 1
        found = _blocks(node, island) if uniform else _strongest(node, island, problems)
        members |= found | {island}
    groups = sorted(
        (node.group(m) for m in members), key=lambda g: (len(g.keys), [minors[k] for k in g.keys])
    )
    return Grouping(groups=tuple(groups), problems=tuple(problems))


def _ranks(cards: Sequence[IslandCard]) -> dict[str, int]:
    """Return the cards' places on the board; one that is cut leaves the others where they are."""
    modules = [card.module_id for card in cards if card.module_id is not None]
    by_module = len(set(modules)) == len(cards)

    def order(card: IslandCard) -> int:
        return card.module_id if by_module and card.module_id is not None else card.minor

    return {card.key: rank for rank, card in enumerate(sorted(cards, key=order))}


def _pairs(node: _Node, island: frozenset[str]) -> list[int]:
    return [node.links(a, b) for a, b in combinations(sorted(island), 2)]


def _blocks(node: _Node, island: frozenset[str]) -> set[frozenset[str]]:
    found: set[frozenset[str]] = set()
    for size in (s for s in SIZES if s <= len(island)):
        blocks: dict[int, set[str]] = {}
        for key in island:
            blocks.setdefault(node.ranks[key] // size, set()).add(key)
        found |= {frozenset(block) for block in blocks.values() if len(block) == size}
    return found


def _strongest(node: _Node, island: frozenset[str], problems: list[Problem]) -> set[frozenset[str]]:
    """Return for each size the cliques whose weakest pair has the most links."""
    if len(island) > MAX_MIXED:
        told = f"{len(island)} cards with unequal links: only listed as a whole"
        problems.append(Problem(reason="PartitionsUnlisted", message=told))
        return set()
    ordered = sorted(island, key=lambda key: node.minors[key])
    found: set[frozenset[str]] = set()
    for size in (s for s in SIZES if s <= len(island)):
        for least in sorted({*_pairs(node, island)} - {0}, reverse=True):
            strong = [pair for pair in combinations(ordered, 2) if node.links(*pair) >= least]
            sets = list(cliques(adjacency(ordered, strong), ordered, size))
            if not sets:
                continue
            if len(sets) <= MAX_OF_SIZE:
                found |= {frozenset(clique) for clique in sets}
            else:
                told = f"{len(sets)} equal partitions of {size} cards are left out"
                problems.append(Problem(reason="PartitionsUnlisted", message=told))
            break
    return found
