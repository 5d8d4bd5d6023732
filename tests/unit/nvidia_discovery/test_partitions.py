"""The partition table and NVLink islands, from the driver's links."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.snapshot.inventory import Inventory
from tests.fault.nvml_stub import Stub, gpu, on_tree
from tests.unit.nvidia.conftest import BUSES

SYSTEM = "system driver=570.124.06 cuda=12080"
MODULES = (2, 4, 3, 1, 7, 5, 8, 6)
SWITCHED = [f"link {i} {n} state=1 type=2" for i in range(8) for n in range(18)]
SPEEDS = [f"field {i} 90 u32 26562" for i in range(8)]


def cards(count: int = 8, modules: tuple[int, ...] = (), cut: int = -1) -> list[str]:
    return [
        gpu(i, BUSES[i], module=modules[i] if modules else i, migmode=int(i == cut))
        for i in range(count)
    ]


def direct(*joined: tuple[int, int, int]) -> list[str]:
    """Return the links of pairs (card, card, number of links)."""
    lines: list[str] = []
    used = [0] * 8
    for a, b, count in joined:
        for _ in range(count):
            for one, other in ((a, b), (b, a)):
                remote = f"0000{BUSES[other].upper()}"
                lines.append(f"link {one} {used[one]} state=1 type=0 remote={remote}")
                used[one] += 1
    return lines


def table(inventory: Inventory) -> dict[int, list[list[int]]]:
    minors = {d.key: d.minor if d.minor is not None else -1 for d in inventory.devices}
    rows: dict[int, list[list[int]]] = {}
    for group in inventory.groups:
        rows.setdefault(len(group.keys), []).append([minors[key] for key in group.keys])
    return rows


def discover_links(stub: Stub, tree: Path, lines: list[str], **settings: object) -> Inventory:
    stub.play(SYSTEM, *lines)
    with on_tree(stub, tree, **settings) as child:
        return child.discover()


HALVES = [[0, 1, 2, 3], [4, 5, 6, 7]]
SINGLES = [[n] for n in range(8)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(
            [*cards(), *SWITCHED],
            {
                1: SINGLES,
                2: [[0, 1], [2, 3], [4, 5], [6, 7]],
                4: HALVES,
                8: [[*range(8)]],
            },
            id="V18",
        ),
        pytest.param(
            [*cards(modules=MODULES), *SWITCHED],
            {1: SINGLES, 2: [[0, 3], [1, 2], [4, 6], [5, 7]], 4: HALVES, 8: [[*range(8)]]},
            id="V20",
        ),
        pytest.param(
            [*cards(), *direct((0, 1, 4), (2, 3, 4))],
            {1: SINGLES, 2: [[0, 1], [2, 3]]},
            id="V21",
        ),
        pytest.param(cards(), {}, id="V23"),
        pytest.param(
            [*cards(cut=3), *SWITCHED],
            {
                1: [[n] for n in range(8) if n != 3],
                2: [[0, 1], [4, 5], [6, 7]],
                4: [[4, 5, 6, 7]],
                7: [[0, 1, 2, 4, 5, 6, 7]],
            },
            id="V25",
        ),
        pytest.param(
            [*cards(), *SWITCHED, *(f"fabric {i} state=3 status=0" for i in range(8))],
            {1: SINGLES, 2: [[0, 1], [2, 3], [4, 5], [6, 7]], 4: HALVES, 8: [[*range(8)]]},
            id="V27",
        ),
    ],
)
def test_links_become_the_scheduler_s_table(
    stub: Stub, tree: Path, lines: list[str], expected: dict[int, list[list[int]]]
) -> None:
    inventory = discover_links(stub, tree, lines)
    assert table(inventory) == expected
    assert inventory.group_policy == ("Prefer" if expected else None)
    assert {g.bandwidth_bytes_per_s for g in inventory.groups} <= {None}


def test_bandwidth_and_policy_come_by_setting(stub: Stub, tree: Path) -> None:
    lines = [*cards(), *SWITCHED, *SPEEDS]
    inventory = discover_links(
        stub, tree, lines, partition_bandwidth=True, partition_policy="Honor"
    )
    assert inventory.group_policy == "Honor"
    assert {g.bandwidth_bytes_per_s for g in inventory.groups if len(g.keys) > 1} == {
        478_116_000_000
    }


def test_a_lost_card_keeps_its_place_in_the_table(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *cards(), *SWITCHED)
    with on_tree(stub, tree) as child:
        before = child.discover()
        stub.play(SYSTEM, *cards(), *SWITCHED, "lost 2")
        after = child.discover()
    assert table(after) == table(before)
    assert after.devices[2].health.reason == "GpuLost"


def test_each_card_is_labelled_with_its_island(stub: Stub, tree: Path) -> None:
    inventory = discover_links(stub, tree, [*cards(), *direct((0, 1, 4), (2, 3, 4))])
    islands = [dict(d.labels).get("xpu-agent.io/nvlink-island") for d in inventory.devices]
    assert islands == ["0", "0", "2", "2", None, None, None, None]


def test_links_that_two_cards_count_differently_are_reported_v26(stub: Stub, tree: Path) -> None:
    remote = f"0000{BUSES[1].upper()}"
    inventory = discover_links(
        stub, tree, [*cards(), *direct((0, 1, 3)), f"link 0 3 state=1 type=0 remote={remote}"]
    )
    assert [link.count for link in inventory.links] == [3]
    assert [p.reason for p in inventory.problems] == ["NVLinkAsymmetric"]
