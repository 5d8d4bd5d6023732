"""Answers of a vendor's worker: devices, links, samples, events, and slices created for pods.

Also here: the bounds of each quantity, in one table for all vendors.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from agent.snapshot.device import (
    DeviceLink,
    DevicePartition,
    Health,
    HealthState,
    Pairs,
    VendorDevice,
)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of a whole vendor that a person should know; `reason` is CamelCase."""

    reason: str
    message: str


class DeviceGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Devices that are best allocated together: an entry of `gpu-partitions`.

    A group that is not `aligned` crosses the blocks that groups of its size form; it is used only
    if no block is free.
    """

    keys: tuple[str, ...]  # VendorDevice.key of each member; the size is their number
    link_type: str
    bandwidth_bytes_per_s: int | None = None  # of the ring, one direction
    aligned: bool = True


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one vendor has on this node."""

    vendor: str
    devices: tuple[VendorDevice, ...] = ()
    links: tuple[DeviceLink, ...] = ()
    driver_version: str | None = None
    library: str | None = None  # file and version of the vendor's library, if one is loaded
    facts: Pairs = ()
    problems: tuple[Problem, ...] = ()
    groups: tuple[DeviceGroup, ...] = ()
    group_policy: str | None = None  # Prefer, Honor; None: no table, or no setting
    # the devices that this answer examined; None: all of them
    subjects: tuple[str, ...] | None = None
    partial: bool = False  # the rest follows in the next discovery, which is requested at once


# What readings of hardware can mean. A family has the bounds of the unit at the end of its name,
# unless it declares its own; bindings of vendors' libraries use them for values that they compute
# with.
Bounds: TypeAlias = tuple[float, float]  # lowest and highest value

PERCENT: Bounds = (0, 100)
RATIO: Bounds = (0, 1)
FLAG: Bounds = (0, 1)
CELSIUS: Bounds = (-60, 200)
WATTS: Bounds = (0, 10_000)
VOLTS: Bounds = (0, 1_000)
AMPERES: Bounds = (0, 10_000)
HERTZ: Bounds = (0, 20_000_000_000)
BYTES: Bounds = (0, 1 << 50)
MEMORY_BYTES: Bounds = (1, 1 << 50)  # of a whole device
BYTES_PER_SECOND: Bounds = (0, 10_000_000_000_000)
SECONDS: Bounds = (0, 10_000_000_000)
COUNTER: Bounds = (0, (1 << 63) - 1)
NUMBER: Bounds = (0, (1 << 32) - 2)  # drivers answer 4294967295 for a value that they do not have
PIDS: Bounds = (1, (1 << 31) - 1)

_BY_UNIT: tuple[tuple[str, Bounds], ...] = (
    ("_percent", PERCENT),
    ("_ratio", RATIO),
    ("_active", FLAG),
    ("_up", FLAG),
    ("_info", FLAG),
    ("_celsius", CELSIUS),
    ("_watts", WATTS),
    ("_volts", VOLTS),
    ("_amperes", AMPERES),
    ("_hertz", HERTZ),
    ("_bytes_per_second", BYTES_PER_SECOND),
    ("_bytes", BYTES),
    ("_seconds", SECONDS),
)


def unit_bounds(name: str, type_: str) -> Bounds:
    """Return the bounds of a family by its type and the unit at the end of its name."""
    if type_ == "counter":
        return COUNTER
    return next((bounds for unit, bounds in _BY_UNIT if name.endswith(unit)), NUMBER)


def scale(bounds: Bounds, factor: float) -> Bounds:
    """Return bounds in another unit; `factor` of the new unit are one of the old unit."""
    return bounds[0] * factor, bounds[1] * factor


def is_within(value: float, bounds: Bounds) -> bool:
    """Return whether a value is within bounds; NaN never is."""
    return bounds[0] <= value <= bounds[1]


# families of the agent with the values of a sample's own fields
UTILIZATION = "xpu_device_utilization_ratio"
MEMORY_USED = "xpu_device_memory_used_bytes"
MEMORY_TOTAL = "xpu_device_memory_total_bytes"
PROCESSES = "xpu_device_processes"
PROCESS_VIRTUAL = "xpu_device_process_virtual_memory_bytes"
PROCESS_ENGINES = "xpu_device_process_engine_ratio"
# families that several vendors fill with readings, and that the status page shows
TEMPERATURE = "xpu_device_temperature_celsius"
POWER = "xpu_device_power_watts"
POWER_LIMIT = "xpu_device_power_limit_watts"


class MetricFamily(msgspec.Struct, frozen=True, kw_only=True):
    """A Prometheus family that a vendor's samples fill; names end in their unit."""

    name: str
    type: str  # gauge, counter
    help: str
    labels: tuple[str, ...] = ()  # besides those every device series has
    bounds: Bounds | None = None  # what a value can be; None: what its unit can be
    limit: str = ""  # family whose value with the same labels no value of this one exceeds
    # label with the uuid or the number of the slice of a device that the values are of
    slice_label: str = ""

    @property
    def possible_values(self) -> Bounds:
        """Return the lowest and the highest plausible value."""
        return self.bounds or unit_bounds(self.name, self.type)


class TrafficSource(msgspec.Struct, frozen=True, kw_only=True):
    """The readings whose sum is the traffic of a device over one kind of link in one direction.

    The readings of a counter (`_total`) are bytes, all others are bytes per second.
    """

    link: str  # name of the link for people: NVLink, HCCS, PCIe
    family: str
    is_sent: bool  # the device sends; False: it receives
    labels: tuple[str, ...] = ()  # values that the labels of a reading must have to count


class MetricValue(msgspec.Struct, frozen=True, kw_only=True):
    """One value of one family; `labels` in the family's order. An absent value has no reading."""

    family: str
    value: float
    labels: tuple[str, ...] = ()


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """An implausible reading, which the sample does not contain."""

    family: str  # family of metrics, or a call or member of the vendor's library
    value: str  # as text, because it may not be a finite number


class RejectionCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of rejected readings of one family since the start, and the first of them."""

    family: str
    count: int
    device: str  # key
    value: str


class ProcessSample(msgspec.Struct, frozen=True, kw_only=True):
    """One host process on a device; `None`: the driver does not report the value."""

    pid: int
    memory_bytes: int | None = None
    core_percent: float | None = None  # of one card
    partition: str = ""  # uuid of the slice that it runs on, if the card is partitioned
    virtual_bytes: int | None = None  # of the card's address space
    # (engine, busy percent) of units beside the cores: encoder, decoder, image_codec, memory
    engine_percents: tuple[tuple[str, float], ...] = ()


class DeviceSample(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a device. Fields that NodeMetric needs are typed, the rest are readings."""

    key: str  # VendorDevice.key
    core_percent: float | None = None  # busy time of the card, 0 to 100
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    processes: tuple[ProcessSample, ...] | None = None  # None: the driver does not report processes
    readings: tuple[MetricValue, ...] = ()
    health: Health | None = None  # its health now; None: it was not checked
    rejections: tuple[Rejection, ...] = ()  # values that the vendor left out since the last sample


class DeviceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a device, sent by the worker without a request."""

    key: str  # VendorDevice.key; "" concerns all devices of the vendor
    reason: str
    message: str = ""
    state: HealthState | None = None  # None: the next discovery decides
    partition: str = ""  # uuid of the slice that it concerns; empty: the whole device


class SliceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A slice for one pod: by the name of a template, or by cores and memory."""

    pod: str  # uid
    device: str  # key of the card
    template: str = ""
    core_percent: int | None = None
    memory_bytes: int | None = None


class CreatedSlice(msgspec.Struct, frozen=True, kw_only=True):
    """A slice that exists as requested, created now or earlier."""

    pod: str
    device: str
    partition: DevicePartition


class SliceFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A slice that cannot be created now."""

    pod: str
    device: str
    reason: str  # CamelCase
    message: str


class SliceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The slices after a vendor has executed a request.

    A repeated request creates only missing slices.
    """

    made: tuple[CreatedSlice, ...] = ()
    unmade: tuple[SliceFailure, ...] = ()
    reclaimed: tuple[str, ...] = ()  # deleted slices of pods that do not exist any more, for people
    lost: tuple[str, ...] = ()  # uids of pods whose slice does not exist any more
    failed: tuple[str, ...] = ()  # slices that could not be deleted yet, for people
    changed: bool = False  # the devices may have changed
