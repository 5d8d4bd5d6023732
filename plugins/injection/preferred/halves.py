"""The best of all sets of a size, found without looking at each one by itself.

The cards are cut in two halves of at most eight. All subsets of the second half are one vector of
scores, a long integer with a lane for each; what one card of the first half adds to each of them is
another. So a subset of the first half costs one addition, and the largest lane is its best partner:
16 cards have 12870 sets of eight, found with 256 additions.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from sys import byteorder
from typing import Final

MOST = 16  # cards
_FORMAT: Final = "Q"  # of a lane; a sum of scores is far below

Members = tuple[int, ...]  # positions, ascending


def equals(
    size: int, own: Sequence[int], pair: Callable[[int, int], int]
) -> tuple[int, Iterator[tuple[int, int]]]:
    """Return the greatest score of a set of that size, and all sets that have it.

    Cards are the positions of `own`, which is what each adds alone; `pair(i, j)` with i < j is what
    two add together; none is negative. A set is two masks, of the first and of the second half, in
    which earlier cards have higher bits: of equal sets that with the smallest positions comes
    first.
    """
    first = (len(own) + 1) // 2
    second = len(own) - first
    groups = _by_size(second)
    order = [mask for group in groups for mask in group]
    lanes = _Lanes(first, second, order, own, pair)
    bounds, start = [], 0
    for group in groups:
        bounds.append((start, start + len(group)))
        start += len(group)
    top = -1
    found: list[tuple[int, memoryview[int], Sequence[int]]] = []
    for mask in range((1 << first) - 1, -1, -1):
        rest = size - mask.bit_count()
        if not 0 <= rest <= second:
            continue
        low, high = bounds[rest]
        scores = lanes.of(mask)[low:high]
        best = max(scores)
        if best > top:
            top, found = best, []
        if best == top:
            found.append((mask, scores, groups[rest]))
    return top, _expanded(top, found)


def _expanded(
    top: int, found: Sequence[tuple[int, memoryview[int], Sequence[int]]]
) -> Iterator[tuple[int, int]]:
    for mask, scores, group in found:
        for score, other in zip(scores, group, strict=True):
            if score == top:
                yield mask, other


def _by_size(cards: int) -> list[list[int]]:
    groups: list[list[int]] = [[] for _ in range(cards + 1)]
    for mask in range((1 << cards) - 1, -1, -1):
        groups[mask.bit_count()].append(mask)
    return groups


def positions(mask: int, cards: int, start: int = 0) -> Members:
    """Return the cards of a mask of a half with so many cards, of which the first is `start`."""
    return tuple(start + i for i in range(cards) if mask >> (cards - 1 - i) & 1)


class _Lanes:
    """The vectors: for each subset of the first half the scores with all subsets of the second."""

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
        ones = _packed([1] * len(order), order)
        packed = [_packed(_scores(others, own, pair), order)]
        for i in reversed(range(first)):
            row = _packed(_sums(own[i], [pair(i, j) for j in others]), order)
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
        sums += [known + value for known in sums]
    return sums


def _packed(values: Sequence[int], order: Sequence[int]) -> int:
    return int.from_bytes(array(_FORMAT, [values[mask] for mask in order]), byteorder)
