"""Series of devices under the names of other exporters, by the tables that vendors declare."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from agent.metrics.device_pods import (
    UNUSED,
    DevicePod,
    DevicePods,
    key_of_users,
    process_key,
)
from agent.metrics.device_series import driver_versions, total_bytes
from agent.metrics.families import ExportedFamily
from agent.metrics.text_format import LabelCache, SeriesLines, sample_line
from agent.snapshot.device import Device
from agent.snapshot.inventory import DeviceSample, MetricFamily, ProcessSample
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
_NO_PROCESS = ("",)  # label values of a value that is of the whole device
# labels of the readings that a `DeviceValue` stands for
_PROCESS_LABELS = ("pid",)
_VALUE_LABELS = {DeviceValue.PROCESS_ENGINE_PERCENT: ("pid", "engine")}

# decimals of a value in another unit: 57 % of 0.57 would be 56.99999999999999
_DECIMALS = 6
_WATTS_OF_DBM = 1e-3  # of 0 dBm
_LONG_DOMAIN = 8  # digits of the domain in PCI addresses of NVML and others


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
    LabelOrigin.OTHER_READING: lambda *_: "",
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
    domain, separator, rest = (bus_id or "").upper().partition(":")
    return f"{domain.zfill(_LONG_DOMAIN)}{separator}{rest}" if separator else ""


class AliasCheck(msgspec.Struct, frozen=True):
    """The tables that can be exported, and the errors of aliases that cannot."""

    tables: tuple[AliasTable, ...]
    errors: tuple[str, ...]


def check_aliases(tables: Iterable[AliasTable], names: Iterable[str]) -> AliasCheck:
    """Check names and types of aliases; `names` are families that are exported beside them."""
    used_names = {name.removesuffix("_total") for name in names}
    valid_tables, errors = [], []
    for table in tables:
        valid_aliases = []
        for alias in table.metrics:
            error = _find_error(table, alias, used_names)
            if error:
                errors.append(f"aliases {table.name}: metric family {alias.name[:80]!r}: {error}")
            else:
                used_names.add(alias.name.removesuffix("_total"))
                valid_aliases.append(alias)
        valid_tables.append(msgspec.structs.replace(table, metrics=tuple(valid_aliases)))
    return AliasCheck(tuple(valid_tables), tuple(errors))


def _find_error(table: AliasTable, alias: MetricAlias, used_names: set[str]) -> str:
    if not _NAME.fullmatch(alias.name):
        return "the name is not one of Prometheus"
    if alias.name.removesuffix("_total") in used_names:
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
                    for labels in (
                        _labels_of(table, alias),
                        *(source.labels for source in alias.sources),
                    )
                    for label in labels
                )
            ),
            stability="alpha",
            alias_of=next((source.family for source in alias.sources if source.family), ""),
        )
        for table in tables
        for alias in table.metrics
        if alias.match is not AliasMatch.ABSENT
    )


_Join = tuple[str, str, str]  # family, label by which it is joined, and label that is wanted
_Joined = Mapping[tuple[_Join, str], str]  # by the value of the label by which it is joined


class _Source(msgspec.Struct, frozen=True):
    """An `AliasSource` with the places of labels in a reading instead of their names."""

    row: int  # place of the family in the table
    where: tuple[tuple[int, str], ...]  # place and value
    names: tuple[str, ...]  # of the labels that are not those of the device
    # place of each value, or -1; its prefix, or the constant; the reading that has the value
    texts: tuple[tuple[int, str, _Join | None], ...]
    factor: float
    is_sum: bool
    is_dbm: bool
    slice_place: int = -1  # place of the slice's name; -1: values are of whole devices

    def slice_name(self, values: tuple[str, ...]) -> str:
        """Return the name of the slice that the values of a reading are of; else empty."""
        return values[self.slice_place] if self.slice_place >= 0 else ""

    def suffix(self, values: tuple[str, ...], labels: LabelCache, joined: _Joined) -> str:
        """Return the text of the labels; `values` are those of the reading."""
        if not self.names:
            return ""
        texts = []
        for place, text, join in self.texts:
            value = "" if place < 0 else values[place]
            if join is not None:
                value = joined.get((join, value), "")
            texts.append(text if place < 0 else f"{text}{value}" if value else "")
        return labels.suffix(self.names, tuple(texts))


class AliasSeries:
    """Renders one table. It finds the places of labels once, not for each page."""

    def __init__(self, table: AliasTable, families: Mapping[str, MetricFamily]) -> None:
        self._maker = table.maker
        self._metrics = [one for one in table.metrics if one.match is not AliasMatch.ABSENT]
        self._labels = [_labels_of(table, one) for one in self._metrics]
        self._label_names = [tuple(label.name for label in labels) for labels in self._labels]
        self._by_family: dict[str, list[_Source]] = {}
        self._by_value: list[tuple[DeviceValue, _Source]] = []
        for row, metric in enumerate(self._metrics):
            for source in () if metric.is_of_node else metric.sources:
                family = families.get(source.family)
                names = (
                    family.labels
                    if family is not None
                    else _VALUE_LABELS.get(source.value or DeviceValue.ONE, _PROCESS_LABELS)
                )
                places = _find_places(row, self._labels[row], source, names)
                if places is None:
                    continue
                if family is not None and family.slice_label:
                    place = names.index(family.slice_label)
                    places = msgspec.structs.replace(places, slice_place=place)
                if source.value is not None:
                    self._by_value.append((source.value, places))
                else:
                    self._by_family.setdefault(source.family, []).append(places)
        self._label_counts = {name: len(family.labels) for name, family in families.items()}
        self._joins: dict[str, list[tuple[_Join, int, int]]] = {}  # with the places of both labels
        joined_labels = {label for row in self._labels for label in row if label.family in families}
        for label in sorted(joined_labels, key=lambda label: label.name):
            names = families[label.family].labels
            join = label.family, label.by, label.key
            places_of_join = names.index(label.by), names.index(label.key)
            self._joins.setdefault(label.family, []).append((join, *places_of_join))

    def render(
        self,
        snapshot: NodeSnapshot,
        samples: Mapping[str, DeviceSample],  # by device key
        labels: LabelCache,
        pods: DevicePods,
    ) -> SeriesLines:
        """Yield the families, a series for each pod that uses a device or a slice."""
        drivers = driver_versions(snapshot.vendors)
        node = snapshot.node.name or "unknown"
        subjects = [
            _Subject(device, UNUSED, node, drivers.get(device.key, ""))
            for device in snapshot.devices.value.devices
            if device.info.vendor == self._maker
        ]
        series: list[dict[str, float]] = [{} for _ in self._metrics]
        for subject in subjects:
            self._add_device(series, subject, samples.get(subject.device.key), labels, pods)
        for row, metric in enumerate(self._metrics):
            if metric.is_of_node and subjects:
                count = _count_devices(metric, subjects, pods)
                series[row][self._prefix(row, subjects[0], labels)] = count
            values = series[row].items()
            yield metric.name, [sample_line(metric.name, text, value) for text, value in values]

    def _add_device(
        self,
        series: list[dict[str, float]],
        subject: _Subject,
        sample: DeviceSample | None,
        labels: LabelCache,
        pods: DevicePods,
    ) -> None:
        prefixes: dict[tuple[int, DevicePod], str] = {}  # by identity of the labels
        totals = self._totals(subject.device, sample, labels, pods)
        for (row, suffix, users_key), value in totals.items():
            for pod in pods.get(users_key, (UNUSED,)):
                if self._metrics[row].is_of_pod and not pod.pod:
                    continue
                prefix = prefixes.get((id(self._labels[row]), pod))
                if prefix is None:
                    user = msgspec.structs.replace(subject, pod=pod)
                    prefix = self._prefix(row, user, labels)
                    prefixes[id(self._labels[row]), pod] = prefix
                # a suffix starts with a comma
                text = f"{prefix}{suffix}" if prefix != "{" else f"{prefix}{suffix[1:]}"
                series[row][text] = value

    def _totals(
        self,
        device: Device,
        sample: DeviceSample | None,
        labels: LabelCache,
        pods: DevicePods,
    ) -> dict[tuple[int, str, str], float]:
        """Return the values by family, text of the labels of readings, and key of the users."""
        totals: dict[tuple[int, str, str], float] = {}
        values = _device_values(device, sample)
        joined = self._join(sample)
        for kind, source in self._by_value:
            for label_values, number in values.get(kind, ()):
                key = device.key
                if label_values != _NO_PROCESS and process_key(device, label_values[0]) in pods:
                    key = process_key(device, label_values[0])
                _add(totals, source, key, label_values, number, labels, joined)
        for reading in sample.readings if sample is not None else ():
            for source in self._by_family.get(reading.family, ()):
                if len(reading.labels) == self._label_counts[reading.family]:
                    key = key_of_users(device, source.slice_name(reading.labels))
                    _add(totals, source, key, reading.labels, reading.value, labels, joined)
        return totals

    def _join(self, sample: DeviceSample | None) -> _Joined:
        """Return the labels of readings that go on series of other readings."""
        return {
            (join, reading.labels[by]): reading.labels[key]
            for reading in (sample.readings if sample is not None and self._joins else ())
            for join, by, key in self._joins.get(reading.family, ())
            if len(reading.labels) == self._label_counts[reading.family]
        }

    def _prefix(self, row: int, subject: _Subject, labels: LabelCache) -> str:
        texts = (
            _text(label, _ORIGINS[label.origin](subject, label.key)) for label in self._labels[row]
        )
        return labels.prefix(self._label_names[row], tuple(texts))


def _count_devices(metric: MetricAlias, subjects: Sequence[_Subject], pods: DevicePods) -> int:
    if metric.sources[0].value is DeviceValue.DEVICES_IN_USE:
        keys = (subject.device.key for subject in subjects)
        return sum(any(pod.pod_uid for pod in pods.get(key, ())) for key in keys)
    return len(subjects)


def _find_places(
    row: int,
    labels: tuple[AliasLabel, ...],
    source: AliasSource,
    names: tuple[str, ...],  # of the reading's labels
) -> _Source | None:
    """Return the places of labels in a reading; `None` if there is no label to compare."""
    if not {name for name, _ in source.where} <= set(names):
        return None
    own = [
        label
        for label in labels
        if (label.origin is LabelOrigin.READING and label.key in names)
        or (label.origin is LabelOrigin.OTHER_READING and label.by in names)
    ]
    own += [
        label
        for label in source.labels
        if label.origin is LabelOrigin.CONSTANT or label.key in names
    ]
    return _Source(
        row=row,
        where=tuple((names.index(name), text) for name, text in source.where),
        names=tuple(label.name for label in own),
        texts=tuple(_find_place(label, names) for label in own),
        factor=source.factor,
        is_sum=source.is_sum,
        is_dbm=source.is_dbm,
    )


def _find_place(label: AliasLabel, names: tuple[str, ...]) -> tuple[int, str, _Join | None]:
    if label.origin is LabelOrigin.CONSTANT:
        return -1, f"{label.prefix}{label.key}", None
    if label.origin is LabelOrigin.OTHER_READING:
        return names.index(label.by), label.prefix, (label.family, label.by, label.key)
    return names.index(label.key), label.prefix, None


def _add(
    totals: dict[tuple[int, str, str], float],
    source: _Source,
    users_key: str,  # in `DevicePods`
    label_values: tuple[str, ...],
    number: float,
    labels: LabelCache,
    joined: _Joined,
) -> None:
    """Add a value to the total of its series, if its labels are those of the source."""
    for place, text in source.where:
        if label_values[place] != text:
            return
    value = number if source.factor == 1 else round(number * source.factor, _DECIMALS)
    if source.is_dbm:
        if number <= 0:
            return
        value = round(10 * math.log10(number / _WATTS_OF_DBM), _DECIMALS)
    key = source.row, source.suffix(label_values, labels, joined), users_key
    totals[key] = totals.get(key, 0) + value if source.is_sum else value


def _text(label: AliasLabel, value: str) -> str:
    return f"{label.prefix}{value}" if value else ""


_ValuesWithLabels = list[tuple[tuple[str, ...], float]]


def _device_values(
    device: Device, sample: DeviceSample | None
) -> dict[DeviceValue, _ValuesWithLabels]:
    """Return the values that every vendor's devices have; unknown values are left out."""
    place, total = device.place, total_bytes(device.info, sample)
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
        DeviceValue.NUMA_NODE: place.numa_node if place.numa_node >= 0 else None,
        DeviceValue.PCIE_GENERATION: place.link.generation,
        DeviceValue.PCIE_MAX_GENERATION: place.link.max_generation,
        DeviceValue.PCIE_LANES: place.link.width,
        DeviceValue.PCIE_MAX_LANES: place.link.max_width,
        DeviceValue.PROCESSES: len(processes) if processes is not None else None,
        DeviceValue.ONE: 1,
    }
    values_with_labels: dict[DeviceValue, _ValuesWithLabels] = {
        kind: [(_NO_PROCESS, value)] for kind, value in values.items() if value is not None
    }
    figures: dict[DeviceValue, Callable[[ProcessSample], float | None]] = {
        DeviceValue.PROCESS_MEMORY_BYTES: lambda process: process.memory_bytes,
        DeviceValue.PROCESS_VIRTUAL_BYTES: lambda process: process.virtual_bytes,
        DeviceValue.PROCESS_UTILIZATION_PERCENT: lambda process: process.core_percent,
    }
    for kind, figure in figures.items():
        values_with_labels[kind] = [
            ((str(process.pid),), value)
            for process in processes or ()
            if (value := figure(process)) is not None
        ]
    values_with_labels[DeviceValue.PROCESS_ENGINE_PERCENT] = [
        ((str(process.pid), engine), percent)
        for process in processes or ()
        for engine, percent in process.engine_percents
    ]
    return values_with_labels
