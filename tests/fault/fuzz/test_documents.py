"""Documents of pods, programs and files: only errors of ours come out, whatever is in them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import msgspec
import pytest

from agent.allocation.cdi_spec_reader import decode_plain_data
from agent.containers.hooks import OOM_DEFAULT, OOM_SPEC, oom_score
from agent.containers.resctrl import parse_resctrl_request
from agent.deviceplugin import resource_cache
from agent.deviceplugin.resources import KubeletDevice, KubeletResource
from agent.errors import AgentError
from agent.snapshot.container import PodSandbox
from agent.verification.runtime_record import parse_runtime_record
from agent.wire_formats.cdi_specs import decode_spec
from agent.wire_formats.device_allocated import MAX_DEVICES, MAX_MINOR, decode_allocated
from agent.wire_formats.device_checkpoint import parse_device_checkpoint
from agent.wire_formats.extended_resource_spec import parse_extended_resource_spec
from agent.wire_formats.pod import decode_pod
from agent.wire_formats.resource_status import parse_resource_status
from tests.fault.fuzz.mutating import Mutator
from tests.fault.fuzz.shares import SHARES

GPU = {
    "minor": 0,
    "id": "GPU-1",
    "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "8Gi"},
    "extension": {
        "vfs": [{"busID": "0000:01:00.2", "minor": 3}],
        "gpuSharedResourceTemplate": "vir01",
    },
}
ALLOCATED: tuple[object, ...] = (
    {"gpu": [GPU, {"minor": 1}]},
    {"rdma": [GPU], "gpu": None},
    {"xpu": []},
)
STATUS = (
    {"cpuset": "0-3,8", "numaNodeResources": [{"node": 0, "resources": {"cpu": "4"}}]},
    {"numaNodeResources": [{"node": 1, "resources": {"kubernetes.io/batch-cpu": 2000}}]},
)
EXTENDED = (
    {
        "containers": {
            "main": {
                "requests": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "1Gi"},
                "limits": {"kubernetes.io/batch-cpu": 500, "kubernetes.io/batch-memory": "2Gi"},
            }
        }
    },
)
RESCTRL = (
    {
        "llc": {
            "schemata": {"range": [0, 50]},
            "schemataPerCache": [{"cacheID": 0, "range": [0, 30]}],
        },
        "mb": {
            "schemata": {"percent": 20},
            "schemataPerCache": [{"cacheID": 1, "percent": 50}],
        },
    },
)
POD = {
    "metadata": {
        "name": "p",
        "namespace": "n",
        "uid": "6f6f0000-0000-4000-8000-000000000001",
        "labels": {"koordinator.sh/qosClass": "LS"},
        "annotations": {"a": "b"},
        "deletionTimestamp": "2026-01-02T03:04:05Z",
    },
    "spec": {
        "nodeName": "node-a",
        "priority": 9000,
        "containers": [
            {"name": "main", "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}}}
        ],
        "initContainers": [{"name": "init", "restartPolicy": "Always", "resources": {}}],
    },
    "status": {
        "phase": "Running",
        "qosClass": "Burstable",
        "containerStatuses": [{"name": "main", "containerID": "containerd://ab", "ready": True}],
    },
}
CHECKPOINT = {
    "Data": {
        "PodDeviceEntries": [
            {
                "PodUID": "u",
                "ContainerName": "main",
                "ResourceName": "nvidia.com/gpu",
                "DeviceIDs": {"0": ["GPU-1"], "-1": None},
                "AllocResp": "CgE=",
            }
        ],
        "RegisteredDevices": {"nvidia.com/gpu": ["GPU-1"]},
    },
    "Checksum": 1,
}
STORED_RECORDS = json.loads(
    resource_cache.encode_resources(
        (
            KubeletResource(
                name="nvidia.com/gpu", vendor="nvidia", devices=(KubeletDevice(id="GPU-1"),)
            ),
        ),
        "boot",
    )
)
RECORD = {
    "process": {"env": ["A=1"], "rlimits": [{"type": "RLIMIT_MEMLOCK", "soft": 1, "hard": 2}]},
    "mounts": [{"destination": "/a", "source": "/b"}],
    "linux": {
        "devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}],
        "resources": {"devices": [{"allow": True, "type": "c", "major": 195, "access": "rw"}]},
    },
}
CDI = {
    "cdiVersion": "0.6.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
    "containerEdits": {"mounts": [{"hostPath": "/a", "containerPath": "/a"}], "env": ["A=1"]},
}
TEXT = re.compile(r"[!-~]*")

Decode = Callable[[str], object]


def allocated(text: str) -> None:
    """Decode, and look at what is promised of the result."""
    result = decode_allocated(text)
    assert len(result) <= MAX_DEVICES
    for entry in result:
        assert entry.minor is None or 0 <= entry.minor < MAX_MINOR
        assert all(TEXT.fullmatch(one) for one in (entry.type, entry.id, *entry.vfs))
        assert all(type(amount) is int for _, amount in entry.resources)


def scored(text: str) -> None:
    """Look a container up: in the annotation of all, or in that of a default."""
    key = OOM_SPEC if text.startswith("{") else OOM_DEFAULT
    result = oom_score(PodSandbox(id="s", annotations=((key, text),)), "main")
    assert result is None or -1000 <= result <= 1000


def extended(text: str) -> None:
    """Decode; no amount is below 0."""
    for one in parse_extended_resource_spec(text).values():
        assert min(one.request_milli, one.limit_milli, one.limit_bytes) >= 0


def of_bytes(decode: Callable[[bytes], object]) -> Decode:
    """Have a decoder of files read the text as a file."""
    return lambda text: decode(text.encode("utf-8", "surrogatepass"))


DECODERS: dict[str, tuple[Decode, tuple[object, ...]]] = {
    "device-allocated": (allocated, ALLOCATED),
    "resource-status": (parse_resource_status, STATUS),
    "extended-resource-spec": (extended, EXTENDED),
    "oom-score-adj-spec": (scored, ({"main": -900, "side": 1000}, 100)),
    "resctrl": (parse_resctrl_request, RESCTRL),
    "pod": (of_bytes(decode_pod), (POD,)),
    "device checkpoint": (of_bytes(parse_device_checkpoint), (CHECKPOINT,)),
    "kept devices": (
        of_bytes(lambda data: resource_cache.decode_resources(data, "boot")),
        (STORED_RECORDS,),
    ),
    "container record": (of_bytes(parse_runtime_record), (RECORD,)),
    "cdi": (of_bytes(lambda data: decode_spec("/etc/cdi/a.yaml", decode_plain_data(data))), (CDI,)),
}


@pytest.mark.parametrize("name", DECODERS)
def test_nasty_documents_raise_only_errors_of_the_agent(name: str) -> None:
    decode, corpus = DECODERS[name]
    mutator, good = Mutator(name), 0
    for document in corpus:
        decode(msgspec.json.encode(document).decode())
    for _ in range(SHARES[name]):
        text = mutator.document(corpus)
        try:
            decode(text)
        except AgentError:
            continue
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__} for {text[:2000]!r}") from error
        good += 1
    assert good > SHARES[name] // 50  # else nothing but the first look at the text was tried
