"""Messages of the kubelet's device plug-in interface, byte by byte."""

from __future__ import annotations

from agent.deviceplugin.messages import (
    MAX_LIST_BYTES,
    build_allocate_response,
    build_options,
    cut_to_message,
    encode_list,
    encode_registration,
)
from agent.deviceplugin.resources import ContainerAllocation, KubeletDevice
from agent.snapshot.edits import BIND_READ_ONLY, ContainerEdits, DeviceNodeEdit, MountEdit
from proto.gen import deviceplugin_v1beta1_pb2 as pb

REGISTER = bytes.fromhex(
    "0a0776316265746131120e6b6f6f72642d6770752e736f636b1a126b6f6f7264696e61746f722e73682f67707522021001"
)
FRAMED = bytes.fromhex("0000000031") + REGISTER
LIST = bytes.fromhex(
    "0a140a056770752d3012074865616c7468791a020a000a180a056770752d311209556e6865616c7468791a040a020801"
)
ALLOCATE = bytes.fromhex(
    "0a360a060a01411201311a140a062f6465762f6112062f6465762f621a0272772a160a146b6f6f7264696e61746f"
    "722e73682f6770753d30"
)


def test_a_registration_is_these_bytes() -> None:
    options = build_options(check_start=False, choose=True)
    registration = encode_registration("koord-gpu.sock", "koordinator.sh/gpu", options)
    assert registration == REGISTER
    assert pb.RegisterRequest.FromString(REGISTER).endpoint == "koord-gpu.sock"


def test_a_registration_as_grpc_frames_it_has_its_length_in_front() -> None:
    length = int.from_bytes(FRAMED[1:5], "big")
    assert (FRAMED[0], length) == (0, len(REGISTER))
    assert pb.RegisterRequest.FromString(FRAMED[5:]).options.get_preferred_allocation_available


def test_a_list_is_these_bytes_and_numa_node_0_is_there_though_it_is_empty() -> None:
    devices = (
        KubeletDevice(id="gpu-0", numa_nodes=(0,)),
        KubeletDevice(id="gpu-1", healthy=False, numa_nodes=(1,)),
    )
    assert encode_list(devices) == LIST
    first, second = pb.ListAndWatchResponse.FromString(LIST).devices
    assert [node.ID for node in first.topology.nodes] == [0]
    assert (second.ID, second.health) == ("gpu-1", "Unhealthy")


def test_a_device_without_numa_nodes_has_no_topology() -> None:
    (device,) = pb.ListAndWatchResponse.FromString(encode_list((KubeletDevice(id="a"),))).devices
    assert not device.HasField("topology")


def test_an_allocation_is_these_bytes() -> None:
    node = DeviceNodeEdit(host_path="/dev/b", path="/dev/a", major=1, minor=2)
    edits = ContainerEdits(env=(("A", "1"),), nodes=(node,), cdi=("koordinator.sh/gpu=0",))
    allocate_response = build_allocate_response((ContainerAllocation(edits=edits),))
    assert allocate_response.SerializeToString(deterministic=True) == ALLOCATE
    assert pb.AllocateResponse.FromString(ALLOCATE) == allocate_response


def test_mounts_and_annotations_are_carried_a_container_each() -> None:
    mounts = (
        MountEdit(host_path="/h/ro", path="/c/ro", options=BIND_READ_ONLY),
        MountEdit(host_path="/h/rw", path="/c/rw", options=("bind", "rw")),
    )
    answer = ContainerAllocation(edits=ContainerEdits(mounts=mounts), annotations=(("k", "v"),))
    first, second = build_allocate_response(
        (answer, ContainerAllocation(edits=ContainerEdits()))
    ).container_responses
    assert [(mount.container_path, mount.read_only) for mount in first.mounts] == [
        ("/c/ro", True),
        ("/c/rw", False),
    ]
    assert dict(first.annotations) == {"k": "v"}
    assert second == pb.ContainerAllocateResponse()


def test_a_list_is_cut_before_it_is_too_large_and_never_without_need() -> None:
    widest = tuple(KubeletDevice(id=f"{n:063d}", numa_nodes=(2**62, 2**62)) for n in range(40_000))
    cut = cut_to_message(widest)
    assert cut == widest[: len(cut)]
    assert MAX_LIST_BYTES * 0.8 < len(encode_list(cut)) <= MAX_LIST_BYTES
    assert cut_to_message(widest[:1000]) == widest[:1000]
