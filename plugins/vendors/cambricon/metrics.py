"""Metric families of Cambricon MLUs. The agent loads this module: it never imports the library."""

from __future__ import annotations

from agent.snapshot.inventory import MetricFamily
from plugins.shared import metric_families

XID = "xpu_device_mlu_xid_errors_total"
SLICE_CORE = "xpu_device_smlu_core_percent"
SLICE_MEMORY = "xpu_device_smlu_memory_used_bytes"

FAMILIES = (
    metric_families.POWER,
    metric_families.TEMPERATURE,
    metric_families.ECC_ERRORS,
    MetricFamily(
        name=XID,
        type="counter",
        help="Xid errors of the card seen since the worker started.",
        labels=("xid",),
    ),
    MetricFamily(
        name=SLICE_CORE,
        type="gauge",
        help="Share of the card's cores that the sMLU instance keeps busy.",
        labels=("slice",),
    ),
    MetricFamily(
        name=SLICE_MEMORY,
        type="gauge",
        help="Memory that the sMLU instance uses.",
        labels=("slice",),
    ),
)
