"""Metric families of RDMA devices."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from agent.snapshot.inventory import MetricFamily, TrafficSource

POD_PREFIX = "xpu_rdma_cgroup_"

_POD_LABELS = ("rdma", "pod_uid")

POD_FAMILIES: tuple[MetricFamily, ...] = tuple(
    MetricFamily(name=f"{POD_PREFIX}{name}", type="gauge", help=words, labels=_POD_LABELS)
    for name, words in (
        ("handles", "Device contexts that a pod has opened."),
        ("handles_limit", "Device contexts that a pod may open; absent without a limit."),
        ("objects", "Queues, memory regions and other objects of a pod."),
        ("objects_limit", "Objects that a pod may have; absent without a limit."),
    )
)

PREFIX = "xpu_rdma_"
_WORD = 4  # data counters count 32-bit words, whatever the number of lanes
_BITS32 = 2**32 - 1
_PORT_LABELS = ("rdma", "port")
_COUNTER_LABELS = (*_PORT_LABELS, "counter")


class PortCounter(msgspec.Struct, frozen=True):
    """A file of `counters/`: its family, the factor to the family's unit, and its maximum."""

    family: str
    help: str
    scale: int = 1
    maximum: int | None = None  # of the classic field, which stops there
    wide: str | None = None  # its 64-bit file in `counters_ext/` of kernels before 4.5


def _traffic(
    family: str, words: str, wide: str, *, scale: int = 1, old: bool = True
) -> PortCounter:
    """Describe traffic; all drivers have the `old` fields, with 32 bits."""
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

# by the counter of which it is the rate
RATES: Mapping[str, str] = MappingProxyType(
    {
        f"{PREFIX}port_{direction}_bytes_total": f"{PREFIX}port_{direction}_bytes_per_second"
        for direction in ("transmit", "receive")
    }
)

INFO_LABELS = (
    "rdma", "board_id", "firmware", "hca_type", "node_guid", "driver", "link_layer", "netdev",
)  # fmt: skip


def _family(
    kind: str, name: str, words: str, labels: tuple[str, ...] = _PORT_LABELS
) -> MetricFamily:
    return MetricFamily(name=PREFIX + name, type=kind, help=words, labels=labels)


FAMILIES: tuple[MetricFamily, ...] = (
    _family("gauge", "info", "Facts of an RDMA device; always 1.", INFO_LABELS),
    _family("gauge", "port_state", "State of the port; 4 is active."),
    _family("gauge", "port_physical_state", "Physical state of the port; 5 is up."),
    _family("gauge", "port_rate_bytes_per_second", "Signalling rate of an active port."),
    _family("gauge", "port_lid", "Local identifier (InfiniBand)."),
    _family("gauge", "port_sm_lid", "Local identifier of the subnet manager (InfiniBand)."),
    *(_family("counter", item.family, item.help) for item in PORT_COUNTERS.values()),
    *(
        MetricFamily(
            name=family,
            type="gauge",
            help="Data rate of the port between the last two readings of its counters.",
            labels=_PORT_LABELS,
        )
        for family in RATES.values()
    ),
    _family("counter", "port_hw_total", "A driver's counter, by its own name.", _COUNTER_LABELS),
    _family("counter", "device_hw_total", "A driver's counter for all ports.", ("rdma", "counter")),
    _family(
        "gauge", "counter_saturated", "1: the counter stands at its field's end.", _COUNTER_LABELS
    ),
    _family("counter", "port_flaps_total", "Times the port was seen going down."),
    _family(
        "gauge",
        "virtual_functions",
        "Virtual functions: enabled, usable by pods, and total possible.",
        ("rdma", "state"),
    ),
    *POD_FAMILIES,
)

# not the counters, whose last values are in all samples until they are read again
TRAFFIC = tuple(
    TrafficSource(link="RDMA", family=family, is_sent="_transmit_" in family)
    for family in RATES.values()
)
