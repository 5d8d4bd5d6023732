from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import pytest
from msgspec.structs import replace

from agent.objects.device import partition_table
from agent.snapshot.node import DeviceView
from plugins.vendors.ascend.discovery.descriptions import ChipDescription
from plugins.vendors.ascend.discovery.links import LinkTopology, LinkTypes, derive_links
from plugins.vendors.ascend.library.facts import ChipFacts
from tests.factory import gpu
from tests.unit.ascend.conftest import Machine


def chips(count: int, family: str, board: int | None = None) -> list[ChipDescription]:
    return [
        ChipDescription(
            card=phy // 2 if family == "A3" else phy,
            number=phy % 2 if family == "A3" else 0,
            logic=phy,
            phy=phy,
            facts=ChipFacts(name="x", board_id=board),
            bus_id=f"0000:{phy:02x}:00.0",
            uuid=f"die-{phy}",
            family=family,
        )
        for phy in range(count)
    ]


def links_between(pairs: list[tuple[int, int]], kind: str = "HCCS") -> LinkTypes:
    return {(f"0000:{a:02x}:00.0", f"0000:{b:02x}:00.0"): kind for a, b in pairs}


def table(topology: LinkTopology) -> dict[str, list[list[int]]]:
    """Return the groups as the annotation has them: size to lists of numbers."""
    groups: dict[str, list[list[int]]] = {}
    for group in topology.groups:
        minors = [int(key.split(":")[1], 16) for key in group.keys]
        groups.setdefault(str(len(minors)), []).append(minors)
    return groups


MESH = list(combinations(range(8), 2))
TWO_MESHES = [*MESH, *((a + 8, b + 8) for a, b in MESH)]
DIES = {**links_between(list(combinations(range(16), 2)), "HCCS_SW")}
DIES |= links_between([(a, a + 1) for a in range(0, 16, 2)], "SIO")
PAIRS = [[a, a + 1] for a in range(0, 16, 2)]
ALL = list(range(16))


def combined(cards: Sequence[int]) -> dict[str, list[list[int]]]:
    """Return the rows of all combinations of these cards, by number of dies."""
    rows: dict[str, list[list[int]]] = {}
    for count in range(1, len(cards) + 1):
        for members in combinations(cards, count):
            rows.setdefault(str(2 * count), []).append(
                [die for card in members for die in (2 * card, 2 * card + 1)]
            )
    return rows


@pytest.mark.parametrize(
    ("topology", "groups", "policy"),
    [
        pytest.param(
            derive_links(chips(8, "910B"), links_between(MESH), None),
            {"8": [ALL[:8]]},
            "Prefer",
            id="E33",
        ),
        pytest.param(
            derive_links(chips(16, "910B"), links_between(TWO_MESHES), None),
            {"8": [ALL[:8], ALL[8:]]},
            "Prefer",
            id="E34",
        ),
        pytest.param(
            derive_links(chips(8, "910A"), None, None),
            {"4": [[0, 1, 2, 3], [4, 5, 6, 7]], "8": [ALL[:8]]},
            "Prefer",
            id="E35",
        ),
        pytest.param(derive_links(chips(16, "A3"), DIES, 0), combined(range(8)), "Honor", id="E36"),
        pytest.param(
            derive_links(chips(8, "910B", 0x3C), links_between(MESH), None), {}, None, id="E37"
        ),
        pytest.param(
            derive_links(chips(4, "910B"), links_between([(0, 1), (1, 2), (2, 3)]), None),
            {},
            None,
            id="E38",
        ),
        pytest.param(
            derive_links(chips(16, "A3"), None, None),
            combined(range(8)),
            "Honor",
            id="A3 when nobody tells",
        ),
        pytest.param(
            derive_links(chips(13, "A3"), None, None),
            combined(range(6)),
            "Honor",
            id="A3 with a lone die and cards missing",
        ),
        pytest.param(
            derive_links(chips(2, "A3"), None, 0), {"2": PAIRS[:1]}, "Honor", id="one A3 card"
        ),
        pytest.param(
            derive_links(chips(16, "A3"), DIES, 1),
            {"2": PAIRS, "16": [ALL]},
            "Prefer",
            id="dies may go alone",
        ),
        pytest.param(
            derive_links(chips(16, "910B"), None, None),
            {"8": [ALL[:8], ALL[8:]]},
            "Prefer",
            id="910B when nobody tells",
        ),
        pytest.param(
            derive_links(chips(7, "910A"), None, None), {"4": [[0, 1, 2, 3]]}, "Prefer", id="7"
        ),
        pytest.param(derive_links(chips(3, "910A"), None, None), {}, None, id="a few cards"),
        pytest.param(derive_links(chips(2, "310P"), None, None), {}, None, id="310P over PCIe"),
        pytest.param(
            derive_links([*chips(2, "910B"), *chips(1, "310P")], None, None), {}, None, id="mixed"
        ),
    ],
)
def test_links_make_groups_and_a_policy(
    topology: LinkTopology, groups: dict[str, list[list[int]]], policy: str | None
) -> None:
    assert table(topology) == groups
    assert topology.policy == policy


def test_rows_of_all_combinations_of_cards_are_as_many_as_the_vector_says() -> None:
    table_rows = table(derive_links(chips(16, "A3"), DIES, 0))
    counts = {size: len(rows) for size, rows in table_rows.items()}
    assert counts == {
        "2": 8,
        "4": 28,
        "6": 56,
        "8": 70,
        "10": 56,
        "12": 28,
        "14": 8,
        "16": 1,
    }


def test_aligned_blocks_of_cards_are_distinguished_from_other_combinations() -> None:
    topology = derive_links(chips(16, "A3"), DIES, 0)
    aligned = table(replace(topology, groups=tuple(g for g in topology.groups if g.aligned)))
    fours = [[*range(at, at + 4)] for at in range(0, 16, 4)]
    assert aligned == {
        "2": PAIRS,
        "4": fours,
        "6": [ALL[:6], ALL[8:14]],
        "8": [ALL[:8], ALL[8:]],
        "10": [ALL[:10]],
        "12": [ALL[:12]],
        "14": [ALL[:14]],
        "16": [ALL],
    }


def test_more_cards_than_a_table_holds_have_aligned_blocks_and_other_sizes_pass() -> None:
    few, many = derive_links(chips(18, "A3"), None, 0), derive_links(chips(20, "A3"), None, 0)
    assert (few.policy, many.policy) == ("Honor", "Prefer")
    assert (len(few.groups), few.problems) == (511, ())
    assert all(group.aligned for group in many.groups)
    assert len(table(many)["8"]) == 2
    assert [problem.reason for problem in many.problems] == ["PartitionsUnlisted"]
    minors = range(18)
    devices = tuple(gpu(0, bus_id=f"0000:{phy:02x}:00.0", minor=phy) for phy in minors)
    text = partition_table(DeviceView(groups=few.groups), devices)
    assert 32 * 1024 < len(text) < 64 * 1024


def test_links_that_form_no_groups_are_reported() -> None:
    topology = derive_links(chips(4, "910B"), links_between([(0, 1), (1, 2), (2, 3)]), None)
    assert [problem.reason for problem in topology.problems] == ["LinksWithoutGroups"]
    assert len(topology.links) == 3


def test_pairs_of_dies_are_joined_by_their_own_link() -> None:
    topology = derive_links(chips(16, "A3"), DIES, 0)
    kinds = {group.link_type for group in topology.groups if len(group.keys) == 2}
    assert kinds == {"SIO"}
    assert {link.type for link in topology.links} == {"SIO", "HCCS"}


def test_links_come_from_the_driver(b3: Machine) -> None:
    with b3.session() as child:
        inventory = child.discover()
    assert len(inventory.links) == 28
    assert [len(group.keys) for group in inventory.groups] == [8]
    assert inventory.group_policy == "Prefer"


def test_links_are_read_once_and_stay_while_a_chip_is_silent(b3: Machine) -> None:
    with b3.session() as child:
        first = child.discover()
        calls = b3.stub.counts()["dcmi_get_topo_info_by_device_id"]
        b3.stub.add("call.*.3.0.ret -8012")
        second = child.discover()
    assert calls == 28
    assert b3.stub.counts()["dcmi_get_topo_info_by_device_id"] == calls
    assert second.groups == first.groups
    assert second.links == first.links


def test_the_driver_of_a_super_node_reports_groups_and_policy(a3: Machine) -> None:
    with a3.session() as child:
        inventory = child.discover()
    sizes = Counter(len(group.keys) for group in inventory.groups)
    assert sizes == {2: 8, 4: 28, 6: 56, 8: 70, 10: 56, 12: 28, 14: 8, 16: 1}
    assert inventory.group_policy == "Honor"
    a3.stub.add("die_policy 1")
    with a3.session() as child:
        inventory = child.discover()
    assert [len(group.keys) for group in inventory.groups] == [2] * 8 + [16]
    assert inventory.group_policy == "Prefer"


def test_a_driver_that_knows_no_links_leaves_it_to_the_family(b3: Machine) -> None:
    lines = b3.stub.scenario.read_text().splitlines()
    b3.stub.play(*(line for line in lines if not line.startswith("topo.")))
    with b3.session() as child:
        inventory = child.discover()
    assert [len(group.keys) for group in inventory.groups] == [8]


def test_a_link_that_was_missing_for_a_moment_is_read_again(b3: Machine) -> None:
    b3.stub.add("call.dcmi_get_topo_info_by_device_id.3.0.ret -8010")
    with b3.session() as child:
        first = child.discover()
        b3.stub.add("call.dcmi_get_topo_info_by_device_id.3.0.ret")
        second = child.discover()
    assert len(first.links) < 28
    assert len(second.links) == 28
    assert [len(group.keys) for group in second.groups] == [8]
