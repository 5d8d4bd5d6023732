"""How names of Cambricon's mlu-exporter are made: its labels, and forms of its families."""

from __future__ import annotations

from agent.snapshot.inventory import MetricFamily
from agent.snapshot.vendor import (
    AliasLabel,
    AliasMatch,
    AliasSource,
    DeviceValue,
    LabelOrigin,
    MetricAlias,
)

PREFIX = "mlu_"

DRIVER = AliasLabel("driver", LabelOrigin.FACT, "driver", prefix="v")
MODEL = AliasLabel("model", LabelOrigin.NAME)
NODE = AliasLabel("node", LabelOrigin.NODE)
TYPE = AliasLabel("type", LabelOrigin.FACT, "series")
LABELS = (
    DRIVER,
    AliasLabel("mcu", LabelOrigin.FACT, "mcu", prefix="v"),
    AliasLabel("mlu", LabelOrigin.VENDOR_MINOR),
    MODEL,
    NODE,
    AliasLabel("sn", LabelOrigin.FACT, "serial"),
    TYPE,
    AliasLabel("uuid", LabelOrigin.FACT, "cndev-uuid"),
)


def source_of(family: MetricFamily, factor: float = 1.0, **where: str) -> AliasSource:
    """Return the readings of a family that have these labels."""
    return source_of_name(family.name, factor, **where)


def source_of_name(family: str, factor: float = 1.0, **where: str) -> AliasSource:
    """Return the readings of a family, by its name, that have these labels."""
    return AliasSource(family=family, factor=factor, where=tuple(where.items()))


def source_of_value(value: DeviceValue, **where: str) -> AliasSource:
    """Return a value that is no reading, of those that have these labels."""
    return AliasSource(value=value, where=tuple(where.items()))


def states_of(family: MetricFamily, label: str, *states: str, **where: str) -> list[AliasSource]:
    """Return what has the number of a state, of a family with 1 for the state it is in."""
    return [
        source_of(family, float(number), **where, **{label: state})
        for number, state in enumerate(states)
    ]


def alias(
    name: str,
    help_text: str,
    *sources: AliasSource,
    kind: str = "gauge",
    more: tuple[AliasLabel, ...] = (),
    note: str = "",
) -> MetricAlias:
    """Return an alias with the labels of the table and `more`; a note makes it a near one."""
    return MetricAlias(
        name=f"{PREFIX}{name}",
        type=kind,
        help=help_text,
        sources=sources,
        labels=(*LABELS, *more) if more else None,
        match=AliasMatch.NEAR if note else AliasMatch.SAME,
        note=note,
    )


def reading_label(name: str, key: str) -> tuple[AliasLabel]:
    """Return a label that has the value of the reading's label `key`."""
    return (AliasLabel(name, LabelOrigin.READING, key),)
