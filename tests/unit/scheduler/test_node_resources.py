"""Sums of Device objects in Nodes: which amounts, and when a Node is written."""

from __future__ import annotations

import msgspec
import pytest

from plugins.scheduler.devices.device_table import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    NO_AMOUNTS,
    RDMA,
    VENDOR_LABEL,
    DeviceTable,
)
from plugins.scheduler.devices.node_resources import (
    ADVERTISED,
    NO_RESOURCES,
    AdvertisedResources,
    advertised_resources,
    device_resources,
    label_patch,
    status_patch,
)
from tests.unit.scheduler.vectors import CARD_BYTES, NODES, NPU

ALL = {
    GPU_CORE: 800,
    GPU_MEMORY: 8 * CARD_BYTES,
    GPU_MEMORY_RATIO: 800,
    "koordinator.sh/gpu": 800,
    "koordinator.sh/rdma": 400,
}
EIGHT = device_resources(NODES["A"])


def sick(table: DeviceTable, *minors: int) -> DeviceTable:
    """Return the table with some cards that are not healthy."""
    cards = tuple(
        msgspec.structs.replace(one, total=NO_AMOUNTS) if one.minor in minors else one
        for one in table.of(GPU)
    )
    return msgspec.structs.replace(table, devices={**table.devices, GPU: cards})


def advertising(amounts: dict[str, int]) -> AdvertisedResources:
    return advertised_resources({"cpu": 1, **amounts}, {"cpu": 1, **amounts}, {})


def test_amounts_of_healthy_devices_are_summed() -> None:
    assert EIGHT.amounts == ALL
    half = device_resources(sick(NODES["A"], 0, 1, 2, 3)).amounts
    assert half == {**ALL, **{name: ALL[name] // 2 for name in ALL if "rdma" not in name}}


def test_shared_cards_are_advertised_only_if_that_is_on() -> None:
    shared = device_resources(NODES["A"], advertises_shared=True).amounts
    assert shared == {**ALL, "koordinator.sh/gpu.shared": 800}


@pytest.mark.parametrize(("vendor", "is_there"), [("", True), ("nvidia", True), ("huawei", False)])
def test_percent_of_cards_are_of_one_vendor_only(vendor: str, is_there: bool) -> None:
    table = msgspec.structs.replace(NODES["A"], labels={VENDOR_LABEL: vendor})
    assert ("koordinator.sh/gpu" in device_resources(table).amounts) is is_there


def test_npus_have_resources_of_their_own() -> None:
    amounts = device_resources(NODES["N"]).amounts
    assert amounts == {name: 8 * amount for name, amount in NPU.items()}


def test_labels_of_the_device_object_are_copied_and_others_stay() -> None:
    labels = {
        "node.koordinator.sh/gpu-vendor": "nvidia",
        "node.koordinator.sh/gpu-driver-version": "570",
        "other": "x",
    }
    resources = device_resources(msgspec.structs.replace(NODES["A"], labels=labels))
    old = {"node.koordinator.sh/gpu-vendor": "nvidia", "node.koordinator.sh/gpu-model": "H100"}
    advertised = advertised_resources({}, {}, old)

    copied = {"node.koordinator.sh/gpu-driver-version": "570"}
    assert label_patch(advertised, resources) == {"metadata": {"labels": copied}}
    assert label_patch(advertised, NO_RESOURCES) is None


def test_a_new_node_gets_all_amounts_in_both_places() -> None:
    texts = {name: str(amount) for name, amount in ALL.items()}
    texts[GPU_MEMORY] = f"{8 * CARD_BYTES >> 10}Ki"
    patch = status_patch(advertising({}), EIGHT, is_health_changed=False)
    assert patch == {"status": {"capacity": texts, "allocatable": texts}}


def test_a_node_with_equal_amounts_is_not_written() -> None:
    assert status_patch(advertising(ALL), EIGHT, is_health_changed=True) is None


@pytest.mark.parametrize(
    ("old", "is_written"), [(880, False), (889, True), (728, False), (727, True)]
)
def test_an_amount_is_written_if_it_moved_by_more_than_ten_percent(
    old: int,
    is_written: bool,
) -> None:
    patch = status_patch(advertising({**ALL, GPU_CORE: old}), EIGHT, is_health_changed=False)
    assert (patch is not None) is is_written


def test_a_small_change_is_written_if_the_healthy_devices_changed() -> None:
    patch = status_patch(advertising({**ALL, GPU_CORE: 790}), EIGHT, is_health_changed=True)
    assert patch == {"status": {"capacity": {GPU_CORE: "800"}, "allocatable": {GPU_CORE: "800"}}}


def test_a_node_without_healthy_devices_loses_the_resources_and_no_other() -> None:
    current = {**dict.fromkeys(ADVERTISED, 100), "nvidia.com/gpu": 8, "example.com/x": 1}
    patch = status_patch(advertising(current), NO_RESOURCES, is_health_changed=False)
    removed: dict[str, None] = dict.fromkeys(ADVERTISED)
    assert patch == {"status": {"capacity": removed, "allocatable": removed}}


def test_a_node_that_lost_its_nics_keeps_its_cards() -> None:
    table = msgspec.structs.replace(NODES["A"], devices={GPU: NODES["A"].of(GPU), RDMA: ()})
    patch = status_patch(advertising(ALL), device_resources(table), is_health_changed=True)
    removed = {"koordinator.sh/rdma": None}
    assert patch == {"status": {"capacity": removed, "allocatable": removed}}
    assert device_resources(table).healthy == {(GPU, minor) for minor in range(8)}
