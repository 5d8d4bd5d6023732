"""The partition table of NVIDIA cards from their links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.snapshot.device import DeviceLink
from agent.topology.device_groups import MAX_MINOR, LinkedCard, partition_groups

Table = dict[int, list[list[int]]]
Counts = Mapping[tuple[int, int], int]
DGX1 = {
    **dict.fromkeys(((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)), 1),
    **dict.fromkeys(((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)), 2),
}
HALVES = [[0, 1, 2, 3], [4, 5, 6, 7]]


def all_pairs(cards: int, count: int) -> dict[tuple[int, int], int]:
    return dict.fromkeys(combinations(range(cards), 2), count)


def cards_of(
    number: int, modules: Sequence[int] = (), cut: Sequence[int] = ()
) -> tuple[LinkedCard, ...]:
    return tuple(
        LinkedCard(
            key=f"card{n}",
            minor=n,
            module_id=modules[n] if modules else None,
            whole=n not in cut,
        )
        for n in range(number)
    )


def links_of(counts: Counts) -> tuple[DeviceLink, ...]:
    return tuple(
        DeviceLink(a=f"card{a}", b=f"card{b}", type="NVSwitch", count=count)
        for (a, b), count in counts.items()
    )


def table_of(cards: Sequence[LinkedCard], counts: Counts) -> Table:
    minors = {card.key: card.minor for card in cards}
    table: Table = {}
    for group in partition_groups(cards, links_of(counts)).groups:
        assert group.link_type == "NVLink"
        table.setdefault(len(group.keys), []).append([minors[key] for key in group.keys])
    return table


@pytest.mark.parametrize(
    ("cards", "counts", "table"),
    [
        pytest.param(
            cards_of(8),
            all_pairs(8, 18),
            {2: [[0, 1], [2, 3], [4, 5], [6, 7]], 4: HALVES, 8: [[*range(8)]]},
            id="V18-nvswitch",
        ),
        pytest.param(
            cards_of(4),
            all_pairs(4, 18),
            {2: [[0, 1], [2, 3]], 4: [[0, 1, 2, 3]]},
            id="V19-tray-of-four",
        ),
        pytest.param(
            cards_of(8, (2, 4, 3, 1, 7, 5, 8, 6)),
            all_pairs(8, 12),
            {2: [[0, 3], [1, 2], [4, 6], [5, 7]], 4: HALVES, 8: [[*range(8)]]},
            id="V20-modules-in-another-order",
        ),
        pytest.param(
            cards_of(4),
            {(0, 1): 4, (2, 3): 4},
            {2: [[0, 1], [2, 3]]},
            id="V21-bridges",
        ),
        pytest.param(
            cards_of(8),
            DGX1,
            {
                2: [[0, 3], [0, 4], [1, 2], [1, 5], [2, 3], [4, 7], [5, 6], [6, 7]],
                4: HALVES,
                8: [[*range(8)]],
            },
            id="V22-hybrid-cube-mesh",
        ),
        pytest.param(cards_of(3), {(1, 2): 4}, {2: [[1, 2]]}, id="V24-one-card-beside-a-bridge"),
        pytest.param(
            cards_of(8, cut=(3,)),
            all_pairs(8, 18),
            {2: [[0, 1], [4, 5], [6, 7]], 4: [[4, 5, 6, 7]], 7: [[0, 1, 2, 4, 5, 6, 7]]},
            id="V25-one-card-cut-by-mig",
        ),
    ],
)
def test_links_become_partitions(cards: Sequence[LinkedCard], counts: Counts, table: Table) -> None:
    singles = [[card.minor] for card in cards if card.whole]
    assert table_of(cards, counts) == {1: singles, **table}


def test_cards_without_links_have_no_table_v23() -> None:
    assert partition_groups(cards_of(8), ()).groups == ()


def test_modules_that_are_not_all_distinct_do_not_order_the_board() -> None:
    cards = cards_of(4, (2, 2, 1, 1))
    assert table_of(cards, all_pairs(4, 4))[2] == [[0, 1], [2, 3]]


def test_a_minor_that_the_scheduler_cannot_hold_voids_the_table() -> None:
    cards = (*cards_of(2), LinkedCard(key="far", minor=MAX_MINOR + 1))
    result = partition_groups(cards, links_of({(0, 1): 4}))
    assert (result.groups, [p.reason for p in result.problems]) == ((), ["MinorTooLarge"])


def test_the_bandwidth_is_that_of_the_weakest_pair() -> None:
    result = partition_groups(cards_of(8), links_of(all_pairs(8, 18)), 26_562_000_000)
    speeds = {len(g.keys): g.bandwidth_bytes_per_s for g in result.groups}
    assert speeds == {1: None, 2: 478_116_000_000, 4: 478_116_000_000, 8: 478_116_000_000}
    mixed = partition_groups(cards_of(8), links_of(DGX1), 25_000_000_000).groups
    by_size = {len(g.keys): g.bandwidth_bytes_per_s for g in mixed}
    assert by_size == {1: None, 2: 50_000_000_000, 4: 25_000_000_000, 8: None}


def test_an_island_too_tangled_to_list_is_one_partition_with_a_warning() -> None:
    ring = {(n, n + 1): 1 for n in range(19)}
    result = partition_groups(cards_of(20), links_of(ring))
    assert [len(g.keys) for g in result.groups] == [1] * 20 + [20]
    assert [p.reason for p in result.problems] == ["PartitionsUnlisted"]


@given(
    st.integers(1, 16),
    st.dictionaries(st.tuples(st.integers(0, 15), st.integers(0, 15)), st.integers(-2, 4)),
    st.sets(st.integers(0, 15)),
)
def test_any_links_give_partitions_of_whole_cards_in_order(
    number: int, counts: dict[tuple[int, int], int], cut: set[int]
) -> None:
    cards = cards_of(number, cut=sorted(cut))
    table = table_of(cards, counts)
    whole = {card.minor for card in cards if card.whole}
    assert not table or table[1] == [[minor] for minor in sorted(whole)]
    for size, rows in table.items():
        assert rows == sorted(rows)
        assert len({tuple(row) for row in rows}) == len(rows)
        for row in rows:
            assert len(row) == size
            assert row == sorted(row)
            assert set(row) <= whole
