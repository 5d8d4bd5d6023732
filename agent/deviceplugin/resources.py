"""Which resources there are for the kubelet now: what the settings offer of the devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from agent.config.containers import DevicePluginSettings
from agent.deviceplugin.base import Resource
from agent.deviceplugin.hardware import RULES, of_vendor
from agent.deviceplugin.sharing import Sharing, checked_name, sharing_of
from agent.deviceplugin.units import Served, Unit, listed, replicas, served
from agent.model.inventory import Problem
from agent.model.snapshot import DeviceView

CONFLICT = "ResourceConflict"
MISSING = "SharedDeviceMissing"

Problems = tuple[tuple[str, Problem], ...]  # (vendor, problem)


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """All resources by name, and why something is not among them."""

    served: Mapping[str, Served]
    problems: Problems = ()

    def resources(self, *, check_start: bool) -> tuple[Resource, ...]:
        """Return the resources as they are told to the kubelet, by name."""
        return tuple(_resource(one, check_start=check_start) for one in self.served.values())


class Offering:
    """Makes offers by the settings; raises `BadConfig` for settings that are wrong."""

    def __init__(self, settings: DevicePluginSettings) -> None:
        checked_name(settings.rdma_resource, "device_plugin.rdma_resource")
        self._settings = settings
        self._sharing = {row.resource: row for row in sharing_of(settings)}

    def offer(self, view: DeviceView) -> Offer:
        """Return what is offered; of vendors that have not answered yet nothing.

        A resource without a device is offered no more: nobody could be given it.
        """
        found: dict[str, Served] = {}
        problems: list[tuple[str, Problem]] = []
        for vendor in sorted(set(self._settings.vendors) - set(view.awaited)):
            told: list[Problem] = []
            for one in self._of_vendor(vendor, view, told):
                other = found.setdefault(one.name, one)
                if other is not one:
                    text = f"{one.name} of {vendor} is a resource of {other.vendor}: rename one"
                    told.append(Problem(reason=CONFLICT, message=text))
            problems += ((vendor, problem) for problem in told)
        ordered = {name: found[name] for name in sorted(found)}
        return Offer(served=MappingProxyType(ordered), problems=tuple(problems))

    def _of_vendor(self, vendor: str, view: DeviceView, problems: list[Problem]) -> list[Served]:
        devices = of_vendor(vendor, view.devices)
        table: dict[str, list[Unit]] = {}
        for name, unit in RULES[vendor](devices, self._settings, problems):
            table.setdefault(name, []).append(unit)
        shared: dict[str, list[Unit]] = {}
        for name, units in table.items():
            row = self._sharing.get(name)
            for target, unit in (
                _shared(units, row, problems) if row else ((name, u) for u in units)
            ):
                shared.setdefault(target, []).append(unit)
        every = tuple(device.info for device in devices)
        return [served(name, vendor, units, every) for name, units in shared.items()]


def _shared(
    units: Sequence[Unit], row: Sharing, problems: list[Problem]
) -> Iterable[tuple[str, Unit]]:
    """Return each device, or its replicas if the row means it, with the resource that it is."""
    ordered = sorted(units, key=lambda unit: unit.order)
    meant = {unit.id for unit in _meant(ordered, row, problems)}
    for unit in ordered:
        if unit.id in meant:
            yield from ((row.renamed, one) for one in replicas(unit, row.replicas))
        else:
            yield row.resource, unit


def _meant(units: Sequence[Unit], row: Sharing, problems: list[Problem]) -> Iterable[Unit]:
    if row.devices is None:
        return units
    if isinstance(row.devices, int):
        return units[: row.devices]
    names = {name: unit for unit in reversed(units) for name in _names(unit)}
    absent = [name for name in row.devices if name not in names]
    if absent:
        text = f"device_plugin.sharing: {row.resource} has no device {absent[0][:63]!r}"
        problems.append(Problem(reason=MISSING, message=text))
    return [names[name] for name in row.devices if name in names]


def _names(unit: Unit) -> tuple[str, ...]:
    """Return what a list of devices may call it: id, index of the card, index of the slice."""
    info = unit.device.info
    number = info.minor if info.vendor_minor is None else info.vendor_minor
    index = dict(info.facts).get("index") or (None if number is None else str(number))
    if index is None or unit.function:
        return (unit.id,)
    if unit.partition is None:
        return unit.id, index
    return unit.id, f"{index}:{info.partitions.index(unit.partition)}"


def _resource(one: Served, *, check_start: bool) -> Resource:
    units = tuple(one.units.values())
    cards = one.vendor != "rdma" and any(unit.whole for unit in units)
    return Resource(
        name=one.name,
        vendor=one.vendor,
        devices=tuple(map(listed, units)),
        check_start=check_start and cards,
    )
