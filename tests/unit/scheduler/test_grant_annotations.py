"""What is written to a pod for its devices, and for the device plug-ins of vendors."""

from __future__ import annotations

import json

import pytest

from agent.wire_formats.device_allocated import decode_allocated
from plugins.scheduler.devices.allocator import GrantedDevice, NodeRefused
from plugins.scheduler.devices.device_table import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    MODEL_LABEL,
    RDMA,
    VENDOR_LABEL,
    DeviceFunction,
    NodeDevice,
)
from plugins.scheduler.devices.grant_annotations import (
    GrantMetadata,
    allocation_text,
    grant_metadata,
    vendor_metadata,
)
from tests.unit.scheduler.vectors import CARD_BYTES, RDMA_NAME, WHOLE

T = 1_700_000_000_000_000_000
GIB = 1 << 30
BIND, MINORS = "scheduling.koordinator.sh/bind-timestamp", "scheduling.koordinator.sh/gpu-minors"


def card(minor: int, template: str = "", **amounts: int) -> GrantedDevice:
    names = {"core": GPU_CORE, "memory": GPU_MEMORY}
    return GrantedDevice(
        device=NodeDevice(kind=GPU, minor=minor, id=f"GPU-{minor}"),
        amounts={names[name]: amount for name, amount in amounts.items()},
        template=template,
    )


def metadata(vendor: str, *cards: GrantedDevice, model: str = "", label: str = "") -> GrantMetadata:
    labels = {VENDOR_LABEL: vendor, MODEL_LABEL: model}
    pod = {"koordinator.sh/gpu-isolation-provider": label} if label else {}
    return vendor_metadata(cards, "node-1", labels, pod, T)


def test_the_annotation_of_a_vector_complete() -> None:
    nic = NodeDevice(kind=RDMA, minor=1, id="0000:1f:00.0")
    second = NodeDevice(kind=RDMA, minor=2, id="0000:90:00.0")
    gpu = NodeDevice(kind=GPU, minor=1, id="GPU-befd76c3-8a36-7b8a-179c-eae75aa7d9f2")
    text = allocation_text(
        (
            GrantedDevice(device=gpu, amounts=WHOLE),
            GrantedDevice(
                device=nic, amounts={RDMA_NAME: 1}, function=DeviceFunction("0000:1f:00.3", 1)
            ),
            GrantedDevice(
                device=second, amounts={RDMA_NAME: 1}, function=DeviceFunction("0000:90:00.2", 0)
            ),
        )
    )
    assert json.loads(text) == {
        "gpu": [
            {
                "minor": 1,
                "resources": {
                    "koordinator.sh/gpu-core": "100",
                    "koordinator.sh/gpu-memory": "83201216Ki",
                    "koordinator.sh/gpu-memory-ratio": "100",
                },
                "id": "GPU-befd76c3-8a36-7b8a-179c-eae75aa7d9f2",
            }
        ],
        "rdma": [
            {
                "minor": 1,
                "resources": {"koordinator.sh/rdma": "1"},
                "id": "0000:1f:00.0",
                "extension": {"vfs": [{"minor": 1, "busID": "0000:1f:00.3"}]},
            },
            {
                "minor": 2,
                "resources": {"koordinator.sh/rdma": "1"},
                "id": "0000:90:00.0",
                "extension": {"vfs": [{"busID": "0000:90:00.2"}]},
            },
        ],
    }
    read = decode_allocated(text)
    assert [one.amount(GPU_MEMORY) for one in read] == [CARD_BYTES, None, None]


def test_a_grant_of_nothing_writes_nothing() -> None:
    assert grant_metadata(()).annotations == {}
    assert vendor_metadata((), "n", {}, {}, T) == GrantMetadata(annotations={})


def test_nvidia() -> None:
    assert metadata("nvidia", card(0)).annotations == {BIND: str(T), MINORS: "0"}
    assert metadata("nvidia", card(0), card(1)).annotations[MINORS] == "0,1"
    assert metadata("nvidia", card(0), label="HAMi-core").labels == {"hami.io/vgpu-node": "node-1"}


def test_huawei() -> None:
    whole = metadata("huawei", card(0), card(1)).annotations
    assert (whole["predicate-time"], whole["huawei.com/npu-core"]) == (str(T), "0,1")
    duo = metadata("huawei", card(0), card(1), model="Ascend-310P3-300I-DUO").annotations
    assert duo["huawei.com/Ascend310P"] == "Ascend310P-0,Ascend310P-1"
    assert "huawei.com/npu-core" not in duo
    assert metadata("huawei", card(0, "vir02")).annotations["huawei.com/npu-core"] == "0-vir02"


def test_cambricon() -> None:
    written = metadata("cambricon", card(0, core=5, memory=GIB))
    assert written.annotations["CAMBRICON_DSMLU_ASSIGHED"] == "false"
    assert written.annotations["CAMBRICON_DSMLU_PROFILE"] == "0_5_4"
    assert written.node_locks == ("cambricon.com/dsmlu.lock",)


def test_metax() -> None:
    written = metadata("metax", card(0, core=5, memory=GIB), card(1, core=5, memory=GIB))
    expected = [
        [
            {"uuid": "GPU-0", "compute": 5, "vRam": 1024},
            {"uuid": "GPU-1", "compute": 5, "vRam": 1024},
        ]
    ]
    assert json.loads(written.annotations["metax-tech.com/gpu-devices-allocated"]) == expected
    assert written.node_locks == ("hami.io/mutex.lock",)


@pytest.mark.parametrize(
    ("vendor", "cards", "reason"),
    [
        ("cambricon", (card(0, core=5, memory=GIB), card(1)), "multiple gpu share"),
        ("cambricon", (card(0, memory=GIB),), "gpu core resource is required"),
        ("cambricon", (card(0, core=5, memory=128 << 20),), "not be less than 268435456 bytes"),
        ("metax", (card(0, memory=GIB),), "gpu core resource is required"),
        ("metax", (card(0, core=5, memory=512 << 10),), "not be less than 1048576 bytes"),
    ],
)
def test_what_a_vendors_plugin_cannot_serve_is_refused(
    vendor: str, cards: tuple[GrantedDevice, ...], reason: str
) -> None:
    with pytest.raises(NodeRefused, match=reason):
        metadata(vendor, *cards)
