"""Messages of the pod-resources socket: merged by resource, bounded, nonsense left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.errors import ParseError
from agent.kubelet.resources.decode import MAX_IDS, allocatable_from, pod_from, pods_from
from agent.model.cluster.pod_resources import (
    Allocatable,
    ClaimedDevice,
    ContainerResources,
    MemoryBlock,
    PodResources,
    ResourceDevices,
)
from proto.gen import podresources_v1_pb2 as pb


def topology(*nodes: int) -> pb.TopologyInfo:
    return pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in nodes])


def test_several_entries_of_a_resource_are_one() -> None:
    found = pb.AllocatableResourcesResponse(
        devices=[
            pb.ContainerDevices(resource_name="g", device_ids=["b"], topology=topology(1)),
            pb.ContainerDevices(resource_name="a", device_ids=["z"]),
            pb.ContainerDevices(resource_name="g", device_ids=["a", "b"], topology=topology(0, -1)),
        ],
        cpu_ids=[3, 1],
        memory=[pb.ContainerMemory(memory_type="memory", size=5, topology=topology(0))],
    )
    assert allocatable_from(found) == Allocatable(
        devices=(
            ResourceDevices(resource="a", ids=("z",)),
            ResourceDevices(resource="g", ids=("a", "b"), numa_nodes=(0, 1)),
        ),
        cpus=frozenset({1, 3}),
        memory=(MemoryBlock(type="memory", size_bytes=5, numa_nodes=(0,)),),
    )


def test_a_pod_with_claims_and_amounts_of_its_own() -> None:
    claim = pb.DynamicResource(
        claim_name="c",
        claim_namespace="ns",
        claim_resources=[
            pb.ClaimResource(
                cdi_devices=[pb.CDIDevice(name="v.io/gpu=0")],
                driver_name="gpu.v.io",
                pool_name="node-a",
                device_name="gpu-0",
                share_id="s",
            ),
            pb.ClaimResource(driver_name="gpu.v.io"),
        ],
    )
    found = pb.PodResources(
        name="p",
        namespace="ns",
        cpu_ids=[7],
        containers=[pb.ContainerResources(name="main", dynamic_resources=[claim])],
    )
    bare = ClaimedDevice(claim_namespace="ns", claim_name="c", driver="gpu.v.io")
    claims = (
        replace(bare, pool="node-a", device="gpu-0", share="s", cdi=("v.io/gpu=0",)),
        bare,
    )
    assert pod_from(found) == PodResources(
        namespace="ns",
        name="p",
        cpus=frozenset({7}),
        containers=(ContainerResources(name="main", claims=claims),),
    )


def test_pods_are_in_order() -> None:
    names = [("b", "x"), ("a", "z"), ("a", "y")]
    found = pb.ListPodResourcesResponse(
        pod_resources=[pb.PodResources(namespace=space, name=name) for space, name in names]
    )
    assert [(pod.namespace, pod.name) for pod in pods_from(found)] == sorted(names)


@pytest.mark.parametrize(
    "pod",
    [
        pb.PodResources(cpu_ids=[-1]),
        pb.PodResources(cpu_ids=[1 << 40]),
        pb.PodResources(containers=[pb.ContainerResources()] * 257),
        pb.PodResources(memory=[pb.ContainerMemory()] * 1025),
        pb.PodResources(
            containers=[
                pb.ContainerResources(
                    devices=[pb.ContainerDevices(device_ids=[str(n) for n in range(MAX_IDS + 1)])]
                )
            ]
        ),
    ],
)
def test_more_than_a_node_has_is_refused(pod: pb.PodResources) -> None:
    with pytest.raises(ParseError):
        pods_from(pb.ListPodResourcesResponse(pod_resources=[pod]))


def test_more_pods_than_a_node_runs_are_refused() -> None:
    with pytest.raises(ParseError):
        pods_from(pb.ListPodResourcesResponse(pod_resources=[pb.PodResources()] * 4097))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4))
def test_numbers_of_any_size_are_bounded(numbers: list[int]) -> None:
    found = pb.PodResources(
        cpu_ids=numbers, memory=[pb.ContainerMemory(topology=topology(*numbers))]
    )
    try:
        pod = pod_from(found)
    except ParseError:
        return
    assert all(0 <= number < 65536 for number in (*pod.cpus, *pod.memory[0].numa_nodes))
