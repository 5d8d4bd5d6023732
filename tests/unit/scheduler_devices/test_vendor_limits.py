"""What a vendor's own device plug-in cannot be told is refused before a node is chosen."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.clock import ManualClock
from agent.snapshot.allocation import AllocatedDevice
from plugins.scheduler.cluster_state import AssignedPod, ClusterState
from plugins.scheduler.decisions import DecisionMaker
from plugins.scheduler.devices.allocator import (
    NodeRefused,
    NodeState,
    Rules,
    allocate,
    filter_node,
)
from plugins.scheduler.devices.binding_metadata import vendor_metadata
from plugins.scheduler.devices.device_table import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    VENDOR_LABEL,
    Amounts,
    DeviceTable,
    NodeDevice,
)
from plugins.scheduler.devices.device_usage import sum_usage
from plugins.scheduler.devices.requests import InvalidRequest, device_request
from plugins.scheduler.devices.scores import ScoringStrategy
from plugins.scheduler.pod_object import PodKey
from plugins.scheduler.server.extender import Extender
from plugins.scheduler.server.extender_wire import (
    decode_nodes_request,
    decode_preemption_request,
)

MIB, GIB = 1 << 20, 1 << 30
SHARED = "koordinator.sh/gpu.shared"
SERVES = Rules(serves_vendor_plugins=True)
SEVERAL = "multiple gpu share is not supported on device side"
NO_CORE = "gpu core resource is required"


def too_little(unit_bytes: int) -> str:
    return f"gpu memory must not be less than {unit_bytes} bytes"


def node(vendor: str, *memories: int, used: int = 0, on_device: bool = False) -> NodeState:
    """Return a node with one card for each size of memory; the first ones are in use."""
    cards = tuple(
        NodeDevice(
            kind=GPU,
            minor=minor,
            id=f"CARD-{minor}",
            total={GPU_CORE: 100, GPU_MEMORY: memory, GPU_MEMORY_RATIO: 100},
        )
        for minor, memory in enumerate(memories)
    )
    labels = {VENDOR_LABEL: vendor}
    table = DeviceTable(node="n", devices={GPU: cards}, labels=labels if on_device else {})
    entries = [
        AllocatedDevice(type=GPU, minor=minor, resources=tuple(cards[minor].total.items()))
        for minor in range(used)
    ]
    usage = sum_usage([entries], table)
    return NodeState(name="n", labels={} if on_device else labels, table=table, usage=usage)


@pytest.mark.parametrize(
    ("vendor", "amounts", "reason"),
    [
        ("cambricon", {"koordinator.sh/gpu": 200}, SEVERAL),
        ("cambricon", {SHARED: 2, GPU_CORE: 10, GPU_MEMORY: 2 * GIB}, SEVERAL),
        ("cambricon", {SHARED: 1, GPU_MEMORY: GIB}, NO_CORE),
        ("cambricon", {SHARED: 1, GPU_CORE: 5, GPU_MEMORY: 128 * MIB}, too_little(256 * MIB)),
        ("cambricon", {GPU_CORE: 1, GPU_MEMORY_RATIO: 1}, too_little(256 * MIB)),
        ("metax", {SHARED: 1, GPU_MEMORY_RATIO: 50}, NO_CORE),
        ("metax", {SHARED: 1, GPU_CORE: 5, GPU_MEMORY: 512 << 10}, too_little(MIB)),
    ],
)
@pytest.mark.parametrize("used", [0, 2], ids=["idle", "full"])
def test_no_node_of_the_vendor_is_offered_and_no_pod_is_evicted_for_it(
    vendor: str, amounts: Amounts, reason: str, used: int
) -> None:
    request = device_request(amounts)
    assert request is not None
    with pytest.raises(NodeRefused) as refused:
        filter_node(node(vendor, 16 * GIB, 16 * GIB, used=used), request, SERVES)
    assert (refused.value.reason, refused.value.is_final) == (reason, True)


@pytest.mark.parametrize("vendor", ["cambricon", "metax"])
def test_the_same_request_fits_where_the_agent_serves_the_kubelet(vendor: str) -> None:
    request = device_request({SHARED: 1, GPU_MEMORY_RATIO: 50})
    assert request is not None
    filter_node(node(vendor, 16 * GIB, 16 * GIB), request)


def test_the_vendor_of_the_device_object_counts_where_the_node_has_no_label() -> None:
    request = device_request({"koordinator.sh/gpu": 200})
    assert request is not None
    with pytest.raises(NodeRefused, match=SEVERAL):
        filter_node(node("cambricon", GIB, GIB, on_device=True), request, SERVES)


def test_a_full_node_is_refused_for_now_if_the_plugin_could_serve_the_pod() -> None:
    request = device_request({SHARED: 1, GPU_CORE: 5, GPU_MEMORY: GIB})
    assert request is not None
    with pytest.raises(NodeRefused, match="Insufficient gpu devices") as refused:
        filter_node(node("cambricon", 16 * GIB, used=1), request, SERVES)
    assert not refused.value.is_final


def test_a_card_whose_share_of_memory_would_be_too_small_is_left_out() -> None:
    request = device_request({GPU_CORE: 2, GPU_MEMORY_RATIO: 2})
    assert request is not None
    mixed = node("cambricon", 8 * GIB, 16 * GIB)
    (allocations,) = allocate(mixed, request, SERVES)
    assert allocations.device.minor == 1


small = st.integers(0, 200)
requests = st.one_of(
    st.fixed_dictionaries({SHARED: st.integers(1, 3), GPU_MEMORY: st.integers(1, 64 * MIB * 100)}),
    st.fixed_dictionaries({SHARED: st.integers(1, 3), GPU_MEMORY_RATIO: small}),
    st.fixed_dictionaries({GPU_CORE: small, GPU_MEMORY_RATIO: small}),
    st.fixed_dictionaries(
        {SHARED: st.integers(1, 3), GPU_CORE: small, GPU_MEMORY: st.integers(0, 3 * GIB)}
    ),
    st.fixed_dictionaries({"koordinator.sh/gpu": st.sampled_from((50, 100, 200))}),
)


@given(
    vendor=st.sampled_from(("cambricon", "metax", "nvidia")),
    amounts=requests,
    memories=st.lists(st.sampled_from((MIB // 2, 100 * MIB, 8 * GIB, 64 * GIB)), max_size=4),
    strategy=st.sampled_from((None, ScoringStrategy(), ScoringStrategy(type="MostAllocated"))),
)
def test_whatever_passes_the_filter_can_be_written_for_the_plugin(
    vendor: str, amounts: Amounts, memories: list[int], strategy: ScoringStrategy | None
) -> None:
    try:
        request = device_request(amounts)
    except InvalidRequest:
        return
    if request is None:
        return
    state = node(vendor, *memories)
    try:
        filter_node(state, request, SERVES)
    except NodeRefused:
        return
    grant = allocate(state, request, SERVES, strategy=strategy)
    written = vendor_metadata(grant, "n", state.device_labels, {}, 1)
    assert written.annotations["scheduling.koordinator.sh/gpu-minors"]


def test_filter_prioritize_and_preempt_agree() -> None:
    state = ClusterState()
    names = ["mlu", "metax", "full"]
    for name, vendor in zip(names, ("cambricon", "metax", "cambricon"), strict=True):
        table = node(vendor, 16 * GIB, 16 * GIB).table
        assert table is not None
        state.set_node(name, {VENDOR_LABEL: vendor})
        state.set_devices(msgspec.structs.replace(table, node=name))
    whole = tuple(
        AllocatedDevice(type=GPU, minor=minor, resources=((GPU_CORE, 100),)) for minor in (0, 1)
    )
    state.set_pod(AssignedPod(key=PodKey("u", "ns", "victim"), node="full", allocation=whole))
    extender = Extender(DecisionMaker(state, SERVES), ManualClock())
    resources = {"requests": {"koordinator.sh/gpu": "200"}}
    pod = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "p"},
        "spec": {"containers": [{"name": "c", "resources": resources}]},
    }
    body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()
    answer = json.loads(extender.filter(decode_nodes_request(body)))
    assert answer["NodeNames"] == ["metax"]
    assert answer["FailedAndUnresolvableNodes"] == {"mlu": SEVERAL, "full": SEVERAL}
    scores = json.loads(extender.prioritize(decode_nodes_request(body)))
    assert {score["Host"]: score["Score"] for score in scores} == {"mlu": 0, "metax": 10, "full": 0}
    victims = {"full": {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}}
    sent = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
    call = decode_preemption_request(json.dumps(sent).encode())
    assert json.loads(extender.preempt(call)) == {"NodeNameToMetaVictims": {}}
    group = extender.log.of_pod("ns", "p")["filter"].refusals[0]
    assert (group.reason, group.count, group.is_final) == (SEVERAL, 2, True)
