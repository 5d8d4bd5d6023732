"""Whole cards: the set that works together best, and leaves the best for those that come later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from agent.errors import AgentError
from plugins.injection.preferred.board import Board, Card

ENUMERATED = 16  # available cards up to which every set is looked at: at most 12870
_WEIGHTS = {8: 10_000, 4: 100, 2: 1}  # of a group of so many cards that stays whole


class NotEnough(AgentError):
    """Fewer devices are available than were asked for."""

    def __init__(self) -> None:
        super().__init__("not enough available devices to satisfy allocation")


def preferred_cards(
    available: Sequence[str], required: Sequence[str], size: int, board: Board
) -> tuple[str, ...]:
    """Return `size` of the available ids, by minor; the same for the same input in any order.

    The greatest sum of pair scores wins; of equals the set that leaves the most groups whole,
    then on the fewest memory nodes, then with the smallest minors. A single card is that whose
    loss spoils the fewest groups, then with the fewest links. Required ids that are not available
    are passed over. Ids that the board does not know come last. Raises `NotEnough` only if there
    are fewer ids than asked for.
    """
    known = {card.id: card for card in board.cards}
    cards = sorted((known.get(i, Card(id=i)) for i in dict.fromkeys(available)), key=_by_minor)
    if size > len(cards) or size < 0:
        raise NotEnough
    fixed = [card for card in cards if card.id in set(required)][:size]
    free = [card for card in cards if card not in fixed]
    choice = _Choice(board, cards)
    if len(cards) > ENUMERATED:
        return choice.greedy(fixed, free, size)
    return choice.best([*fixed, *more] for more in combinations(free, size - len(fixed)))


def _by_minor(card: Card) -> tuple[int, str]:
    return card.minor, card.id


class _Choice:
    """Compares sets of one request's cards; the tables are made once."""

    def __init__(self, board: Board, cards: Sequence[Card]) -> None:
        self._score = {
            (a.id, b.id): board.score(a.id, b.id) for a in cards for b in cards if a is not b
        }
        self._links = {
            card.id: sum(count for pair, count in board.links.items() if card.id in pair)
            for card in cards
        }
        here = {card.id for card in cards}
        whole = [frozenset(group) for group in board.groups]
        self._groups = [group for group in whole if group <= here and len(group) in _WEIGHTS]

    def best(self, sets: Iterable[Sequence[Card]]) -> tuple[str, ...]:
        """Return the ids of the best set."""
        top, equals = -1, list[Sequence[Card]]()
        for cards in sets:
            ids = [card.id for card in cards]
            score = sum(map(self._score.__getitem__, combinations(ids, 2)))
            if score > top:
                top, equals = score, []
            if score == top:
                equals.append(cards)
        winner: Sequence[Card] = min(equals, key=self._rank)
        return tuple(card.id for card in sorted(winner, key=_by_minor))

    def greedy(self, fixed: list[Card], free: list[Card], size: int) -> tuple[str, ...]:
        """Grow the best pair by the card that adds most; for so many cards that sets are not."""
        chosen = list(fixed)
        if not chosen and size > 1:
            first = self.best(combinations(free, 2))
            chosen = [card for card in free if card.id in first]
        while len(chosen) < size:
            left = [card for card in free if card not in chosen]
            chosen.append(max(left, key=lambda card: self._worth(card, chosen)))
        return tuple(card.id for card in sorted(chosen, key=_by_minor))

    def _worth(self, card: Card, chosen: Sequence[Card]) -> tuple[object, ...]:
        spoiled, links, nodes, minors = self._rank([*chosen, card])
        added = sum(self._score[card.id, other.id] for other in chosen)
        return added, -spoiled, -links, -nodes, tuple(-minor for minor in minors)

    def _rank(self, cards: Sequence[Card]) -> tuple[int, int, int, tuple[int, ...]]:
        """Order sets of equal score, the best first."""
        taken = {card.id for card in cards}
        spoiled = sum(_WEIGHTS[len(group)] for group in self._groups if group & taken)
        links = self._links[cards[0].id] if len(cards) == 1 else 0
        nodes = len({card.numa_node for card in cards})
        return spoiled, links, nodes, tuple(sorted(card.minor for card in cards))
