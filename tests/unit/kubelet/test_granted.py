"""The kubelet's list with our grants: who gets them, under which names, and who gets none."""

from __future__ import annotations

import json

import pytest

from agent.errors import ParseError
from agent.kubelet.pod_resources_list import add_allocations, allocated_ids, allocations_by_pod
from agent.snapshot.allocation import AllocatedDevice
from agent.snapshot.device_plugin import KubeletAllocation
from agent.snapshot.pod import KubeQos, PodView
from agent.wire_formats.device_allocated import ANNOTATION
from proto.gen import podresources_v1_pb2 as pb


def pod(name: str, grant: object = None, **changes: object) -> PodView:
    text = grant if isinstance(grant, str) else json.dumps(grant)
    annotations = () if grant is None else ((ANNOTATION, text),)
    view = {"uid": f"u-{name}", "name": name, "namespace": "ns", "qos": KubeQos.BURSTABLE}
    return PodView(**{**view, "annotations": annotations, **changes})  # type: ignore[arg-type] # by name


def listed(*pods: str, containers: int = 2) -> pb.ListPodResourcesResponse:
    return pb.ListPodResourcesResponse(
        pod_resources=[
            pb.PodResources(
                name=name,
                namespace="ns",
                containers=[
                    pb.ContainerResources(
                        name=f"c{number}",
                        devices=[pb.ContainerDevices(resource_name="m.io/x", device_ids=["7"])],
                    )
                    for number in range(containers)
                ],
            )
            for name in pods
        ]
    )


def devices(reply: bytes, name: str, container: int = 0) -> list[tuple[str, list[str]]]:
    resources_response = pb.ListPodResourcesResponse.FromString(reply)
    pods = [
        pod_resource
        for pod_resource in resources_response.pod_resources
        if pod_resource.name == name
    ]
    return [
        (entry.resource_name, list(entry.device_ids))
        for entry in pods[0].containers[container].devices
    ]


def test_a_grant_stands_at_the_first_container_by_resource() -> None:
    grant = {
        "rdma": [{"minor": 0, "id": "0000:1f:00.0"}],
        "gpu": [{"minor": 1, "id": "GPU-b"}, {"minor": 0, "id": "GPU-a"}],
    }
    reply = add_allocations(listed("a", "b").SerializeToString(), [pod("a", grant), pod("b")])
    assert devices(reply, "a") == [
        ("koordinator.sh/rdma", ["0000:1f:00.0"]),
        ("m.io/x", ["7"]),
        ("nvidia.com/gpu", ["GPU-b", "GPU-a"]),
    ]
    assert devices(reply, "a", 1) == devices(reply, "b") == [("m.io/x", ["7"])]


def test_what_the_kubelet_chose_of_a_granted_resource_is_replaced_by_the_grant() -> None:
    chosen = listed("a")
    for container in chosen.pod_resources[0].containers:
        container.devices.add(resource_name="nvidia.com/gpu", device_ids=["GPU-chosen"])
    reply = add_allocations(chosen.SerializeToString(), [pod("a", {"gpu": [{"id": "GPU-b"}]})])
    assert devices(reply, "a") == [("m.io/x", ["7"]), ("nvidia.com/gpu", ["GPU-b"])]
    assert devices(reply, "a", 1) == [("m.io/x", ["7"])]


def test_an_exchanged_device_is_named_in_place_of_the_one_that_the_kubelet_accounts() -> None:
    numa = pb.TopologyInfo(nodes=[pb.NUMANode(ID=1)])
    chosen = listed("a", "b")
    for pod_resource in chosen.pod_resources:
        pod_resource.containers[1].devices.add(
            resource_name="nvidia.com/gpu", device_ids=["GPU-1", "GPU-2"], topology=numa
        )
    kubelet_allocation = KubeletAllocation(
        pod_uid="u-a",
        container="c1",
        resource="nvidia.com/gpu",
        ids=("GPU-1", "GPU-2"),
        exchanges=(("GPU-2", "GPU-9"),),
    )
    reply = add_allocations(chosen.SerializeToString(), [pod("a"), pod("b")], [kubelet_allocation])
    assert devices(reply, "a", 1)[-1] == ("nvidia.com/gpu", ["GPU-1", "GPU-9"])
    assert devices(reply, "b", 1)[-1] == ("nvidia.com/gpu", ["GPU-1", "GPU-2"])
    entries = [
        pod_resource.containers[1].devices[-1]
        for pod_resource in pb.ListPodResourcesResponse.FromString(reply).pod_resources
    ]
    assert [entry.HasField("topology") for entry in entries] == [False, True]


@pytest.mark.parametrize(
    ("device", "ids"),
    [
        (AllocatedDevice(type="gpu", id="GPU-1", template="vir04"), {"nvidia.com/gpu": ("GPU-1",)}),
        (
            AllocatedDevice(type="rdma", id="0000:1f:00.0", vfs=("0000:1f:00.2",)),
            {"koordinator.sh/rdma": ("0000:1f:00.2",)},
        ),
        (AllocatedDevice(type="fpga", id="f"), {}),
        (AllocatedDevice(type="gpu", minor=1), {}),
    ],
)
def test_ids_are_those_of_the_functions_if_there_are_any_and_unknown_types_are_left_out(
    device: AllocatedDevice, ids: dict[str, tuple[str, ...]]
) -> None:
    assert allocated_ids((device,)) == ids


@pytest.mark.parametrize("hostile", ["", "{", "null", '{"gpu":[{"id":"a b"}]}', "[" * 5000])
def test_a_hostile_annotation_grants_nothing_and_costs_the_others_nothing(hostile: str) -> None:
    good = {"gpu": [{"id": "GPU-1"}]}
    reply = add_allocations(
        listed("a", "b").SerializeToString(), [pod("a", hostile), pod("b", good)]
    )
    assert devices(reply, "a") == [("m.io/x", ["7"])]
    assert ("nvidia.com/gpu", ["GPU-1"]) in devices(reply, "b")


def test_a_pod_that_the_kubelet_does_not_list_and_one_without_containers_get_nothing() -> None:
    reply = listed("a", containers=0)
    grant = {"gpu": [{"id": "GPU-1"}]}
    same = add_allocations(reply.SerializeToString(), [pod("a", grant), pod("gone", grant)])
    assert pb.ListPodResourcesResponse.FromString(same) == reply


@pytest.mark.parametrize("over", [{"terminating": True}, {"phase": "Failed"}])
def test_of_two_pods_of_one_name_the_one_that_stays_counts(over: dict[str, object]) -> None:
    old = pod("a", {"gpu": [{"id": "GPU-old"}]}, uid="u-1", **over)
    new = pod("a", {"gpu": [{"id": "GPU-new"}]}, uid="u-2")
    bare = pod("a", uid="u-3")
    for pods in ((old, new), (new, old)):
        assert allocations_by_pod(pods) == {("ns", "a"): {"nvidia.com/gpu": ("GPU-new",)}}
    assert allocations_by_pod((old, bare)) == {}
    assert allocations_by_pod((old,)) == {("ns", "a"): {"nvidia.com/gpu": ("GPU-old",)}}


def test_what_a_newer_kubelet_says_is_handed_on() -> None:
    newer = listed("a").SerializeToString() + b"\x82\x7d\x03new"  # field 2000, a string
    assert add_allocations(newer, ()) == newer


def test_what_is_no_answer_is_refused() -> None:
    with pytest.raises(ParseError):
        add_allocations(b"\xff\xff", ())
