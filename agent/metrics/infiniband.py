"""Series of RDMA ports under the names of node_exporter, for existing dashboards.

The values are those of the agent's own families. Labels are node_exporter's: the RDMA device's
name and the port.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from agent.metrics.families import ExportedFamily
from agent.metrics.text_format import LabelCache, SeriesLines, sample_line
from agent.snapshot.inventory import DeviceSample
from agent.snapshot.vendor import AliasMatch, AliasSource, AliasTable, MetricAlias

NODE_EXPORTER_ALIAS = "node_exporter"  # value of `metrics.aliases`
PORT_LABELS = ("device", "port")
INFO_LABELS = ("device", "board_id", "firmware_version", "hca_type")
AGENT_PREFIX, NODE_EXPORTER_PREFIX = "xpu_rdma_", "node_infiniband_"
INFO = f"{NODE_EXPORTER_PREFIX}info"
_AGENT_INFO = f"{AGENT_PREFIX}info"
_INFO_LABEL_COUNT = (
    4  # label values shared with node_exporter, in its order: name, board, firmware, type
)

_GAUGES = {
    "port_state": "state_id",
    "port_physical_state": "physical_state_id",
    "port_rate_bytes_per_second": "rate_bytes_per_second",
}
_COUNTERS = {
    "port_transmit_bytes": "port_data_transmitted_bytes",
    "port_receive_bytes": "port_data_received_bytes",
    "port_transmit_packets": "port_packets_transmitted",
    "port_receive_packets": "port_packets_received",
    "port_unicast_transmit_packets": "unicast_packets_transmitted",
    "port_unicast_receive_packets": "unicast_packets_received",
    "port_multicast_transmit_packets": "multicast_packets_transmitted",
    "port_multicast_receive_packets": "multicast_packets_received",
    "port_transmit_wait": "port_transmit_wait",
    "port_transmit_discards": "port_discards_transmitted",
    "port_receive_errors": "port_errors_received",
    "port_receive_remote_physical_errors": "port_receive_remote_physical_errors",
    "port_receive_switch_relay_errors": "port_receive_switch_relay_errors",
    "port_transmit_constraint_errors": "port_constraint_errors_transmitted",
    "port_receive_constraint_errors": "port_constraint_errors_received",
    "port_symbol_errors": "symbol_error",
    "port_link_error_recovery": "link_error_recovery",
    "port_link_downed": "link_downed",
    "port_local_link_integrity_errors": "local_link_integrity_errors",
    "port_buffer_overrun_errors": "excessive_buffer_overrun_errors",
    "port_vl15_dropped": "vl15_dropped",
}
_DRIVER_COUNTERS = f"{AGENT_PREFIX}port_hw_total"
# counters of drivers, by the names of their files
_DRIVER_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        counter: f"{NODE_EXPORTER_PREFIX}{name}_total"
        for counter, name in {
            "duplicate_request": "duplicate_requests_packets",
            "implied_nak_seq_err": "implied_nak_seq_errors",
            "local_ack_timeout_err": "local_ack_timeout_errors",
            "np_cnp_sent": "np_cnp_packets_sent",
            "np_ecn_marked_roce_packets": "np_ecn_marked_roce_packets_received",
            "out_of_buffer": "out_of_buffer_drops",
            "out_of_sequence": "out_of_sequence_packets_received",
            "packet_seq_err": "packet_sequence_errors",
            "req_cqe_error": "req_cqes_errors",
            "req_cqe_flush_error": "req_cqes_flush_errors",
            "req_remote_access_errors": "req_remote_access_errors",
            "req_remote_invalid_request": "req_remote_invalid_request_errors",
            "resp_cqe_error": "resp_cqes_errors",
            "resp_cqe_flush_error": "resp_cqes_flush_errors",
            "resp_local_length_error": "resp_local_length_errors",
            "resp_remote_access_errors": "resp_remote_access_errors",
            "rnr_nak_retry_err": "rnr_nak_retry_packets_received",
            "roce_adp_retrans": "roce_adp_retransmits",
            "roce_adp_retrans_to": "roce_adp_retransmits_timeout",
            "roce_slow_restart": "roce_slow_restart_used",
            "roce_slow_restart_cnps": "roce_slow_restart_cnps",
            "roce_slow_restart_trans": "roce_slow_restart",
            "rp_cnp_handled": "rp_cnp_packets_handled",
            "rp_cnp_ignored": "rp_cnp_ignored_packets_received",
            "rx_atomic_requests": "rx_atomic_requests",
            "rx_dct_connect": "rx_dct_connect_requests",
            "rx_icrc_encapsulated": "rx_icrc_encapsulated_errors",
            "rx_read_requests": "rx_read_requests",
            "rx_write_requests": "rx_write_requests",
        }.items()
    }
)
_ABSENT: Mapping[str, str] = MappingProxyType(
    {
        "port_discards_received_total": "The kernel has no such counter.",
        "lifespan_seconds": "It is no figure of the port: for how long the driver keeps values.",
    }
    | {
        f"legacy_{name}_total": "The name without legacy_ has it, of old kernels as well."
        for name in (
            *("multicast_packets_received", "multicast_packets_transmitted"),
            *("data_received_bytes", "data_transmitted_bytes"),
            *("packets_received", "packets_transmitted"),
            *("unicast_packets_received", "unicast_packets_transmitted"),
        )
    }
)
_ALIASES: Mapping[str, str] = MappingProxyType(
    {f"{AGENT_PREFIX}{ours}": f"{NODE_EXPORTER_PREFIX}{theirs}" for ours, theirs in _GAUGES.items()}
    | {
        f"{AGENT_PREFIX}{ours}_total": f"{NODE_EXPORTER_PREFIX}{theirs}_total"
        for ours, theirs in _COUNTERS.items()
    }
)


def infiniband_table() -> AliasTable:
    """Return for each of node_exporter's names of ports what it is made from, for the reference."""
    exported = (
        MetricAlias(name=name, type=kind, sources=(source,)) for name, kind, source in _exported()
    )
    absent = (
        MetricAlias(
            name=f"{NODE_EXPORTER_PREFIX}{name}", type="", match=AliasMatch.ABSENT, note=reason
        )
        for name, reason in _ABSENT.items()
    )
    return AliasTable(
        name=NODE_EXPORTER_ALIAS,
        exporter="collector infiniband of node_exporter",
        maker="",
        metrics=(*exported, *absent),
    )


def _exported() -> Iterator[tuple[str, str, AliasSource]]:
    """Yield name, type and source of each exported name."""
    yield INFO, "info", AliasSource(family=_AGENT_INFO)
    for family, name in _ALIASES.items():
        yield name, "counter" if name.endswith("_total") else "gauge", AliasSource(family=family)
    for counter, name in _DRIVER_ALIASES.items():
        source = AliasSource(family=_DRIVER_COUNTERS, where=(("counter", counter),))
        yield name, "counter", source


def infiniband_families(aliases: tuple[str, ...]) -> tuple[ExportedFamily, ...]:
    """Return the families, if `metrics.aliases` has them."""
    if NODE_EXPORTER_ALIAS not in aliases:
        return ()
    return tuple(
        ExportedFamily(
            name=name,
            type=kind,
            help=f"As {source.family}.",
            labels=INFO_LABELS if name == INFO else PORT_LABELS,
            stability="alpha",
            alias_of=source.family,
        )
        for name, kind, source in _exported()
    )


def infiniband_series(
    samples: Mapping[str, DeviceSample], aliases: tuple[str, ...], labels: LabelCache
) -> SeriesLines:
    """Yield the requested families; a port without a value has no sample."""
    if NODE_EXPORTER_ALIAS not in aliases:
        return
    lines: dict[str, dict[str, float]] = {name: {} for name, *_ in _exported()}
    for sample in samples.values():
        for reading in sample.readings:
            alias = _ALIASES.get(reading.family)
            if reading.family == _DRIVER_COUNTERS and len(reading.labels) > len(PORT_LABELS):
                *port, counter = reading.labels
                alias = _DRIVER_ALIASES.get(counter)
                if alias is not None:
                    lines[alias][labels.prefix(PORT_LABELS, tuple(port))] = reading.value
            elif alias is not None and len(reading.labels) == len(PORT_LABELS):
                lines[alias][labels.prefix(PORT_LABELS, reading.labels)] = reading.value
            elif reading.family == _AGENT_INFO and len(reading.labels) >= _INFO_LABEL_COUNT:
                values = reading.labels[:_INFO_LABEL_COUNT]
                lines[INFO][labels.prefix(INFO_LABELS, values)] = 1
    for name, series in lines.items():
        yield (
            name,
            [sample_line(name, label_prefix, value) for label_prefix, value in series.items()],
        )
