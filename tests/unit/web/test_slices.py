from __future__ import annotations

import re

from hypothesis import example, given, settings
from msgspec.structs import replace

from agent.snapshot.device import Device, DeviceCondition, DevicePartition, Health, HealthState
from agent.snapshot.inventory import DeviceGroup, Inventory
from agent.snapshot.node import DeviceView, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.web.page.tables import devices_table, groups_table, matrix_table, slices_table
from tests import factory
from tests.hostile import inventories
from tests.unit.web.view import HOSTILE

PART = DevicePartition(
    uuid="MIG-1", profile="3g.20gb", memory_bytes=20 << 30, instance=2, compute_instance=0,
    start=4, size=4,
)  # fmt: skip


def plain_text(markup: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", markup)).strip()


def with_view(view: DeviceView) -> NodeSnapshot:
    return replace(factory.snapshot(()), devices=SnapshotPart(view, factory.NOW_S))


def test_a_node_without_slices_and_groups_has_no_tables_of_them() -> None:
    plain = with_view(DeviceView(devices=(factory.gpu(0),)))
    assert (slices_table(plain), groups_table(plain)) == ("", "")


def test_a_slice_shows_place_and_size_and_the_card_what_still_fits() -> None:
    card = factory.gpu(0, partitions=(PART,), free_slices=(("1g.5gb", (0, 1)), ("7g.40gb", ())))
    result = plain_text(slices_table(with_view(DeviceView(devices=(card,)))))
    assert "GPU 0 2/0 3g.20gb 20.0 GiB 4-7" in result
    assert result.endswith("GPU 0: still fits 1g.5gb at 0,1; no 7g.40gb")


def test_a_broken_slice_says_why_and_nothing_of_it_becomes_markup() -> None:
    health = Health(state=HealthState.FAILED, reason="Xid95", message=HOSTILE)
    card = factory.gpu(0, partitions=(replace(PART, health=health, profile=HOSTILE),))
    markup = slices_table(with_view(DeviceView(devices=(card,))))
    assert "<script" not in markup
    assert "Xid95" in plain_text(markup)


def test_an_unknown_or_odd_slice_is_not_drawn_as_healthy() -> None:
    unknown = Health(reason="DriverStalled", message="no answer", certain=False)
    odd = Health(state=HealthState.SUSPECT, reason="Xid63", message="a row")
    slices = tuple(replace(PART, uuid=h.reason, health=h) for h in (unknown, odd))
    result = plain_text(
        slices_table(with_view(DeviceView(devices=(factory.gpu(0, partitions=slices),))))
    )
    assert "healthy or not: unknown DriverStalled: no answer" in result
    assert "suspect Xid63: a row" in result


def test_groups_are_listed_by_size_with_the_policy() -> None:
    cards = tuple(factory.gpu(index) for index in range(4))
    keys = tuple(card.key for card in cards)
    groups = tuple(DeviceGroup(keys=k, link_type="HCCS") for k in (keys, keys[:2], keys[:1]))
    view = DeviceView(devices=cards, groups=groups, group_policy="Honor")
    assert plain_text(groups_table(with_view(view))) == (
        "Devices that belong together (policy Honor) size link devices "
        "2 HCCS GPU 0, GPU 1 4 HCCS GPU 0, GPU 1, GPU 2, GPU 3"
    )


def test_a_device_shows_what_bars_it_and_its_bad_conditions() -> None:
    bad = DeviceCondition(type="FabricReady", status=False, reason="FabricError", message="state 3")
    good = DeviceCondition(type="Schedulable", status=True, reason="Fine")
    card = factory.gpu(0, facts=(("unschedulable", "MIGEnabled"),), conditions=(bad, good))
    result = plain_text(devices_table(with_view(DeviceView(devices=(card,)))))
    assert "nothing to grant: MIGEnabled FabricReady False: FabricError state 3" in result
    assert "Fine" not in result


@settings(max_examples=40)
@given(inventories("nvidia"))
@example(
    Inventory(
        vendor="nvidia",
        devices=(factory.gpu(0, health=Health(reason="Xid79", since_s=1e300)).info,),
    )
)
def test_whatever_a_vendor_says_the_page_shows_it(told_of: Inventory) -> None:
    devices = tuple(Device(info=info) for info in told_of.devices)
    snap = with_view(DeviceView(devices=devices, groups=told_of.groups))
    for show in (devices_table, matrix_table, slices_table, groups_table):
        show(snap).encode()
