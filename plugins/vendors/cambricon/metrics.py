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
LINK_CONGESTION = MetricFamily(
    name="xpu_mlu_link_congestion_packets_total",
    type="counter",
    help="Packets of an MLULink port that tell of congestion (cnp) or ask to pause (pfc).",
    labels=("port", "kind"),
)
OPTICAL_PRESENT = MetricFamily(
    name="xpu_mlu_optical_present",
    type="gauge",
    bounds=FLAG,
    help="Whether the MLULink port has an optical module.",
    labels=("port",),
)
OPTICAL_TEMPERATURE = MetricFamily(
    name="xpu_mlu_optical_temperature_celsius",
    type="gauge",
    help="Temperature of the optical module.",
    labels=("port",),
)
OPTICAL_VOLTAGE = MetricFamily(
    name="xpu_mlu_optical_voltage_volts",
    type="gauge",
    help="Supply voltage of the optical module.",
    labels=("port",),
)
OPTICAL_POWER = MetricFamily(
    name="xpu_mlu_optical_power_watts",
    type="gauge",
    bounds=(0, 1),
    help="Light that a lane of the optical module sends or receives.",
    labels=("port", "direction", "lane"),
)
VOLTAGE = MetricFamily(
    name="xpu_mlu_voltage_volts",
    type="gauge",
    help="Voltage of the cores, of the rest of the chip, or of the memory.",
    labels=("domain",),
)
CURRENT = MetricFamily(
    name="xpu_mlu_current_amperes",
    type="gauge",
    help="Current of the cores, of the rest of the chip, or of the memory.",
    labels=("domain",),
)
HEAT_REACTIONS = MetricFamily(
    name="xpu_mlu_heat_reactions_total",
    type="counter",
    help="How often the card switched off or slowed down because it was too hot.",
    labels=("reaction",),
)
THROTTLED = MetricFamily(
    name="xpu_mlu_throttled",
    type="gauge",
    bounds=FLAG,
    help="Whether the card runs slower for this reason.",
    labels=("reason",),
)
MEMORY_ERRORS = MetricFamily(
    name="xpu_mlu_memory_errors_total",
    type="counter",
    help="Errors of a memory of the card since the driver was loaded.",
    labels=("memory", "kind"),
)
LIFETIME_MEMORY_ERRORS = MetricFamily(
    name="xpu_mlu_lifetime_memory_errors_total",
    type="counter",
    help="Errors of a memory of the card over its life.",
    labels=("memory", "kind"),
)
SRAM_EXCESS = MetricFamily(
    name="xpu_mlu_sram_errors_exceeded",
    type="gauge",
    bounds=FLAG,
    help="Whether the on-chip memory had more errors over its life than the maker allows.",
)
ECC_EXTENTS = MetricFamily(
    name="xpu_mlu_ecc_errors_by_extent_total",
    type="counter",
    help="Memory errors that ECC found, by the bits that each touched.",
    labels=("extent",),
)
PARITY_ERRORS = MetricFamily(
    name="xpu_mlu_parity_errors_total",
    type="counter",
    help="Parity errors of the card.",
)
DIE_LINK_ERRORS = MetricFamily(
    name="xpu_mlu_die_link_errors_total",
    type="counter",
    help="Checksum errors between the dies of the card, and overflows of their count.",
    labels=("kind",),
)
MEMORY_PARTS = MetricFamily(
    name="xpu_mlu_memory_part_bytes",
    type="gauge",
    help="Memory that the driver keeps for itself, and virtual memory: in all, used and free.",
    labels=("part",),
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
    LINK_CONGESTION,
    OPTICAL_PRESENT,
    OPTICAL_TEMPERATURE,
    OPTICAL_VOLTAGE,
    OPTICAL_POWER,
    VOLTAGE,
    CURRENT,
    HEAT_REACTIONS,
    THROTTLED,
    MEMORY_ERRORS,
    LIFETIME_MEMORY_ERRORS,
    SRAM_EXCESS,
    ECC_EXTENTS,
    PARITY_ERRORS,
    DIE_LINK_ERRORS,
    MEMORY_PARTS,
    MEMORY_REPAIR,
    RETIRED_PAGES,
)
