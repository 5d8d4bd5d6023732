"""Groups from told links: the largest cliques, if they are disjoint and cover what is linked."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.topology.device_groups import LINKS_WITHOUT_GROUPS, clique_groups

Pairs = list[tuple[int, int]]
MLU_MESHES = [
    *combinations(range(4), 2),
    *combinations(range(4, 8), 2),
    (0, 4),
    (1, 5),
    (2, 6),
    (3, 7),
]


def grouped(number: int, pairs: Iterable[tuple[int, int]]) -> tuple[list[list[int]], list[str]]:
    keys = [f"c{n}" for n in range(number)]
    result = clique_groups(keys, [(f"c{a}", f"c{b}") for a, b in pairs], "HCCS")
    assert {g.link_type for g in result.groups} <= {"HCCS"}
    return [[keys.index(key) for key in g.keys] for g in result.groups], [
        p.reason for p in result.problems
    ]


@pytest.mark.parametrize(
    ("number", "pairs", "groups"),
    [
        pytest.param(8, list(combinations(range(8), 2)), [[*range(8)]], id="33-one-mesh"),
        pytest.param(
            16,
            [*combinations(range(8), 2), *combinations(range(8, 16), 2)],
            [[*range(8)], [*range(8, 16)]],
            id="34-two-meshes",
        ),
        pytest.param(16, list(combinations(range(16), 2)), [[*range(16)]], id="36-all-dies"),
        pytest.param(
            16,
            [(n, n + 1) for n in range(0, 16, 2)],
            [[n, n + 1] for n in range(0, 16, 2)],
            id="36-dies-of-a-package",
        ),
        pytest.param(8, MLU_MESHES, [[0, 1, 2, 3], [4, 5, 6, 7]], id="52-meshes-joined-by-rungs"),
        pytest.param(3, [(1, 2)], [[1, 2]], id="a-single-device-is-in-no-group"),
        pytest.param(4, [], [], id="37-no-links"),
        pytest.param(40, list(combinations(range(40), 2)), [[*range(40)]], id="a-large-mesh"),
    ],
)
def test_disjoint_cliques_are_the_groups(
    number: int, pairs: Pairs, groups: list[list[int]]
) -> None:
    assert grouped(number, pairs) == (groups, [])


@pytest.mark.parametrize(
    ("number", "pairs"),
    [
        pytest.param(4, [(0, 1), (1, 2), (2, 3)], id="38-a-chain"),
        pytest.param(5, [(0, 1), (2, 3), (3, 4)], id="a-pair-beside-a-chain"),
        pytest.param(4, [(0, 1), (1, 2), (0, 2), (2, 3)], id="a-triangle-with-a-tail"),
        pytest.param(40, [(n, n + 1) for n in range(39)], id="too-many-to-search"),
        pytest.param(
            30, [(a, b) for a, b in combinations(range(30), 2) if a // 3 != b // 3], id="the-worst"
        ),
    ],
)
def test_overlapping_cliques_leave_no_table_and_a_warning(number: int, pairs: Pairs) -> None:
    assert grouped(number, pairs) == ([], [LINKS_WITHOUT_GROUPS])


def test_repeated_links_and_links_to_strangers_change_nothing() -> None:
    pairs = [(a, b) for a, b in product(range(4), range(4))]
    assert grouped(3, pairs) == ([[0, 1, 2]], [])


@given(st.integers(0, 12), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11))))
def test_any_links_give_disjoint_groups_or_a_reason(number: int, pairs: Pairs) -> None:
    groups, reasons = grouped(number, pairs)
    members = [member for group in groups for member in group]
    assert len(members) == len(set(members))
    assert not (groups and reasons)
    linked = {n for a, b in pairs if a != b and max(a, b) < number for n in (a, b)}
    assert reasons or set(members) == linked
