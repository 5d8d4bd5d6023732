"""What is written to a pod for its devices, and for the device plug-ins of vendors."""

from __future__ import annotations

import json

import msgspec
import pytest

from agent.wire_formats.device_allocated import decode_allocated
from plugins.scheduler.devices.allocator import DeviceChoice, NodeRefused
from plugins.scheduler.devices.binding_metadata import (
    BindingMetadata,
    allocation_metadata,
    allocation_text,
    vendor_metadata,
)
from plugins.scheduler.devices.device_table import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    MODEL_LABEL,
    VENDOR_LABEL,
    DeviceTable,
    NodeDevice,
)
from tests.unit.scheduler.test_allocation_vectors import JOINT, allocate_on, pod
from tests.unit.scheduler.vectors import CARD_BYTES, NODES, RDMA_NAME, holding

T = 1_700_000_000_000_000_000
GIB = 1 << 30
BIND, MINORS = "scheduling.koordinator.sh/bind-timestamp", "scheduling.koordinator.sh/gpu-minors"


def card(minor: int, template: str = "", **amounts: int) -> DeviceChoice:
    names = {"core": GPU_CORE, "memory": GPU_MEMORY}
    return DeviceChoice(
        device=NodeDevice(kind=GPU, minor=minor, id=f"GPU-{minor}"),
        amounts={names[name]: amount for name, amount in amounts.items()},
        template=template,
    )


def metadata(
    vendor: str, *cards: DeviceChoice, model: str = "", label: str = ""
) -> BindingMetadata:
    labels = {VENDOR_LABEL: vendor, MODEL_LABEL: model}
    pod = {"koordinator.sh/gpu-isolation-provider": label} if label else {}
    return vendor_metadata(cards, "node-1", labels, pod, T)


def test_a11_the_annotation_complete() -> None:
    ids = {
        1: "GPU-befd76c3-8a36-7b8a-179c-eae75aa7d9f2",
        2: "GPU-87a9047b-dade-e08c-c067-7fedfd2e2750",
        3: "GPU-44a68f77-c18d-85a6-5425-e314c0e8e182",
    }
    table = NODES["A"]
    cards = tuple(
        msgspec.structs.replace(one, id=ids.get(one.minor, one.id)) for one in table.of(GPU)
    )
    table = DeviceTable(node="n", devices={**table.devices, GPU: cards})
    entries = holding(table, gpus=[0], functions=["0000:1f:00.2"])
    grant = allocate_on(table, pod({"nvidia.com/gpu": 3, RDMA_NAME: 1}, JOINT), entries)
    whole = {
        "koordinator.sh/gpu-core": "100",
        "koordinator.sh/gpu-memory": "83201216Ki",
        "koordinator.sh/gpu-memory-ratio": "100",
    }
    nic = {"koordinator.sh/rdma": "1"}
    text = allocation_text(grant)
    assert json.loads(text) == {
        "gpu": [{"minor": minor, "resources": whole, "id": ids[minor]} for minor in (1, 2, 3)],
        "rdma": [
            {
                "minor": 1,
                "resources": nic,
                "id": "0000:1f:00.0",
                "extension": {"vfs": [{"minor": 1, "busID": "0000:1f:00.3"}]},
            },
            {
                "minor": 2,
                "resources": nic,
                "id": "0000:90:00.0",
                "extension": {"vfs": [{"busID": "0000:90:00.2"}]},
            },
        ],
    }
    memory = [one.amount(GPU_MEMORY) for one in decode_allocated(text)]
    assert memory == [CARD_BYTES] * 3 + [None] * 2


def test_a_grant_of_nothing_writes_nothing() -> None:
    assert allocation_metadata(()).annotations == {}
    assert vendor_metadata((), "n", {}, {}, T) == BindingMetadata(annotations={})


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
    vendor: str, cards: tuple[DeviceChoice, ...], reason: str
) -> None:
    with pytest.raises(NodeRefused, match=reason):
        metadata(vendor, *cards)
