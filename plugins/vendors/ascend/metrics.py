"""Metric families of Ascend NPUs."""

from __future__ import annotations

from agent.snapshot.inventory import MetricFamily
from plugins.shared import metric_families

UTILIZATION = MetricFamily(
    name="xpu_npu_utilization_ratio",
    type="gauge",
    help="Busy share of a unit of the chip, or used share of its memory.",
    labels=("unit",),
)
VOLTAGE = MetricFamily(name="xpu_npu_voltage_volts", type="gauge", help="Voltage of the chip.")
DDR_USED = MetricFamily(
    name="xpu_npu_ddr_used_bytes",
    type="gauge",
    help="Memory in use beside the high-bandwidth memory.",
)
LINK_ERRORS = MetricFamily(
    name="xpu_npu_link_errors_total",
    type="counter",
    help="Transfers that the chip's own links had to repeat or found damaged.",
    labels=("link", "port", "kind"),
)
NETWORK_UP = MetricFamily(
    name="xpu_npu_network_up",
    type="gauge",
    help="Whether the chip's network port works.",
    labels=("address",),
)
VNPU_UTILIZATION = MetricFamily(
    name="xpu_npu_vnpu_utilization_ratio",
    type="gauge",
    help="Busy share of the AI cores of a vNPU.",
    labels=("vnpu",),
)
VNPU_MEMORY = MetricFamily(
    name="xpu_npu_vnpu_memory_used_bytes",
    type="gauge",
    help="Memory in use of a vNPU.",
    labels=("vnpu",),
)

FAMILIES = (
    metric_families.POWER,
    metric_families.TEMPERATURE,
    metric_families.CLOCK,
    metric_families.ECC_ERRORS,
    UTILIZATION,
    VOLTAGE,
    DDR_USED,
    LINK_ERRORS,
    NETWORK_UP,
    VNPU_UTILIZATION,
    VNPU_MEMORY,
)
