"""Preferred allocation against exhaustive search, on recorded hosts and captured link tables."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest

from agent.allocation.device_scores import (
    CandidateDevice,
    DevicePair,
    PairScores,
    pair_of,
    score_pairs,
)
from agent.allocation.preferred_devices import preferred_cards
from agent.app.composition import create_inputs
from agent.app.oneshot import inspect_host
from agent.clock import ManualClock
from agent.config.settings import Settings
from agent.recording.host_source import open_host
from agent.snapshot.device import DeviceKind
from tests.captures import SHARED, needs_shared

HOSTS = Path(__file__).parents[3] / "fixtures/hosts"
EIGHT = ("atlas-910b3x8", "mlu370-x4-8", "qemu-4numa-8xh100")
SIXTEEN = "atlas-a3x16"
WEIGHTS = {8: 10_000, 4: 100, 2: 1}


@functools.cache
def load_board(host: str) -> tuple[PairScores, tuple[CandidateDevice, ...]]:
    """The board of a recorded host with all its devices, and its accelerators."""
    opened = open_host(str(HOSTS / host))
    snapshot = inspect_host(create_inputs(Settings(), opened, ManualClock(), None))
    view = snapshot.devices.value
    nics = {device.info.uuid for device in view.devices if device.info.kind is DeviceKind.RDMA}
    board = score_pairs(view, snapshot.pci.value)
    return board, tuple(card for card in board.candidates if card.id not in nics)


def best(
    available: Sequence[CandidateDevice],
    fixed: Sequence[CandidateDevice],
    size: int,
    board: PairScores,
) -> set[str]:
    """Look at every set by itself, by the rules as they are written."""
    ids = {card.id for card in available}
    groups = [set(g) for g in board.groups if set(g) <= ids and len(g) in WEIGHTS]

    def rank(cards: Sequence[CandidateDevice]) -> tuple[object, ...]:
        ids = {card.id for card in cards}
        score = sum(board.score(a.id, b.id) for a, b in combinations(cards, 2))
        spoiled = sum(WEIGHTS[len(group)] for group in groups if group & ids)
        links = 0
        if size == 1:
            links = sum(n for pair, n in board.links.items() if cards[0].id in pair)
        nodes = len({card.numa_node for card in cards})
        return -score, spoiled, links, nodes, sorted(card.minor for card in cards)

    free = [card for card in available if card not in fixed]
    sets = ([*fixed, *more] for more in combinations(free, size - len(fixed)))
    return {card.id for card in min(sets, key=rank)}


def check(
    cards: Sequence[CandidateDevice], board: PairScores, fixed: Sequence[CandidateDevice] = ()
) -> None:
    for size in range(max(1, len(fixed)), len(cards) + 1):
        ids = [card.id for card in reversed(cards)]
        preferred = preferred_cards(ids, [card.id for card in fixed], size, board)
        assert set(preferred) == best(cards, fixed, size, board), size


@pytest.mark.parametrize("host", EIGHT)
def test_every_size_on_recorded_hosts_with_eight_devices(host: str) -> None:
    board, cards = load_board(host)
    assert len(cards) == 8
    check(cards, board)
    check(cards[1:], board)
    check((*cards[:3], *cards[4:]), board, fixed=(cards[5],))


def test_every_size_on_a_recorded_host_with_sixteen_devices() -> None:
    board, cards = load_board(SIXTEEN)
    assert len(cards) == 16
    check(cards, board)
    check([card for i, card in enumerate(cards) if i not in (1, 6, 9)], board, fixed=(cards[8],))


def test_dies_of_one_package_are_given_together() -> None:
    board, cards = load_board(SIXTEEN)
    assert len(cards) == 16
    preferred = preferred_cards([card.id for card in cards[1:]], [], 4, board)
    assert preferred == tuple(card.id for card in cards[2:6])
    assert preferred_cards([card.id for card in cards[1:]], [], 1, board) == (cards[1].id,)


LEVELS = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}


def tables() -> list[tuple[str, list[list[str]]]]:
    """The captured listings that tell each pair of GPUs."""
    if not SHARED.is_dir():
        return []
    text = (SHARED / "captures/topo-tables/nvidia-smi-topo.json").read_text()
    scores = []
    for table in json.loads(text)["tables"]:
        rows = {name: row for name, row in table.get("rows", {}).items() if name[:3] == "GPU"}
        if 4 <= len(rows) <= 16:
            scores.append((table["name"], [row[: len(rows)] for row in rows.values()]))
    return scores


def board_of_table(rows: list[list[str]]) -> PairScores:
    scores: dict[DevicePair, int] = {}
    links: dict[DevicePair, int] = {}
    for i, j in combinations(range(len(rows)), 2):
        level = rows[i][j]
        count = int(level[2:]) if level.startswith("NV") else 0
        links[pair_of(f"GPU-{i:02}", f"GPU-{j:02}")] = count
        near = LEVELS.get(level, 10)
        scores[pair_of(f"GPU-{i:02}", f"GPU-{j:02}")] = 100 * count + near
    cards = tuple(
        CandidateDevice(id=f"GPU-{i:02}", minor=i, numa_node=2 * i // len(rows))
        for i in range(len(rows))
    )
    return PairScores(candidates=cards, scores=scores, links=links)


@needs_shared
@pytest.mark.parametrize("rows", [pytest.param(rows, id=name) for name, rows in tables()])
def test_every_size_on_captured_listings(rows: list[list[str]]) -> None:
    board = board_of_table(rows)
    check(board.candidates, board)
    check(board.candidates[1:], board)
