"""Metric families that several vendors share."""

from __future__ import annotations

from agent.snapshot.inventory import MetricFamily

POWER = MetricFamily(name="xpu_device_power_watts", type="gauge", help="Power drawn by the device.")
POWER_LIMIT = MetricFamily(
    name="xpu_device_power_limit_watts",
    type="gauge",
    help="Power that the device may draw at present.",
)
ENERGY = MetricFamily(
    name="xpu_device_energy_joules_total",
    type="counter",
    help="Energy used since the driver was loaded.",
)
TEMPERATURE = MetricFamily(
    name="xpu_device_temperature_celsius",
    type="gauge",
    help="Temperature of the chip, its memory or its board.",
    labels=("sensor",),
)
CLOCK = MetricFamily(
    name="xpu_device_clock_hertz",
    type="gauge",
    help="Clock of the cores or the memory.",
    labels=("domain",),
)
PCIE_BYTES = MetricFamily(
    name="xpu_device_pcie_bytes_total",
    type="counter",
    help="Bytes that the device sent or received over PCIe.",
    labels=("direction",),
)
ECC_ERRORS = MetricFamily(
    name="xpu_device_ecc_errors_total",
    type="counter",
    help="Memory errors that the device counted, by whether it could correct them.",
    labels=("kind",),
)
PCIE_REPLAYS = MetricFamily(
    name="xpu_device_pcie_replays_total",
    type="counter",
    help="PCIe packets that had to be sent again.",
)
REMAPPED_ROWS = MetricFamily(
    name="xpu_device_remapped_rows_total",
    type="counter",
    help="Memory rows replaced, by the kind of error that was the cause.",
    labels=("kind",),
)
THROTTLE_SECONDS = MetricFamily(
    name="xpu_device_throttle_seconds_total",
    type="counter",
    help="Time in which the card held its clocks back, by reason, since the driver was loaded.",
    labels=("reason",),
)
