from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from agent.objects.device import DevicePublisher
from agent.objects.device_annotations import MAX_ALL_VENDORS_BYTES, MAX_VENDOR_BYTES
from agent.snapshot.device import Device
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from tests.factory import NOW_S, gpu, nic, snapshot


def with_vendor(*devices: Device, vendor: str = "nvidia", **inventory: Any) -> NodeSnapshot:
    answer = Inventory(vendor=vendor, devices=tuple(d.info for d in devices), **inventory)
    state = VendorState(vendor=vendor, state="ready", inventory=SnapshotPart(answer, NOW_S))
    return replace(snapshot(devices), vendors=(state,))


def annotated(snap: NodeSnapshot) -> dict[str, str]:
    (desired,) = DevicePublisher().render(snap, NOW_S)
    metadata: Any = desired.body["metadata"]
    annotations: dict[str, str] = metadata["annotations"]
    return annotations


def test_facts_of_a_vendor_and_its_cards_are_one_annotation() -> None:
    card = gpu(0, facts=(("index", "1"), ("serial", "123")))
    snap = with_vendor(card, driver_version="570.124.06", facts=(("cuda", "12.8"), ("clique", "")))
    annotations = annotated(snap)
    assert json.loads(annotations["xpu-agent.io/nvidia"]) == {
        "driver": "570.124.06",
        "cuda": "12.8",
        "devices": {card.info.uuid: {"index": "1", "serial": "123"}},
    }


def test_a_fact_with_our_prefix_is_an_annotation_of_its_own() -> None:
    fact = ("xpu-agent.io/npu-network-unhealthy", "3,5")
    annotations = annotated(with_vendor(gpu(0), facts=(fact,)))
    assert annotations[fact[0]] == fact[1]
    assert fact[0] not in json.loads(annotations["xpu-agent.io/nvidia"])


def test_a_vendor_cannot_take_an_annotation_of_the_agent() -> None:
    before = annotated(with_vendor(gpu(0)))
    annotations = annotated(with_vendor(gpu(0), facts=(("xpu-agent.io/health", "{}"),)))
    assert annotations["xpu-agent.io/health"] == before["xpu-agent.io/health"]


def test_nics_alone_make_no_annotation() -> None:
    annotations = annotated(with_vendor(nic(0), vendor="rdma", facts=(("netns_mode", "shared"),)))
    assert "xpu-agent.io/rdma" not in annotations


def test_facts_that_do_not_fit_are_left_out_whole() -> None:
    card = gpu(0, facts=(("name", "x" * MAX_VENDOR_BYTES),))
    annotations = annotated(with_vendor(card, driver_version="570"))
    assert json.loads(annotations["xpu-agent.io/nvidia"]) == {"driver": "570"}


def test_facts_of_the_whole_that_do_not_fit_take_their_annotation_with_them() -> None:
    annotations = annotated(with_vendor(gpu(0), facts=(("list", "x" * MAX_VENDOR_BYTES),)))
    assert "xpu-agent.io/nvidia" not in annotations


def test_all_annotations_together_are_bounded_and_the_first_ones_count() -> None:
    facts = tuple((f"xpu-agent.io/fact-{index}", "x" * 20_000) for index in range(20))
    annotations = annotated(with_vendor(gpu(0), facts=facts))
    names = [name for name, _ in facts if name in annotations]
    assert names == [name for name, _ in facts[: MAX_ALL_VENDORS_BYTES // 20_000]]


def test_a_fact_that_is_no_text_of_unicode_harms_nobody() -> None:
    annotations = annotated(
        with_vendor(gpu(0), facts=(("xpu-agent.io/odd", "a\ud800"), ("b", "\udfff")))
    )
    assert annotations["xpu-agent.io/odd"] == "a?"
    assert json.loads(annotations["xpu-agent.io/nvidia"])["b"] == "?"


def test_the_driver_label_is_that_of_the_vendor_that_reported_the_card() -> None:
    npu = gpu(0, vendor="huawei", model="Ascend-910B3")
    (desired,) = DevicePublisher().render(
        with_vendor(npu, vendor="ascend", driver_version="24.1"), NOW_S
    )
    metadata: Any = desired.body["metadata"]
    assert metadata["labels"]["node.koordinator.sh/gpu-driver-version"] == "24.1"


def test_the_most_frequent_model_counts_where_models_are_mixed() -> None:
    models = ("Ascend-910B3", "Ascend-910B4", "Ascend-910B4")
    cards = [gpu(i, vendor="huawei", model=model) for i, model in enumerate(models)]
    (desired,) = DevicePublisher().render(with_vendor(*cards, vendor="ascend"), NOW_S)
    metadata: Any = desired.body["metadata"]
    assert metadata["labels"]["node.koordinator.sh/gpu-model"] == "Ascend-910B4"
