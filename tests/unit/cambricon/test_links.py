from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from plugins.vendors.cambricon.discovery.links import find_links, group_cards, ring_pairs
from tests.captures import needs_shared
from tests.unit.cambricon import mock
from tests.unit.cambricon.cards import machine, session, stub_of, tree_of

KEYS = tuple(f"card{i}" for i in range(8))


@needs_shared
@pytest.mark.parametrize("meshes", [pytest.param([[0, 1, 2, 3], [4, 5, 6, 7]], id="V52")])
def test_cards_of_the_makers_mock_fall_into_two_meshes(
    meshes: list[list[int]], tmp_path: Path
) -> None:
    stub = stub_of(tmp_path, *mock.scenario())
    with session(stub, tree_of(tmp_path, 0)) as child:
        inventory = child.discover()
    minors = {device.key: device.minor for device in inventory.devices}
    group_minors = [[minors[key] for key in group.keys] for group in inventory.groups]
    assert group_minors == meshes
    assert {group.link_type for group in inventory.groups} == {"MLULink"}
    assert inventory.group_policy == "Prefer"
    across = {(minors[link.a], minors[link.b]) for link in inventory.links}
    assert {frozenset(pair) for pair in across} >= {frozenset((i, i + 4)) for i in range(4)}


@needs_shared
@pytest.mark.parametrize("size_2", [pytest.param([(0, 1), (2, 3), (4, 5), (6, 7)], id="V52")])
def test_pairs_with_a_ring_are_granted_together(size_2: list[tuple[int, int]]) -> None:
    pairs = ring_pairs((mock.FOLDER / "cntopo.json").read_bytes())
    table = group_cards(KEYS, (), [(KEYS[a], KEYS[b]) for a, b in pairs])
    assert [tuple(KEYS.index(key) for key in group.keys) for group in table.groups] == size_2


@needs_shared
def test_rings_and_meshes_stand_beside_each_other(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, 0)
    (tree / "rings.json").write_bytes((mock.FOLDER / "cntopo.json").read_bytes())
    stub = stub_of(tmp_path, *mock.scenario())
    with session(stub, tree, cntopo_file="/rings.json") as child:
        inventory = child.discover()
    assert [len(group.keys) for group in inventory.groups] == [2, 2, 2, 2, 4, 4]


@pytest.mark.parametrize("content", ["", "{}", "[]", "[[]]", '[{"device_num":2}]'])
def test_a_file_of_rings_that_is_none_leaves_the_links(content: str, tmp_path: Path) -> None:
    tree = tree_of(tmp_path)
    (tree / "rings.json").write_text(content)
    ends = [f"mlu.{i}.port.0 1:00000000-0000-4000-8000-00000000000{1 - i}" for i in range(2)]
    stub = stub_of(tmp_path, *machine(2), *ends)
    with session(stub, tree, cntopo_file="/rings.json") as child:
        assert [len(group.keys) for group in child.discover().groups] == [2]


def test_a_link_counts_only_if_both_ends_report_it() -> None:
    keys = {"u0": "a", "u1": "b", "u2": "c"}
    remotes = {"a": ("u1", "u1", "u2", "far"), "b": ("u0",), "c": ("u2", "")}
    assert [(x.a, x.b, x.count) for x in find_links(keys, remotes)] == [("a", "b", 1)]


def test_pairs_that_share_a_card_or_name_an_unknown_one_are_no_table() -> None:
    assert group_cards(KEYS, (), [(KEYS[0], KEYS[1]), (KEYS[1], KEYS[2])]).groups == ()
    assert group_cards(KEYS, (), [(KEYS[0], "elsewhere")]).groups == ()


@given(
    st.binary(max_size=200)
    | st.recursive(st.integers() | st.none(), st.lists).map(
        lambda value: json.dumps(value).encode()
    )
)
def test_any_text_is_pairs_or_refused(data: bytes) -> None:
    with contextlib.suppress(ParseError):
        ring_pairs(data)
