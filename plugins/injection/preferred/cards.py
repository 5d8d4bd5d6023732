"""Whole cards: the set that works together best, and leaves the best for those that come later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import combinations
from operator import or_

from agent.errors import AgentError
from plugins.injection.preferred.board import Board, Card
from plugins.injection.preferred.halves import MOST, equals, positions

_WEIGHTS = {8: 10_000, 4: 100, 2: 1}  # of a group of so many cards that stays whole


class NotEnough(AgentError):
    """Fewer devices are available than were asked for."""

    def __init__(self) -> None:
        super().__init__("not enough available devices to satisfy allocation")


def preferred_cards(
    available: Sequence[str],
    required: Sequence[str],
    size: int,
    board: Board,
    near: Mapping[str, int] | None = None,
) -> tuple[str, ...]:
    """Return `size` of the available ids, by minor; the same for the same input in any order.

    The greatest sum of pair scores wins, with what each card has for itself in `near`; of equals
    the set that leaves the most groups whole, then on the fewest memory nodes, then with the
    smallest minors. A single card is that whose loss spoils the fewest groups, then with the
    fewest links. Required ids that are not available are passed over. Ids that the board does not
    know come last. Raises `NotEnough` only if there are fewer ids than asked for.
    """
    known = {card.id: card for card in board.cards}
    cards = sorted((known.get(i, Card(id=i)) for i in dict.fromkeys(available)), key=_by_minor)
    if size > len(cards) or size < 0:
        raise NotEnough
    fixed = [card for card in cards if card.id in set(required)][:size]
    free = [card for card in cards if card not in fixed]
    choice = _Choice(board, cards, near or {})
    if len(cards) > MOST:
        return choice.greedy(fixed, free, size)
    return choice.best(fixed, free, size)


def _by_minor(card: Card) -> tuple[int, str]:
    return card.minor, card.id


class _Choice:
    """Compares sets of one request's cards; the tables are made once."""

    def __init__(self, board: Board, cards: Sequence[Card], near: Mapping[str, int]) -> None:
        self._near = {card.id: near.get(card.id, 0) for card in cards}
        self._score = {
            (a.id, b.id): board.score(a.id, b.id) for a in cards for b in cards if a is not b
        }
        self._links = dict.fromkeys((card.id for card in cards), 0)
        for pair, count in board.links.items():
            for name in pair:
                if name in self._links:
                    self._links[name] += count
        here = {card.id for card in cards}
        whole = [frozenset(group) for group in board.groups]
        self._groups = [group for group in whole if group <= here and len(group) in _WEIGHTS]

    def best(self, fixed: Sequence[Card], free: Sequence[Card], size: int) -> tuple[str, ...]:
        """Return the ids of the best set of `fixed` and as many of `free` as it takes."""
        if size == 1:
            sets = [[card] for card in fixed or free]
            return (min(sets, key=lambda one: (-self._near[one[0].id], self._rank(one)))[0].id,)
        own = [
            self._near[card.id] + sum(self._score[card.id, other.id] for other in fixed)
            for card in free
        ]
        ids = [card.id for card in free]
        _, sets_of_masks = equals(size - len(fixed), own, lambda i, j: self._score[ids[i], ids[j]])
        winner = [*fixed, *self._first_of(sets_of_masks, fixed, free)]
        return tuple(card.id for card in sorted(winner, key=_by_minor))

    def _first_of(
        self, sets: Iterable[tuple[int, int]], fixed: Sequence[Card], free: Sequence[Card]
    ) -> list[Card]:
        """Return the set that spoils least, then on the fewest memory nodes; the first of equals.

        What a set touches is the union of what its halves do: bits of groups and memory nodes.
        """
        first = (len(free) + 1) // 2
        nodes = {card.numa_node: len(self._groups) + i for i, card in enumerate([*fixed, *free])}
        bits = {card.id: 1 << nodes[card.numa_node] for card in (*fixed, *free)}
        for number, group in enumerate(self._groups):
            for name in group:
                bits[name] |= 1 << number
        base = reduce(or_, (bits[card.id] for card in fixed), 0)
        left = _unions([bits[card.id] for card in free[:first]])
        right = [base | union for union in _unions([bits[card.id] for card in free[first:]])]
        ranks: dict[int, tuple[int, int]] = {}
        best, winner = None, (0, 0)
        for a, b in sets:
            touched = left[a] | right[b]
            rank = ranks.get(touched)
            if rank is None:
                rank = ranks[touched] = self._cost(touched)
                if best is None or rank < best:
                    best, winner = rank, (a, b)
        chosen = (
            *positions(winner[0], first),
            *positions(winner[1], len(free) - first, first),
        )
        return [free[i] for i in chosen]

    def _cost(self, touched: int) -> tuple[int, int]:
        spoiled = sum(
            _WEIGHTS[len(group)]
            for number, group in enumerate(self._groups)
            if touched >> number & 1
        )
        return spoiled, (touched >> len(self._groups)).bit_count()

    def greedy(self, fixed: list[Card], free: list[Card], size: int) -> tuple[str, ...]:
        """Grow the best pair by the card that adds most; for so many cards that sets are not."""
        chosen = list(fixed)
        if not chosen and size > 1:
            pair = min(combinations(free, 2), key=self._pair_rank)
            chosen = list(pair)
        while len(chosen) < size:
            left = [card for card in free if card not in chosen]
            chosen.append(max(left, key=lambda card: self._worth(card, chosen)))
        return tuple(card.id for card in sorted(chosen, key=_by_minor))

    def _worth(self, card: Card, chosen: Sequence[Card]) -> tuple[object, ...]:
        spoiled, links, nodes, minors = self._rank([*chosen, card])
        added = self._near[card.id] + sum(self._score[card.id, o.id] for o in chosen)
        return added, -spoiled, -links, -nodes, tuple(-minor for minor in minors)

    def _pair_rank(self, pair: Sequence[Card]) -> tuple[int, tuple[int, int, int, tuple[int, ...]]]:
        a, b = pair[0].id, pair[1].id
        return -self._score[a, b] - self._near[a] - self._near[b], self._rank(pair)

    def _rank(self, cards: Sequence[Card]) -> tuple[int, int, int, tuple[int, ...]]:
        """Order sets of equal score, the best first."""
        taken = {card.id for card in cards}
        spoiled = sum(_WEIGHTS[len(group)] for group in self._groups if group & taken)
        links = self._links[cards[0].id] if len(cards) == 1 else 0
        nodes = len({card.numa_node for card in cards})
        return spoiled, links, nodes, tuple(sorted(card.minor for card in cards))


def _unions(bits: Sequence[int]) -> list[int]:
    """Return what each subset touches, by mask; earlier cards have higher bits."""
    unions = [0]
    for own in reversed(bits):
        unions += [union | own for union in unions]
    return unions
