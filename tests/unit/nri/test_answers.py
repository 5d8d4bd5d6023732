"""What hooks decide, as the runtime's messages."""

from __future__ import annotations

import pytest
from google.protobuf.json_format import MessageToDict

from agent.nri.messages import changed_resources, render_creation, render_update
from agent.nri.versions import RuntimePeer, parse_peer
from agent.nri.wire.errors import CallError
from agent.snapshot.container import NO_ADJUSTMENT, NO_RESOURCES, Adjustment, LinuxResources
from agent.snapshot.edits import (
    BIND_READ_ONLY,
    UNLIMITED_RLIMIT,
    ContainerEdits,
    ContainerNote,
    DeviceNodeEdit,
    FolderEdit,
    MountEdit,
    RlimitEdit,
)
from proto.gen import nri_container_pb2 as wire
from proto.gen import nri_linux_pb2 as linux
from proto.gen import nri_plugin_pb2 as calls
from tests.unit.nri_wire import vectors as v

NEW = parse_peer("containerd", "2.3.4", "", 0)
DEBIAN = parse_peer("containerd", "1.7.24~ds1", "", 0)
OLD = parse_peer("containerd", "1.7.0", "", 0)


def answer(
    adjustment: Adjustment, linux_resources: LinuxResources = NO_RESOURCES, to: RuntimePeer = NEW
) -> calls.CreateContainerResponse:
    return calls.CreateContainerResponse.FromString(
        render_creation(adjustment, linux_resources, to)
    )


def test_the_adjustment_of_the_vectors_has_exactly_its_bytes_but_for_the_period() -> None:
    node = DeviceNodeEdit(
        host_path="/dev/nvidia0", path="/dev/nvidia0", major=195, minor=0, file_mode=0o666
    )
    adjustment = Adjustment(
        edits=ContainerEdits(
            env=(("NVIDIA_VISIBLE_DEVICES", "0"),), nodes=(node,), cdi=("koordinator.sh/gpu=gpu0",)
        ),
        resources=LinuxResources(quota_us=-1, cpus="0-3"),
        rdt_class="BE",
    )
    result = answer(adjustment)
    assert result.adjust.linux.resources.cpu.period.value == 100_000
    result.adjust.linux.resources.cpu.ClearField("period")
    assert result.SerializeToString() == v.V19
    assert calls.CreateContainerResponse.FromString(v.V19) == result


@pytest.mark.parametrize(
    ("message", "data"),
    [
        (calls.CreateContainerResponse, v.V20),
        (calls.UpdateContainersRequest, v.V21),
        (linux.LinuxResources, v.V22),
        (wire.LinuxContainerAdjustment, v.V23),
        (calls.RegisterPluginRequest, v.V4),
        (calls.RegisterPluginRequest, v.V5),
        (calls.ConfigureRequest, v.V8),
        (calls.ConfigureResponse, v.V10),
        (calls.SynchronizeRequest, v.V13),
        (calls.SynchronizeResponse, v.V14),
        (calls.StateChangeEvent, v.V17),
        (calls.CreateContainerRequest, v.V18),
    ],
)
def test_the_messages_of_the_vectors_come_back_as_they_were(message: type, data: bytes) -> None:
    assert message.FromString(data).SerializeToString(deterministic=True) == data  # type: ignore[attr-defined]  # of every message


def test_nothing_to_change_is_no_byte() -> None:
    assert render_creation(NO_ADJUSTMENT, LinuxResources(shares=2), NEW) == b""
    only_for_us = ContainerEdits(
        folders=(FolderEdit(host_path="/run/x", mode=0o700),),
        notes=(ContainerNote(reason="Odd", message="text"),),
    )
    assert render_creation(Adjustment(edits=only_for_us, bvt_warp_ns=2), NO_RESOURCES, NEW) == b""


def test_every_edit_is_in_the_answer_in_its_order() -> None:
    edits = ContainerEdits(
        nodes=(
            DeviceNodeEdit(host_path="/dev/x1", path="/dev/davinci0", major=511, minor=3),
            DeviceNodeEdit(host_path="/dev/b", path="/dev/b", major=0, minor=0, file_mode=0),
        ),
        mounts=(
            MountEdit(host_path="/h/a", path="/a", options=BIND_READ_ONLY),
            MountEdit(host_path="/h/b", path="/a/b", options=("rbind", "rw")),
        ),
        env=(("LD_PRELOAD", "/usr/local/vgpu/libvgpu.so:/a.so"), ("EMPTY", "")),
        rlimits=(RlimitEdit(name="RLIMIT_MEMLOCK", soft=UNLIMITED_RLIMIT, hard=UNLIMITED_RLIMIT),),
    )
    assert MessageToDict(answer(Adjustment(edits=edits)).adjust) == {
        "mounts": [
            {"destination": "/a", "type": "bind", "source": "/h/a", "options": [*BIND_READ_ONLY]},
            {"destination": "/a/b", "type": "bind", "source": "/h/b", "options": ["rbind", "rw"]},
        ],
        "env": [
            {"key": "LD_PRELOAD", "value": "/usr/local/vgpu/libvgpu.so:/a.so"},
            {"key": "EMPTY"},
        ],
        "rlimits": [
            {"type": "RLIMIT_MEMLOCK", "hard": str(UNLIMITED_RLIMIT), "soft": str(UNLIMITED_RLIMIT)}
        ],
        "linux": {
            "devices": [
                {"path": "/dev/davinci0", "type": "c", "major": "511", "minor": "3"},
                {"path": "/dev/b", "type": "c", "fileMode": {}},
            ]
        },
    }


def test_a_score_of_0_is_sent_if_the_runtime_reads_it_and_else_left_out() -> None:
    score = Adjustment(oom_score_adj=0)
    assert answer(score).adjust.linux.HasField("oom_score_adj")
    assert render_creation(score, NO_RESOURCES, DEBIAN) == b""


@pytest.mark.parametrize(
    ("edits", "to", "reason"),
    [
        (ContainerEdits(cdi=("nvidia.com/gpu=0",)), DEBIAN, "CDINotTaken"),
        (ContainerEdits(cdi=("nvidia.com/gpu=0",)), RuntimePeer(), "CDINotTaken"),
        (
            ContainerEdits(rlimits=(RlimitEdit(name="RLIMIT_MEMLOCK", soft=1, hard=1),)),
            OLD,
            "RlimitsNotTaken",
        ),
    ],
)
def test_what_a_runtime_would_drop_in_silence_is_refused_aloud(
    edits: ContainerEdits, to: RuntimePeer, reason: str
) -> None:
    with pytest.raises(CallError, match=reason) as refused:
        render_creation(Adjustment(edits=edits), NO_RESOURCES, to)
    assert refused.value.code == 9


@pytest.mark.parametrize(
    ("wanted", "asked", "change"),
    [
        (LinuxResources(), LinuxResources(shares=2), NO_RESOURCES),
        (LinuxResources(shares=2), LinuxResources(shares=2), NO_RESOURCES),
        (LinuxResources(shares=2), LinuxResources(shares=3), LinuxResources(shares=2)),
        (LinuxResources(quota_us=-1), NO_RESOURCES, LinuxResources(quota_us=-1, period_us=100_000)),
        (
            LinuxResources(quota_us=50_000),
            LinuxResources(quota_us=60_000, period_us=200_000),
            LinuxResources(quota_us=50_000, period_us=200_000),
        ),
        (
            LinuxResources(period_us=50_000),
            LinuxResources(quota_us=60_000, period_us=200_000),
            LinuxResources(quota_us=60_000, period_us=50_000),
        ),
        (
            LinuxResources(quota_us=60_000, period_us=200_000),
            LinuxResources(quota_us=60_000, period_us=200_000),
            NO_RESOURCES,
        ),
        (LinuxResources(cpus=""), LinuxResources(cpus="0-3"), NO_RESOURCES),  # cannot be said
        (LinuxResources(cpus="0-1"), LinuxResources(cpus="0-3"), LinuxResources(cpus="0-1")),
        (
            LinuxResources(cpus="0-7"),
            LinuxResources(cpus="0-3,4-7"),
            NO_RESOURCES,
        ),  # koordlet's text
        (LinuxResources(cpus="0-7"), LinuxResources(cpus="0-x"), LinuxResources(cpus="0-7")),
        (LinuxResources(cpus="0-7"), NO_RESOURCES, LinuxResources(cpus="0-7")),
        (
            LinuxResources(memory_bytes=-1),
            LinuxResources(memory_bytes=5),
            LinuxResources(memory_bytes=-1),
        ),
    ],
)
def test_only_differences_are_sent_and_a_quota_with_its_period(
    wanted: LinuxResources, asked: LinuxResources, change: LinuxResources
) -> None:
    assert changed_resources(wanted, asked) == change


def test_an_update_names_its_container_and_only_what_changes() -> None:
    requests = LinuxResources(shares=512, quota_us=240_000, period_us=100_000)
    linux_resources = LinuxResources(shares=512, quota_us=200_000)
    container_response = calls.UpdateContainerResponse.FromString(
        render_update("c1", Adjustment(resources=linux_resources), requests)
    )
    (update,) = container_response.update
    assert MessageToDict(update) == {
        "containerId": "c1",
        "linux": {
            "resources": {"cpu": {"quota": {"value": "200000"}, "period": {"value": "100000"}}}
        },
    }


@pytest.mark.parametrize(
    "adjustment",
    [NO_ADJUSTMENT, Adjustment(resources=LinuxResources(shares=512)), Adjustment(rdt_class="BE")],
)
def test_without_a_change_there_is_no_update(adjustment: Adjustment) -> None:
    assert render_update("c1", adjustment, LinuxResources(shares=512)) == b""
