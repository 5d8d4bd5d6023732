"""Counters of RDMA devices as readings of declared families; an absent counter stays absent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from agent.host.files import HostFiles, LiveRoot, text
from agent.model.inventory import MetricFamily, Reading
from plugins.bindings.rdma_class.classes import CLASS, entries
from plugins.bindings.rdma_class.pods import FAMILIES as POD_FAMILIES
from plugins.bindings.rdma_class.text import (
    is_name,
    parse_counter,
    parse_enum,
    parse_lid,
    parse_rate,
)
from plugins.faults.rdma.ports import ACTIVE, ACTIVE_DEFER, PortSeen
from plugins.vendors.rdma.ports import INFINIBAND

PREFIX = "xpu_rdma_"
MAX_HW = 512  # counters taken from one directory
MAX_OPEN = 512  # descriptors kept; files beyond are opened for each reading
_COUNTER_BYTES = 64
_WORD = 4  # data counters count 32-bit words, whatever the number of lanes
_BITS32 = 2**32 - 1
_PORT = ("rdma", "port")
_NAMED = (*_PORT, "counter")
_EXTENDED = "unicast_xmit_packets"  # of the extended set; newer kernels show it in counters/
_BYTES_PER_MBIT_S = 125_000


class PortCounter(msgspec.Struct, frozen=True):
    """A file of `counters/`: its family, the factor to the family's unit, where it sticks."""

    family: str
    help: str
    scale: int = 1
    maximum: int | None = None  # of the classic field, which stops there
    wide: str | None = None  # its 64-bit file in `counters_ext/` of kernels before 4.5


def _traffic(
    family: str, words: str, wide: str, *, scale: int = 1, old: bool = True
) -> PortCounter:
    """Describe traffic; `old` fields exist since ever, with 32 bits."""
    return PortCounter(f"port_{family}_total", words, scale, _BITS32 if old else None, wide)


def _errors(family: str, words: str, bits: int) -> PortCounter:
    return PortCounter(f"port_{family}_total", words, maximum=2**bits - 1)


PORT_COUNTERS: Mapping[str, PortCounter] = MappingProxyType(
    {
        "port_xmit_data": _traffic(
            "transmit_bytes", "Bytes sent.", "port_xmit_data_64", scale=_WORD
        ),
        "port_rcv_data": _traffic(
            "receive_bytes", "Bytes received.", "port_rcv_data_64", scale=_WORD
        ),
        "port_xmit_packets": _traffic("transmit_packets", "Packets sent.", "port_xmit_packets_64"),
        "port_rcv_packets": _traffic("receive_packets", "Packets received.", "port_rcv_packets_64"),
        **{
            f"{kind}_{short}_packets": _traffic(
                f"{kind}_{long}_packets",
                f"{kind.capitalize()} packets {done}.",
                f"port_{kind}_{short}_packets",
                old=False,
            )
            for kind in ("unicast", "multicast")
            for short, long, done in (("xmit", "transmit", "sent"), ("rcv", "receive", "received"))
        },
        "port_xmit_wait": _errors("transmit_wait", "Hardware ticks in which data waited.", 32),
        "port_xmit_discards": _errors("transmit_discards", "Packets not sent.", 16),
        "port_rcv_errors": _errors("receive_errors", "Packets received with errors.", 16),
        "port_rcv_remote_physical_errors": _errors(
            "receive_remote_physical_errors", "Packets marked bad by the other end.", 16
        ),
        "port_rcv_switch_relay_errors": _errors(
            "receive_switch_relay_errors", "Packets that a switch could not forward.", 16
        ),
        "port_xmit_constraint_errors": _errors(
            "transmit_constraint_errors", "Packets not sent because of a constraint.", 8
        ),
        "port_rcv_constraint_errors": _errors(
            "receive_constraint_errors", "Packets refused because of a constraint.", 8
        ),
        "symbol_error": _errors("symbol_errors", "Minor errors on the lanes.", 16),
        "link_error_recovery": _errors("link_error_recovery", "Recoveries of the link.", 8),
        "link_downed": _errors("link_downed", "Failed recoveries that took the link down.", 8),
        "local_link_integrity_errors": _errors(
            "local_link_integrity_errors", "Local errors beyond the threshold.", 4
        ),
        "excessive_buffer_overrun_errors": _errors(
            "buffer_overrun_errors", "Overruns of the receive buffer.", 4
        ),
        "VL15_dropped": _errors("vl15_dropped", "Management packets dropped.", 16),
    }
)

INFO_LABELS = (
    "rdma", "board_id", "firmware", "hca_type", "node_guid", "driver", "link_layer", "netdev",
)  # fmt: skip


def _family(kind: str, name: str, words: str, labels: tuple[str, ...] = _PORT) -> MetricFamily:
    return MetricFamily(name=PREFIX + name, type=kind, help=words, labels=labels)


FAMILIES: tuple[MetricFamily, ...] = (
    _family("gauge", "info", "Facts of an RDMA device; always 1.", INFO_LABELS),
    _family("gauge", "port_state", "State of the port; 4 is active."),
    _family("gauge", "port_physical_state", "Physical state of the port; 5 is up."),
    _family("gauge", "port_rate_bytes_per_second", "Signalling rate of an active port."),
    _family("gauge", "port_lid", "Local identifier (InfiniBand)."),
    _family("gauge", "port_sm_lid", "Local identifier of the subnet manager (InfiniBand)."),
    *(_family("counter", item.family, item.help) for item in PORT_COUNTERS.values()),
    _family("counter", "port_hw_total", "A driver's counter, by its own name.", _NAMED),
    _family("counter", "device_hw_total", "A driver's counter for all ports.", ("rdma", "counter")),
    _family("gauge", "counter_saturated", "1: the counter stands at its field's end.", _NAMED),
    _family("counter", "port_flaps_total", "Times the port was seen going down."),
    _family(
        "gauge",
        "virtual_functions",
        "Virtual functions: enabled, usable by pods, and total possible.",
        ("rdma", "state"),
    ),
    *POD_FAMILIES,
)


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """A device whose counters are read."""

    name: str
    ports: tuple[int, ...]
    info: tuple[str, ...] = ()  # values of INFO_LABELS
    vfs: tuple[tuple[str, int], ...] = ()  # (state, count)


class CounterFile(msgspec.Struct, frozen=True):
    """One existing counter file and what becomes of its value."""

    path: str
    name: str  # as the driver calls it
    family: str
    labels: tuple[str, ...]
    scale: int = 1
    maximum: int | None = None

    @property
    def port(self) -> int:
        """Number of the port; 0 for a counter of the whole device."""
        return int(self.labels[1]) if len(self.labels) > 1 and self.labels[1].isdecimal() else 0


def list_files(host: HostFiles, device: Watched) -> tuple[CounterFile, ...]:
    """Find the counter files of a device; done once, their values are read many times."""
    base = f"{CLASS}/{device.name}"
    found: list[CounterFile] = []
    for number in device.ports:
        port = f"{base}/ports/{number}"
        labels = (device.name, str(number))
        wide = set(entries(host, f"{port}/counters_ext"))
        there = set(entries(host, f"{port}/counters"))
        for name, item in PORT_COUNTERS.items():
            folder, file = ("counters_ext", item.wide) if item.wide in wide else ("counters", name)
            if file not in there | wide:
                continue
            # with the extended set all traffic is counted in 64 bits, which never end
            wide_too = item.wide is not None and (folder != "counters" or _EXTENDED in there)
            maximum = None if wide_too else item.maximum
            path = f"{port}/{folder}/{file}"
            family = PREFIX + item.family
            found.append(CounterFile(path, name, family, labels, item.scale, maximum))
        found += _hw(host, port, f"{PREFIX}port_hw_total", labels)
    return (*found, *_hw(host, base, f"{PREFIX}device_hw_total", (device.name,)))


def _hw(host: HostFiles, base: str, family: str, labels: tuple[str, ...]) -> list[CounterFile]:
    names = [name for name in entries(host, f"{base}/hw_counters") if is_name(name)]
    return [  # lifespan is no counter but the age of the values in milliseconds
        CounterFile(f"{base}/hw_counters/{name}", name, family, (*labels, name))
        for name in names[:MAX_HW]
        if name != "lifespan"
    ]


def readings_of(file: CounterFile, value: int | None) -> tuple[Reading, ...]:
    """Turn a value into its reading, and into a verdict where the field may be at its end."""
    if value is None:
        return ()
    reading = Reading(family=file.family, value=value * file.scale, labels=file.labels)
    if file.maximum is None:
        return (reading,)
    full = Reading(
        family=f"{PREFIX}counter_saturated",
        value=float(value == file.maximum),
        labels=(*file.labels, file.name),
    )
    return reading, full


def port_readings(host: HostFiles, name: str, seen: PortSeen) -> tuple[Reading, ...]:
    """Read what is no counter: physical state, rate, and the identifiers of InfiniBand."""
    base = f"{CLASS}/{name}/ports/{seen.number}"
    physical = parse_enum(text(host, f"{base}/phys_state") or "")
    rate = parse_rate(text(host, f"{base}/rate") or "")
    infiniband = text(host, f"{base}/link_layer") == INFINIBAND
    works = seen.state in (ACTIVE, ACTIVE_DEFER)
    values = {
        "port_physical_state": physical[0] if physical else None,
        "port_rate_bytes_per_second": rate * _BYTES_PER_MBIT_S if rate and works else None,
        "port_lid": parse_lid(text(host, f"{base}/lid") or "") if infiniband else None,
        "port_sm_lid": parse_lid(text(host, f"{base}/sm_lid") or "") if infiniband else None,
    }
    labels = (name, str(seen.number))
    return tuple(
        Reading(family=PREFIX + family, value=value, labels=labels)
        for family, value in values.items()
        if value is not None
    )


class CounterReader:
    """Reads values; on this machine each file is opened once and read at its start."""

    def __init__(self, host: HostFiles) -> None:
        self._host = host
        self._open: dict[str, int] = {}

    def value(self, path: str) -> int | None:
        """Return a counter, `None` if it is not there, refuses, or is no number."""
        if isinstance(self._host, LiveRoot):
            return parse_counter(self._kept(self._host, path))
        return parse_counter(text(self._host, path, _COUNTER_BYTES) or "")

    def _kept(self, host: LiveRoot, path: str) -> str:
        try:
            fd = self._open.get(path)
            if fd is None and len(self._open) >= MAX_OPEN:
                return text(host, path, _COUNTER_BYTES) or ""
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

    def keep_only(self, paths: set[str]) -> None:
        """Close the files of all other paths."""
        for path in [path for path in self._open if path not in paths]:
            self._drop(path)
