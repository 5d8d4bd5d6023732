"""Metric families of NVIDIA cards. The agent loads this module: it has declarations only."""

from __future__ import annotations

from agent.snapshot.inventory import FLAG, MetricFamily, TrafficSource
from plugins.shared import metric_families

SLICE_MEMORY = "xpu_device_slice_memory_total_bytes"
_SLICE = ("mig_uuid", "profile", "gpu_instance")

FAMILIES = (
    metric_families.POWER,
    metric_families.POWER_LIMIT,
    MetricFamily(
        name="xpu_device_power_limit_bounds_watts",
        type="gauge",
        help="Power limits between which the card's limit can be set, and the default.",
        labels=("kind",),
    ),
    MetricFamily(
        name="xpu_device_fan_speed_ratio",
        type="gauge",
        bounds=(0, 2),
        help="Speed of a fan to its intended top speed, which it may exceed.",
        labels=("fan",),
    ),
    MetricFamily(
        name="xpu_device_performance_state",
        type="gauge",
        bounds=(0, 15),
        help="Performance state: 0 is the fastest, 15 the slowest.",
    ),
    metric_families.ENERGY,
    metric_families.TEMPERATURE,
    metric_families.CLOCK,
    metric_families.PCIE_BYTES,
    metric_families.ECC_ERRORS,
    MetricFamily(
        name="xpu_device_ecc_lifetime_errors_total",
        type="counter",
        help="Memory errors in the life of the card, by whether it could correct them.",
        labels=("kind",),
    ),
    MetricFamily(
        name="xpu_device_retired_pages",
        type="gauge",
        bounds=(0, 1 << 20),
        help="Memory pages that the card uses no more, by the kind of error that was the cause.",
        labels=("cause",),
    ),
    MetricFamily(
        name="xpu_device_page_retirement_pending",
        type="gauge",
        bounds=FLAG,
        help="Whether memory pages are retired at the next reset of the card.",
    ),
    MetricFamily(
        name="xpu_device_row_remap_pending",
        type="gauge",
        bounds=FLAG,
        help="Whether a memory row is replaced at the next reset of the card.",
    ),
    MetricFamily(
        name="xpu_device_row_remap_failed",
        type="gauge",
        bounds=FLAG,
        help="Whether a faulty memory row could not be replaced.",
    ),
    MetricFamily(
        name="xpu_device_memory_free_bytes",
        type="gauge",
        help="Memory of the card that is not in use.",
    ),
    MetricFamily(
        name="xpu_device_memory_reserved_bytes",
        type="gauge",
        help="Memory of the card that the driver keeps for itself.",
    ),
    metric_families.PCIE_REPLAYS,
    MetricFamily(
        name="xpu_device_nvlink_bytes_total",
        type="counter",
        help="Bytes of data that the card sent or received over all its NVLinks.",
        labels=("direction",),
    ),
    MetricFamily(
        name="xpu_device_nvlink_link_bytes_total",
        type="counter",
        help="Bytes of data that the card sent or received over one NVLink.",
        labels=("link", "direction"),
    ),
    MetricFamily(
        name="xpu_device_nvlink_bytes_per_second",
        type="gauge",
        help="Data rate of all NVLinks of the card.",
        labels=("direction",),
    ),
    MetricFamily(
        name="xpu_device_pcie_bytes_per_second",
        type="gauge",
        help="Data rate of the card's PCIe link.",
        labels=("direction",),
    ),
    MetricFamily(
        name="xpu_device_nvlink_link_errors_total",
        type="counter",
        help="Errors and recoveries of one NVLink.",
        labels=("link", "kind"),
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
        name="xpu_device_last_xid",
        type="gauge",
        help="Number of the last Xid error of the card; 0 if there was none since the start.",
    ),
    MetricFamily(
        name="xpu_device_vgpu_licensed",
        type="gauge",
        bounds=FLAG,
        help="Whether a virtual GPU, which needs a licence, has one.",
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
    metric_families.THROTTLE_SECONDS,
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
        name="xpu_device_graphics_engine_active_ratio",
        type="gauge",
        help="Share of time in which any computation or graphics ran, by the card's own counters.",
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
        slice_label="mig_uuid",
    ),
    MetricFamily(
        name="xpu_device_slice_graphics_engine_active_ratio",
        type="gauge",
        help="Share of time in which any computation ran on a MIG instance's GPU instance.",
        labels=_SLICE,
        slice_label="mig_uuid",
    ),
    MetricFamily(
        name="xpu_device_slice_sm_occupancy_ratio",
        type="gauge",
        help="Share of warps that were active of those a MIG instance's GPU instance could hold.",
        labels=_SLICE,
        slice_label="mig_uuid",
    ),
    MetricFamily(
        name="xpu_device_slice_pipe_active_ratio",
        type="gauge",
        help="Share of time in which a kind of arithmetic, or DRAM, of a MIG instance's GPU "
        "instance was at work.",
        labels=(*_SLICE, "pipe"),
        slice_label="mig_uuid",
    ),
    MetricFamily(
        name="xpu_device_slice_memory_used_bytes",
        type="gauge",
        limit=SLICE_MEMORY,
        help="Memory of a MIG instance in use.",
        labels=_SLICE,
        slice_label="mig_uuid",
    ),
    MetricFamily(
        name="xpu_device_slice_memory_free_bytes",
        type="gauge",
        limit=SLICE_MEMORY,
        help="Memory of a MIG instance that is not in use.",
        labels=_SLICE,
        slice_label="mig_uuid",
    ),
    MetricFamily(
        name=SLICE_MEMORY,
        type="gauge",
        help="Memory of a MIG instance.",
        labels=_SLICE,
        slice_label="mig_uuid",
    ),
)

TRAFFIC = tuple(
    TrafficSource(link=link, family=family, is_sent=label == "tx", labels=(label,))
    for link, family in (
        ("NVLink", "xpu_device_nvlink_bytes_per_second"),
        ("NVLink", "xpu_device_nvlink_bytes_total"),
        ("PCIe", "xpu_device_pcie_bytes_per_second"),
        ("PCIe", "xpu_device_pcie_bytes_total"),
    )
    for label in ("tx", "rx")
)
