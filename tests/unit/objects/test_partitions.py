from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest
from msgspec.structs import replace

from agent.objects.device import (
    PARTITION_POLICY_LABEL,
    PARTITIONS_ANNOTATION,
    DevicePublisher,
    partition_table,
)
from agent.snapshot.device import Device
from agent.snapshot.inventory import DeviceGroup
from agent.snapshot.node import DeviceView
from tests.factory import NOW_S, gpu, nic, snapshot


def group(*cards: Device, link: str = "NVLink", **more: Any) -> DeviceGroup:
    return DeviceGroup(keys=tuple(card.key for card in cards), link_type=link, **more)


def table(*groups: DeviceGroup, devices: tuple[Device, ...]) -> Any:
    text = partition_table(DeviceView(groups=groups), devices)
    return json.loads(text) if text else None


FOUR = tuple(gpu(index) for index in range(4))


def test_groups_are_listed_by_size_and_numbers_with_one_score() -> None:
    partitions = table(group(*FOUR), group(FOUR[3], FOUR[2]), group(*FOUR[:2]), devices=FOUR)
    assert list(partitions) == ["2", "4"]
    assert [entry["minors"] for entry in partitions["2"]] == [[0, 1], [2, 3]]
    assert partitions["4"] == [
        {"minors": [0, 1, 2, 3], "gpuLinkType": "NVLink", "allocationScore": 1}
    ]


def test_the_bandwidth_of_a_ring_is_a_quantity() -> None:
    partitions = table(group(*FOUR[:2], bandwidth_bytes_per_s=478_116_000_000), devices=FOUR)
    assert partitions["2"][0]["ringBusBandwidth"] == "478116M"


def test_a_group_with_a_member_that_is_not_published_is_left_out() -> None:
    partitions = table(group(*FOUR), group(*FOUR[:2]), devices=FOUR[:3])
    assert list(partitions) == ["2"]


def test_equal_groups_are_listed_once_and_nics_are_no_members() -> None:
    same = group(*FOUR[:2])
    assert len(table(same, same, devices=FOUR)["2"]) == 1
    assert table(group(FOUR[0], nic(1)), devices=(FOUR[0], nic(1))) is None


def test_no_groups_are_no_table() -> None:
    assert table(devices=FOUR) is None


@pytest.mark.parametrize(("minor", "there"), [(62, True), (63, False)])
def test_a_number_that_the_scheduler_has_no_bit_for_voids_the_table(
    minor: int, there: bool
) -> None:
    high = gpu(3, minor=minor)
    assert bool(table(group(*FOUR[:2]), devices=(*FOUR[:3], high))) is there


def test_a_table_too_large_for_an_annotation_is_none() -> None:
    cards = tuple(gpu(0, bus_id=f"0000:{index:02x}:00.0", minor=index) for index in range(40))
    groups = [group(*three) for three in combinations(cards, 3)]
    assert table(*groups[:100], devices=cards) is not None
    assert table(*groups, devices=cards) is None


@pytest.mark.parametrize(
    ("policy", "label"), [("Honor", "Honor"), ("Prefer", "Prefer"), ("honour", None), (None, None)]
)
def test_the_object_carries_table_and_policy(policy: str | None, label: str | None) -> None:
    snap = snapshot(FOUR)
    view = replace(snap.devices.value, groups=(group(*FOUR),), group_policy=policy)
    snap = replace(snap, devices=replace(snap.devices, value=view))
    (desired,) = DevicePublisher().render(snap, NOW_S)
    metadata: Any = desired.body["metadata"]
    assert "4" in json.loads(metadata["annotations"][PARTITIONS_ANNOTATION])
    assert metadata["labels"].get(PARTITION_POLICY_LABEL) == label


def test_a_policy_is_published_without_a_table_too() -> None:
    snap = snapshot(FOUR)
    view = replace(snap.devices.value, group_policy="Honor")
    snap = replace(snap, devices=replace(snap.devices, value=view))
    (desired,) = DevicePublisher().render(snap, NOW_S)
    metadata: Any = desired.body["metadata"]
    assert PARTITIONS_ANNOTATION not in metadata["annotations"]
    assert metadata["labels"][PARTITION_POLICY_LABEL] == "Honor"
