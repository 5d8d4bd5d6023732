"""Metric families of Cambricon MLUs. The agent loads this module: it never imports the library."""

from __future__ import annotations

from agent.snapshot.inventory import FLAG, MetricFamily
from plugins.shared import metric_families

XID = "xpu_device_mlu_xid_errors_total"
SLICE_CORE = "xpu_device_smlu_core_percent"
SLICE_MEMORY = "xpu_device_smlu_memory_used_bytes"

CORE_UTILIZATION = MetricFamily(
    name="xpu_mlu_core_utilization_ratio",
    type="gauge",
    help="Share of time in which one core of the card worked.",
    labels=("core",),
)
CODEC_UTILIZATION = MetricFamily(
    name="xpu_mlu_codec_utilization_ratio",
    type="gauge",
    help="Share of time in which a video codec, encoder, decoder or image codec worked.",
    labels=("codec", "number"),
)
PCIE_RATE = MetricFamily(
    name="xpu_mlu_pcie_bytes_per_second",
    type="gauge",
    help="Traffic over PCIe in the last 20 ms, as the driver counts reads and writes.",
    labels=("direction",),
)
PCIE_BYTES = MetricFamily(
    name="xpu_mlu_pcie_bytes_total",
    type="counter",
    help="Bytes over PCIe since the driver was loaded, as it counts reads and writes.",
    labels=("direction",),
)
POWER_BOUNDS = MetricFamily(
    name="xpu_mlu_power_limit_bounds_watts",
    type="gauge",
    help="Default power limit of the card, and the lowest and highest that can be set.",
    labels=("kind",),
)
LINK_STATE = MetricFamily(
    name="xpu_mlu_link_state",
    type="gauge",
    bounds=FLAG,
    help="State of an MLULink port by layer (mac, serdes, cable): 1 for the one it is in.",
    labels=("port", "layer", "state"),
)
LINK_SPEED = MetricFamily(
    name="xpu_mlu_link_speed_bytes_per_second",
    type="gauge",
    help="Traffic that an MLULink port can carry.",
    labels=("port",),
)
LINK_BYTES = MetricFamily(
    name="xpu_mlu_link_bytes_total",
    type="counter",
    help="Bytes read and written over an MLULink port.",
    labels=("port", "direction"),
)
LINK_PACKETS = MetricFamily(
    name="xpu_mlu_link_packets_total",
    type="counter",
    help="Packets read and written over an MLULink port.",
    labels=("port", "direction"),
)
LINK_ERRORS = MetricFamily(
    name="xpu_mlu_link_errors_total",
    type="counter",
    help="Errors, corrections and interruptions of an MLULink port.",
    labels=("port", "kind"),
)
MEMORY_REPAIR = MetricFamily(
    name="xpu_mlu_memory_repair",
    type="gauge",
    bounds=FLAG,
    help="Whether a repair of the card's memory is pending or failed, or a retirement is pending.",
    labels=("state",),
)
RETIRED_PAGES = MetricFamily(
    name="xpu_mlu_retired_pages",
    type="gauge",
    bounds=(0, 1 << 20),
    help="Pages of the card's memory that are out of use, by the errors that were the cause.",
    labels=("cause",),
)

FAMILIES = (
    metric_families.POWER,
    metric_families.POWER_LIMIT,
    metric_families.TEMPERATURE,
    metric_families.CLOCK,
    metric_families.ECC_ERRORS,
    metric_families.PCIE_REPLAYS,
    metric_families.REMAPPED_ROWS,
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
        slice_label="slice",
    ),
    MetricFamily(
        name=SLICE_MEMORY,
        type="gauge",
        help="Memory that the sMLU instance uses.",
        labels=("slice",),
        slice_label="slice",
    ),
    CORE_UTILIZATION,
    CODEC_UTILIZATION,
    PCIE_RATE,
    PCIE_BYTES,
    POWER_BOUNDS,
    LINK_STATE,
    LINK_SPEED,
    LINK_BYTES,
    LINK_PACKETS,
    LINK_ERRORS,
    MEMORY_REPAIR,
    RETIRED_PAGES,
)
