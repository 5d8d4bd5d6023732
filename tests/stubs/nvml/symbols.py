"""Symbols of NVML about the system, whole cards, their links and what runs on them."""

from __future__ import annotations

from tests.stubs.describe import Get, Symbol
from tests.stubs.nvml.forms import CARD, MIG, code, number, numbers, processes, text

SYSTEM = (
    code("InitWithFlags", "unsigned flags", "0"),
    code("Shutdown", "", "0"),
    Symbol("nvmlErrorString", "int code", "    return nvml_error(code);", "text"),
    Symbol("nvmlSystemGetDriverVersion", "char *to, unsigned room", {"to": Get("system.driver")}),
    code("SystemGetNVMLVersion", "char *to, unsigned room", "nvml_version(to, room)"),
    Symbol("nvmlSystemGetCudaDriverVersion_v2", "int *to", {"to": Get("system.cuda")}),
    Symbol(
        "nvmlSystemGetConfComputeState",
        "Confidential *to",
        {"environment": Get("", "0"), "on": Get("system.confidential", "0"), "tools": Get("", "0")},
        since=570,
    ),
    Symbol(
        "nvmlSystemGetConfComputeGpusReadyState",
        "unsigned *to",
        {"to": Get("system.ready", "0")},
        since=570,
    ),
)

HANDLES = (
    code("DeviceGetCount_v2", "unsigned *to", "nvml_count(to)"),
    code("DeviceGetHandleByIndex_v2", "unsigned card, void **to", "nvml_handle(&call, to)"),
    code("DeviceGetHandleByPciBusId_v2", "const char *bus, void **to", "nvml_handle(&call, to)"),
    code("DeviceGetHandleByUUID", "const char *uuid, void **to", "nvml_by_uuid(uuid, to)"),
    code(
        "DeviceGetUUID", f"{MIG}, char *to, unsigned room", "nvml_uuid(&call, instance, to, room)"
    ),
    code("DeviceGetIndex", f"{CARD}, unsigned *to", "nvml_index(&call, to)"),
    code("DeviceGetPciInfo_v3", f"{CARD}, Pci *to", "nvml_pci(&call, to)"),
)

PLAIN = (
    text("Name", "name"),
    text("Serial", "serial"),
    text("VbiosVersion", "vbios"),
    number("MinorNumber", "minor"),
    number("ModuleId", "module"),
    number("Architecture", "arch"),
    number("PersistenceMode", "persistence"),
    number("ComputeMode", "mode"),
    number("PowerUsage", "power"),
    number("EnforcedPowerLimit", "plimit"),
    number("PowerManagementLimit", "plimit"),
    number("NumFans", "fans"),
    number("PerformanceState", "pstate"),
    number("CurrPcieLinkWidth", "width"),
    number("MaxPcieLinkWidth", "maxwidth"),
    number("VirtualizationMode", "virt"),
    number("NumaNodeId", "numanode"),
    number("TotalEnergyConsumption", "energy", "u64"),
    number("CurrentClocksEventReasons", "throttle", "u64", 535),
    number("CurrentClocksThrottleReasons", "throttle", "u64"),
    numbers("CudaComputeCapability", "cc", ("major", "minor"), ".", "int"),
    numbers("RemappedRows", "remap", ("corrected", "uncorrected", "pending", "failed"), ","),
    Symbol(
        "nvmlDeviceGetEccMode",
        f"{CARD}, unsigned *now, unsigned *pending",
        {"now": Get("gpu.{device}.ecc"), "pending": Get("gpu.{device}.ecc")},
    ),
    Symbol(
        "nvmlDeviceGetUtilizationRates",
        f"{CARD}, Utilization *to",
        {
            name: Get("gpu.{device}.util", part=place, separator=",")
            for place, name in enumerate(("gpu", "memory"))
        },
    ),
    Symbol(
        "nvmlDeviceGetClockInfo",
        f"{CARD}, unsigned type, unsigned *to",
        {"to": Get("gpu.{device}.clock.{type}")},
    ),
    Symbol(
        "nvmlDeviceGetFanSpeed_v2",
        f"{CARD}, unsigned fan, unsigned *to",
        {"to": Get("gpu.{device}.fan.{fan}")},
    ),
    Symbol(
        "nvmlDeviceGetGridLicensableFeatures_v4",
        f"{CARD}, LicensableFeatures *to",
        {
            "supported": Get("gpu.{device}.license", part=0, separator=","),
            "count": Get("gpu.{device}.license", part=1, separator=","),
            "state": Get("gpu.{device}.license", part=2, separator=","),
        },
    ),
    Symbol(
        "nvmlDeviceGetPcieThroughput",
        f"{CARD}, unsigned counter, unsigned *to",
        {"to": Get("", "0")},
    ),
    code(
        "DeviceGetTemperature",
        f"{CARD}, unsigned sensor, unsigned *to",
        'sensor ? INVALID : nvml_member(&call, "gpu.{0}.temp", to)',
    ),
    code("DeviceGetMemoryInfo", f"{MIG}, MemoryV1 *to", "nvml_any_memory(&call, instance, to)"),
    code("DeviceGetMemoryInfo_v2", f"{CARD}, MemoryV2 *to", "nvml_memory(&call, NULL, to)", 510),
    Symbol(
        "nvmlDeviceGetAddressingMode",
        f"{CARD}, Addressing *to",
        {"mode": Get("gpu.{device}.addressing")},
        since=570,
    ),
    code("DeviceGetPlatformInfo", f"{CARD}, Platform *to", "nvml_platform(&call, to)", 570),
)

LINKS = (
    code("DeviceGetNvLinkState", f"{CARD}, unsigned link, unsigned *to", "nvml_link(&call, to)"),
    Symbol(
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        f"{CARD}, unsigned link, unsigned *to",
        "    return nvml_link_type(&call, to);",
    ),
    code(
        "DeviceGetNvLinkRemotePciInfo_v2",
        f"{CARD}, unsigned link, Pci *to",
        "nvml_remote(&call, to)",
    ),
    code(
        "DeviceGetTopologyCommonAncestor",
        f"{CARD}, void *other, unsigned *to",
        "nvml_ancestor(&call, other, to)",
    ),
    code("DeviceGetGpuFabricInfo", f"{CARD}, FabricV1 *to", "nvml_fabric(&call, to)", 535),
    code("DeviceGetGpuFabricInfoV", f"{CARD}, FabricV3 *to", "nvml_fabric_v(&call, to)", 570),
)

LISTS = (
    *processes("Compute", "c"),
    *processes("Graphics", "g"),
    *processes("MPSCompute", "m"),
    code(
        "DeviceGetProcessUtilization",
        f"{CARD}, Busy *to, unsigned *count, u64 after",
        "nvml_busy(&call, to, count, after)",
    ),
    code(
        "DeviceGetSamples",
        f"{CARD}, unsigned kind, u64 after, unsigned *type, unsigned *count, Sample *to",
        "nvml_samples(&call, type, count, to)",
    ),
    code(
        "DeviceGetFieldValues",
        f"{CARD}, int count, FieldValue *to",
        "nvml_fields(&call, count, to)",
    ),
)
