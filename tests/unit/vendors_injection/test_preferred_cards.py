from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocation.device_scores import (
    CandidateDevice,
    DevicePair,
    PairScores,
    pair_of,
    score_pairs,
)
from agent.allocation.preferred_devices import TooFewDevices, preferred_cards
from agent.snapshot.device import DeviceLink
from agent.snapshot.inventory import DeviceGroup
from agent.snapshot.node import DeviceView
from agent.snapshot.pci import PciTree
from tests.factory import gpu

NVSWITCH = 18


def pcie(a: int, b: int) -> int:
    """Pairs (2k, 2k+1) PXB, the same memory node NODE, else SYS."""
    return 40 if a // 2 == b // 2 else 20 if a // 4 == b // 4 else 10


def board(
    links: int = NVSWITCH, pci: dict[tuple[int, int], int] | None = None, cards: int = 8
) -> PairScores:
    pairs = list(itertools.combinations(range(cards), 2))
    near = {pair: (pci or {}).get(pair, pcie(*pair)) for pair in pairs}
    groups = [
        tuple(str(first + i) for i in range(size))
        for size in (2, 4, 8)
        for first in range(0, cards, size)
    ]
    return PairScores(
        candidates=tuple(
            CandidateDevice(id=str(i), minor=i, numa_node=i // 4) for i in range(cards)
        ),
        scores={pair_of(str(a), str(b)): 100 * links + near[a, b] for a, b in pairs},
        links={pair_of(str(a), str(b)): links for a, b in pairs},
        groups=tuple(groups) if links else (),
    )


def score(ids: Iterable[str], on: PairScores) -> int:
    return sum(on.score(a, b) for a, b in itertools.combinations(ids, 2))


PIX = {(0, 2): 10, (2, 3): 50, (0, 3): 20, (0, 1): 50}


@pytest.mark.parametrize(
    ("available", "required", "size", "on", "expected", "total"),
    [
        pytest.param("01234567", "", 2, board(), "01", 1840, id="V59"),
        pytest.param("1234567", "", 2, board(), "23", 1840, id="V60"),
        pytest.param("1234567", "", 1, board(), "1", None, id="V61"),
        pytest.param("02456", "", 2, board(), "45", None, id="V62"),
        pytest.param("01234567", "5", 2, board(), "45", None, id="V63"),
        pytest.param("01234567", "", 4, board(), "0123", 10960, id="V64"),
        pytest.param("0235", "", 2, board(0, {(2, 3): 50}), "23", 50, id="V65"),
        ("01234567", "", 8, board(), "01234567", None),
        ("01234567", "", 0, board(), "", 0),
        ("7654", "", 1, board(0), "4", None),
    ],
)
def test_the_best_set_wins(
    available: str, required: str, size: int, on: PairScores, expected: str, total: int | None
) -> None:
    preferred = preferred_cards(list(available), list(required), size, on)
    assert preferred == tuple(expected)
    assert total is None or score(preferred, on) == total


def test_a_single_card_with_the_fewest_links_is_spent_first() -> None:
    links: dict[DevicePair, int] = {("0", "1"): 4}
    on = PairScores(
        candidates=tuple(CandidateDevice(id=str(i), minor=i) for i in range(3)),
        scores={},
        links=links,
    )
    assert preferred_cards(["0", "1", "2"], [], 1, on) == ("2",)


def test_of_equal_sets_the_one_on_fewer_memory_nodes_wins() -> None:
    cards = tuple(CandidateDevice(id=str(i), minor=i, numa_node=(0, 1, 1)[i]) for i in range(3))
    assert preferred_cards(
        ["0", "1", "2"], [], 2, PairScores(candidates=cards, scores={}, links={})
    ) == (
        "1",
        "2",
    )


def test_too_few_cards_are_the_only_failure() -> None:
    with pytest.raises(TooFewDevices, match="not enough available devices to satisfy allocation"):
        preferred_cards(["0", "1", "1"], [], 3, board())
    assert preferred_cards(["0", "lost"], ["gone"], 2, board()) == ("0", "lost")


def test_more_than_sixteen_cards_are_chosen_step_by_step() -> None:
    on = board(cards=20)
    everything = [str(i) for i in range(20)]
    # the last four are in no group of eight, which others can then have whole
    assert preferred_cards(everything, [], 4, on) == ("16", "17", "18", "19")
    assert preferred_cards(everything, ["9"], 2, on) == ("8", "9")
    assert preferred_cards(everything, ["9"], 1, on) == ("9",)
    assert preferred_cards(everything[1:], [], 1, on) == ("1",)
    assert len(preferred_cards(everything, [], 19, on)) == 19


@given(
    st.lists(st.sampled_from([str(i) for i in range(10)]), unique=True, max_size=9),
    st.integers(0, 9),
    st.randoms(),
)
def test_any_request_that_can_be_met_is_met_the_same_way_in_any_order(
    available: list[str], size: int, chance: random.Random
) -> None:
    on = board()
    required = available[: size // 2]
    shuffled = list(available)
    chance.shuffle(shuffled)
    if size > len(available):
        with pytest.raises(TooFewDevices):
            preferred_cards(available, required, size, on)
        return
    preferred = preferred_cards(available, required, size, on)
    assert len(set(preferred)) == size
    assert set(required) <= set(preferred) <= set(available)
    assert preferred_cards(shuffled, required, size, on) == preferred


def test_a_board_counts_links_and_places_of_the_view() -> None:
    cards = tuple(gpu(i) for i in range(4))
    a, b, c, _ = (card.info.uuid or "" for card in cards)
    link = DeviceLink(a=cards[0].key, b=cards[1].key, type="NVLink", count=4)
    hccs = DeviceLink(a=cards[0].key, b=cards[2].key, type="HCCS", count=1)
    group = DeviceGroup(keys=(cards[0].key, cards[1].key), link_type="NVLink")
    incomplete = DeviceGroup(keys=(cards[0].key, "gone"), link_type="NVLink")
    view = DeviceView(devices=cards, links=(link, hccs), groups=(group, incomplete))
    on = score_pairs(view, PciTree())
    assert on.links[pair_of(a, b)] == 4
    assert on.score(a, b) == 400 + 20  # the same memory node
    assert on.score(a, c) == 100 + 20
    assert on.score(b, "unknown") == 0
    assert on.groups == ((a, b),)
