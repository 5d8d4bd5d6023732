"""Which published partition a pod gets: score, bandwidth, and what stays whole."""

from __future__ import annotations

import json

import pytest

from plugins.scheduler.devices.device_table import (
    HOPPER_PARTITIONS,
    PartitionTable,
    built_in_partitions,
    decode_partitions,
)
from plugins.scheduler.devices.partitions import choose_partition

GIB = 1 << 30


def table(*groups: tuple[list[int], object], bandwidth: str = "200Gi") -> PartitionTable:
    """Return a table of pairs: minors and score."""
    by_size: dict[str, list[dict[str, object]]] = {}
    for minors, score in groups:
        entry = {"minors": minors, "allocationScore": score, "ringBusBandwidth": bandwidth}
        by_size.setdefault(str(len(minors)), []).append(entry)
    decoded = decode_partitions(json.dumps(by_size))
    assert decoded is not None
    return decoded


def choose(
    partitions: PartitionTable, size: int, *used: int, **options: object
) -> tuple[int, ...] | None:
    def is_free(minor: int) -> bool:
        return minor not in used

    chosen = choose_partition(partitions, size, is_free, is_free, **options)  # type: ignore[arg-type]  # of a row
    return None if chosen is None else chosen.minors


SCORED = table(([0, 1], 1), ([2, 3], 3), ([4, 5], 2))


def test_the_best_score_comes_first_unless_koordinator_is_imitated() -> None:
    assert choose(SCORED, 2) == (2, 3)
    assert choose(SCORED, 2, 2) == (4, 5)
    assert choose(SCORED, 2, lowest_score_first=True) == (0, 1)


def test_a_restricted_pod_gets_the_best_score_or_nothing() -> None:
    assert choose(SCORED, 2, best_score_only=True) == (2, 3)
    assert choose(SCORED, 2, 3, best_score_only=True) is None


def test_a_score_is_read_as_a_number_and_as_text() -> None:
    assert choose(table(([0], "1"), ([1], 2)), 1) == (1,)
    assert choose(table(([0], 10), ([1], "9")), 1) == (0,)


def test_a_partition_of_less_bandwidth_than_the_pod_names_is_not_taken() -> None:
    slow = table(([0, 1], 1), bandwidth="100Gi")
    assert choose(slow, 2, bandwidth=200 * GIB) is None
    assert choose(slow, 2, bandwidth=100 * GIB) == (0, 1)
    assert choose(HOPPER_PARTITIONS, 2, bandwidth=1) is None  # whose bandwidth is not known


@pytest.mark.parametrize(
    ("size", "used", "expected"),
    [
        (1, (0,), (1,)),  # the other card of the pair that is broken already
        (1, (0, 1), (2,)),  # the pair beside it, so that the other four stay whole
        (2, (0,), (2, 3)),
        (2, (4, 5, 6), (0, 1)),
        (2, (4,), (6, 7)),
        (4, (5,), (0, 1, 2, 3)),
        (8, (), tuple(range(8))),
        (8, (7,), None),
    ],
)
def test_of_equal_partitions_the_one_is_taken_that_leaves_larger_ones_whole(
    size: int, used: tuple[int, ...], expected: tuple[int, ...] | None
) -> None:
    assert choose(HOPPER_PARTITIONS, size, *used) == expected


@pytest.mark.parametrize(
    ("vendor", "model", "has_table"),
    [
        ("nvidia", "H100", True),
        ("nvidia", "H100-80GB-HBM3", True),
        ("", "NVIDIA-H800-SXM", True),
        ("nvidia", "H20-141GB", True),
        ("nvidia", "H200", False),
        ("nvidia", "A100-SXM4-80GB", False),
        ("huawei", "H100", False),
    ],
)
def test_hopper_cards_have_a_table_by_the_first_word_of_their_model(
    vendor: str, model: str, has_table: bool
) -> None:
    labels = {"node.koordinator.sh/gpu-vendor": vendor, "node.koordinator.sh/gpu-model": model}
    assert (built_in_partitions(labels) is not None) is has_table


@pytest.mark.parametrize("minors", [[0], [0, 1, 2], [0, 0], []])
def test_a_group_that_has_another_number_of_cards_than_its_size_is_left_out(
    minors: list[int],
) -> None:
    decoded = decode_partitions(json.dumps({"2": [{"minors": minors}, {"minors": [4, 5]}]}))
    assert decoded is not None
    assert [one.minors for one in decoded[2]] == [(4, 5)]
