"""The picture: everything is in it, inside its frame, told by colour and by sign."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.snapshot.device import DeviceLink, HealthState
from agent.web.page.html import HEALTH_SIGNS
from agent.web.page.svg import topology_svg
from agent.web.page.svg_layout import MAX_DEVICES, PANEL_WIDTH, layout_picture, linked_groups
from tests import factory
from tests.unit.web.view import HOSTILE, eight_cards

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("columns", [1, 2, 4])
def test_every_device_has_a_card_inside_its_memory_node_panel(columns: int) -> None:
    layout = layout_picture(eight_cards(), columns)
    cards = [(panel, card) for panel in layout.panels for card in panel.boxes]
    assert len(cards) == 12
    for panel, card in cards:
        assert panel.x <= card.x
        assert card.x + card.width <= panel.x + PANEL_WIDTH
        assert panel.y <= card.y
        assert card.y < panel.y + panel.height
        assert panel.x + PANEL_WIDTH <= layout.width
        assert panel.y + panel.height <= layout.height


def test_no_two_cards_overlap() -> None:
    cards = [card for panel in layout_picture(eight_cards(), 2).panels for card in panel.boxes]
    places = {(card.x > PANEL_WIDTH, round(card.y)) for card in cards}
    assert len(places) == len(cards)


def test_a_failed_card_shows_colour_sign_and_reason() -> None:
    picture = topology_svg(eight_cards())
    assert 'class="failed"' in picture
    assert f">{HEALTH_SIGNS['failed']}</text>" in picture
    assert "Xid79" in picture


def test_every_health_state_has_a_sign_of_its_own() -> None:
    states = {state.value for state in HealthState} | {"unmanaged"}
    assert set(HEALTH_SIGNS) == states
    assert len(set(HEALTH_SIGNS.values())) == len(states)


def test_linked_cards_hang_on_one_bar() -> None:
    layout = layout_picture(eight_cards(), 4)
    assert [fabric.text for fabric in layout.link_bars] == [
        "NVSwitch: 8 devices, 18 links, every pair"
    ]


def test_islands_are_the_connected_components() -> None:
    links = tuple(DeviceLink(a=a, b=b, type="NVLink", count=1) for a, b in ("cd", "ab", "bc", "yz"))
    assert [sorted(members) for members, _ in linked_groups(links)] == [list("abcd"), list("yz")]


def test_equal_snapshots_give_equal_bytes() -> None:
    assert topology_svg(eight_cards()) == topology_svg(eight_cards())


def test_a_host_without_devices_is_drawn_with_its_memory_nodes() -> None:
    picture = topology_svg(factory.snapshot(devices=()))
    assert "no accelerator or RDMA device" in picture
    ET.fromstring(picture)


def test_devices_without_a_known_node_come_last() -> None:
    card = factory.gpu(0)
    lost = replace(card, place=replace(card.place, numa_node=-1))
    layout = layout_picture(factory.snapshot(devices=(lost, factory.gpu(1))), 4)
    assert layout.panels[-1].title == "NUMA unknown"
    assert [c.key for c in layout.panels[-1].boxes] == [lost.key]


def test_more_devices_than_fit_are_counted() -> None:
    card = factory.gpu(0)
    many = tuple(
        replace(card, info=replace(card.info, minor=i, bus_id=f"0000:00:{i:04x}"))
        for i in range(MAX_DEVICES + 7)
    )
    assert "and 7 devices more" in topology_svg(factory.snapshot(devices=many))


@given(text=st.text(max_size=60) | st.just(HOSTILE))
def test_hostile_names_stay_text(text: str) -> None:
    card = factory.gpu(0)
    named = replace(card, info=replace(card.info, model=text))
    root = ET.fromstring(topology_svg(factory.snapshot(devices=(named,))))
    assert {element.tag for element in root.iter()} <= {
        SVG + name for name in ("svg", "title", "style", "rect", "text", "path", "g")
    }
    assert not re.search(r"\son\w+=", topology_svg(factory.snapshot(devices=(named,))))
