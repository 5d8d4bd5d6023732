"""Metric families of Cambricon MLUs. The agent loads this module: it never imports the library."""

from __future__ import annotations

from agent.snapshot.inventory import FLAG, MetricFamily, TrafficSource
from plugins.shared import metric_families

XID = "xpu_device_mlu_xid_errors_total"
SLICE_CORE = "xpu_device_smlu_core_percent"
SLICE_MEMORY = "xpu_device_smlu_memory_used_bytes"
SLICE_MEMORY_SHARE = "xpu_device_smlu_memory_used_ratio"
SLICE_INFO = "xpu_device_smlu_info"

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
UNIT_UTILIZATION = MetricFamily(
    name="xpu_mlu_unit_utilization_ratio",
    type="gauge",
    help="Share of time in which the card worked at all, or its tensor units did.",
    labels=("unit",),
)
MEAN_UTILIZATION = MetricFamily(
    name="xpu_mlu_mean_utilization_ratio",
    type="gauge",
    help="Busy share of the cores, the card or its tensor units since the last sample, by MPM.",
    labels=("unit",),
)
MEAN_TRAFFIC = MetricFamily(
    name="xpu_mlu_mean_bytes_per_second",
    type="gauge",
    help="Traffic over PCIe and over all MLULink ports since the last sample, by MPM.",
    labels=("bus", "direction"),
)
LINK_MEAN_TRAFFIC = MetricFamily(
    name="xpu_mlu_link_mean_bytes_per_second",
    type="gauge",
    help="Traffic over an MLULink port since the last sample, by MPM.",
    labels=("port", "direction"),
)
TINY_CORE_UTILIZATION = MetricFamily(
    name="xpu_mlu_tiny_core_utilization_ratio",
    type="gauge",
    help="Share of time in which one tiny core of the card worked.",
    labels=("core",),
)
CHIP_CPU_UTILIZATION = MetricFamily(
    name="xpu_mlu_chip_cpu_utilization_ratio",
    type="gauge",
    help="Busy share of the CPUs on the card, all together.",
)
CHIP_CPU_CORE_UTILIZATION = MetricFamily(
    name="xpu_mlu_chip_cpu_core_utilization_ratio",
    type="gauge",
    help="Busy share of one CPU on the card.",
    labels=("core",),
)
CHIP_CPU_MODES = MetricFamily(
    name="xpu_mlu_chip_cpu_core_mode_ratio",
    type="gauge",
    help="Share of time that one CPU on the card spends in a mode: user, nice, system, interrupts.",
    labels=("core", "mode"),
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
LINK_PORTS = MetricFamily(
    name="xpu_mlu_link_ports",
    type="gauge",
    help="MLULink ports of the card.",
)
LINK_MODE = MetricFamily(
    name="xpu_mlu_link_mode",
    type="gauge",
    bounds=FLAG,
    help="What an MLULink port is used for: 1 for the mode that it is in.",
    labels=("port", "mode"),
)
LINK_SPEED_FORMAT = MetricFamily(
    name="xpu_mlu_link_speed_format",
    type="gauge",
    bounds=FLAG,
    help="Modulation of an MLULink port: 1 for the one in use.",
    labels=("port", "format"),
)
LINK_ENABLED = MetricFamily(
    name="xpu_mlu_link_enabled",
    type="gauge",
    bounds=FLAG,
    help="Whether an MLULink port may receive (inbound) and send (outbound) commands.",
    labels=("port", "direction"),
)
LINK_CAPABILITY = MetricFamily(
    name="xpu_mlu_link_capability",
    type="gauge",
    bounds=FLAG,
    help="Whether an MLULink port can transfer between cards (p2p), and has Interlaken SerDes.",
    labels=("port", "capability"),
)
LINK_PEER = MetricFamily(
    name="xpu_mlu_link_peer_kind",
    type="gauge",
    bounds=FLAG,
    help="What an MLULink port is connected to: 1 for mlu or switch.",
    labels=("port", "kind"),
)
LINK_INFO = MetricFamily(
    name="xpu_mlu_link_info",
    type="gauge",
    help="1, with the name of an MLULink port at the case, and the version of its protocol.",
    labels=("port", "name", "version"),
)
LINK_PEER_INFO = MetricFamily(
    name="xpu_mlu_link_peer_info",
    type="gauge",
    help="1, with what is known of the other end of an MLULink port.",
    labels=(
        *("port", "peer_mac", "peer_port_name", "peer_uuid", "peer_ip", "peer_serial"),
        *("peer_board_serial", "peer_slot", "peer_port", "peer_ncs"),
    ),
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
HEAT_THRESHOLD = MetricFamily(
    name="xpu_mlu_heat_reaction_celsius",
    type="gauge",
    help="Temperature from which the card switches off, or slows down.",
    labels=("reaction",),
)
CLUSTER_TEMPERATURE = MetricFamily(
    name="xpu_mlu_cluster_temperature_celsius",
    type="gauge",
    help="Temperature of a cluster of cores.",
    labels=("cluster",),
)
CLOCK_LOCKED = MetricFamily(
    name="xpu_mlu_clock_locked",
    type="gauge",
    bounds=FLAG,
    help="Whether somebody locked the clock of the cores.",
)
HEARTBEATS = MetricFamily(
    name="xpu_mlu_heartbeats_total",
    type="counter",
    help="Heartbeats of the card's firmware: a card whose count stands still has stopped.",
)
DRIVER_RUNNING = MetricFamily(
    name="xpu_mlu_driver_running",
    type="gauge",
    bounds=FLAG,
    help="Whether the card's driver has started, and is neither resetting nor failed.",
)
COMPUTE_MODE = MetricFamily(
    name="xpu_mlu_compute_mode",
    type="gauge",
    bounds=FLAG,
    help="How many processes may use the card (default, exclusive, prohibited): 1 for its mode.",
    labels=("mode",),
)
PARTITION_MODE = MetricFamily(
    name="xpu_mlu_partition_mode",
    type="gauge",
    bounds=FLAG,
    help="How the card is cut for containers (whole, mim, smlu): 1 for its mode.",
    labels=("mode",),
)
LAST_XID = MetricFamily(
    name="xpu_mlu_last_xid",
    type="gauge",
    help="Number of the last Xid since the worker started; the label has it in hexadecimal.",
    labels=("xid",),
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
    help="Parts of memory: the driver's own, virtual, of the card's system, of its PCIe window.",
    labels=("part",),
)
ECC_ENABLED = MetricFamily(
    name="xpu_mlu_ecc_enabled",
    type="gauge",
    bounds=FLAG,
    help="Whether the memory has ECC, now and after the next reset.",
    labels=("when",),
)
MEMORY_BANDWIDTH = MetricFamily(
    name="xpu_mlu_memory_bandwidth_bytes_per_second",
    type="gauge",
    help="Traffic that the memory of the card can carry.",
)
MEMORY_WIDTH = MetricFamily(
    name="xpu_mlu_memory_data_width",
    type="gauge",
    help="Width of the memory's data bus, in the unit of the driver.",
)
ADDRESS_SWAPS = MetricFamily(
    name="xpu_mlu_address_swaps_total",
    type="counter",
    help="Memory addresses that were replaced, by the kind of error that was the cause.",
    labels=("kind",),
)
REPAIR_CHANNELS = MetricFamily(
    name="xpu_mlu_repair_channels",
    type="gauge",
    bounds=(0, 1 << 20),
    help="Channels of the memory, by how many of their spare addresses are left.",
    labels=("spares",),
)
PAGE_RETIREMENT = MetricFamily(
    name="xpu_mlu_page_retirement_enabled",
    type="gauge",
    bounds=FLAG,
    help="Whether the card takes faulty memory pages out of use.",
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
    metric_families.ENERGY,
    metric_families.THROTTLE_SECONDS,
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
    MetricFamily(
        name=SLICE_MEMORY_SHARE,
        type="gauge",
        help="Share of its memory that the sMLU instance uses.",
        labels=("slice",),
        slice_label="slice",
    ),
    MetricFamily(
        name=SLICE_INFO,
        type="gauge",
        help="1, with what the sMLU instance may use at most.",
        labels=(*("slice", "slice_uuid", "profile", "profile_id", "core_percent", "memory_bytes"),),
        slice_label="slice",
    ),
    CORE_UTILIZATION,
    CODEC_UTILIZATION,
    UNIT_UTILIZATION,
    MEAN_UTILIZATION,
    MEAN_TRAFFIC,
    LINK_MEAN_TRAFFIC,
    TINY_CORE_UTILIZATION,
    CHIP_CPU_UTILIZATION,
    CHIP_CPU_CORE_UTILIZATION,
    CHIP_CPU_MODES,
    PCIE_RATE,
    PCIE_BYTES,
    POWER_BOUNDS,
    LINK_STATE,
    LINK_SPEED,
    LINK_BYTES,
    LINK_PACKETS,
    LINK_ERRORS,
    LINK_CONGESTION,
    LINK_PORTS,
    LINK_MODE,
    LINK_SPEED_FORMAT,
    LINK_ENABLED,
    LINK_CAPABILITY,
    LINK_PEER,
    LINK_INFO,
    LINK_PEER_INFO,
    OPTICAL_PRESENT,
    OPTICAL_TEMPERATURE,
    OPTICAL_VOLTAGE,
    OPTICAL_POWER,
    VOLTAGE,
    CURRENT,
    HEAT_REACTIONS,
    HEAT_THRESHOLD,
    CLUSTER_TEMPERATURE,
    CLOCK_LOCKED,
    HEARTBEATS,
    DRIVER_RUNNING,
    COMPUTE_MODE,
    PARTITION_MODE,
    LAST_XID,
    THROTTLED,
    MEMORY_ERRORS,
    LIFETIME_MEMORY_ERRORS,
    SRAM_EXCESS,
    ECC_EXTENTS,
    PARITY_ERRORS,
    DIE_LINK_ERRORS,
    MEMORY_PARTS,
    ECC_ENABLED,
    MEMORY_BANDWIDTH,
    MEMORY_WIDTH,
    ADDRESS_SWAPS,
    REPAIR_CHANNELS,
    PAGE_RETIREMENT,
    MEMORY_REPAIR,
    RETIRED_PAGES,
)

TRAFFIC = tuple(
    TrafficSource(link=link, family=family.name, is_sent=is_sent, labels=labels)
    for link, family, is_sent, labels in (
        ("MLULink", MEAN_TRAFFIC, True, ("mlulink", "sent")),
        ("MLULink", MEAN_TRAFFIC, False, ("mlulink", "received")),
        ("MLULink", LINK_BYTES, True, ("write",)),
        ("MLULink", LINK_BYTES, False, ("read",)),
        ("PCIe", MEAN_TRAFFIC, True, ("pcie", "sent")),
        ("PCIe", MEAN_TRAFFIC, False, ("pcie", "received")),
    )
)
