from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from agent.model.device import Device
from agent.model.inventory import Inventory
from agent.model.part import Part
from agent.model.snapshot import NodeSnapshot, VendorState
from agent.publish.device import DevicePublisher
from agent.publish.wire.vendor_facts import MAX_ALL_BYTES, MAX_BYTES
from tests.factory import NOW_S, gpu, nic, snapshot


def told(*devices: Device, vendor: str = "nvidia", **inventory: Any) -> NodeSnapshot:
    answer = Inventory(vendor=vendor, devices=tuple(d.info for d in devices), **inventory)
    state = VendorState(vendor=vendor, state="ready", inventory=Part(answer, NOW_S))
    return replace(snapshot(devices), vendors=(state,))


def annotated(snap: NodeSnapshot) -> tuple[dict[str, str], tuple[str, ...]]:
    (desired,) = DevicePublisher().render(snap, NOW_S)
    metadata: Any = desired.body["metadata"]
    return metadata["annotations"], desired.owned_annotations


def test_facts_of_a_vendor_and_its_cards_are_one_annotation() -> None:
    card = gpu(0, facts=(("index", "1"), ("serial", "123")))
    snap = told(card, driver_version="570.124.06", facts=(("cuda", "12.8"), ("clique", "")))
    found, owned = annotated(snap)
    assert json.loads(found["xpu-agent.io/nvidia"]) == {
        "driver": "570.124.06",
        "cuda": "12.8",
        "devices": {card.info.uuid: {"index": "1", "serial": "123"}},
    }
    assert "xpu-agent.io/nvidia" in owned


def test_a_fact_with_our_prefix_is_an_annotation_of_its_own() -> None:
    fact = ("xpu-agent.io/npu-network-unhealthy", "3,5")
    found, owned = annotated(told(gpu(0), facts=(fact,)))
    assert found[fact[0]] == fact[1]
    assert fact[0] in owned
    assert fact[0] not in json.loads(found["xpu-agent.io/nvidia"])


def test_a_vendor_cannot_take_an_annotation_of_the_agent() -> None:
    before, _ = annotated(told(gpu(0)))
    found, _ = annotated(told(gpu(0), facts=(("xpu-agent.io/health", "{}"),)))
    assert found["xpu-agent.io/health"] == before["xpu-agent.io/health"]


def test_nics_alone_make_no_annotation() -> None:
    found, owned = annotated(told(nic(0), vendor="rdma", facts=(("netns_mode", "shared"),)))
    assert "xpu-agent.io/rdma" not in found
    assert "xpu-agent.io/rdma" not in owned


def test_facts_that_do_not_fit_are_left_out_whole() -> None:
    card = gpu(0, facts=(("name", "x" * MAX_BYTES),))
    found, _ = annotated(told(card, driver_version="570"))
    assert json.loads(found["xpu-agent.io/nvidia"]) == {"driver": "570"}


def test_facts_of_the_whole_that_do_not_fit_take_their_annotation_with_them() -> None:
    found, owned = annotated(told(gpu(0), facts=(("list", "x" * MAX_BYTES),)))
    assert "xpu-agent.io/nvidia" not in found
    assert "xpu-agent.io/nvidia" in owned  # an earlier one would be wrong now


def test_all_annotations_together_are_bounded_and_the_first_ones_count() -> None:
    facts = tuple((f"xpu-agent.io/fact-{index}", "x" * 20_000) for index in range(20))
    found, owned = annotated(told(gpu(0), facts=facts))
    kept = [name for name, _ in facts if name in found]
    assert kept == [name for name, _ in facts[: MAX_ALL_BYTES // 20_000]]
    assert {name for name, _ in facts} <= set(owned)


def test_a_fact_that_is_no_text_of_unicode_harms_nobody() -> None:
    found, _ = annotated(told(gpu(0), facts=(("xpu-agent.io/odd", "a\ud800"), ("b", "\udfff"))))
    assert found["xpu-agent.io/odd"] == "a?"
    assert json.loads(found["xpu-agent.io/nvidia"])["b"] == "?"


def test_the_driver_label_is_of_the_vendor_that_told_of_the_card() -> None:
    npu = gpu(0, vendor="huawei", model="Ascend-910B3")
    (desired,) = DevicePublisher().render(told(npu, vendor="ascend", driver_version="24.1"), NOW_S)
    metadata: Any = desired.body["metadata"]
    assert metadata["labels"]["node.koordinator.sh/gpu-driver-version"] == "24.1"


def test_the_most_frequent_model_counts_where_models_are_mixed() -> None:
    models = ("Ascend-910B3", "Ascend-910B4", "Ascend-910B4")
    cards = [gpu(i, vendor="huawei", model=model) for i, model in enumerate(models)]
    (desired,) = DevicePublisher().render(told(*cards, vendor="ascend"), NOW_S)
    metadata: Any = desired.body["metadata"]
    assert metadata["labels"]["node.koordinator.sh/gpu-model"] == "Ascend-910B4"
