"""Builds the resources that the kubelet is offered, with time slicing by the settings. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from agent.config.containers import DevicePluginSettings
from agent.deviceplugin.resources import (
    KubeletResource,
    ResourceUnits,
    build_resource_units,
    kubelet_device,
    replicate_unit,
)
from agent.errors import BadConfig
from agent.snapshot.device import Device
from agent.snapshot.device_plugin import DeviceUnit
from agent.snapshot.inventory import Problem
from agent.snapshot.node import DeviceView
from agent.snapshot.vendor import ServesKubelet
from agent.wire_formats.device_object import NODE_RESOURCE_PREFIX

SHARED_SUFFIX = ".shared"  # added to the name of a renamed resource
MAX_REPLICAS = 128  # of one device: the kubelet lists every replica, and prefers among all of them
MAX_RESOURCE_NAME = 63
_NAME_PART = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_RESOURCE_NAME = re.compile(rf"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/{_NAME_PART}")
_ROW_KEYS = frozenset(("resource", "name", "replicas", "rename", "devices"))
_RESERVED_DOMAINS = ("koordinator.sh", "kubernetes.io")  # suffixes of domains


class TimeSlicingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `devices`: a number, `None` for all, or names: uuid, index, index of a slice."""

    resource: str
    replicas: int
    target_name: str  # equal to `resource` if it is not renamed
    devices: int | tuple[str, ...] | None = None


def parse_time_slicing(settings: DevicePluginSettings) -> tuple[TimeSlicingRow, ...]:
    """Return the rows of `device_plugin.sharing`; `BadConfig` names the wrong row.

    The keys are those of NVIDIA's `sharing.timeSlicing.resources`. `rename` is the new name, or
    true to append `.shared` to the name.
    """
    rows = tuple(_parse_row(i, row) for i, row in enumerate(settings.sharing))
    if len({row.resource for row in rows}) < len(rows):
        raise BadConfig("device_plugin.sharing: a resource stands in two rows")
    return rows


def check_resource_name(name: str, path: str) -> str:
    """Return the name if the kubelet accepts it and no one else publishes it; else `BadConfig`."""
    domain = name.partition("/")[0]
    if not _RESOURCE_NAME.fullmatch(name) or len(name.rpartition("/")[2]) > MAX_RESOURCE_NAME:
        raise BadConfig(f"{path}: {name[:80]!r} is no name of a resource such as example.com/gpu")
    if domain.endswith(_RESERVED_DOMAINS) or name.startswith(NODE_RESOURCE_PREFIX):
        raise BadConfig(f"{path}: {name} is on the Node by other means: choose another name")
    return name


def _parse_row(index: int, row: Mapping[str, object]) -> TimeSlicingRow:
    path = f"device_plugin.sharing[{index}]"
    if unknown := sorted(set(map(str, row)) - _ROW_KEYS):
        raise BadConfig(f"{path}: unknown key {unknown[0]!r}")
    resource = row.get("resource", row.get("name"))
    if not isinstance(resource, str):
        raise BadConfig(f"{path}.resource: which resource is shared")
    replicas = row.get("replicas")
    if type(replicas) is not int or not 2 <= replicas <= MAX_REPLICAS:
        raise BadConfig(f"{path}.replicas: a number from 2 to {MAX_REPLICAS}")
    return TimeSlicingRow(
        resource=check_resource_name(resource, f"{path}.resource"),
        replicas=replicas,
        target_name=_parse_rename(resource, row.get("rename"), f"{path}.rename"),
        devices=_parse_devices(row.get("devices", "all"), f"{path}.devices"),
    )


def _parse_rename(resource: str, value: object, path: str) -> str:
    if value is None or value is False:
        return resource
    if value is True:
        return check_resource_name(resource + SHARED_SUFFIX, path)
    if not isinstance(value, str):
        raise BadConfig(f"{path}: a name, or true for {resource}{SHARED_SUFFIX}")
    return check_resource_name(value, path)


def _parse_devices(value: object, path: str) -> int | tuple[str, ...] | None:
    if value == "all":
        return None
    if type(value) is int and value > 0:
        return value
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return tuple(dict.fromkeys(str(name) for name in value))
    raise BadConfig(f"{path}: all, a number, or a list of uuids and indices")


RESOURCE_CONFLICT = "ResourceConflict"

SHARED_DEVICE_MISSING = "SharedDeviceMissing"

VendorProblems = tuple[tuple[str, Problem], ...]  # (vendor, problem)


class ResourceTable(msgspec.Struct, frozen=True, kw_only=True):
    """All resources by name, and why others are absent."""

    units_by_resource: Mapping[str, ResourceUnits]
    problems: VendorProblems = ()

    def kubelet_resources(self, *, check_start: bool) -> tuple[KubeletResource, ...]:
        """Return the resources as the kubelet is offered them, by name."""
        return tuple(
            _kubelet_resource(resource_units, check_start=check_start)
            for resource_units in self.units_by_resource.values()
        )


class ResourceBuilder:
    """Builds the resources of the vendors; raises `BadConfig` if the settings are wrong."""

    def __init__(
        self, settings: DevicePluginSettings, vendors: Mapping[str, ServesKubelet]
    ) -> None:
        """`vendors` has each vendor that `device_plugin.vendors` names."""
        self._vendors = vendors
        check_resource_name(settings.rdma_resource, "device_plugin.rdma_resource")
        self._settings = settings
        self._time_slicing = {row.resource: row for row in parse_time_slicing(settings)}

    def build(self, view: DeviceView) -> ResourceTable:
        """Return the offered resources; none of vendors that have not answered yet.

        A resource without devices is not offered: no pod could get it.
        """
        table: dict[str, ResourceUnits] = {}
        problems: list[tuple[str, Problem]] = []
        for vendor in sorted(set(self._settings.vendors) - set(view.awaited)):
            vendor_problems: list[Problem] = []
            for resource_units in self._resources_of_vendor(vendor, view, vendor_problems):
                other = table.setdefault(resource_units.name, resource_units)
                if other is not resource_units:
                    name = resource_units.name
                    text = f"{name} of {vendor} is a resource of {other.vendor}: rename one"
                    vendor_problems.append(Problem(reason=RESOURCE_CONFLICT, message=text))
            problems += ((vendor, problem) for problem in vendor_problems)
        ordered = {name: table[name] for name in sorted(table)}
        return ResourceTable(units_by_resource=MappingProxyType(ordered), problems=tuple(problems))

    def served_devices(self, view: DeviceView) -> tuple[Device, ...]:
        """Return the devices of the vendors that the settings name."""
        served_vendors = [self._vendors[name] for name in self._settings.vendors]
        return tuple(
            device
            for device in view.devices
            if any(vendor.serves_device(device.info) for vendor in served_vendors)
        )

    def _resources_of_vendor(
        self, vendor: str, view: DeviceView, problems: list[Problem]
    ) -> list[ResourceUnits]:
        description = self._vendors[vendor]
        devices = [device for device in view.devices if description.serves_device(device.info)]
        table: dict[str, list[DeviceUnit]] = {}
        for name, unit in description.kubelet_units(devices, self._settings, problems):
            table.setdefault(name, []).append(unit)
        shared: dict[str, list[DeviceUnit]] = {}
        for name, units in table.items():
            row = self._time_slicing.get(name)
            for target, unit in (
                _apply_time_slicing(units, row, problems) if row else ((name, u) for u in units)
            ):
                shared.setdefault(target, []).append(unit)
        vendor_devices = tuple(device.info for device in devices)
        return [
            build_resource_units(name, vendor, units, vendor_devices)
            for name, units in shared.items()
        ]


def _apply_time_slicing(
    units: Sequence[DeviceUnit], row: TimeSlicingRow, problems: list[Problem]
) -> Iterable[tuple[str, DeviceUnit]]:
    """Return each unit, or its replicas if the row selects it, with the name of its resource."""
    ordered = sorted(units, key=lambda unit: unit.sort_key)
    selected_ids = {unit.id for unit in _select_units(ordered, row, problems)}
    for unit in ordered:
        if unit.id in selected_ids:
            yield from (
                (row.target_name, replica) for replica in replicate_unit(unit, row.replicas)
            )
        else:
            yield row.resource, unit


def _select_units(
    units: Sequence[DeviceUnit], row: TimeSlicingRow, problems: list[Problem]
) -> Iterable[DeviceUnit]:
    if row.devices is None:
        return units
    if isinstance(row.devices, int):
        return units[: row.devices]
    names = {name: unit for unit in reversed(units) for name in _unit_names(unit)}
    absent = [name for name in row.devices if name not in names]
    if absent:
        text = f"device_plugin.sharing: {row.resource} has no device {absent[0][:63]!r}"
        problems.append(Problem(reason=SHARED_DEVICE_MISSING, message=text))
    return [names[name] for name in row.devices if name in names]


def _unit_names(unit: DeviceUnit) -> tuple[str, ...]:
    """Return the names of a unit in `devices`: id, index of the card, index of the slice."""
    info = unit.device.info
    number = info.minor if info.vendor_minor is None else info.vendor_minor
    index = dict(info.facts).get("index") or (None if number is None else str(number))
    if index is None or unit.function:
        return (unit.id,)
    if unit.partition is None:
        return unit.id, index
    return unit.id, f"{index}:{info.partitions.index(unit.partition)}"


def _kubelet_resource(resource_units: ResourceUnits, *, check_start: bool) -> KubeletResource:
    units = tuple(resource_units.units.values())
    has_cards = any(unit.is_whole and unit.is_exclusive for unit in units)
    return KubeletResource(
        name=resource_units.name,
        vendor=resource_units.vendor,
        devices=tuple(map(kubelet_device, units)),
        check_start=check_start and has_cards,
    )
