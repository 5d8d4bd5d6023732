"""Names of Cambricon's mlu-exporter for utilization, board and memory of a card."""

from __future__ import annotations

from msgspec.structs import replace

from agent.snapshot.vendor import AliasLabel, AliasSource, DeviceValue, LabelOrigin
from plugins.shared import metric_families
from plugins.vendors.cambricon import metrics
from plugins.vendors.cambricon.alias_rows import (
    alias,
    reading_label,
    source_of,
    source_of_name,
    source_of_value,
)

_PERCENT = 100
_MEGAHERTZ = 1e-6
_MILLI = 1e3  # millivolts and milliamperes of a volt and an ampere
_GIGABYTES = 1e-9
_PER_MIB = 1 / (1 << 20)
_PER_WINDOW = 1 / 50  # PCIe traffic is measured for 20 ms

_SLICE = AliasLabel("vf", LabelOrigin.READING, "slice")

_MEMORY_NOTE = "The total is what containers can have, without the memory of the driver."
_REPAIR_NOTE = "1 if there are any such rows, not their number."

_UTILIZATION = (
    alias(
        "utilization",
        "Busy share of the card, and of its parts, in percent.",
        source_of_value(DeviceValue.UTILIZATION_PERCENT),
        AliasSource(family=metrics.SLICE_CORE, labels=(_SLICE,)),
    ),
    alias(
        "virtual_function_utilization",
        "Busy share of a part of a card in percent.",
        AliasSource(family=metrics.SLICE_CORE),
        more=(_SLICE,),
    ),
    alias(
        "core_utilization",
        "Busy share of a core in percent.",
        source_of(metrics.CORE_UTILIZATION, _PERCENT),
        more=reading_label("core", "core"),
    ),
    *(
        alias(
            f"{name}_utilization",
            f"Busy share of a unit in percent: {name.replace('_', ' ')}.",
            source_of(metrics.CODEC_UTILIZATION, _PERCENT, codec=codec),
            more=reading_label(label, "number"),
        )
        for name, codec, label in (
            ("image_codec", "image", "jpu_core"),
            ("video_codec", "video", "vpu_core"),
            ("video_decoder", "decoder", "decoder_core"),
        )
    ),
    alias(
        "activity",
        "Share of time in which the card worked at all, in percent.",
        source_of(metrics.UNIT_UTILIZATION, _PERCENT, unit="card"),
    ),
    alias(
        "tensor_util",
        "Busy share of the tensor units in percent.",
        source_of(metrics.UNIT_UTILIZATION, _PERCENT, unit="tensor"),
    ),
    *(
        alias(
            f"mpm_{name}_utilization",
            f"Busy share in percent since the last sample, by performance counters: {unit}.",
            source_of(metrics.MEAN_UTILIZATION, _PERCENT, unit=unit),
        )
        for name, unit in (("ipu", "core"), ("mlu", "card"), ("tensor", "tensor"))
    ),
    alias(
        "tiny_core_utilization",
        "Busy share of a tiny core in percent.",
        source_of(metrics.TINY_CORE_UTILIZATION, _PERCENT),
        more=reading_label("tiny_core", "core"),
    ),
    alias(
        "chip_cpu_utilization",
        "Busy share of the CPUs on the card, together and of each, in percent.",
        source_of(metrics.CHIP_CPU_UTILIZATION, _PERCENT),
        replace(
            source_of(metrics.CHIP_CPU_CORE_UTILIZATION, _PERCENT),
            labels=reading_label("cpu_core", "core"),
        ),
    ),
    *(
        alias(
            f"chip_cpu_{name}",
            f"Share of time that a CPU on the card spends in a mode, in percent: {mode}.",
            source_of(metrics.CHIP_CPU_MODES, _PERCENT, mode=mode),
            more=reading_label("cpu_core", "core"),
        )
        for name, mode in (
            ("user", "user"),
            ("nice", "nice"),
            ("sys", "system"),
            ("si", "softirq"),
            ("hi", "irq"),
        )
    ),
    *(
        alias(name, text, source_of(metric_families.CLOCK, _MEGAHERTZ, domain=domain))
        for name, domain, text in (
            ("frequency", "core", "Clock of the cores in megahertz."),
            ("ddr_frequency", "memory", "Clock of the memory in megahertz."),
            ("default_frequency", "core_default", "Clock of the cores by default in megahertz."),
        )
    ),
)

_BOARD = (
    *(
        alias(name, text, source_of(metric_families.TEMPERATURE, sensor=sensor))
        for name, sensor, text in (
            ("temperature", "board", "Temperature of the board in degrees Celsius."),
            ("chip_temperature", "chip", "Temperature of the chip in degrees Celsius."),
        )
    ),
    alias(
        "memory_temperature",
        "Temperature of the memory in degrees Celsius.",
        source_of(metric_families.TEMPERATURE, sensor="memory"),
    ),
    alias(
        "cluster_temperature",
        "Temperature of a cluster of cores in degrees Celsius.",
        source_of(metrics.CLUSTER_TEMPERATURE),
        more=reading_label("device_cluster", "cluster"),
    ),
    *(
        alias(
            f"over_temp_{name}_threshold",
            f"Temperature in degrees Celsius that is too hot: {reaction.replace('_', ' ')}.",
            source_of(metrics.HEAT_THRESHOLD, reaction=reaction),
        )
        for name, reaction in (("power_off", "power_off"), ("under_clock", "slowdown"))
    ),
    alias(
        "frequency_status",
        "1 if the clock of the cores is locked, else 0.",
        source_of(metrics.CLOCK_LOCKED),
    ),
    *(
        alias(
            f"mpm_pcie_{name}_bandwidth",
            f"MiB per second over PCIe: {direction}.",
            source_of(metrics.MEAN_TRAFFIC, _PER_MIB, bus="pcie", direction=direction),
        )
        for name, direction in (("tx", "sent"), ("rx", "received"))
    ),
    alias(
        "power_usage",
        "Power in watts.",
        source_of(metric_families.POWER),
        note="Parts of a card have no series: theirs have the power of the card.",
    ),
    alias("power_current_limit", "Power limit in watts.", source_of(metric_families.POWER_LIMIT)),
    *(
        alias(f"power_{name}_limit", text, source_of(metrics.POWER_BOUNDS, kind=kind))
        for name, kind, text in (
            ("default", "default", "Power limit by default in watts."),
            ("max", "highest", "Highest power limit that can be set, in watts."),
            ("min", "lowest", "Lowest power limit that can be set, in watts."),
        )
    ),
    *(
        alias(
            f"pcie_{direction}_throughput",
            f"Bytes over PCIe in 20 milliseconds: {direction}.",
            source_of(metrics.PCIE_RATE, _PER_WINDOW, direction=direction),
            kind="counter",
        )
        for direction in ("read", "write")
    ),
    *(
        alias(
            f"{domain}_{name}",
            f"{name.capitalize()} in {unit}: {domain}.",
            source_of(family, _MILLI, domain=domain),
        )
        for name, unit, family in (
            ("voltage", "millivolts", metrics.VOLTAGE),
            ("current", "milliamperes", metrics.CURRENT),
        )
        for domain in ("core", "soc", "memory")
    ),
    *(
        alias(
            f"over_temp_{name}_total",
            f"How often the card was too hot: {reaction.replace('_', ' ')}.",
            source_of(metrics.HEAT_REACTIONS, reaction=reaction),
            kind="counter",
        )
        for name, reaction in (("power_off", "power_off"), ("under_clock", "slowdown"))
    ),
    alias(
        "thermal_slow_down",
        "1 if the card runs slower because of heat, else 0.",
        source_of(metrics.THROTTLED, reason="thermal"),
    ),
    *(
        alias(
            f"d2d_crc_error_{name}",
            f"Checksum errors between the dies of the card: {kind}.",
            source_of(metrics.DIE_LINK_ERRORS, kind=kind),
            kind="counter",
        )
        for name, kind in (("total", "crc"), ("overflow_total", "overflow"))
    ),
    *(
        alias(name, text, source_of_value(value))
        for name, value, text in (
            ("numa_node_id", DeviceValue.NUMA_NODE, "NUMA node of the card."),
            ("pcie_current_speed", DeviceValue.PCIE_GENERATION, "Generation of the PCIe link."),
            ("pcie_current_width", DeviceValue.PCIE_LANES, "Lanes of the PCIe link."),
            ("pcie_max_speed", DeviceValue.PCIE_MAX_GENERATION, "Generation at most."),
            ("pcie_max_width", DeviceValue.PCIE_MAX_LANES, "Lanes at most."),
        )
    ),
    alias(
        "pcie_replay_count",
        "Packets over PCIe that were sent again.",
        source_of(metric_families.PCIE_REPLAYS),
        kind="counter",
    ),
)

_MEMORY = (
    alias("memory_used", "Used memory in bytes.", source_of_value(DeviceValue.MEMORY_USED_BYTES)),
    *(
        alias(f"memory_{name}", text, source_of_value(value), note=_MEMORY_NOTE)
        for name, value, text in (
            ("total", DeviceValue.MEMORY_TOTAL_BYTES, "Memory in bytes."),
            ("free", DeviceValue.MEMORY_FREE_BYTES, "Free memory in bytes."),
        )
    ),
    alias(
        "memory_utilization",
        "Used share of the memory of the card, and of its parts, in percent.",
        source_of_value(DeviceValue.MEMORY_USED_PERCENT),
        replace(source_of_name(metrics.SLICE_MEMORY_SHARE, _PERCENT), labels=(_SLICE,)),
        note=_MEMORY_NOTE,
    ),
    alias(
        "virtual_function_memory_utilization",
        "Used share of the memory of a part of a card, in percent.",
        source_of_name(metrics.SLICE_MEMORY_SHARE, _PERCENT),
        more=(_SLICE,),
    ),
    *(
        alias(
            f"ecc_{kind}_error_total",
            f"Memory errors that were {kind}.",
            source_of(metric_families.ECC_ERRORS, kind=kind),
            kind="counter",
        )
        for kind in ("corrected", "uncorrected")
    ),
    alias(
        "ecc_error_total",
        "Memory errors, corrected and uncorrected.",
        source_of(metric_families.ECC_ERRORS),
        kind="counter",
    ),
    *(
        alias(
            f"ecc_{name}_mode",
            f"1 if the memory has ECC, else 0: {when.replace('_', ' ')}.",
            source_of(metrics.ECC_ENABLED, when=when),
        )
        for name, when in (("current", "now"), ("pending", "after_reset"))
    ),
    *(
        alias(
            f"{prefix}{memory}_ecc_{name}_count",
            f"Errors of the memory, {since}: {memory}, {kind.replace('_', ' ')}.",
            source_of(family, memory=memory, kind=kind),
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
    alias(
        "aggr_sram_ecc_threshold_exceed",
        "1 if the on-chip memory had too many errors over its life, else 0.",
        source_of(metrics.SRAM_EXCESS),
        kind="counter",
    ),
    *(
        alias(
            f"ecc_{name}_error_total",
            f"Memory errors: {extent.replace('_', ' ')}.",
            source_of(metrics.ECC_EXTENTS, extent=extent),
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
    alias(
        "parity_error",
        "Parity errors of the card.",
        source_of(metrics.PARITY_ERRORS),
        kind="counter",
    ),
    *(
        alias(name, text, source_of(metrics.MEMORY_PARTS, part=part))
        for name, part, text in (
            ("memory_reserved", "reserved", "Memory that the driver keeps, in bytes."),
            ("virtual_memory_total", "virtual_total", "Virtual memory in bytes."),
            ("virtual_memory_used", "virtual_used", "Used virtual memory in bytes."),
            ("virtual_memory_free", "virtual_free", "Free virtual memory in bytes."),
            ("arm_os_memory_total", "system_total", "Memory of the card's system in bytes."),
            ("arm_os_memory_used", "system_used", "Used memory of the card's system in bytes."),
            ("bar4_memory_total", "bar4_total", "Memory that the host can address in bytes."),
            ("bar4_memory_used", "bar4_used", "Used memory of that window in bytes."),
            ("bar4_memory_free", "bar4_free", "Free memory of that window in bytes."),
        )
    ),
    alias(
        "ddr_band_width",
        "Bandwidth of the memory in gigabytes per second.",
        source_of(metrics.MEMORY_BANDWIDTH, _GIGABYTES),
    ),
    alias(
        "ddr_data_width",
        "Data width of the memory as the driver reports it.",
        source_of(metrics.MEMORY_WIDTH),
    ),
    *(
        alias(
            f"address_swaps_{name}_count",
            f"Memory addresses that were replaced: {kind} errors.",
            source_of(metrics.ADDRESS_SWAPS, kind=kind),
            kind="counter",
        )
        for name, kind in (("correct", "correctable"), ("uncorrect", "uncorrectable"))
    ),
    *(
        alias(
            f"address_swaps_{name}",
            f"Channels of the memory by what is left of their spares: {spares}.",
            source_of(metrics.REPAIR_CHANNELS, spares=spares),
        )
        for name, spares in (("none", "none"), ("partial", "some"), ("max", "all"))
    ),
    alias(
        "retired_pages_operation_status",
        "1 if faulty memory pages are taken out of use, else 0.",
        source_of(metrics.PAGE_RETIREMENT),
    ),
    *(
        alias(
            f"remapped_{name}_rows",
            "Rows of the memory that were replaced.",
            source_of(metric_families.REMAPPED_ROWS, kind=kind),
            kind="counter",
        )
        for name, kind in (("correct", "correctable"), ("uncorrect", "uncorrectable"))
    ),
    *(
        alias(
            f"remapped_{state}_rows",
            "Whether rows of the memory wait to be replaced, or could not be.",
            source_of(metrics.MEMORY_REPAIR, state=state),
            kind="counter",
            note=_REPAIR_NOTE,
        )
        for state in ("failed", "pending")
    ),
    *(
        alias(f"repair_{name}", text, source_of(metrics.MEMORY_REPAIR, state=state))
        for name, state, text in (
            ("failure", "failed", "1 if memory could not be repaired, else 0."),
            ("pending", "pending", "1 if memory waits to be repaired, else 0."),
            ("retire_pending", "retirement_pending", "1 if pages wait to be retired, else 0."),
        )
    ),
    *(
        alias(
            f"{cause}_retired_page_count",
            "Pages of the memory that are out of use.",
            source_of(metrics.RETIRED_PAGES, cause=cause),
            kind="counter",
        )
        for cause in ("single_bit", "double_bit")
    ),
)

READING_ALIASES = (*_UTILIZATION, *_BOARD, *_MEMORY)
