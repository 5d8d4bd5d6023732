"""Metric families of Ascend NPUs."""

from __future__ import annotations

from agent.snapshot.inventory import FLAG, MetricFamily, TrafficSource
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
    help="DDR memory of the chip that is in use.",
)
DDR_TOTAL = MetricFamily(
    name="xpu_npu_ddr_total_bytes", type="gauge", help="DDR memory of the chip."
)
HBM_USED = MetricFamily(
    name="xpu_npu_hbm_used_bytes",
    type="gauge",
    help="High-bandwidth memory of the chip that is in use.",
)
HBM_TOTAL = MetricFamily(
    name="xpu_npu_hbm_total_bytes", type="gauge", help="High-bandwidth memory of the chip."
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
    slice_label="vnpu",
)
VNPU_MEMORY_TOTAL = MetricFamily(
    name="xpu_npu_vnpu_memory_total_bytes",
    type="gauge",
    help="Memory of a vNPU.",
    labels=("vnpu",),
    slice_label="vnpu",
)
VNPU_MEMORY_USED = MetricFamily(
    name="xpu_npu_vnpu_memory_used_bytes",
    type="gauge",
    limit=VNPU_MEMORY_TOTAL.name,
    help="Memory in use of a vNPU.",
    labels=("vnpu",),
    slice_label="vnpu",
)

ERROR_CODE = MetricFamily(
    name="xpu_npu_error_code",
    type="gauge",
    bounds=FLAG,
    help="1 for each error code that the chip reports, in hexadecimal.",
    labels=("code",),
)
ERROR_CODE_NUMBER = MetricFamily(
    name="xpu_npu_error_code_number",
    type="gauge",
    help="Error codes that the chip reports as numbers, by their position in ascending order.",
    labels=("position",),
)
HBM_ERRORS_SINCE_RESET = MetricFamily(
    name="xpu_npu_hbm_errors_since_reset",
    type="gauge",
    help="Errors of the high-bandwidth memory since the chip was reset.",
    labels=("bits",),
)
HBM_ISOLATED_PAGES = MetricFamily(
    name="xpu_npu_hbm_isolated_pages",
    type="gauge",
    bounds=(0, 1 << 20),
    help="Pages of the high-bandwidth memory that are out of use, by the errors in them.",
    labels=("bits",),
)
HBM_ECC_ENABLED = MetricFamily(
    name="xpu_npu_hbm_ecc_enabled",
    type="gauge",
    bounds=FLAG,
    help="Whether errors of the high-bandwidth memory are detected.",
)
HCCS_PACKETS = MetricFamily(
    name="xpu_npu_hccs_packets_total",
    type="counter",
    help="Packets over a port to other chips.",
    labels=("port", "direction"),
)
HCCS_RATE = MetricFamily(
    name="xpu_npu_hccs_bytes_per_second",
    type="gauge",
    help="Traffic over all ports to other chips, in a tenth of a second.",
    labels=("direction",),
)
HCCS_PORT_RATE = MetricFamily(
    name="xpu_npu_hccs_port_bytes_per_second",
    type="gauge",
    help="Traffic over a port to other chips, in a tenth of a second.",
    labels=("port", "direction"),
)
PCIE_RATE = MetricFamily(
    name="xpu_npu_pcie_bytes_per_second",
    type="gauge",
    help="Traffic over PCIe by kind of transaction: minimum, maximum and average of a measurement.",
    labels=("direction", "kind", "statistic"),
)
NETWORK_RATE = MetricFamily(
    name="xpu_npu_network_bytes_per_second",
    type="gauge",
    help="RDMA traffic over the chip's network port, in a tenth of a second.",
    labels=("direction",),
)
MAC_PACKETS = MetricFamily(
    name="xpu_npu_network_packets_total",
    type="counter",
    help="Ethernet packets over the chip's network port.",
    labels=("direction", "kind"),
)
MAC_BYTES = MetricFamily(
    name="xpu_npu_network_bytes_total",
    type="counter",
    help="Bytes of Ethernet packets over the chip's network port.",
    labels=("direction", "kind"),
)
ROCE_PACKETS = MetricFamily(
    name="xpu_npu_roce_packets_total",
    type="counter",
    help="RoCE packets over the chip's network port.",
    labels=("direction", "kind"),
)
ROCE_EVENTS = MetricFamily(
    name="xpu_npu_roce_events_total",
    type="counter",
    help="Errors, retries and congestion marks of RoCE on the chip's network port.",
    labels=("kind",),
)

NETWORK_LINK_UP = MetricFamily(
    name="xpu_npu_network_link_up",
    type="gauge",
    help="Whether the link of the chip's network port is up.",
)
NETWORK_SPEED = MetricFamily(
    name="xpu_npu_network_speed_bytes_per_second",
    type="gauge",
    help="Speed that the chip's network port has negotiated.",
)
NETWORK_LINK_UPS = MetricFamily(
    name="xpu_npu_network_link_ups_total",
    type="counter",
    help="How often the link of the chip's network port came up.",
)
OPTICAL_PRESENT = MetricFamily(
    name="xpu_npu_optical_present",
    type="gauge",
    bounds=FLAG,
    help="Whether the chip's network port has an optical module.",
)
OPTICAL_TEMPERATURE = MetricFamily(
    name="xpu_npu_optical_temperature_celsius",
    type="gauge",
    help="Temperature of the optical module.",
)
OPTICAL_VOLTAGE = MetricFamily(
    name="xpu_npu_optical_voltage_volts",
    type="gauge",
    bounds=(0, 10),
    help="Supply voltage of the optical module.",
)
OPTICAL_POWER = MetricFamily(
    name="xpu_npu_optical_power_watts",
    type="gauge",
    bounds=(0, 1),
    help="Light that a lane of the optical module sends or receives.",
    labels=("direction", "lane"),
)

FAMILIES = (
    metric_families.POWER,
    metric_families.TEMPERATURE,
    metric_families.CLOCK,
    metric_families.ECC_ERRORS,
    UTILIZATION,
    VOLTAGE,
    DDR_USED,
    DDR_TOTAL,
    HBM_USED,
    HBM_TOTAL,
    LINK_ERRORS,
    NETWORK_UP,
    VNPU_UTILIZATION,
    VNPU_MEMORY_TOTAL,
    VNPU_MEMORY_USED,
    ERROR_CODE,
    ERROR_CODE_NUMBER,
    HBM_ERRORS_SINCE_RESET,
    HBM_ISOLATED_PAGES,
    HBM_ECC_ENABLED,
    HCCS_PACKETS,
    HCCS_RATE,
    HCCS_PORT_RATE,
    PCIE_RATE,
    NETWORK_RATE,
    MAC_PACKETS,
    MAC_BYTES,
    ROCE_PACKETS,
    ROCE_EVENTS,
    NETWORK_LINK_UP,
    NETWORK_SPEED,
    NETWORK_LINK_UPS,
    OPTICAL_PRESENT,
    OPTICAL_TEMPERATURE,
    OPTICAL_VOLTAGE,
    OPTICAL_POWER,
)

TRAFFIC = tuple(
    TrafficSource(
        link=link, family=family.name, is_sent=direction == "tx", labels=(direction, *labels)
    )
    for link, family, labels in (
        ("HCCS", HCCS_RATE, ()),
        ("PCIe", PCIE_RATE, ("average",)),
        ("RoCE", NETWORK_RATE, ()),
    )
    for direction in ("tx", "rx")
)
