"""The normal form of device requests, and the requests that no node can meet."""

from __future__ import annotations

import msgspec
import pytest

from plugins.scheduler.devices.device_table import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from plugins.scheduler.devices.requests import (
    ContainerAmounts,
    InvalidRequest,
    Selector,
    device_request,
    pod_amounts,
)

GIB = 1 << 30
SHARED = "koordinator.sh/gpu.shared"
PERCENT = "koordinator.sh/gpu"
NPU, DVPP = "huawei.com/npu-core", "huawei.com/npu-dvpp"
SPEC = "scheduling.koordinator.sh/gpu-partition-spec"

INVALID = {
    "R02": {GPU_CORE: 101},
    "R03": {
        "nvidia.com/gpu": 2, PERCENT: 200, GPU_CORE: 200, GPU_MEMORY: 32 * GIB,
        GPU_MEMORY_RATIO: 200,
    },
    "R04": {PERCENT: 101},
    "R05": {GPU_CORE: 100, GPU_MEMORY_RATIO: 101},
    "R10 above a card": {GPU_MEMORY_RATIO: 101, SHARED: 1},
    "R10 not divisible": {GPU_MEMORY_RATIO: 101, SHARED: 2},
    "R11 one": {GPU_CORE: 101, GPU_MEMORY: 64 * GIB, SHARED: 1},
    "R11 two": {GPU_CORE: 101, GPU_MEMORY: 64 * GIB, SHARED: 2},
    "R15": {NPU: 40, GPU_MEMORY: 128 * GIB},
    "R17 fpga": {"koordinator.sh/fpga": 201},
    "R17 rdma": {"koordinator.sh/rdma": 201},
}  # fmt: skip


@pytest.mark.parametrize("number", INVALID)
def test_a_request_that_no_node_can_meet_is_refused(number: str) -> None:
    with pytest.raises(InvalidRequest, match=r"invalid resource (device requests|unit)"):
        device_request(INVALID[number])


VALID = {
    "R06": ({"nvidia.com/gpu": 2}, 2, {GPU_CORE: 100, GPU_MEMORY_RATIO: 100}, False),
    "R07": ({"dcu.com/gpu": 2}, 2, {GPU_CORE: 100, GPU_MEMORY_RATIO: 100}, False),
    "R08": ({PERCENT: 200}, 2, {GPU_CORE: 100, GPU_MEMORY_RATIO: 100}, False),
    "R09": (
        {GPU_CORE: 200, GPU_MEMORY: 64 * GIB}, 1, {GPU_CORE: 200, GPU_MEMORY: 64 * GIB}, True,
    ),
    "R12": (
        {GPU_CORE: 100, GPU_MEMORY: 64 * GIB, SHARED: 2}, 2,
        {GPU_CORE: 50, GPU_MEMORY: 32 * GIB}, True,
    ),
    "R13": ({GPU_MEMORY_RATIO: 100, SHARED: 2}, 2, {GPU_MEMORY_RATIO: 50}, True),
    "R14": ({NPU: 40, GPU_MEMORY_RATIO: 200}, 2, {NPU: 20, GPU_MEMORY_RATIO: 100}, False),
    "R16": (
        {SHARED: 1, NPU: 10, "huawei.com/npu-cpu": 3, GPU_MEMORY: 16 * GIB}, 1,
        {NPU: 10, "huawei.com/npu-cpu": 3, GPU_MEMORY: 16 * GIB}, True,
    ),
    "R16 with dvpp": (
        {SHARED: 1, NPU: 10, "huawei.com/npu-cpu": 3, DVPP: 100, GPU_MEMORY: 16 * GIB}, 1,
        {NPU: 10, "huawei.com/npu-cpu": 3, DVPP: 100, GPU_MEMORY: 16 * GIB}, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("number", VALID)
def test_the_normal_form(number: str) -> None:
    amounts, count, each, is_shared = VALID[number]
    request = device_request(amounts)
    gpu = request.of(GPU) if request is not None else None
    assert gpu is not None
    assert (gpu.count, dict(gpu.amounts), gpu.is_shared) == (count, each, is_shared)


def test_a_pod_without_devices_has_no_request() -> None:
    assert device_request({}) is None
    assert device_request({"cpu": 1, "cambricon.com/mlu.smlu.vcore": 5, PERCENT: 0}) is None


@pytest.mark.parametrize("kind", ["fpga", "rdma"])
def test_half_a_device_of_another_kind_is_one_device(kind: str) -> None:
    request = device_request({f"koordinator.sh/{kind}": 50})
    assert request is not None
    (one,) = request.kinds
    assert (one.kind, one.count, dict(one.amounts)) == (kind, 1, {f"koordinator.sh/{kind}": 50})


def test_a_partition_spec_is_read() -> None:
    spec = '{"allocatePolicy":"Restricted","ringBusBandwidth":"200Gi"}'
    request = device_request({GPU_MEMORY_RATIO: 200}, {SPEC: spec})
    assert request is not None
    (card,) = request.kinds
    assert (card.count, card.is_shared) == (2, False)
    assert request.partition is not None
    assert request.partition.allocate_policy == "Restricted"
    assert request.partition.bandwidth == 200 * GIB


@pytest.mark.parametrize("bandwidth", ['"200GBps"', '""', '"a lot"'])
def test_a_bandwidth_that_is_no_quantity_refuses_the_pod(bandwidth: str) -> None:
    with pytest.raises(InvalidRequest, match="invalid GPUPartitionSpec annotation, err: "):
        device_request({PERCENT: 200}, {SPEC: f'{{"ringBusBandwidth":{bandwidth}}}'})


def test_no_partition_has_a_bandwidth_of_more_than_63_bits() -> None:
    request = device_request({PERCENT: 200}, {SPEC: '{"ringBusBandwidth":"1e30"}'})
    assert request is not None
    assert request.partition is not None
    assert request.partition.bandwidth is not None
    assert request.partition.bandwidth > 1 << 63


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (SPEC, "GPUPartitionSpec"),
        ("scheduling.koordinator.sh/device-allocate-hint", "DeviceAllocateHint"),
        ("scheduling.koordinator.sh/device-joint-allocate", "DeviceJointAllocate"),
    ],
)
def test_an_annotation_that_cannot_be_read_refuses_the_pod(key: str, name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"invalid {name} annotation, err: "):
        device_request({PERCENT: 100}, {key: "invalid GPU Partition Spec"})


def test_init_containers_count_with_the_sidecars_before_them() -> None:
    containers = [
        ContainerAmounts({PERCENT: 100}, is_init=True, is_sidecar=True),
        ContainerAmounts({PERCENT: 300}, is_init=True),
        ContainerAmounts({PERCENT: 100}, is_init=True, is_sidecar=True),
        ContainerAmounts({PERCENT: 100}),
    ]
    assert pod_amounts(containers, {PERCENT: 50}) == {PERCENT: 450}
    assert pod_amounts(containers[2:]) == {PERCENT: 200}


@pytest.mark.parametrize(
    ("operator", "values", "labels", "matches"),
    [
        ("In", ("a", "b"), {"k": "b"}, True),
        ("In", ("a",), {}, False),
        ("NotIn", ("a",), {}, True),
        ("NotIn", ("a",), {"k": "a"}, False),
        ("Exists", None, {"k": ""}, True),
        ("DoesNotExist", None, {"k": ""}, False),
    ],
)
def test_a_selector_matches_as_in_kubernetes(
    operator: str, values: tuple[str, ...] | None, labels: dict[str, str], *, matches: bool
) -> None:
    expression = {"key": "k", "operator": operator, "values": values}
    selector = msgspec.convert({"matchExpressions": [expression]}, Selector)
    assert selector.matches(labels) is matches
