"""Reads the traffic of chips: counters of the RoCE port, and rates of PCIe, HCCS and RoCE.

A call for a rate blocks while the driver measures. These calls are made on a separate thread, in
rounds that are far apart.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator

import msgspec

from agent.clock import SYSTEM_CLOCK, Clock
from plugins.vendors.ascend.library.chip import Chip
from plugins.vendors.ascend.library.dcmi import Dcmi
from plugins.vendors.ascend.library.layout import number_member, numbers_member, structure
from plugins.vendors.ascend.library.poll_thread import ChipPollThread

EVERY_S = 30.0
FRESH_S = 120.0  # a rate that is older is not current
MEASURED_MS = 100  # the shortest that each of the three calls accepts
PORT = 0  # the only port of a chip
MIB = 1 << 20
GIGA = 10**9
MAX_COUNT = 1 << 53  # the largest count that a metric value represents exactly
MAX_PCIE = 1024  # MB in a millisecond
MAX_HCCS = 10_000.0  # GB in a second
MAX_NETWORK = 1 << 20  # MB in a second

PACKETS, PCIE = "dcmi_get_netdev_pkt_stats_info", "dcmi_get_pcie_link_bandwidth_info"
HCCS, NETWORK = "dcmi_get_hccs_link_bandwidth_info", "dcmi_get_rdma_bandwidth_info"
SYMBOLS = (PACKETS, PCIE, HCCS, NETWORK)

DIRECTIONS = ("tx", "rx")
PCIE_KINDS = (("p", "posted"), ("np", "non_posted"), ("cpl", "completion"))
STATISTICS = ("min", "max", "average")  # in the order of the structure

# (member of the structure, direction, kind) of packets on Ethernet
MAC_PACKETS = (
    ("mac_tx_packets", "tx", "all"),
    ("mac_rx_packets", "rx", "all"),
    ("mac_tx_bad_packets", "tx", "bad"),
    ("mac_rx_bad_packets", "rx", "bad"),
    ("mac_tx_pause", "tx", "pause"),
    ("mac_rx_pause", "rx", "pause"),
    ("mac_tx_pfc", "tx", "pfc"),
    ("mac_rx_pfc", "rx", "pfc"),
    ("mac_rx_fcs_errors", "rx", "bad_checksum"),
)
MAC_BYTES = (
    ("mac_tx_bytes", "tx", "all"),
    ("mac_rx_bytes", "rx", "all"),
    ("mac_tx_bad_bytes", "tx", "bad"),
    ("mac_rx_bad_bytes", "rx", "bad"),
)
ROCE_PACKETS = (
    ("roce_tx_packets", "tx", "all"),
    ("roce_rx_packets", "rx", "all"),
    ("roce_tx_rc", "tx", "reliable_connection"),
    ("roce_rx_rc", "rx", "reliable_connection"),
    ("roce_tx_errors", "tx", "error"),
    ("roce_rx_errors", "rx", "error"),
    ("roce_tx_cnp", "tx", "congestion_notification"),
    ("roce_rx_cnp", "rx", "congestion_notification"),
)
# (member, kind) of events of RoCE
ROCE_EVENTS = (
    ("roce_unexpected_acks", "unexpected_ack"),
    ("roce_out_of_order", "out_of_order"),
    ("roce_verification_errors", "verification_error"),
    ("roce_qp_errors", "queue_pair_error"),
    ("roce_retries", "retry"),
    ("roce_ecn", "congestion_mark"),
)

Counts = tuple[tuple[tuple[str, ...], float], ...]  # (values of labels, value)


class ChipTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """The traffic of a chip, and when it was read (monotonic)."""

    at_s: float
    mac_packets: Counts = ()  # by direction and kind
    mac_bytes: Counts = ()
    roce_packets: Counts = ()
    roce_events: Counts = ()  # by kind
    network: Counts = ()  # bytes per second by direction
    pcie: Counts = ()  # bytes per second by direction, kind and statistic
    hccs: Counts = ()  # bytes per second by direction
    hccs_ports: Counts = ()  # bytes per second by port and direction


def read_traffic(chip: Chip, at_s: float) -> ChipTraffic:
    """Read a chip's traffic. Never raises: what the chip does not report is empty."""
    packets = chip.read_structure(PACKETS, "network_packets", PORT)
    hccs = _read_hccs(chip)
    return ChipTraffic(
        at_s=at_s,
        mac_packets=tuple(_counts(chip, packets, MAC_PACKETS)),
        mac_bytes=tuple(_counts(chip, packets, MAC_BYTES)),
        roce_packets=tuple(_counts(chip, packets, ROCE_PACKETS)),
        roce_events=tuple(_counts(chip, packets, ROCE_EVENTS)),
        network=tuple(_read_network(chip)),
        pcie=tuple(_read_pcie(chip)),
        hccs=tuple(_hccs_totals(chip, hccs)),
        hccs_ports=tuple(_hccs_ports(chip, hccs)),
    )


def _counts(
    chip: Chip, record: ctypes.Structure | None, members: Iterable[tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], float]]:
    if record is None:
        return
    for member, *labels in members:
        count = chip.check_bounds(member, number_member(record, member), 0, MAX_COUNT)
        if count is not None:
            yield tuple(labels), float(count)


def _read_network(chip: Chip) -> Iterator[tuple[tuple[str, ...], float]]:
    record = chip.read_structure(NETWORK, "rdma_bandwidth", PORT, MEASURED_MS)
    if record is None:
        return
    for direction in DIRECTIONS:
        rate = chip.check_bounds(
            f"rdma {direction}", number_member(record, direction), 0, MAX_NETWORK
        )
        if rate is not None:
            yield (direction,), float(rate * MIB)


def _read_pcie(chip: Chip) -> Iterator[tuple[tuple[str, ...], float]]:
    record = structure("pcie_bandwidth")(profiling_time=MEASURED_MS)
    if not chip.try_call(PCIE, None, ctypes.byref(record)):
        return
    for direction in DIRECTIONS:
        for suffix, kind in PCIE_KINDS:
            member = f"{direction}_{suffix}"
            for statistic, rate in zip(STATISTICS, numbers_member(record, member), strict=True):
                if chip.check_bounds(f"pcie {member}", rate, 0, MAX_PCIE) is not None:
                    yield (direction, kind, statistic), float(rate * MIB * 1000)


def _read_hccs(chip: Chip) -> ctypes.Structure | None:
    record = structure("hccs_bandwidth")(profiling_time=MEASURED_MS)
    return record if chip.try_call(HCCS, None, ctypes.byref(record)) else None


def _hccs_totals(
    chip: Chip, record: ctypes.Structure | None
) -> Iterator[tuple[tuple[str, ...], float]]:
    for direction in DIRECTIONS if record is not None else ():
        rate = float(getattr(record, f"total_{direction}"))
        if _is_plausible_rate(chip, rate):
            yield (direction,), rate * GIGA


def _hccs_ports(
    chip: Chip, record: ctypes.Structure | None
) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the rates of the ports; the driver has places for more ports than a chip has."""
    if record is None:
        return
    rates = {direction: tuple(getattr(record, direction)) for direction in DIRECTIONS}
    for port, both in enumerate(zip(*rates.values(), strict=True)):
        for direction, rate in zip(DIRECTIONS, both, strict=True) if any(both) else ():
            if _is_plausible_rate(chip, rate):
                yield (str(port), direction), rate * GIGA


def _is_plausible_rate(chip: Chip, rate: float) -> bool:
    if 0.0 <= rate <= MAX_HCCS:  # false for NaN
        return True
    chip.implausible["hccs rate"] = int(min(rate, MAX_COUNT)) if rate > 0 else -1
    return False


class TrafficWatch:
    """Polls the traffic of chips in rounds. While a call hangs, there is no current traffic."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._traffic: dict[str, ChipTraffic] = {}
        self._thread = ChipPollThread("traffic", EVERY_S, self._poll)

    def watch(self, dcmi: Dcmi, chips: Iterable[tuple[str, int, int]]) -> None:
        """Set the chips to poll, by key, card and number; nothing if the driver lacks the calls."""
        if not dcmi.missing.issuperset(SYMBOLS):
            self._thread.set_chips(dcmi, chips)

    def traffic(self, key: str) -> ChipTraffic | None:
        """Return the recent traffic of a chip; `None` if it is unknown."""
        traffic = self._traffic.get(key)
        is_fresh = traffic is not None and self._clock.monotonic() - traffic.at_s <= FRESH_S
        return traffic if is_fresh else None

    def close(self) -> None:
        """Tell the thread to end after its current call."""
        self._thread.close()

    def _poll(self, key: str, chip: Chip) -> None:
        self._traffic[key] = read_traffic(chip, self._clock.monotonic())
