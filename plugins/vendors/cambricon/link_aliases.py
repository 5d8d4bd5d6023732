"""Names of Cambricon's mlu-exporter for MLULink ports and their optical modules."""

from __future__ import annotations

from collections.abc import Iterator

from agent.snapshot.vendor import AliasLabel, AliasSource, LabelOrigin, MetricAlias
from plugins.vendors.cambricon import metrics
from plugins.vendors.cambricon.alias_rows import (
    alias,
    source_of,
    states_of,
)

_GIGABYTES = 1e-9
_PER_MIB = 1 / (1 << 20)
_LINK = AliasLabel("link", LabelOrigin.READING, "port")
_PORT_NAME = AliasLabel(
    "ppi", LabelOrigin.OTHER_READING, "name", family=metrics.LINK_INFO.name, by="port"
)

# layer of a port, and its states in the order of their numbers in mlu-exporter
_LAYERS = {
    "mac": ("status", ("down", "up", "lldp", "ready")),
    "serdes": ("serdes_status", ("disabled", "enabled", "establishing")),
    "cable": ("cable_status", ("absent", "present", "unsupported")),
}
_LINK_ERRORS = {
    "err_corrected_total": "corrected_fec",
    "err_crc24_total": "crc24",
    "err_crc32_total": "crc32",
    "err_ecc_double_total": "ecc_double_bit",
    "err_fatal_total": "fatal",
    "err_replay_total": "task_replay",
    "err_uncorrected_total": "uncorrected_fec",
    "err_replay_fail_total": "replay_failed",
    "rx_bad_fcs_packet_total": "rx_bad_fcs",
    "tx_bad_fcs_packet_total": "tx_bad_fcs",
    "illegal_access": "illegal_access",
    "link_down_total": "link_down",
}
# label of mlu-exporter after `remote_`: label of ours after `peer_`
_PEER_LABELS = {
    "mc_sn": "serial",
    "ba_sn": "board_serial",
    "slot_id": "slot",
    "port_id": "port",
    "ncs_uuid64": "ncs",
    "ip": "ip",
    "mac": "mac",
    "uuid": "uuid",
    "port_name": "port_name",
}


def _links() -> Iterator[MetricAlias]:
    """Yield the families of the MLULink ports."""
    for layer, (name, states) in _LAYERS.items():
        yield _link(
            name,
            f"State of a port: {', '.join(f'{n} {state}' for n, state in enumerate(states))}.",
            *states_of(metrics.LINK_STATE, "state", *states, layer=layer),
        )
    yield _link(
        "speed",
        "Speed of a port in gigabytes per second.",
        source_of(metrics.LINK_SPEED, _GIGABYTES),
    )
    for direction in ("read", "write"):
        for name, family in (("byte", metrics.LINK_BYTES), ("package", metrics.LINK_PACKETS)):
            yield _link(
                f"cntr_{direction}_{name}_total",
                f"Traffic of a port: {name}s, {direction}.",
                source_of(family, direction=direction),
                kind="counter",
            )
    for kind in ("cnp", "pfc"):
        yield _link(
            f"cntr_{kind}_package_total",
            f"Packets of a port about congestion: {kind}.",
            source_of(metrics.LINK_CONGESTION, kind=kind),
            kind="counter",
        )
    for name, error in _LINK_ERRORS.items():
        yield _link(
            name,
            f"Events of a port: {error.replace('_', ' ')}.",
            source_of(metrics.LINK_ERRORS, kind=error),
            kind="counter",
        )


def _link_properties() -> Iterator[MetricAlias]:
    """Yield the families of what a port is, and of what it is connected to."""
    for name, family, label, states in (
        ("port_mode", metrics.LINK_MODE, "mode", ("uninitialized", "any", "mlulink", "roce")),
        ("speed_format", metrics.LINK_SPEED_FORMAT, "format", ("nrz", "pam4")),
        ("connect_type", metrics.LINK_PEER, "kind", ("mlu", "switch")),
    ):
        meaning = ", ".join(f"{number} {state}" for number, state in enumerate(states))
        yield _link(
            name,
            f"{name.replace('_', ' ').capitalize()}: {meaning}.",
            *states_of(family, label, *states),
        )
    for direction in ("inbound", "outbound"):
        yield _link(
            f"{direction}_state",
            f"1 if a port takes {direction} commands, else 0.",
            source_of(metrics.LINK_ENABLED, direction=direction),
        )
    for name, capability in (("p2p_transfer", "p2p"), ("interlaken_serdes", "interlaken")):
        yield _link(
            f"{name}_capability",
            f"1 if a port is capable of {name.replace('_', ' ')}, else 0.",
            source_of(metrics.LINK_CAPABILITY, capability=capability),
        )
    yield _link(
        "version",
        "1, with the version of a port's protocol.",
        source_of(metrics.LINK_INFO),
        more=(AliasLabel("link_version", LabelOrigin.READING, "version", prefix="v"),),
    )
    yield _link(
        "remote_info",
        "1, with what is known of the other end of a port.",
        source_of(metrics.LINK_PEER_INFO),
        more=tuple(
            AliasLabel(f"remote_{name}", LabelOrigin.READING, f"peer_{key}")
            for name, key in _PEER_LABELS.items()
        ),
        note="remote_ip is an address that people can read.",
    )
    yield alias(
        "mlulink_port_number",
        "Number of ports.",
        source_of(metrics.LINK_PORTS),
        note="Absent for a card without ports, not 0.",
    )


def _mean_traffic() -> Iterator[MetricAlias]:
    """Yield the families of the traffic by performance counters, in MiB per second."""
    for name, direction in (("tx", "sent"), ("rx", "received")):
        yield alias(
            f"mpm_mlulink_total_{name}_bandwidth",
            f"MiB per second over all ports: {direction}.",
            source_of(metrics.MEAN_TRAFFIC, _PER_MIB, bus="mlulink", direction=direction),
        )
        yield alias(
            f"mpm_mlulink_{name}_bandwidth",
            f"MiB per second over a port: {direction}.",
            source_of(metrics.LINK_MEAN_TRAFFIC, _PER_MIB, direction=direction),
            more=(_LINK, _PORT_NAME),
        )


def _optical_modules() -> Iterator[MetricAlias]:
    """Yield the families of the optical modules at the MLULink ports."""
    for name, family, text in (
        ("status", metrics.OPTICAL_PRESENT, "1 if the port has an optical module, else 0."),
        ("temperature", metrics.OPTICAL_TEMPERATURE, "Temperature in degrees Celsius."),
        ("voltage", metrics.OPTICAL_VOLTAGE, "Supply voltage in volts."),
    ):
        yield alias(f"optical_{name}", text, source_of(family), more=(_LINK,))
    for name, direction in (("tx", "sent"), ("rx", "received")):
        where = (("direction", direction),)
        yield alias(
            f"optical_{name}_power",
            f"Light in dBm: {direction}.",
            AliasSource(family=metrics.OPTICAL_POWER.name, where=where, is_dbm=True),
            more=(_LINK, AliasLabel("lane", LabelOrigin.READING, "lane")),
        )


def _link(
    name: str,
    help_text: str,
    *sources: AliasSource,
    kind: str = "gauge",
    more: tuple[AliasLabel, ...] = (),
    note: str = "",
) -> MetricAlias:
    """Return an alias of ports; `more` are labels beside the number and the name of the port."""
    labels = (_LINK, _PORT_NAME, *more)
    return alias(f"mlulink_{name}", help_text, *sources, kind=kind, more=labels, note=note)


LINK_ALIASES = (*_links(), *_link_properties(), *_mean_traffic(), *_optical_modules())
