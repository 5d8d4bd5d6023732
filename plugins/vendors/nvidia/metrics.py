"""Metric families of NVIDIA cards. The agent loads this module: it has declarations only."""

from __future__ import annotations

from agent.snapshot.inventory import MetricFamily
from plugins.shared import metric_families

_SLICE = ("mig_uuid", "profile")

FAMILIES = (
    metric_families.POWER,
    metric_families.ENERGY,
    metric_families.TEMPERATURE,
    metric_families.CLOCK,
    metric_families.PCIE_BYTES,
    metric_families.ECC_ERRORS,
    metric_families.PCIE_REPLAYS,
    MetricFamily(
        name="xpu_device_nvlink_bytes_total",
        type="counter",
        help="Bytes of data that the card sent or received over all its NVLinks.",
        labels=("direction",),
    ),
    MetricFamily(
        name="xpu_device_nvlink_errors_total",
        type="counter",
        help="Errors and recoveries of all NVLinks of the card.",
        labels=("kind",),
    ),
    MetricFamily(
        name="xpu_device_xid_errors_total",
        type="counter",
        help="Xid errors since the boot as far as the kernel's log tells, else since the start.",
        labels=("xid",),
    ),
    MetricFamily(
        name="xpu_device_implausible_readings_total",
        type="counter",
        help="Answers of the driver that cannot be true and were left out, by call or field.",
        labels=("call",),
    ),
    MetricFamily(
        name="xpu_device_throttle_active",
        type="gauge",
        help="Whether the card holds its clocks back for the reason.",
        labels=("reason",),
    ),
    MetricFamily(
        name="xpu_device_recovery_action",
        type="gauge",
        help="What the driver asks for: 0 nothing, 1 GPU reset, 2 reboot, 3 and on see NVML.",
    ),
    metric_families.REMAPPED_ROWS,
    MetricFamily(
        name="xpu_device_memory_busy_ratio",
        type="gauge",
        help="Share of time in which memory was read or written.",
    ),
    MetricFamily(
        name="xpu_device_engine_busy_ratio",
        type="gauge",
        help="Share of time in which a video engine worked.",
        labels=("engine",),
    ),
    MetricFamily(
        name="xpu_device_sm_active_ratio",
        type="gauge",
        help="Share of multiprocessors that worked, by the card's own counters.",
    ),
    MetricFamily(
        name="xpu_device_sm_occupancy_ratio",
        type="gauge",
        help="Share of warps that were active of those the multiprocessors could hold.",
    ),
    MetricFamily(
        name="xpu_device_pipe_active_ratio",
        type="gauge",
        help="Share of time in which a kind of arithmetic, or DRAM, was at work.",
        labels=("pipe",),
    ),
    MetricFamily(
        name="xpu_device_slice_utilization_ratio",
        type="gauge",
        help="Share of multiprocessors of a MIG instance's GPU instance that worked.",
        labels=_SLICE,
    ),
    MetricFamily(
        name="xpu_device_slice_memory_used_bytes",
        type="gauge",
        help="Memory of a MIG instance in use.",
        labels=_SLICE,
    ),
    MetricFamily(
        name="xpu_device_slice_memory_total_bytes",
        type="gauge",
        help="Memory of a MIG instance.",
        labels=_SLICE,
    ),
)
