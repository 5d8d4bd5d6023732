"""The stub, the binding and NVML's documentation must agree on every structure."""

from __future__ import annotations

import ctypes

import pynvml
import pytest

from tests.fault.nvml_stub import build
from tests.stubs.build import described

# structure: bytes, then members with their offsets
LAYOUTS: dict[str, tuple[int, dict[str, int]]] = {
    "nvmlPciInfo_t": (
        68,
        {"busIdLegacy": 0, "domain": 16, "bus": 20, "device": 24, "pciDeviceId": 28, "busId": 36},
    ),
    "c_nvmlMemory_t": (24, {"total": 0, "free": 8, "used": 16}),
    "c_nvmlMemory_v2_t": (40, {"version": 0, "total": 8, "reserved": 16, "free": 24, "used": 32}),
    "c_nvmlUtilization_t": (8, {"gpu": 0, "memory": 4}),
    "c_nvmlBAR1Memory_t": (24, {}),
    "c_nvmlGpuInstancePlacement_t": (8, {"start": 0, "size": 4}),
    "c_nvmlProcessInfo_v2_t": (
        24,
        {"pid": 0, "usedGpuMemory": 8, "gpuInstanceId": 16, "computeInstanceId": 20},
    ),
    "c_nvmlProcessUtilizationSample_t": (
        32,
        {"pid": 0, "timeStamp": 8, "smUtil": 16, "memUtil": 20, "encUtil": 24, "decUtil": 28},
    ),
    "c_nvmlSample_t": (16, {"timeStamp": 0, "sampleValue": 8}),
    "c_nvmlFieldValue_t": (
        40,
        {
            "fieldId": 0,
            "scopeId": 4,
            "timestamp": 8,
            "latencyUsec": 16,
            "valueType": 24,
            "nvmlReturn": 28,
            "value": 32,
        },
    ),
    "c_nvmlEventData_t": (
        32,
        {
            "device": 0,
            "eventType": 8,
            "eventData": 16,
            "gpuInstanceId": 24,
            "computeInstanceId": 28,
        },
    ),
    "c_nvmlDeviceAttributes": (
        40,
        {
            "multiprocessorCount": 0,
            "gpuInstanceSliceCount": 24,
            "computeInstanceSliceCount": 28,
            "memorySizeMB": 32,
        },
    ),
    "c_nvmlGpuInstanceProfileInfo_t": (48, {}),
    "c_nvmlGpuInstanceProfileInfo_v2_t": (
        152,
        {
            "version": 0,
            "id": 4,
            "sliceCount": 12,
            "instanceCount": 16,
            "memorySizeMB": 48,
            "name": 56,
        },
    ),
    "c_nvmlComputeInstanceProfileInfo_t": (36, {}),
    "c_nvmlComputeInstanceProfileInfo_v2_t": (136, {}),
    "c_nvmlGpuInstanceInfo_t": (24, {"device": 0, "id": 8, "profileId": 12, "placement": 16}),
    "c_nvmlComputeInstanceInfo_t": (
        32,
        {"device": 0, "gpuInstance": 8, "id": 16, "profileId": 20, "placement": 24},
    ),
    "c_nvmlGpuFabricInfo_t": (28, {}),
    "c_nvmlGpuFabricInfo_v2_t": (36, {}),
    "c_nvmlGpuFabricInfo_v3_t": (
        40,
        {
            "version": 0,
            "clusterUuid": 4,
            "status": 20,
            "cliqueId": 24,
            "state": 28,
            "healthMask": 32,
            "healthSummary": 36,
        },
    ),
    "c_nvmlRepairStatus_t": (12, {}),
    "c_nvmlDeviceAddressingMode_t": (8, {}),
    "c_nvmlPlatformInfo_v2_t": (44, {}),
    "c_nvmlGpmMetric_t": (40, {"metricId": 0, "nvmlReturn": 4, "value": 8}),
}

# structure of the binding: structure of the stub, whose C code asserts sizes and offsets
STUB_RECORDS = {
    "nvmlPciInfo_t": "Pci",
    "c_nvmlMemory_t": "MemoryV1",
    "c_nvmlMemory_v2_t": "MemoryV2",
    "c_nvmlBAR1Memory_t": "Bar1",
    "c_nvmlUtilization_t": "Utilization",
    "c_nvmlGpuInstancePlacement_t": "Placement",
    "c_nvmlProcessInfo_v2_t": "Process",
    "c_nvmlProcessUtilizationSample_t": "Busy",
    "c_nvmlSample_t": "Sample",
    "c_nvmlFieldValue_t": "FieldValue",
    "c_nvmlEventData_t": "EventData",
    "c_nvmlDeviceAttributes": "Attributes",
    "c_nvmlGpuInstanceProfileInfo_t": "GiProfileV1",
    "c_nvmlGpuInstanceProfileInfo_v2_t": "GiProfileV2",
    "c_nvmlComputeInstanceProfileInfo_t": "CiProfileV1",
    "c_nvmlComputeInstanceProfileInfo_v2_t": "CiProfileV2",
    "c_nvmlGpuInstanceInfo_t": "GiInfo",
    "c_nvmlComputeInstanceInfo_t": "CiInfo",
    "c_nvmlGpuFabricInfo_t": "FabricV1",
    "c_nvmlGpuFabricInfo_v2_t": "FabricV2",
    "c_nvmlGpuFabricInfo_v3_t": "FabricV3",
    "c_nvmlDeviceAddressingMode_t": "Addressing",
    "c_nvmlPlatformInfo_v2_t": "Platform",
    "c_nvmlGpmMetric_t": "GpmMetric",
    "c_nvmlGpmSupport_t": "GpmSupport",
    "c_nvmlEccSramErrorStatus_v1_t": "Sram",
    "c_nvmlRepairStatus_t": "Repair",
    "c_nvmlUnrepairableMemory_v1_t": "Unrepairable",
    "c_nvmlSystemEventSetCreateRequest_v1_t": "SetRequest",
    "c_nvmlSystemRegisterEventRequest_v1_t": "RegisterRequest",
    "c_nvmlSystemEventData_v1_t": "SystemEvent",
    "c_nvmlSystemEventSetWaitRequest_v1_t": "WaitRequest",
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_bindings_structure_is_laid_out_as_documented(name: str) -> None:
    structure = getattr(pynvml, name)
    size, offsets = LAYOUTS[name]
    assert ctypes.sizeof(structure) == size
    assert {member: getattr(structure, member).offset for member in offsets} == offsets


@pytest.mark.parametrize("name", STUB_RECORDS)
def test_the_stub_has_the_same_layout(name: str) -> None:
    structure = getattr(pynvml, name)
    records = {record.name: record for record in described("nvml").records}
    record = records[STUB_RECORDS[name]]
    offsets = {getattr(structure, field[0]).offset for field in structure._fields_}
    assert record.size == ctypes.sizeof(structure)
    assert record.align == ctypes.alignment(structure)
    assert {member.offset for member in record.members} <= offsets


@pytest.mark.parametrize(("level", "missing"), [(450, True), (510, False), (570, False)])
def test_the_stub_of_an_old_driver_lacks_what_came_later(level: int, *, missing: bool) -> None:
    library = ctypes.CDLL(str(build(level) / "libnvidia-ml.so.1"))
    assert hasattr(library, "nvmlDeviceGetMemoryInfo_v2") is not missing
