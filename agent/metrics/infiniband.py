"""Series of RDMA ports under the names of node_exporter, for existing dashboards.

The values are those of the agent's own families. Labels are node_exporter's: the RDMA device's
name and the port.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from agent.metrics.families import ExportedFamily
from agent.metrics.text_format import LabelCache, SeriesLines, sample_line
from agent.snapshot.inventory import DeviceSample

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
_ALIASES: Mapping[str, str] = MappingProxyType(
    {f"{AGENT_PREFIX}{ours}": f"{NODE_EXPORTER_PREFIX}{theirs}" for ours, theirs in _GAUGES.items()}
    | {
        f"{AGENT_PREFIX}{ours}_total": f"{NODE_EXPORTER_PREFIX}{theirs}_total"
        for ours, theirs in _COUNTERS.items()
    }
)


def infiniband_families(aliases: tuple[str, ...]) -> tuple[ExportedFamily, ...]:
    """Return the families, if `metrics.aliases` has them."""
    if NODE_EXPORTER_ALIAS not in aliases:
        return ()
    ports = (
        ExportedFamily(
            name=alias,
            type="counter" if alias.endswith("_total") else "gauge",
            help=f"As {agent_name}.",
            labels=PORT_LABELS,
            stability="alpha",
            alias_of=agent_name,
        )
        for agent_name, alias in _ALIASES.items()
    )
    info = ExportedFamily(
        name=INFO,
        type="info",
        help=f"As {_AGENT_INFO}.",
        labels=INFO_LABELS,
        stability="alpha",
        alias_of=_AGENT_INFO,
    )
    return (info, *ports)


def infiniband_series(
    samples: Mapping[str, DeviceSample], aliases: tuple[str, ...], labels: LabelCache
) -> SeriesLines:
    """Yield the requested families; a port without a value has no sample."""
    if NODE_EXPORTER_ALIAS not in aliases:
        return
    lines: dict[str, dict[str, float]] = {name: {} for name in (INFO, *_ALIASES.values())}
    for sample in samples.values():
        for reading in sample.readings:
            alias = _ALIASES.get(reading.family)
            if alias is not None and len(reading.labels) == len(PORT_LABELS):
                lines[alias][labels.prefix(PORT_LABELS, reading.labels)] = reading.value
            elif reading.family == _AGENT_INFO and len(reading.labels) >= _INFO_LABEL_COUNT:
                values = reading.labels[:_INFO_LABEL_COUNT]
                lines[INFO][labels.prefix(INFO_LABELS, values)] = 1
    for name, series in lines.items():
        yield (
            name,
            [sample_line(name, label_prefix, value) for label_prefix, value in series.items()],
        )
