"""Counters of RDMA devices as readings; an absent counter has no reading."""

from __future__ import annotations

import os

import msgspec

from agent.host.files import LiveHostFiles, read_text
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import MetricValue
from plugins.vendors.rdma.health.ports import ACTIVE, ACTIVE_DEFER, PortReading
from plugins.vendors.rdma.metrics import PORT_COUNTERS, PREFIX, RATES
from plugins.vendors.rdma.sysfs.classes import CLASS, list_entries
from plugins.vendors.rdma.sysfs.ports import INFINIBAND
from plugins.vendors.rdma.sysfs.values import (
    is_name,
    parse_counter,
    parse_enum,
    parse_lid,
    parse_rate,
)

MAX_HW = 512  # counters taken from one directory

MAX_OPEN = 512  # descriptors kept; files beyond are opened for each reading

_COUNTER_BYTES = 64

_EXTENDED = "unicast_xmit_packets"  # of the extended set; newer kernels show it in counters/

_BYTES_PER_MBIT_S = 125_000


class CountedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device whose counters are read."""

    name: str
    ports: tuple[int, ...]
    info: tuple[str, ...] = ()  # values of INFO_LABELS
    vfs: tuple[tuple[str, int], ...] = ()  # (state, count)


class CounterFile(msgspec.Struct, frozen=True):
    """One existing counter file, and how its value is converted."""

    path: str
    name: str  # as the driver calls it
    family: str
    labels: tuple[str, ...]
    scale: int = 1
    maximum: int | None = None

    @property
    def port(self) -> int:
        """Return the number of the port; 0 for a counter of the whole device."""
        return int(self.labels[1]) if len(self.labels) > 1 and self.labels[1].isdecimal() else 0


def list_counter_files(host: HostFiles, device: CountedDevice) -> tuple[CounterFile, ...]:
    """Return the counter files of a device; called once, their values are read many times."""
    base = f"{CLASS}/{device.name}"
    files: list[CounterFile] = []
    for number in device.ports:
        port = f"{base}/ports/{number}"
        labels = (device.name, str(number))
        extended = set(list_entries(host, f"{port}/counters_ext"))
        present = set(list_entries(host, f"{port}/counters"))
        for name, counter in PORT_COUNTERS.items():
            folder, file = (
                ("counters_ext", counter.wide) if counter.wide in extended else ("counters", name)
            )
            if file not in present | extended:
                continue
            # with the extended set all traffic is counted in 64 bits, which never end
            is_wide = counter.wide is not None and (folder != "counters" or _EXTENDED in present)
            maximum = None if is_wide else counter.maximum
            path = f"{port}/{folder}/{file}"
            family = PREFIX + counter.family
            files.append(CounterFile(path, name, family, labels, counter.scale, maximum))
        files += _hw(host, port, f"{PREFIX}port_hw_total", labels)
    return (*files, *_hw(host, base, f"{PREFIX}device_hw_total", (device.name,)))


def _hw(host: HostFiles, base: str, family: str, labels: tuple[str, ...]) -> list[CounterFile]:
    names = [name for name in list_entries(host, f"{base}/hw_counters") if is_name(name)]
    return [  # lifespan is no counter but the age of the values in milliseconds
        CounterFile(f"{base}/hw_counters/{name}", name, family, (*labels, name))
        for name in names[:MAX_HW]
        if name != "lifespan"
    ]


def readings_of(file: CounterFile, value: int | None) -> tuple[MetricValue, ...]:
    """Return the reading of a value, and whether a limited field is at its maximum."""
    if value is None:
        return ()
    reading = MetricValue(family=file.family, value=value * file.scale, labels=file.labels)
    if file.maximum is None:
        return (reading,)
    saturated = MetricValue(
        family=f"{PREFIX}counter_saturated",
        value=float(value == file.maximum),
        labels=(*file.labels, file.name),
    )
    return reading, saturated


class TrafficRates:
    """Bytes per second of a device's ports, between the last two readings of each counter."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}  # time and value, by path

    def read(self, file: CounterFile, value: int | None, now_s: float) -> tuple[MetricValue, ...]:
        """Return the rate of a counter of data.

        A counter that is new, was reset, or stands at the end of its field has none.
        """
        family = RATES.get(file.family)
        if family is None:
            return ()
        last = self._last.pop(file.path, None)
        if value is None or value == file.maximum:
            return ()
        self._last[file.path] = now_s, value
        if last is None or now_s <= last[0] or value < last[1]:
            return ()
        rate = (value - last[1]) * file.scale / (now_s - last[0])
        return (MetricValue(family=family, value=rate, labels=file.labels),)


def port_readings(host: HostFiles, name: str, reading: PortReading) -> tuple[MetricValue, ...]:
    """Return the values that are not counters: physical state, rate, InfiniBand identifiers."""
    base = f"{CLASS}/{name}/ports/{reading.number}"
    physical = parse_enum(read_text(host, f"{base}/phys_state") or "")
    rate = parse_rate(read_text(host, f"{base}/rate") or "")
    is_infiniband = read_text(host, f"{base}/link_layer") == INFINIBAND
    is_active = reading.state in (ACTIVE, ACTIVE_DEFER)
    values = {
        "port_physical_state": physical[0] if physical else None,
        "port_rate_bytes_per_second": rate * _BYTES_PER_MBIT_S if rate and is_active else None,
        "port_lid": parse_lid(read_text(host, f"{base}/lid") or "") if is_infiniband else None,
        "port_sm_lid": parse_lid(read_text(host, f"{base}/sm_lid") or "")
        if is_infiniband
        else None,
    }
    labels = (name, str(reading.number))
    return tuple(
        MetricValue(family=PREFIX + family, value=value, labels=labels)
        for family, value in values.items()
        if value is not None
    )


class CounterReader:
    """Reads values; on this machine each file is opened once and read at its start."""

    def __init__(self, host: HostFiles) -> None:
        self._host = host
        self._open: dict[str, int] = {}

    def value(self, path: str) -> int | None:
        """Return a counter; `None` if it is absent, refused, or not a number."""
        if isinstance(self._host, LiveHostFiles):
            return parse_counter(self._read_open(self._host, path))
        return parse_counter(read_text(self._host, path, _COUNTER_BYTES) or "")

    def _read_open(self, host: LiveHostFiles, path: str) -> str:
        try:
            fd = self._open.get(path)
            if fd is None and len(self._open) >= MAX_OPEN:
                return read_text(host, path, _COUNTER_BYTES) or ""
            if fd is None:
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
                fd = self._open[path] = os.open(host.path(path), flags)
            return os.pread(fd, _COUNTER_BYTES, 0).decode("ascii", "replace").strip("\0 \t\r\n")
        except OSError:  # a device that left, or a counter that this card has not
            self._drop(path)
            return ""

    def _drop(self, path: str) -> None:
        fd = self._open.pop(path, None)
        if fd is not None:
            os.close(fd)

    def retain(self, paths: set[str]) -> None:
        """Close the files of all other paths."""
        for path in [path for path in self._open if path not in paths]:
            self._drop(path)
