"""Chooses devices for the kubelet's GetPreferredAllocation.

Whole cards: the best set of a size, found without computing each set. The cards are split into two
halves of at most eight. The scores of all subsets of the second half are one vector: a long integer
with one lane for each subset. What one card of the first half adds to each lane is another vector.
A subset of the first half therefore costs one addition, and the largest lane is its best partner:
16 cards have 12870 sets of eight, found with 256 additions. Among equal sets, the one that leaves
the best sets for later requests wins.

Slots of cards, such as replicas for time slicing and MIG instances: spread over cards, or packed.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import combinations
from operator import or_
from sys import byteorder
from typing import Final

import msgspec

from agent.allocation.device_scores import CandidateDevice, PairScores
from agent.errors import AgentError

MAX_EXHAUSTIVE = 16  # cards

_FORMAT: Final = "Q"  # of a lane; a sum of scores is far below

Members = tuple[int, ...]  # positions, ascending


def best_sets(
    size: int, own: Sequence[int], pair: Callable[[int, int], int]
) -> tuple[int, Iterator[tuple[int, int]]]:
    """Return the highest score of a set of that size, and all sets that have it.

    Cards are positions in `own`, the score of each card alone. `pair(i, j)` with i < j is the score
    of a pair. No score is negative. A set is two masks, of the first and of the second half, in
    which earlier cards have higher bits: of equal sets, that with the smallest positions comes
    first.
    """
    first = (len(own) + 1) // 2
    second = len(own) - first
    groups = _by_size(second)
    order = [mask for group in groups for mask in group]
    lanes = _ScoreVectors(first, second, order, own, pair)
    bounds, start = [], 0
    for group in groups:
        bounds.append((start, start + len(group)))
        start += len(group)
    best_score = -1
    best_rows: list[tuple[int, memoryview[int], Sequence[int]]] = []
    for mask in range((1 << first) - 1, -1, -1):
        rest = size - mask.bit_count()
        if not 0 <= rest <= second:
            continue
        low, high = bounds[rest]
        scores = lanes.of(mask)[low:high]
        row_best = max(scores)
        if row_best > best_score:
            best_score, best_rows = row_best, []
        if row_best == best_score:
            best_rows.append((mask, scores, groups[rest]))
    return best_score, _set_masks(best_score, best_rows)


def _set_masks(
    best_score: int, rows: Sequence[tuple[int, memoryview[int], Sequence[int]]]
) -> Iterator[tuple[int, int]]:
    for mask, scores, group in rows:
        for score, other in zip(scores, group, strict=True):
            if score == best_score:
                yield mask, other


def _by_size(cards: int) -> list[list[int]]:
    groups: list[list[int]] = [[] for _ in range(cards + 1)]
    for mask in range((1 << cards) - 1, -1, -1):
        groups[mask.bit_count()].append(mask)
    return groups


def positions(mask: int, cards: int, start: int = 0) -> Members:
    """Return the cards of a mask of one half with so many cards; `start` is the first card."""
    return tuple(start + i for i in range(cards) if mask >> (cards - 1 - i) & 1)


class _ScoreVectors:
    """For each subset of the first half, its scores with all subsets of the second half."""

    def __init__(
        self,
        first: int,
        second: int,
        order: Sequence[int],
        own: Sequence[int],
        pair: Callable[[int, int], int],
    ) -> None:
        self._length = len(order) * array(_FORMAT).itemsize
        others = range(first, first + second)
        ones = _pack([1] * len(order), order)
        packed = [_pack(_scores(others, own, pair), order)]
        for i in reversed(range(first)):
            row = _pack(_sums(own[i], [pair(i, j) for j in others]), order)
            inside = _sums(0, [pair(i, k) for k in range(i + 1, first)])
            packed += [
                vector + row + added * ones for vector, added in zip(packed, inside, strict=True)
            ]
        self._packed = packed

    def of(self, mask: int) -> memoryview[int]:
        data = self._packed[mask].to_bytes(self._length, byteorder)
        return memoryview(data).cast(_FORMAT)


def _scores(cards: Sequence[int], own: Sequence[int], pair: Callable[[int, int], int]) -> list[int]:
    """Return the score of each subset of these cards, by mask; earlier cards have higher bits."""
    scores = [0]
    for i in reversed(cards):
        added = _sums(own[i], [pair(i, j) for j in cards if j > i])
        scores += [score + more for score, more in zip(scores, added, strict=True)]
    return scores


def _sums(base: int, values: Sequence[int]) -> list[int]:
    """Return `base` and the sum of the values of each subset, by mask."""
    sums = [base]
    for value in reversed(values):
        sums += [partial_sum + value for partial_sum in sums]
    return sums


def _pack(values: Sequence[int], order: Sequence[int]) -> int:
    return int.from_bytes(array(_FORMAT, [values[mask] for mask in order]), byteorder)


_WEIGHTS = {8: 10_000, 4: 100, 2: 1}  # of an unbroken group with so many cards


class TooFewDevices(AgentError):
    """Fewer devices are available than requested."""

    def __init__(self) -> None:
        super().__init__("not enough available devices to satisfy allocation")


def preferred_cards(
    available: Sequence[str],
    required: Sequence[str],
    size: int,
    pair_scores: PairScores,
    near: Mapping[str, int] | None = None,
) -> tuple[str, ...]:
    """Return `size` of the available ids, by minor, independent of the input's order.

    The set with the highest sum of pair scores and `near` scores wins. Of equal sets, the one that
    leaves the most groups unbroken wins, then that on the fewest memory nodes, then that with the
    smallest minors. A single card is the one that breaks the fewest groups, then that with the
    fewest links. Required ids that are not available are ignored. Ids without scores come last.
    Raise `TooFewDevices` only if there are fewer ids than requested.
    """
    by_id = {card.id: card for card in pair_scores.candidates}
    cards = sorted(
        (by_id.get(i, CandidateDevice(id=i)) for i in dict.fromkeys(available)), key=_by_minor
    )
    if size > len(cards) or size < 0:
        raise TooFewDevices
    fixed = [card for card in cards if card.id in set(required)][:size]
    free = [card for card in cards if card not in fixed]
    selection = _CardSelection(pair_scores, cards, near or {})
    if len(cards) > MAX_EXHAUSTIVE:
        return selection.greedy(fixed, free, size)
    return selection.best(fixed, free, size)


def _by_minor(card: CandidateDevice) -> tuple[int, str]:
    return card.minor, card.id


class _CardSelection:
    """Compares sets of one request's cards; the tables are built once."""

    def __init__(
        self, pair_scores: PairScores, cards: Sequence[CandidateDevice], near: Mapping[str, int]
    ) -> None:
        self._near = {card.id: near.get(card.id, 0) for card in cards}
        self._score = {
            (a.id, b.id): pair_scores.score(a.id, b.id) for a in cards for b in cards if a is not b
        }
        self._links = dict.fromkeys((card.id for card in cards), 0)
        for pair, count in pair_scores.links.items():
            for name in pair:
                if name in self._links:
                    self._links[name] += count
        ids = {card.id for card in cards}
        whole = [frozenset(group) for group in pair_scores.groups]
        self._groups = [group for group in whole if group <= ids and len(group) in _WEIGHTS]

    def best(
        self, fixed: Sequence[CandidateDevice], free: Sequence[CandidateDevice], size: int
    ) -> tuple[str, ...]:
        """Return the ids of the best set of `fixed` and as many of `free` as needed."""
        if size == 1:
            sets = [[card] for card in fixed or free]
            return (min(sets, key=lambda one: (-self._near[one[0].id], self._rank(one)))[0].id,)
        own = [
            self._near[card.id] + sum(self._score[card.id, other.id] for other in fixed)
            for card in free
        ]
        ids = [card.id for card in free]
        _, sets_of_masks = best_sets(
            size - len(fixed), own, lambda i, j: self._score[ids[i], ids[j]]
        )
        winner = [*fixed, *self._first_of(sets_of_masks, fixed, free)]
        return tuple(card.id for card in sorted(winner, key=_by_minor))

    def _first_of(
        self,
        sets: Iterable[tuple[int, int]],
        fixed: Sequence[CandidateDevice],
        free: Sequence[CandidateDevice],
    ) -> list[CandidateDevice]:
        """Return the set that breaks the fewest groups, then the one on the fewest memory nodes.

        The groups and nodes of a set are the union of those of its halves, as bits. Of equal sets
        the first one is returned.
        """
        first = (len(free) + 1) // 2
        nodes = {card.numa_node: len(self._groups) + i for i, card in enumerate([*fixed, *free])}
        bits = {card.id: 1 << nodes[card.numa_node] for card in (*fixed, *free)}
        for number, group in enumerate(self._groups):
            for name in group:
                bits[name] |= 1 << number
        base = reduce(or_, (bits[card.id] for card in fixed), 0)
        first_unions = _unions([bits[card.id] for card in free[:first]])
        second_unions = [
            base | union for union in _unions([bits[card.id] for card in free[first:]])
        ]
        ranks: dict[int, tuple[int, int]] = {}
        best, winner = None, (0, 0)
        for a, b in sets:
            touched = first_unions[a] | second_unions[b]
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
        broken = sum(
            _WEIGHTS[len(group)]
            for number, group in enumerate(self._groups)
            if touched >> number & 1
        )
        return broken, (touched >> len(self._groups)).bit_count()

    def greedy(
        self, fixed: list[CandidateDevice], free: list[CandidateDevice], size: int
    ) -> tuple[str, ...]:
        """Extend the best pair by the best card, again and again; for many cards."""
        chosen = list(fixed)
        if not chosen and size > 1:
            pair = min(combinations(free, 2), key=self._pair_rank)
            chosen = list(pair)
        while len(chosen) < size:
            remaining = [card for card in free if card not in chosen]
            chosen.append(max(remaining, key=lambda card: self._worth(card, chosen)))
        return tuple(card.id for card in sorted(chosen, key=_by_minor))

    def _worth(
        self, card: CandidateDevice, chosen: Sequence[CandidateDevice]
    ) -> tuple[object, ...]:
        broken, links, nodes, minors = self._rank([*chosen, card])
        added = self._near[card.id] + sum(self._score[card.id, o.id] for o in chosen)
        return added, -broken, -links, -nodes, tuple(-minor for minor in minors)

    def _pair_rank(
        self, pair: Sequence[CandidateDevice]
    ) -> tuple[int, tuple[int, int, int, tuple[int, ...]]]:
        a, b = pair[0].id, pair[1].id
        return -self._score[a, b] - self._near[a] - self._near[b], self._rank(pair)

    def _rank(self, cards: Sequence[CandidateDevice]) -> tuple[int, int, int, tuple[int, ...]]:
        """Return the sort key of sets with equal score, the best first."""
        ids = {card.id for card in cards}
        broken = sum(_WEIGHTS[len(group)] for group in self._groups if group & ids)
        links = self._links[cards[0].id] if len(cards) == 1 else 0
        nodes = len({card.numa_node for card in cards})
        return broken, links, nodes, tuple(sorted(card.minor for card in cards))


def _unions(bits: Sequence[int]) -> list[int]:
    """Return the union of bits of each subset, by mask; earlier cards have higher bits."""
    unions = [0]
    for own in reversed(bits):
        unions += [union | own for union in unions]
    return unions


class DeviceSlot(msgspec.Struct, frozen=True, kw_only=True):
    """One allocatable part of a card; `number` orders the parts: (replica,) or (gi, ci)."""

    id: str
    card: str
    minor: int
    number: tuple[int, ...]


def preferred_slots(
    available: Sequence[DeviceSlot],
    required: Sequence[str],
    size: int,
    capacity: Mapping[str, int],  # slots of each card, taken ones included
    *,
    spread: bool,
    packed: bool,
) -> tuple[str, ...]:
    """Return `size` ids in the order of choice, required ones first.

    With `spread`, a card is chosen again only after every other card was chosen as often. Among
    equal cards, those with the most used slots are preferred if `packed`, else those with the
    fewest; then the smallest minor and number. Raise `TooFewDevices`.
    """
    slots = {slot.id: slot for slot in sorted(available, key=lambda slot: slot.id)}
    if size > len(slots) or size < 0:
        raise TooFewDevices
    free_now = Counter(slot.card for slot in slots.values())
    chosen = [slots.pop(name) for name in dict.fromkeys(required) if name in slots][:size]
    picked = Counter(slot.card for slot in chosen)

    stacks: dict[str, list[DeviceSlot]] = {}  # of each card, the next one last
    for slot in sorted(slots.values(), key=lambda slot: (slot.number, slot.id), reverse=True):
        stacks.setdefault(slot.card, []).append(slot)

    def order(card: str) -> tuple[int, int, int, tuple[int, ...], str]:
        used = max(0, capacity.get(card, 0) - free_now[card]) + picked[card]
        repeats = picked[card] if spread else 0
        slot = stacks[card][-1]
        return repeats, -used if packed else used, slot.minor, slot.number, slot.id

    while len(chosen) < size:
        card = min(stacks, key=order)
        chosen.append(stacks[card].pop())
        picked[card] += 1
        if not stacks[card]:
            del stacks[card]
    return tuple(slot.id for slot in chosen)
