"""Names of Cambricon's mlu-exporter for what is known of MLUs."""

from __future__ import annotations

from collections.abc import Iterator

from agent.snapshot.inventory import MetricFamily
from agent.snapshot.vendor import (
    AliasLabel,
    AliasMatch,
    AliasSource,
    AliasTable,
    DeviceValue,
    LabelOrigin,
    MetricAlias,
)
from plugins.shared import metric_families
from plugins.vendors.cambricon import metrics
from plugins.vendors.cambricon.absent_aliases import absent_aliases

_PREFIX = "mlu_"
_PERCENT = 100
_MEGAHERTZ = 1e-6
_MILLI = 1e3  # millivolts and milliamperes of a volt and an ampere
_GIGABYTES = 1e-9
_PER_WINDOW = 1 / 50  # PCIe traffic is measured for 20 ms

_DRIVER = AliasLabel("driver", LabelOrigin.FACT, "driver", prefix="v")
_MODEL = AliasLabel("model", LabelOrigin.NAME)
_NODE = AliasLabel("node", LabelOrigin.NODE)
_TYPE = AliasLabel("type", LabelOrigin.FACT, "series")
_LABELS = (
    _DRIVER,
    AliasLabel("mcu", LabelOrigin.FACT, "mcu", prefix="v"),
    AliasLabel("mlu", LabelOrigin.VENDOR_MINOR),
    _MODEL,
    _NODE,
    AliasLabel("sn", LabelOrigin.FACT, "serial"),
    _TYPE,
    AliasLabel("uuid", LabelOrigin.FACT, "cndev-uuid"),
)
_LINK = AliasLabel("link", LabelOrigin.READING, "port")
_SLICE = AliasLabel("vf", LabelOrigin.READING, "slice")

_LINK_NOTE = "Without the label ppi."
_MEMORY_NOTE = "The total is what containers can have, and parts of a card have no series."
_REPAIR_NOTE = "1 if there are any such rows, not their number."


def _of(family: MetricFamily, factor: float = 1.0, **where: str) -> AliasSource:
    return AliasSource(family=family.name, factor=factor, where=tuple(where.items()))


def _alias(
    name: str,
    help_text: str,
    *sources: AliasSource,
    kind: str = "gauge",
    more: tuple[AliasLabel, ...] = (),
    note: str = "",
) -> MetricAlias:
    """Return an alias with the labels of the table and `more`; a note makes it a near one."""
    return MetricAlias(
        name=f"{_PREFIX}{name}",
        type=kind,
        help=help_text,
        sources=sources,
        labels=(*_LABELS, *more) if more else None,
        match=AliasMatch.NEAR if note else AliasMatch.SAME,
        note=note,
    )


def _value(value: DeviceValue) -> AliasSource:
    return AliasSource(value=value)


def _reading(name: str, key: str) -> tuple[AliasLabel]:
    return (AliasLabel(name, LabelOrigin.READING, key),)


_CARD = (
    MetricAlias(
        name="mlu_machine_mlu_nums",
        type="gauge",
        help="Number of MLUs of the node.",
        sources=(_value(DeviceValue.DEVICES),),
        labels=(_DRIVER, _MODEL, _NODE, _TYPE),
        is_of_node=True,
    ),
    _alias(
        "health",
        "1 if the card is healthy, else 0.",
        _value(DeviceValue.HEALTHY),
        note="The agent's verdict, by all that it knows of the card; no label unhealth_reason.",
    ),
    _alias(
        "version",
        "1, with the versions of the driver and of the card's controller.",
        _value(DeviceValue.ONE),
        note="Without the labels cndev_version and compute_capability.",
    ),
    MetricAlias(
        name="mlu_container",
        type="gauge",
        help="1 for each container that has the card.",
        sources=(_value(DeviceValue.ONE),),
        labels=(
            *_LABELS,
            AliasLabel("namespace", LabelOrigin.NAMESPACE),
            AliasLabel("pod", LabelOrigin.POD),
            AliasLabel("container", LabelOrigin.CONTAINER),
        ),
        is_of_pod=True,
        match=AliasMatch.NEAR,
        note="Without the label vf, which tells the part of a card that is cut; a card that no pod "
        "uses has no series, not 0.",
    ),
    _alias(
        "xid_error_count",
        "Faults that the card reported as events, by their number.",
        AliasSource(family=metrics.XID),
        kind="counter",
        more=_reading("xid", "xid"),
        note="Of the labels that describe the event it has only xid.",
    ),
    _alias(
        "process_physical_memory_used",
        "Memory of the card that a process uses, in bytes.",
        _value(DeviceValue.PROCESS_MEMORY_BYTES),
        more=_reading("pid", "pid"),
    ),
)

_UTILIZATION = (
    _alias(
        "utilization",
        "Busy share of the card, and of its parts, in percent.",
        _value(DeviceValue.UTILIZATION_PERCENT),
        AliasSource(family=metrics.SLICE_CORE, labels=(_SLICE,)),
    ),
    _alias(
        "virtual_function_utilization",
        "Busy share of a part of a card in percent.",
        AliasSource(family=metrics.SLICE_CORE),
        more=(_SLICE,),
    ),
    _alias(
        "core_utilization",
        "Busy share of a core in percent.",
        _of(metrics.CORE_UTILIZATION, _PERCENT),
        more=_reading("core", "core"),
    ),
    *(
        _alias(
            f"{name}_utilization",
            f"Busy share of a unit in percent: {name.replace('_', ' ')}.",
            _of(metrics.CODEC_UTILIZATION, _PERCENT, codec=codec),
            more=_reading(label, "number"),
        )
        for name, codec, label in (
            ("image_codec", "image", "jpu_core"),
            ("video_codec", "video", "vpu_core"),
            ("video_decoder", "decoder", "decoder_core"),
        )
    ),
    *(
        _alias(name, text, _of(metric_families.CLOCK, _MEGAHERTZ, domain=domain))
        for name, domain, text in (
            ("frequency", "core", "Clock of the cores in megahertz."),
            ("ddr_frequency", "memory", "Clock of the memory in megahertz."),
            ("default_frequency", "core_default", "Clock of the cores by default in megahertz."),
        )
    ),
)

_BOARD = (
    *(
        _alias(name, text, _of(metric_families.TEMPERATURE, sensor=sensor))
        for name, sensor, text in (
            ("temperature", "board", "Temperature of the board in degrees Celsius."),
            ("chip_temperature", "chip", "Temperature of the chip in degrees Celsius."),
        )
    ),
    _alias(
        "memory_temperature",
        "Temperature of the memory in degrees Celsius.",
        _of(metric_families.TEMPERATURE, sensor="memory"),
        note="Without the series of single dies of the memory.",
    ),
    _alias(
        "power_usage",
        "Power in watts.",
        _of(metric_families.POWER),
        note="Parts of a card have no series: theirs have the power of the card.",
    ),
    _alias("power_current_limit", "Power limit in watts.", _of(metric_families.POWER_LIMIT)),
    *(
        _alias(f"power_{name}_limit", text, _of(metrics.POWER_BOUNDS, kind=kind))
        for name, kind, text in (
            ("default", "default", "Power limit by default in watts."),
            ("max", "highest", "Highest power limit that can be set, in watts."),
            ("min", "lowest", "Lowest power limit that can be set, in watts."),
        )
    ),
    *(
        _alias(
            f"pcie_{direction}_throughput",
            f"Bytes over PCIe in 20 milliseconds: {direction}.",
            _of(metrics.PCIE_RATE, _PER_WINDOW, direction=direction),
            kind="counter",
        )
        for direction in ("read", "write")
    ),
    *(
        _alias(
            f"{domain}_{name}",
            f"{name.capitalize()} in {unit}: {domain}.",
            _of(family, _MILLI, domain=domain),
        )
        for name, unit, family in (
            ("voltage", "millivolts", metrics.VOLTAGE),
            ("current", "milliamperes", metrics.CURRENT),
        )
        for domain in ("core", "soc", "memory")
    ),
    *(
        _alias(
            f"over_temp_{name}_total",
            f"How often the card was too hot: {reaction.replace('_', ' ')}.",
            _of(metrics.HEAT_REACTIONS, reaction=reaction),
            kind="counter",
        )
        for name, reaction in (("power_off", "power_off"), ("under_clock", "slowdown"))
    ),
    _alias(
        "thermal_slow_down",
        "1 if the card runs slower because of heat, else 0.",
        _of(metrics.THROTTLED, reason="thermal"),
    ),
    *(
        _alias(
            f"d2d_crc_error_{name}",
            f"Checksum errors between the dies of the card: {kind}.",
            _of(metrics.DIE_LINK_ERRORS, kind=kind),
            kind="counter",
        )
        for name, kind in (("total", "crc"), ("overflow_total", "overflow"))
    ),
    _alias(
        "pcie_replay_count",
        "Packets over PCIe that were sent again.",
        _of(metric_families.PCIE_REPLAYS),
        kind="counter",
    ),
)

_MEMORY = (
    _alias("memory_used", "Used memory in bytes.", _value(DeviceValue.MEMORY_USED_BYTES)),
    *(
        _alias(f"memory_{name}", text, _value(value), note=_MEMORY_NOTE)
        for name, value, text in (
            ("total", DeviceValue.MEMORY_TOTAL_BYTES, "Memory in bytes."),
            ("free", DeviceValue.MEMORY_FREE_BYTES, "Free memory in bytes."),
            ("utilization", DeviceValue.MEMORY_USED_PERCENT, "Used share in percent."),
        )
    ),
    *(
        _alias(
            f"ecc_{kind}_error_total",
            f"Memory errors that were {kind}.",
            _of(metric_families.ECC_ERRORS, kind=kind),
            kind="counter",
        )
        for kind in ("corrected", "uncorrected")
    ),
    *(
        _alias(
            f"{prefix}{memory}_ecc_{name}_count",
            f"Errors of the memory, {since}: {memory}, {kind.replace('_', ' ')}.",
            _of(family, memory=memory, kind=kind),
            kind="counter",
        )
        for prefix, family, since in (
            ("", metrics.MEMORY_ERRORS, "since the driver was loaded"),
            ("aggr_", metrics.LIFETIME_MEMORY_ERRORS, "over its life"),
        )
        for memory, name, kind in (
            ("sram", "sbe", "single_bit"),
            ("sram", "dbe", "double_bit"),
            ("sram", "parity", "parity"),
            ("dram", "sbe", "single_bit"),
            ("dram", "dbe", "double_bit"),
        )
    ),
    _alias(
        "aggr_sram_ecc_threshold_exceed",
        "1 if the on-chip memory had too many errors over its life, else 0.",
        _of(metrics.SRAM_EXCESS),
        kind="counter",
    ),
    *(
        _alias(
            f"ecc_{name}_error_total",
            f"Memory errors: {extent.replace('_', ' ')}.",
            _of(metrics.ECC_EXTENTS, extent=extent),
            kind="counter",
        )
        for name, extent in (
            ("one_bit", "one_bit"),
            ("multiple_one", "several_one_bit"),
            ("multiple", "many_bit"),
            ("multiple_multiple", "several_many_bit"),
            ("address_forbidden", "forbidden_address"),
        )
    ),
    _alias(
        "parity_error",
        "Parity errors of the card.",
        _of(metrics.PARITY_ERRORS),
        kind="counter",
    ),
    *(
        _alias(name, text, _of(metrics.MEMORY_PARTS, part=part))
        for name, part, text in (
            ("memory_reserved", "reserved", "Memory that the driver keeps, in bytes."),
            ("virtual_memory_total", "virtual_total", "Virtual memory in bytes."),
            ("virtual_memory_used", "virtual_used", "Used virtual memory in bytes."),
            ("virtual_memory_free", "virtual_free", "Free virtual memory in bytes."),
        )
    ),
    *(
        _alias(
            f"remapped_{name}_rows",
            "Rows of the memory that were replaced.",
            _of(metric_families.REMAPPED_ROWS, kind=kind),
            kind="counter",
        )
        for name, kind in (("correct", "correctable"), ("uncorrect", "uncorrectable"))
    ),
    *(
        _alias(
            f"remapped_{state}_rows",
            "Whether rows of the memory wait to be replaced, or could not be.",
            _of(metrics.MEMORY_REPAIR, state=state),
            kind="counter",
            note=_REPAIR_NOTE,
        )
        for state in ("failed", "pending")
    ),
    *(
        _alias(f"repair_{name}", text, _of(metrics.MEMORY_REPAIR, state=state))
        for name, state, text in (
            ("failure", "failed", "1 if memory could not be repaired, else 0."),
            ("pending", "pending", "1 if memory waits to be repaired, else 0."),
            ("retire_pending", "retirement_pending", "1 if pages wait to be retired, else 0."),
        )
    ),
    *(
        _alias(
            f"{cause}_retired_page_count",
            "Pages of the memory that are out of use.",
            _of(metrics.RETIRED_PAGES, cause=cause),
            kind="counter",
        )
        for cause in ("single_bit", "double_bit")
    ),
)

# layer of a port, and its states in the order of their numbers in mlu-exporter
_LAYERS = {
    "mac": ("status", ("down", "up", "lldp", "ready")),
    "serdes": ("serdes_status", ("disabled", "enabled", "establishing")),
    "cable": ("cable_status", ("absent", "present", "unsupported")),
}
_LINK_ERRORS = {
    "err_corrected_total": "corrected",
    "err_crc24_total": "crc24",
    "err_crc32_total": "crc32",
    "err_ecc_double_total": "ecc_double_bit",
    "err_fatal_total": "fatal",
    "err_replay_total": "replay",
    "err_uncorrected_total": "uncorrected",
    "err_replay_fail_total": "replay_failed",
    "rx_bad_fcs_packet_total": "rx_bad_fcs",
    "tx_bad_fcs_packet_total": "tx_bad_fcs",
    "illegal_access": "illegal_access",
    "link_down_total": "link_down",
}


def _links() -> Iterator[MetricAlias]:
    """Yield the families of the MLULink ports."""
    for layer, (name, states) in _LAYERS.items():
        yield _link(
            name,
            f"State of a port: {', '.join(f'{n} {state}' for n, state in enumerate(states))}.",
            *(
                _of(metrics.LINK_STATE, number, layer=layer, state=state)
                for number, state in enumerate(states)
            ),
        )
    yield _link(
        "speed",
        "Speed of a port in gigabytes per second.",
        _of(metrics.LINK_SPEED, _GIGABYTES),
    )
    for direction in ("read", "write"):
        for name, family in (("byte", metrics.LINK_BYTES), ("package", metrics.LINK_PACKETS)):
            yield _link(
                f"cntr_{direction}_{name}_total",
                f"Traffic of a port: {name}s, {direction}.",
                _of(family, direction=direction),
                kind="counter",
            )
    for kind in ("cnp", "pfc"):
        yield _link(
            f"cntr_{kind}_package_total",
            f"Packets of a port about congestion: {kind}.",
            _of(metrics.LINK_CONGESTION, kind=kind),
            kind="counter",
        )
    for name, error in _LINK_ERRORS.items():
        yield _link(
            name,
            f"Events of a port: {error.replace('_', ' ')}.",
            _of(metrics.LINK_ERRORS, kind=error),
            kind="counter" if name.endswith("_total") else "gauge",
        )


def _optical_modules() -> Iterator[MetricAlias]:
    """Yield the families of the optical modules at the MLULink ports."""
    for name, family, text in (
        ("status", metrics.OPTICAL_PRESENT, "1 if the port has an optical module, else 0."),
        ("temperature", metrics.OPTICAL_TEMPERATURE, "Temperature in degrees Celsius."),
        ("voltage", metrics.OPTICAL_VOLTAGE, "Supply voltage in volts."),
    ):
        yield _alias(f"optical_{name}", text, _of(family), more=(_LINK,))


def _link(name: str, help_text: str, *sources: AliasSource, kind: str = "gauge") -> MetricAlias:
    return _alias(f"mlulink_{name}", help_text, *sources, kind=kind, more=(_LINK,), note=_LINK_NOTE)


MLU_EXPORTER = AliasTable(
    name="mlu_exporter",
    exporter="Cambricon's mlu-exporter",
    maker="cambricon",
    labels=_LABELS,
    metrics=(
        *_CARD,
        *_UTILIZATION,
        *_BOARD,
        *_MEMORY,
        *_links(),
        *_optical_modules(),
        *absent_aliases(_PREFIX),
    ),
)
