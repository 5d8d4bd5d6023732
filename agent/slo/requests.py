"""Which strategies a NodeSLO asks for, and which cgroup controllers each of them writes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from agent.snapshot.slo import NodeSlo, ResourceQos, ResourceThresholds, SystemStrategy

SUPPRESSION, BURST, MEMORY_QOS, BLOCK_IO = "cpu_suppression", "cpu_burst", "memory_qos", "block_io"
RESCTRL, KERNEL_SETTINGS = "resctrl", "kernel_settings"
CPU_EVICTION, MEMORY_EVICTION = "cpu_eviction", "memory_eviction"

# by strategy; that of CPU suppression depends on its policy
CONTROLLERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {BURST: ("cpu",), MEMORY_QOS: ("memory",), BLOCK_IO: ("io",)}
)


def requested_strategies(slo: NodeSlo) -> Mapping[str, str]:
    """Return the strategies that the NodeSLO asks for, each with the field that requests it.

    Pods may request some of them by annotations, too.
    """
    requests = {**_threshold_requests(slo.thresholds), **_class_requests(slo.resource_qos)}
    if slo.cpu_burst.policy != "none":
        requests[BURST] = "spec.cpuBurstStrategy.policy"
    if slo.system != SystemStrategy():
        requests[KERNEL_SETTINGS] = "spec.systemStrategy"
    return requests


def _threshold_requests(thresholds: ResourceThresholds) -> dict[str, str]:
    if not thresholds.enable:
        return {}
    field = "spec.resourceUsedThresholdWithBE"
    requests = {SUPPRESSION: f"{field}.enable"}
    # memoryEvictThresholdPercent has a default: alone it does not ask for evictions
    for strategy, name, value in (
        (
            *(CPU_EVICTION, "cpuEvictBESatisfactionLowerPercent"),
            thresholds.cpu_evict_satisfaction_lower_percent,
        ),
        (CPU_EVICTION, "cpuEvictThresholdPercent", thresholds.cpu_evict_threshold_percent),
        (
            *(CPU_EVICTION, "cpuAllocatableEvictThresholdPercent"),
            thresholds.cpu_allocatable_evict_threshold_percent,
        ),
        (MEMORY_EVICTION, "memoryEvictLowerPercent", thresholds.memory_evict_lower_percent),
        (
            *(MEMORY_EVICTION, "memoryAllocatableEvictThresholdPercent"),
            thresholds.memory_allocatable_evict_threshold_percent,
        ),
    ):
        if value is not None:
            requests.setdefault(strategy, f"{field}.{name}")
    return requests


def _class_requests(qos: ResourceQos) -> dict[str, str]:
    requests: dict[str, str] = {}
    classes = {"lsrClass": qos.lsr_class, "lsClass": qos.ls_class, "beClass": qos.be_class}
    for name, one in classes.items():
        field = f"spec.resourceQOSStrategy.{name}"
        if one.memory.enable:
            requests.setdefault(MEMORY_QOS, f"{field}.memoryQOS.enable")
        if one.resctrl.enable:
            requests.setdefault(RESCTRL, f"{field}.resctrlQOS.enable")
    for name, one in {"beClass": qos.be_class, "cgroupRoot": qos.cgroup_root}.items():
        if one.blkio is not None and one.blkio.enable:
            requests.setdefault(BLOCK_IO, f"spec.resourceQOSStrategy.{name}.blkioQOS.enable")
    return requests


def required_controllers(slo: NodeSlo, strategy: str) -> tuple[str, ...]:
    """Return the cgroup controllers that a strategy needs, by their names in version 2."""
    if strategy == SUPPRESSION:
        return ("cpuset",) if slo.thresholds.cpu_suppress_policy == "cpuset" else ("cpu",)
    return CONTROLLERS.get(strategy, ())
