"""Names of mindcluster's npu-exporter for what is known of Ascend NPUs.

Its names for ports of the UB network, which only chips of the generation 950 have, are not here:
they contain the numbers of the ports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
from plugins.vendors.ascend import metrics

_KILOBYTES = 1 / (1 << 10)
_MEGABYTES = 1 / (1 << 20)
_PERCENT = 100
_MEGAHERTZ = 1e-6
_GIGABYTES = 1e-9
_MEGABITS = 8e-6
_MILLI = 1000
_MEGABYTES_PER_MILLISECOND = _MEGABYTES / 1000
_OPTICAL_LANES = range(4)
_HCCS_PORTS = range(1, 8)  # port 0 has no names
_ERROR_CODES = 10  # that have a name each

_ID = AliasLabel("id", LabelOrigin.VENDOR_MINOR)
_MODEL = AliasLabel("model_name", LabelOrigin.FACT, "npu-name")
_POD = (
    AliasLabel("namespace", LabelOrigin.NAMESPACE),
    AliasLabel("pod_name", LabelOrigin.POD),
    AliasLabel("container_name", LabelOrigin.CONTAINER),
)
_CHIP = (
    AliasLabel("vdie_id", LabelOrigin.UUID),
    AliasLabel("pcie_bus_info", LabelOrigin.BUS_ID_UPPER),
    *_POD,
)
_LABELS = (_ID, _MODEL, *_CHIP)


def _of(family: MetricFamily, factor: float = 1.0, **where: str) -> AliasSource:
    return AliasSource(family=family.name, factor=factor, where=tuple(where.items()))


def _value(value: DeviceValue, factor: float = 1.0) -> AliasSource:
    return AliasSource(value=value, factor=factor)


def _near(name: str, help_text: str, note: str, *sources: AliasSource) -> MetricAlias:
    return MetricAlias(
        name=name,
        type="gauge",
        help=help_text,
        sources=sources,
        match=AliasMatch.NEAR,
        note=note,
    )


def _same(
    name: str,
    help_text: str,
    *sources: AliasSource,
    labels: tuple[AliasLabel, ...] | None = None,
) -> MetricAlias:
    return MetricAlias(name=name, type="gauge", help=help_text, sources=sources, labels=labels)


def _absent(note: str, names: Iterable[str]) -> Iterator[MetricAlias]:
    for name in names:
        yield MetricAlias(name=name, type="gauge", match=AliasMatch.ABSENT, note=note)


_NODE = (
    MetricAlias(
        name="machine_npu_nums",
        type="gauge",
        help="Number of NPU chips of the node.",
        sources=(_value(DeviceValue.DEVICES),),
        labels=(),
        is_of_node=True,
    ),
    *_absent("The agent counts chips, not the cards that carry them.", ("machine_card_nums",)),
    *_absent(
        "The agent is another program, whose version is in xpu_agent_build_info.",
        ("npu_exporter_version_info",),
    ),
)

_ACTIVITY = (
    *(
        _same(f"npu_chip_info_{name}", text, _of(metrics.UTILIZATION, _PERCENT, unit=unit))
        for name, unit, text in (
            ("utilization", "aicore", "Busy share of the AI cores in percent."),
            ("overall_utilization", "overall", "Busy share of the chip in percent."),
            ("vector_utilization", "vector", "Busy share of the vector units in percent."),
            ("cube_utilization", "cube", "Busy share of the cube units in percent."),
            ("hbm_utilization", "memory", "Used share of the high-bandwidth memory in percent."),
            (
                "hbm_bandwidth_utilization",
                "memory_bandwidth",
                "Used share of the bandwidth of the high-bandwidth memory in percent.",
            ),
        )
    ),
    *(
        _same(f"npu_chip_info_{name}", text, _of(metric_families.TEMPERATURE, sensor=sensor))
        for name, sensor, text in (
            ("temperature", "chip", "Temperature of the chip in degrees Celsius."),
            ("hbm_temperature", "memory", "Temperature of the memory in degrees Celsius."),
        )
    ),
    _near(
        "npu_chip_info_power",
        "Power of the chip in watts.",
        "On cards with 310P chips only the first chip has a series: the power of the card.",
        _of(metric_families.POWER),
    ),
    _same("npu_chip_info_voltage", "Voltage of the chip in volts.", _of(metrics.VOLTAGE)),
    _same(
        "npu_chip_info_aicore_current_freq",
        "Clock of the AI cores in megahertz.",
        _of(metric_families.CLOCK, _MEGAHERTZ, domain="aicore"),
    ),
    _near(
        "npu_chip_info_health_status",
        "1 if the chip is healthy, else 0.",
        "The agent's verdict, by all that it knows of the chip.",
        _value(DeviceValue.HEALTHY),
    ),
    _near(
        "npu_chip_info_network_status",
        "1 if the chip's network port works, else 0.",
        "Only ports that have an address; a few slow answers do not change it at once.",
        _of(metrics.NETWORK_UP),
    ),
    *(
        _near(
            f"npu_chip_info_error_code{f'_{position}' if position else ''}",
            "An error code that the chip reports.",
            "The codes are in ascending order; without an error there is no series, not 0.",
            _of(metrics.ERROR_CODE_NUMBER, position=str(position)),
        )
        for position in range(_ERROR_CODES)
    ),
)

_IDENTITY = (
    _same(
        "npu_chip_info_name",
        "1, with the name of the chip.",
        _value(DeviceValue.ONE),
        labels=(_ID, AliasLabel("name", LabelOrigin.FACT, "npu-name"), *_CHIP),
    ),
    _same(
        "npu_chip_info_serial_number",
        "1, with the serial number of the chip.",
        _value(DeviceValue.ONE),
        labels=(*_LABELS, AliasLabel("serial_number", LabelOrigin.FACT, "serial")),
    ),
    _same(
        "npu_chip_info_product_type",
        "1, with the product that the chip is part of.",
        _value(DeviceValue.ONE),
        labels=(*_LABELS, AliasLabel("product_type", LabelOrigin.FACT, "product")),
    ),
    _same(
        "npu_chip_info_process_info_num",
        "Number of processes that use the chip.",
        _value(DeviceValue.PROCESSES),
    ),
    MetricAlias(
        name="npu_chip_info_process_info",
        type="gauge",
        help="Memory of the chip that a process uses, in megabytes.",
        sources=(_value(DeviceValue.PROCESS_MEMORY_BYTES, _MEGABYTES),),
        labels=(*_LABELS, AliasLabel("process_id", LabelOrigin.READING, "pid")),
        match=AliasMatch.NEAR,
        note="container_name is the container's name alone, container_id is not there, and a "
        "chip without processes has no series.",
    ),
)

_PODS = (
    *(
        MetricAlias(
            name=name,
            type="gauge",
            help=text,
            sources=(_value(value, factor),),
            is_of_pod=True,
            match=AliasMatch.NEAR,
            note="container_name is the container's name alone.",
        )
        for name, value, factor, text in (
            (
                "container_npu_utilization",
                DeviceValue.UTILIZATION_PERCENT,
                1.0,
                "Busy share of the AI cores of a container's chip in percent.",
            ),
            (
                "container_npu_total_memory",
                DeviceValue.MEMORY_TOTAL_BYTES,
                _MEGABYTES,
                "Memory of a container's chip in megabytes.",
            ),
            (
                "container_npu_used_memory",
                DeviceValue.MEMORY_USED_BYTES,
                _MEGABYTES,
                "Used memory of a container's chip in megabytes.",
            ),
        )
    ),
    *_absent(
        "Its labels join the ids of all chips of a container and the names of its pod.",
        ("npu_container_info",),
    ),
    *(
        MetricAlias(
            name=name,
            type="gauge",
            help=text,
            sources=(_of(family, factor),),
            labels=(
                _ID,
                _MODEL,
                AliasLabel("v_dev_id", LabelOrigin.READING, "vnpu"),
                *_POD,
                AliasLabel("is_virtual", LabelOrigin.CONSTANT, "true"),
            ),
            is_of_pod=True,
            match=AliasMatch.NEAR,
            note="Without the label aicore_count; container_name is the container's name alone.",
        )
        for name, family, factor, text in (
            (
                "vnpu_pod_aicore_utilization",
                metrics.VNPU_UTILIZATION,
                _PERCENT,
                "Busy share of the AI cores of a vNPU in percent.",
            ),
            (
                "vnpu_pod_used_memory",
                metrics.VNPU_MEMORY_USED,
                _KILOBYTES,
                "Used memory of a vNPU in kilobytes.",
            ),
            (
                "vnpu_pod_total_memory",
                metrics.VNPU_MEMORY_TOTAL,
                _KILOBYTES,
                "Memory of a vNPU in kilobytes.",
            ),
        )
    ),
)

_MEMORY = (
    *(
        _same(f"npu_chip_info_{name}", text, _of(family, _MEGABYTES))
        for name, family, text in (
            ("total_memory", metrics.DDR_TOTAL, "DDR memory of the chip in megabytes."),
            ("used_memory", metrics.DDR_USED, "Used DDR memory of the chip in megabytes."),
            ("hbm_total_memory", metrics.HBM_TOTAL, "High-bandwidth memory in megabytes."),
            ("hbm_used_memory", metrics.HBM_USED, "Used high-bandwidth memory in megabytes."),
        )
    ),
    _same(
        "npu_chip_info_hbm_ecc_enable_flag",
        "1 if errors of the high-bandwidth memory are detected, else 0.",
        _of(metrics.HBM_ECC_ENABLED),
    ),
    *(
        _same(
            f"npu_chip_info_hbm_ecc_{name}",
            text,
            AliasSource(family=family.name, where=((label, value),)),
        )
        for name, family, label, value, text in (
            (
                "single_bit_error_cnt",
                metrics.HBM_ERRORS_SINCE_RESET,
                "bits",
                "single_bit",
                "Single-bit errors since the chip was reset.",
            ),
            (
                "double_bit_error_cnt",
                metrics.HBM_ERRORS_SINCE_RESET,
                "bits",
                "double_bit",
                "Double-bit errors since the chip was reset.",
            ),
            (
                "total_single_bit_error_cnt",
                metric_families.ECC_ERRORS,
                "kind",
                "corrected",
                "Single-bit errors in the life of the chip.",
            ),
            (
                "total_double_bit_error_cnt",
                metric_families.ECC_ERRORS,
                "kind",
                "uncorrected",
                "Double-bit errors in the life of the chip.",
            ),
            (
                "single_bit_isolated_pages_cnt",
                metrics.HBM_ISOLATED_PAGES,
                "bits",
                "single_bit",
                "Pages out of use for single-bit errors.",
            ),
            (
                "double_bit_isolated_pages_cnt",
                metrics.HBM_ISOLATED_PAGES,
                "bits",
                "double_bit",
                "Pages out of use for double-bit errors.",
            ),
        )
    ),
)


def _hccs() -> Iterator[MetricAlias]:
    """Yield the families of the ports to other chips."""
    note = "Only ports that the chip uses have series."
    for port in map(str, _HCCS_PORTS):
        for direction in ("tx", "rx"):
            yield _near(
                f"npu_chip_info_hccs_statistic_info_{direction}_cnt_{port}",
                "Packets over a port to other chips.",
                note,
                _of(metrics.HCCS_PACKETS, port=port, direction=direction),
            )
            yield _near(
                f"npu_chip_info_hccs_bandwidth_info_{direction}_{port}",
                "Traffic over a port to other chips in gigabytes per second.",
                note,
                _of(metrics.HCCS_PORT_RATE, _GIGABYTES, port=port, direction=direction),
            )
        yield _near(
            f"npu_chip_info_hccs_statistic_info_crc_err_cnt_{port}",
            "Damaged packets over a port to other chips.",
            note,
            _of(metrics.LINK_ERRORS, link="hccs", port=port, kind="crc"),
        )
    for direction in ("tx", "rx"):
        yield _same(
            f"npu_chip_info_hccs_bandwidth_info_total_{direction}",
            "Traffic over all ports to other chips in gigabytes per second.",
            _of(metrics.HCCS_RATE, _GIGABYTES, direction=direction),
        )
        yield _same(
            f"npu_chip_info_sio_crc_{direction}_err_cnt",
            "Damaged packets between the dies of the chip.",
            _of(metrics.LINK_ERRORS, link="sio", kind=f"{direction}_crc"),
        )
    yield from _absent(
        "A setting of that program: the agent measures for a tenth of a second.",
        ("npu_chip_info_hccs_bandwidth_info_profiling_time",),
    )


def _pcie() -> Iterator[MetricAlias]:
    """Yield the families of PCIe traffic; each has three series."""
    for kind, short in (("posted", "p"), ("non_posted", "np"), ("completion", "cpl")):
        for direction in ("tx", "rx"):
            yield MetricAlias(
                name=f"npu_chip_info_pcie_{direction}_{short}_bw",
                type="gauge",
                help="Traffic over PCIe in megabytes per millisecond.",
                sources=tuple(
                    AliasSource(
                        family=metrics.PCIE_RATE.name,
                        factor=_MEGABYTES_PER_MILLISECOND,
                        where=(("direction", direction), ("kind", kind), ("statistic", statistic)),
                        labels=(AliasLabel("pcie_bw_type", LabelOrigin.CONSTANT, name),),
                    )
                    for statistic, name in (
                        ("average", "avgPcieBw"),
                        ("min", "minPcieBw"),
                        ("max", "maxPcieBw"),
                    )
                ),
            )


def _network() -> Iterator[MetricAlias]:
    """Yield the families of the network port."""
    for way in ("tx", "rx"):
        yield _near(
            f"npu_chip_info_bandwidth_{way}",
            "Traffic over the chip's network port in megabytes per second.",
            "RDMA traffic as DCMI measures it, not as the tool hccn_tool does.",
            _of(metrics.NETWORK_RATE, _MEGABYTES, direction=way),
        )
        for name, family, kind in (
            ("mac_{}_pause_num", metrics.MAC_PACKETS, "pause"),
            ("mac_{}_pfc_pkt_num", metrics.MAC_PACKETS, "pfc"),
            ("mac_{}_bad_pkt_num", metrics.MAC_PACKETS, "bad"),
            ("mac_{}_bad_oct_num", metrics.MAC_BYTES, "bad"),
            ("roce_{}_all_pkt_num", metrics.ROCE_PACKETS, "all"),
            ("roce_{}_err_pkt_num", metrics.ROCE_PACKETS, "error"),
            ("roce_{}_cnp_pkt_num", metrics.ROCE_PACKETS, "congestion_notification"),
        ):
            unit = "Bytes" if family is metrics.MAC_BYTES else "Packets"
            yield _same(
                f"npu_chip_{name.format(way)}",
                f"{unit} over the chip's network port: {kind.replace('_', ' ')}.",
                _of(family, direction=way, kind=kind),
            )
    yield _same(
        "npu_chip_info_rx_fcs_num",
        "Received packets with a wrong checksum.",
        _of(metrics.MAC_PACKETS, direction="rx", kind="bad_checksum"),
    )
    for name, kind in (
        ("info_rx_ecn_num", "congestion_mark"),
        ("roce_new_pkt_rty_num", "retry"),
        ("roce_out_of_order_num", "out_of_order"),
        ("roce_qp_status_err_num", "queue_pair_error"),
        ("roce_unexpected_ack_num", "unexpected_ack"),
        ("roce_verification_err_num", "verification_error"),
    ):
        yield _same(
            f"npu_chip_{name}",
            f"RoCE on the chip's network port: {kind.replace('_', ' ')}.",
            _of(metrics.ROCE_EVENTS, kind=kind),
        )
    for name, family, factor, text in (
        ("info_link_status", metrics.NETWORK_LINK_UP, 1.0, "1 if the port's link is up, else 0."),
        ("link_speed", metrics.NETWORK_SPEED, _MEGABITS, "Speed of the port in megabits."),
        ("link_up_num", metrics.NETWORK_LINK_UPS, 1.0, "How often the port's link came up."),
        ("optical_state", metrics.OPTICAL_PRESENT, 1.0, "1 if there is an optical module, else 0."),
        ("optical_vcc", metrics.OPTICAL_VOLTAGE, _MILLI, "Voltage of the module in millivolts."),
        ("optical_temp", metrics.OPTICAL_TEMPERATURE, 1.0, "Temperature of the module."),
    ):
        yield _same(f"npu_chip_{name}", text, _of(family, factor))
    for way in ("tx", "rx"):
        for lane in map(str, _OPTICAL_LANES):
            yield _same(
                f"npu_chip_optical_{way}_power_{lane}",
                "Light of a lane of the optical module in milliwatts.",
                _of(metrics.OPTICAL_POWER, _MILLI, direction=way, lane=lane),
            )


NPU_EXPORTER = AliasTable(
    name="npu_exporter",
    exporter="mindcluster's npu-exporter",
    maker="huawei",
    labels=_LABELS,
    metrics=(
        *_NODE,
        *_ACTIVITY,
        *_IDENTITY,
        *_PODS,
        *_MEMORY,
        *_hccs(),
        *_pcie(),
        *_network(),
    ),
)
