from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocation.preferred_devices import MAX_EXHAUSTIVE, best_sets, positions

Table = list[list[int]]


def exhaustive(size: int, own: list[int], pairs: Table) -> tuple[int, list[tuple[int, ...]]]:
    """Score every set by itself; the best ones in the order of their positions."""

    def score(members: tuple[int, ...]) -> int:
        between = sum(pairs[i][j] for i, j in combinations(members, 2))
        return between + sum(own[i] for i in members)

    sets = list(combinations(range(len(own)), size))
    top = max(map(score, sets))
    return top, [candidate for candidate in sets if score(candidate) == top]


def preferred(size: int, own: list[int], pairs: Table) -> tuple[int, list[tuple[int, ...]]]:
    top, sets = best_sets(size, own, lambda i, j: pairs[i][j])
    first = (len(own) + 1) // 2
    second = len(own) - first
    return top, [positions(a, first) + positions(b, second, first) for a, b in sets]


@given(st.data())
def test_the_best_sets_are_those_of_an_exhaustive_search_in_the_same_order(
    data: st.DataObject,
) -> None:
    cards = data.draw(st.integers(0, 9))
    few = st.integers(0, 3)  # so that many sets are equal
    own = data.draw(st.lists(few, min_size=cards, max_size=cards))
    row = st.lists(few, min_size=cards, max_size=cards)
    pairs = data.draw(st.lists(row, min_size=cards, max_size=cards))
    size = data.draw(st.integers(0, cards))
    assert preferred(size, own, pairs) == exhaustive(size, own, pairs)


@pytest.mark.parametrize("size", range(MAX_EXHAUSTIVE + 1))
def test_sixteen_cards_of_large_scores(size: int) -> None:
    pairs = [
        [(i * 7919 + j * 104729) % 999_960 for j in range(MAX_EXHAUSTIVE)]
        for i in range(MAX_EXHAUSTIVE)
    ]
    own = [i * i for i in range(MAX_EXHAUSTIVE)]
    assert preferred(size, own, pairs) == exhaustive(size, own, pairs)
