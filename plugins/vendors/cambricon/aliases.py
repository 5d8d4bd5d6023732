"""Names of Cambricon's mlu-exporter for what is known of MLUs, and the table of all of them."""

from __future__ import annotations

from collections.abc import Iterator

from agent.snapshot.vendor import (
    AliasLabel,
    AliasMatch,
    AliasSource,
    AliasTable,
    DeviceValue,
    LabelOrigin,
    MetricAlias,
)
from plugins.vendors.cambricon import metrics
from plugins.vendors.cambricon.alias_rows import (
    DRIVER,
    LABELS,
    MODEL,
    NODE,
    PREFIX,
    TYPE,
    alias,
    reading_label,
    source_of,
    source_of_value,
    states_of,
)
from plugins.vendors.cambricon.link_aliases import LINK_ALIASES
from plugins.vendors.cambricon.reading_aliases import READING_ALIASES

_PID = reading_label("pid", "pid")

_CARD = (
    MetricAlias(
        name="mlu_machine_mlu_nums",
        type="gauge",
        help="Number of MLUs of the node.",
        sources=(source_of_value(DeviceValue.DEVICES),),
        labels=(DRIVER, MODEL, NODE, TYPE),
        is_of_node=True,
    ),
    alias(
        "health",
        "1 if the card is healthy, else 0.",
        source_of_value(DeviceValue.HEALTHY),
        note="The agent's verdict, by all that it knows of the card; no label unhealth_reason.",
    ),
    alias(
        "version",
        "1, with the versions of the driver and of the card's controller.",
        source_of_value(DeviceValue.ONE),
        note="Without the labels cndev_version and compute_capability.",
    ),
    MetricAlias(
        name="mlu_container",
        type="gauge",
        help="1 for each container that has the card.",
        sources=(source_of_value(DeviceValue.ONE),),
        labels=(
            *LABELS,
            AliasLabel("namespace", LabelOrigin.NAMESPACE),
            AliasLabel("pod", LabelOrigin.POD),
            AliasLabel("container", LabelOrigin.CONTAINER),
        ),
        is_of_pod=True,
        match=AliasMatch.NEAR,
        note="Without the label vf, which tells the part of a card that is cut; a card that no pod "
        "uses has no series, not 0.",
    ),
    alias(
        "xid_error_count",
        "Faults that the card reported as events, by their number.",
        AliasSource(family=metrics.XID),
        kind="counter",
        more=reading_label("xid", "xid"),
        note="Of the labels that describe the event it has only xid.",
    ),
    alias(
        "last_xid_error",
        "Number of the last fault that the card reported as an event.",
        source_of(metrics.LAST_XID),
        more=reading_label("xid", "xid"),
        note="Of the labels that describe the event it has only xid; a number of more than 32 bits "
        "is absent.",
    ),
    MetricAlias(
        name="mlu_allocated",
        type="gauge",
        help="Number of MLUs of the node that pods use.",
        sources=(source_of_value(DeviceValue.DEVICES_IN_USE),),
        labels=(DRIVER, MODEL, NODE, TYPE),
        is_of_node=True,
    ),
    alias(
        "driver_state",
        "1 if the card's driver runs, else 0.",
        source_of(metrics.DRIVER_RUNNING),
    ),
    alias(
        "compute_mode",
        "0 default, 1 exclusive, 2 prohibited.",
        *states_of(metrics.COMPUTE_MODE, "mode", "default", "exclusive", "prohibited"),
    ),
    alias(
        "virtual_mode",
        "How the card is cut: 0 not at all, 1 MIM, 2 sMLU.",
        *states_of(metrics.PARTITION_MODE, "mode", "whole", "mim", "smlu"),
        note="Never 3, the mode env-share of Cambricon's device plug-in.",
    ),
    alias(
        "heartbeat_count",
        "Heartbeats of the card's firmware.",
        source_of(metrics.HEARTBEATS),
        kind="counter",
    ),
    alias(
        "smlu_instance_info",
        "1, with what a part of a card may use.",
        AliasSource(family=metrics.SLICE_INFO),
        more=tuple(
            AliasLabel(f"smlu_{name}", LabelOrigin.READING, key)
            for name, key in (
                ("instance_id", "slice"),
                ("uuid", "slice_uuid"),
                ("profile_id", "profile_id"),
                ("profile_name", "profile"),
                ("ipu_total", "core_percent"),
                ("mem_total", "memory_bytes"),
            )
        ),
        note="Without the label smlu_instance_name.",
    ),
)

_PROCESSES = (
    *(
        alias(f"process_{name}", text, source_of_value(value), more=_PID)
        for name, value, text in (
            (
                "physical_memory_used",
                DeviceValue.PROCESS_MEMORY_BYTES,
                "Memory of the card that a process uses, in bytes.",
            ),
            (
                "virtual_memory_used",
                DeviceValue.PROCESS_VIRTUAL_BYTES,
                "Address space of the card that a process uses, in bytes.",
            ),
            (
                "ipu_utilization",
                DeviceValue.PROCESS_UTILIZATION_PERCENT,
                "Share of the cores that a process keeps busy, in percent.",
            ),
        )
    ),
    *(
        alias(
            f"process_{name}_utilization",
            f"Share of a unit that a process keeps busy, in percent: {engine.replace('_', ' ')}.",
            source_of_value(DeviceValue.PROCESS_ENGINE_PERCENT, engine=engine),
            more=_PID,
        )
        for name, engine in (
            ("jpu", "image_codec"),
            ("memory", "memory"),
            ("vpu_decode", "decoder"),
            ("vpu_encode", "encoder"),
        )
    ),
)

_ABSENT_BY_REASON = {
    "CNDev 6 keeps its place but has no fan speed.": """
        fan_speed
    """,
    "It is about the case of the node and not about a card.": """
        chassis_ib_info chassis_info chassis_nvme_info chassis_psu_info
    """,
    "It is about the host and not about a card: node_exporter's names have it.": """
        host_boot_time host_cpu_idle host_cpu_total host_memory_free host_memory_total
    """,
    "It describes the device, and is no figure.": """
        mim_instance_info mim_profile_info mim_profile_total_capacity pcie_info rdma_device_info
        smlu_profile_info smlu_profile_total_capacity
    """,
    "A part of a card has no power of its own: this name has that of the whole card.": """
        virtual_function_power_usage
    """,
    "It is pushed when a fault happens, and never scraped: mlu_xid_error_count has all faults.": """
        xid_error
    """,
    "It is about the mode env-share of Cambricon's device plug-in.": """
        env_share_exhausted
    """,
}


def _absent_aliases() -> Iterator[MetricAlias]:
    """Yield the families that the agent has no values for."""
    for note, names in _ABSENT_BY_REASON.items():
        for name in names.split():
            yield MetricAlias(
                name=f"{PREFIX}{name}", type="gauge", match=AliasMatch.ABSENT, note=note
            )


MLU_EXPORTER = AliasTable(
    name="mlu_exporter",
    exporter="Cambricon's mlu-exporter",
    maker="cambricon",
    labels=LABELS,
    metrics=(
        *_CARD,
        *_PROCESSES,
        *READING_ALIASES,
        *LINK_ALIASES,
        *_absent_aliases(),
    ),
)
