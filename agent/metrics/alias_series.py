"""Series of devices under the names of other exporters, by the tables that vendors declare."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from agent.metrics.device_pods import UNUSED, DevicePod, DevicePods, key_of_users
from agent.metrics.device_series import driver_versions, total_bytes
from agent.metrics.families import ExportedFamily
from agent.metrics.text_format import LabelCache, SeriesLines, sample_line
from agent.snapshot.device import Device
from agent.snapshot.inventory import DeviceSample, MetricFamily
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.vendor import (
    AliasLabel,
    AliasMatch,
    AliasSource,
    AliasTable,
    DeviceValue,
    LabelOrigin,
    MetricAlias,
)

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
PROCESS_LABEL = "pid"  # of the readings that `DeviceValue.PROCESS_MEMORY_BYTES` stands for

# decimals of a value in another unit: 57 % of 0.57 would be 56.99999999999999
_DECIMALS = 6
_LONG_DOMAIN = "0000"  # what NVML and others put before the domain of a PCI address

ReadingLabels = Mapping[str, str]
_Values = Iterator[tuple[ReadingLabels, float]]


class _Subject(msgspec.Struct, frozen=True):
    """A device and a pod that uses it: what labels are made from."""

    device: Device
    pod: DevicePod
    node: str
    driver_version: str


_OriginText = Callable[[_Subject, str], str]

_ORIGINS: dict[LabelOrigin, _OriginText] = {
    LabelOrigin.CONSTANT: lambda _, key: key,
    LabelOrigin.READING: lambda *_: "",
    LabelOrigin.FACT: lambda subject, key: dict(subject.device.info.facts).get(key, ""),
    LabelOrigin.NAME: lambda subject, _: (
        dict(subject.device.info.facts).get("name") or subject.device.info.model or ""
    ),
    LabelOrigin.MODEL: lambda subject, _: subject.device.info.model or "",
    LabelOrigin.UUID: lambda subject, _: subject.device.info.uuid or "",
    LabelOrigin.MINOR: lambda subject, _: _number(subject.device.info.minor),
    LabelOrigin.VENDOR_MINOR: lambda subject, _: _number(subject.device.info.vendor_minor),
    LabelOrigin.BUS_ID: lambda subject, _: subject.device.info.bus_id or "",
    LabelOrigin.BUS_ID_UPPER: lambda subject, _: (subject.device.info.bus_id or "").upper(),
    LabelOrigin.BUS_ID_LONG: lambda subject, _: _long_address(subject.device.info.bus_id),
    LabelOrigin.DRIVER_VERSION: lambda subject, _: subject.driver_version,
    LabelOrigin.NODE: lambda subject, _: subject.node,
    LabelOrigin.NAMESPACE: lambda subject, _: subject.pod.namespace,
    LabelOrigin.POD: lambda subject, _: subject.pod.pod,
    LabelOrigin.CONTAINER: lambda subject, _: subject.pod.container,
    LabelOrigin.POD_UID: lambda subject, _: subject.pod.pod_uid,
}


def _number(number: int | None) -> str:
    return "" if number is None else str(number)


def _long_address(bus_id: str | None) -> str:
    return f"{_LONG_DOMAIN}{bus_id.upper()}" if bus_id else ""


class AliasCheck(msgspec.Struct, frozen=True):
    """The tables that can be exported, and the errors of aliases that cannot."""

    tables: tuple[AliasTable, ...]
    errors: tuple[str, ...]


def check_aliases(tables: Iterable[AliasTable], names: Iterable[str]) -> AliasCheck:
    """Check names and types of aliases; `names` are families that are exported beside them."""
    taken = {name.removesuffix("_total") for name in names}
    checked, errors = [], []
    for table in tables:
        accepted = []
        for alias in table.metrics:
            error = _find_error(table, alias, taken)
            if error:
                errors.append(f"aliases {table.name}: metric family {alias.name[:80]!r}: {error}")
            else:
                taken.add(alias.name.removesuffix("_total"))
                accepted.append(alias)
        checked.append(msgspec.structs.replace(table, metrics=tuple(accepted)))
    return AliasCheck(tuple(checked), tuple(errors))


def _find_error(table: AliasTable, alias: MetricAlias, taken: set[str]) -> str:
    if not _NAME.fullmatch(alias.name):
        return "the name is not one of Prometheus"
    if alias.name.removesuffix("_total") in taken:
        return "it is exported already"
    if alias.type not in ("gauge", "counter"):
        return f"the type is {alias.type[:20]!r}, not gauge or counter"
    for source in alias.sources or (AliasSource(),):
        labels = [label.name for label in (*_labels_of(table, alias), *source.labels)]
        if len(set(labels)) < len(labels) or not all(map(_LABEL_NAME.fullmatch, labels)):
            return "a label has a bad name, or is there twice"
    return ""


def _labels_of(table: AliasTable, alias: MetricAlias) -> tuple[AliasLabel, ...]:
    return table.labels if alias.labels is None else alias.labels


def alias_families(tables: Iterable[AliasTable]) -> tuple[ExportedFamily, ...]:
    """Return the families of the tables; those that are absent have none."""
    return tuple(
        ExportedFamily(
            name=alias.name,
            type=alias.type,
            help=alias.help,
            labels=tuple(
                dict.fromkeys(
                    label.name
                    for labels in (_labels_of(table, alias), *(one.labels for one in alias.sources))
                    for label in labels
                )
            ),
            stability="alpha",
            alias_of=next((one.family for one in alias.sources if one.family), ""),
        )
        for table in tables
        for alias in table.metrics
        if alias.match is not AliasMatch.ABSENT
    )


def alias_series(
    tables: Iterable[AliasTable],
    snapshot: NodeSnapshot,
    samples: Mapping[str, DeviceSample],  # by device key
    families: Mapping[str, MetricFamily],  # of vendors, by name
    labels: LabelCache,
    pods: DevicePods,
) -> SeriesLines:
    """Yield the families of the tables, a series for each pod that uses a device."""
    drivers = driver_versions(snapshot.vendors)
    node = snapshot.node.name or "unknown"
    for table in tables:
        rows = [
            _Row(alias, _labels_of(table, alias), {})
            for alias in table.metrics
            if alias.match is not AliasMatch.ABSENT
        ]
        subjects = [
            _Subject(device, UNUSED, node, drivers.get(device.key, ""))
            for device in snapshot.devices.value.devices
            if device.info.vendor == table.maker
        ]
        for subject in subjects:
            readings = _readings_by_family(samples.get(subject.device.key), families)
            _add_device(rows, subject, samples.get(subject.device.key), readings, labels, pods)
        for row in rows:
            if row.alias.is_of_node and subjects:
                row.series[_prefix(row.labels, subjects[0], labels)] = len(subjects)
            name = row.alias.name
            yield name, [sample_line(name, prefix, value) for prefix, value in row.series.items()]


class _Row(msgspec.Struct, frozen=True):
    """One family of a page: its values by the text of the labels."""

    alias: MetricAlias
    labels: tuple[AliasLabel, ...]
    series: dict[str, float]


def _add_device(
    rows: Iterable[_Row],
    subject: _Subject,
    sample: DeviceSample | None,
    readings: _Readings,
    labels: LabelCache,
    pods: DevicePods,
) -> None:
    """Add the values of one device to each family, for each pod that uses it or the slice."""
    prefixes: dict[tuple[int, DevicePod], str] = {}  # by identity of the labels, to hash less
    for row in rows:
        if row.alias.is_of_node:
            continue
        totals = _totals(row, subject.device, sample, readings, labels)
        for (suffix, users_key), value in totals.items():
            for pod in pods.get(users_key, (UNUSED,)):
                prefix = prefixes.get((id(row.labels), pod))
                if prefix is None:
                    user = msgspec.structs.replace(subject, pod=pod)
                    prefix = prefixes[id(row.labels), pod] = _prefix(row.labels, user, labels)
                # a suffix starts with a comma
                text = f"{prefix}{suffix}" if prefix != "{" else f"{prefix}{suffix[1:]}"
                row.series[text] = value


_Readings = Mapping[str, list[tuple[ReadingLabels, float]]]  # by family


def _readings_by_family(
    sample: DeviceSample | None, families: Mapping[str, MetricFamily]
) -> _Readings:
    """Return the readings; undeclared families and wrong labels are left out."""
    readings: dict[str, list[tuple[ReadingLabels, float]]] = {}
    for reading in sample.readings if sample is not None else ():
        family = families.get(reading.family)
        if family is not None and len(family.labels) == len(reading.labels):
            values = dict(zip(family.labels, reading.labels, strict=True))
            readings.setdefault(reading.family, []).append((values, reading.value))
    return readings


def _totals(
    row: _Row,
    device: Device,
    sample: DeviceSample | None,
    readings: _Readings,
    labels: LabelCache,
) -> dict[tuple[str, str], float]:
    """Return a device's values by the text of the other labels, and by the key of their users."""
    totals: dict[tuple[str, str], float] = {}
    for source in row.alias.sources:
        values: Iterable[tuple[ReadingLabels, float]]
        if source.value is None:
            values = readings.get(source.family, ())
        else:
            values = _device_values(source.value, device, sample)
        for reading_labels, number in values:
            if all(reading_labels.get(name) == text for name, text in source.where):
                suffix = _suffix(row, source, reading_labels, labels)
                key = suffix, key_of_users(device, reading_labels.values())
                value = number if source.factor == 1 else round(number * source.factor, _DECIMALS)
                totals[key] = totals.get(key, 0) + value if source.is_sum else value
    return totals


def _prefix(alias_labels: tuple[AliasLabel, ...], subject: _Subject, labels: LabelCache) -> str:
    texts = tuple(
        _text(label, _ORIGINS[label.origin](subject, label.key)) for label in alias_labels
    )
    return labels.prefix(tuple(label.name for label in alias_labels), texts)


def _suffix(
    row: _Row, source: AliasSource, reading_labels: ReadingLabels, labels: LabelCache
) -> str:
    """Return the labels that depend on the reading, and those of the source."""
    names, texts = [], []
    for label in row.labels:
        if label.origin is LabelOrigin.READING:
            names.append(label.name)
            texts.append(_text(label, reading_labels.get(label.key, "")))
    for label in source.labels:
        is_constant = label.origin is LabelOrigin.CONSTANT
        names.append(label.name)
        texts.append(_text(label, label.key if is_constant else reading_labels.get(label.key, "")))
    return labels.suffix(tuple(names), tuple(texts)) if names else ""


def _text(label: AliasLabel, value: str) -> str:
    return f"{label.prefix}{value}" if value else ""


def _device_values(value: DeviceValue, device: Device, sample: DeviceSample | None) -> _Values:
    """Yield a value that every vendor's devices have; unknown values are left out."""
    if value is DeviceValue.PROCESS_MEMORY_BYTES:
        for process in (sample.processes if sample is not None else None) or ():
            if process.memory_bytes is not None:
                yield {PROCESS_LABEL: str(process.pid)}, process.memory_bytes
        return
    single = _device_value(value, device, sample)
    if single is not None:
        yield {}, single


def _device_value(value: DeviceValue, device: Device, sample: DeviceSample | None) -> float | None:
    total = total_bytes(device.info, sample)
    used = sample.memory_used_bytes if sample is not None else None
    free = total - used if total and used is not None and used <= total else None
    processes = sample.processes if sample is not None else None
    values: dict[DeviceValue, float | None] = {
        DeviceValue.UTILIZATION_PERCENT: sample.core_percent if sample is not None else None,
        DeviceValue.MEMORY_TOTAL_BYTES: total,
        DeviceValue.MEMORY_USED_BYTES: used,
        DeviceValue.MEMORY_FREE_BYTES: free,
        DeviceValue.MEMORY_USED_PERCENT: (
            used / total * 100 if total and used is not None and free is not None else None
        ),
        DeviceValue.HEALTHY: int(device.info.health.is_in_service),
        DeviceValue.PROCESSES: len(processes) if processes is not None else None,
        DeviceValue.ONE: 1,
    }
    return values.get(value)
