"""Pods that HAMi's own scheduler placed: their devices count like those of other pods."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from plugins.scheduler.cluster_state import ClusterState
from plugins.scheduler.decisions import DecisionMaker
from plugins.scheduler.devices.device_table import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    Amounts,
)
from plugins.scheduler.devices.hami_annotations import decode_hami_allocation
from plugins.scheduler.numa.cpu_request import pod_request
from plugins.scheduler.pod_object import PodKey, SchedulerPod, SchedulerPodObject
from plugins.scheduler.server.cluster_feed import PodChanges, counted_pod
from plugins.scheduler.server.summaries import node_summary
from tests.unit.scheduler.vectors import CARD_BYTES, NODES

VGPU = "hami.io/vgpu-devices-allocated"
MIB = 1 << 20
CARD_MIB = CARD_BYTES // MIB


def entries(annotations: dict[str, str]) -> list[tuple[str, int, int]]:
    """Return id, MiB and core percent of each device."""
    devices = decode_hami_allocation(annotations)
    amounts = [(device.id, dict(device.resources)) for device in devices]
    return [(name, of[GPU_MEMORY] // MIB, of[GPU_CORE]) for name, of in amounts]


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        (VGPU, "GPU-a,NVIDIA,4000,30:;", [("GPU-a", 4000, 30)]),
        (VGPU, "GPU-a,NVIDIA,1,2:GPU-b,NVIDIA,3,4:;;GPU-a,NVIDIA,5,6:;",
         [("GPU-a", 1, 2), ("GPU-b", 3, 4), ("GPU-a", 5, 6)]),
        (VGPU, "GPU-a[2-1],NVIDIA,4000,0:;", [("GPU-a", 4000, 0)]),
        (VGPU, "GPU-a,NVIDIA,4000,30,more:;", [("GPU-a", 4000, 30)]),
        (VGPU, "", []),
        (VGPU, ";", []),
        ("hami.io/Ascend910B3-devices-allocated", "u-1,Ascend910B3,16384,25:;",
         [("u-1", 16384, 25)]),
        ("hami.io/cambricon-mlu-devices-allocated", "m,MLU,256,5:;", [("m", 256, 5)]),
        ("hami.io/vgpu-devices-to-allocate", "GPU-a,NVIDIA,4000,30:;", []),
        ("hami.io/vgpu-node", "n", []),
    ],
)  # fmt: skip
def test_devices_of_the_annotation(
    key: str, text: str, expected: list[tuple[str, int, int]]
) -> None:
    assert entries({key: text}) == expected


@pytest.mark.parametrize(
    "text",
    ["GPU-a", "GPU-a,NVIDIA,x,1:", "GPU-a,NVIDIA,-1,1:", ",NVIDIA,1,1:", "a b,N,1,1:",
     "G,N,9999999999,1:", "G,N,1,1:" * 513, "x" * 70000],
)  # fmt: skip
def test_text_that_is_none_of_hamis_is_refused_whole(text: str) -> None:
    with pytest.raises(ParseError):
        decode_hami_allocation({VGPU: text})


@given(st.dictionaries(st.text(max_size=40) | st.just(VGPU), st.text(max_size=80)))
def test_any_text_is_decoded_or_refused(annotations: dict[str, str]) -> None:
    message = ""
    try:
        decode_hami_allocation(annotations)
    except ParseError as error:
        message = str(error)
    assert len(message) < 200


def bound(annotations: dict[str, str]) -> SchedulerPod | None:
    body = {
        "metadata": {"name": "h", "namespace": "ns", "uid": "h", "annotations": annotations},
        "spec": {"nodeName": "a", "containers": [{"name": "c"}]},
    }
    return counted_pod(msgspec.json.decode(json.dumps(body), type=SchedulerPodObject))


def cluster(annotations: dict[str, str]) -> tuple[ClusterState, PodChanges]:
    """Return a node on which HAMi's scheduler has placed a pod, as the watch reports it."""
    state = ClusterState()
    state.set_node("a", {})
    state.set_devices(msgspec.structs.replace(NODES["A"], node="a"))
    changes = PodChanges(state)
    changes.set_object("ns/h", bound(annotations))
    return state, changes


def fits(state: ClusterState, amounts: Amounts) -> bool:
    scheduler_pod = SchedulerPod(key=PodKey("p", "ns", "p"), amounts=amounts)
    return bool(DecisionMaker(state).decide(pod_request(scheduler_pod), ["a"]).fitting())


def test_cards_that_hami_gave_are_used_in_both_forms_of_memory() -> None:
    half = ":".join(f"GPU-{minor},NVIDIA,{CARD_MIB // 2},30" for minor in range(8))
    state, _ = cluster({VGPU: f"{half}:;"})
    used = state.state("a").usage.used(NODES["A"].of(GPU)[3])
    assert (used[GPU_CORE], used[GPU_MEMORY_RATIO]) == (30, 50)
    assert not fits(state, {"nvidia.com/gpu": 1})
    assert not fits(state, {GPU_CORE: 10, GPU_MEMORY_RATIO: 51})
    assert fits(state, {GPU_CORE: 70, GPU_MEMORY_RATIO: 50})
    assert not fits(state, {GPU_CORE: 71, GPU_MEMORY_RATIO: 10})
    assert not fits(state, {GPU_MEMORY: CARD_BYTES // 2 + MIB * 2})


def test_the_summary_of_a_node_names_each_card_of_a_pod_by_its_minor() -> None:
    state, _ = cluster({VGPU: "GPU-2,NVIDIA,1024,10:GPU-5,NVIDIA,2048,20:GPU-gone,NVIDIA,1,1:;"})
    summary = node_summary(state.state("a"), state.pods_of("a"))
    assert summary["allocateSet"] == {
        GPU: {
            "ns/h": {
                "2": {GPU_CORE: "10", GPU_MEMORY: "1Gi"},
                "5": {GPU_CORE: "20", GPU_MEMORY: "2Gi"},
                "GPU-gone": {GPU_CORE: "1", GPU_MEMORY: "1Mi"},
            }
        }
    }


def test_the_devices_are_free_again_when_the_pod_is_gone_and_others_never_counted() -> None:
    state, changes = cluster({VGPU: f"GPU-0,NVIDIA,{CARD_MIB},100:;GPU-elsewhere,N,1,1:;"})
    assert not fits(state, {"nvidia.com/gpu": 8})
    assert fits(state, {"nvidia.com/gpu": 7})
    changes.remove_object("ns/h", bound({VGPU: ""}) or SchedulerPod(key=PodKey("h", "ns", "h")))
    assert fits(state, {"nvidia.com/gpu": 8})


def test_koordinators_annotation_counts_alone_where_a_pod_has_both() -> None:
    card: dict[str, Any] = {"minor": 1, "resources": {GPU_CORE: "100"}}
    own = {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [card]})}
    state, _ = cluster({**own, VGPU: f"GPU-0,NVIDIA,{CARD_MIB},100:;"})
    assert {minor for _, minor in state.state("a").usage.amounts} == {1}


def test_an_annotation_that_cannot_be_read_is_reported_and_counts_for_nothing() -> None:
    state, changes = cluster({VGPU: "GPU-0"})
    assert fits(state, {"nvidia.com/gpu": 8})
    (reason,) = changes.unreadable.values()
    assert VGPU in reason
