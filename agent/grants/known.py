"""The devices that grants may mean, found by id or minor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from agent.model.device import Device, DeviceKind, DevicePartition, Pairs, VendorDevice
from agent.model.foreign.quantities import parse_quantity
from agent.model.grant.granted import CORE, MEMORY, RATIO, REPLICA, GrantedDevice
from agent.model.grant.refusal import GrantRefused, Refusal

RDMA = "koordinator.sh/rdma"
UNSCHEDULABLE = "unschedulable"  # the fact by which a vendor says why nothing can be granted
_WHOLE = 100
# of a device that does not tell what of it there is, as while its library does not answer
_PERCENT: Mapping[str, Mapping[str, int]] = {
    "gpu": {CORE: _WHOLE, RATIO: _WHOLE},
    "rdma": {RDMA: _WHOLE},
}


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What an entry of a grant means; `piece` names a slice or a replica of the device."""

    device: VendorDevice
    partition: DevicePartition | None = None
    piece: str = ""


class KnownDevices:
    """All devices of the node at one moment."""

    def __init__(
        self, devices: Iterable[Device], *, complete: bool, final_minors: bool = True
    ) -> None:
        """Index them. Not `complete`: a vendor may still tell of more.

        Without `final_minors` no device is found by its minor: it may be another device's.
        """
        self._complete = complete
        self._by_id: dict[tuple[str, str], tuple[VendorDevice, DevicePartition | None]] = {}
        self._by_minor: dict[tuple[str, int], VendorDevice] = {}
        self._by_driver: dict[tuple[DeviceKind, int], VendorDevice] = {}
        self._with_functions: list[VendorDevice] = []
        for device in devices:
            info = device.info
            kind = info.kind.wire_type
            if info.minor is not None and final_minors:
                self._by_minor.setdefault((kind, info.minor), info)
            if info.vendor_minor is not None:
                self._by_driver.setdefault((info.kind, info.vendor_minor), info)
            for name in (info.uuid, info.bus_id):
                if name:
                    self._by_id.setdefault((kind, name), (info, None))
            if info.vf_groups:
                self._with_functions.append(info)
            for part in info.partitions:
                self._by_id.setdefault((kind, part.uuid), (info, part))

    def owner_of(self, address: str) -> VendorDevice | None:
        """Return the device that has a virtual function for pods at that address."""
        return next((one for one in self._with_functions if address in functions_of(one)), None)

    def numbered(self, kind: DeviceKind, vendor_minor: int) -> VendorDevice | None:
        """Return the device with this driver's number."""
        return self._by_driver.get((kind, vendor_minor))

    def find(self, entry: GrantedDevice) -> Found:
        """Return what an entry means: its id decides, the minor only where there is none.

        Raises `GrantRefused` for what is not here.
        """
        if entry.id:
            device, part = self._by_id.get((entry.type, entry.id.partition(REPLICA)[0]), _NOBODY)
            asked = entry.id
        else:
            device, part = self._by_minor.get((entry.type, _minor(entry))), None
            asked = f"minor {entry.minor}"
        if device is not None:
            piece = entry.id if part is not None or REPLICA in entry.id else ""
            return Found(device=device, partition=part, piece=piece)
        refusal = Refusal.DEVICE_UNKNOWN if self._complete else Refusal.DEVICES_NOT_KNOWN_YET
        raise GrantRefused(refusal, f"no {entry.type} device {asked!r} is on this node")


_NOBODY: tuple[VendorDevice | None, DevicePartition | None] = (None, None)


def _minor(entry: GrantedDevice) -> int:
    return -1 if entry.minor is None else entry.minor


def functions_of(device: VendorDevice) -> frozenset[str]:
    """Return the addresses of the virtual functions that pods may have."""
    return frozenset(vf.bus_id for group in device.vf_groups for vf in group.vfs)


def refuse_unfit(found: Found, *, running: bool) -> None:
    """Raise `GrantRefused` for a device that no pod may have.

    A pod that runs keeps a device that fails or does not tell what it has; not one that became
    another driver's, or was cut into pieces.
    """
    info, why = found.device, dict(found.device.facts).get(UNSCHEDULABLE, "")
    if not info.managed:
        told = f"{info.key} is not for pods: {info.health.message}"
        raise GrantRefused(Refusal.DEVICE_NOT_GRANTABLE, told)
    cut = why == Refusal.MIG_ENABLED.value
    if why and found.partition is None and (cut or not running):
        told = f"{info.key} was granted, but is cut into slices" if cut else f"{info.key}: {why}"
        raise GrantRefused(Refusal.MIG_ENABLED if cut else Refusal.DEVICE_NOT_GRANTABLE, told)
    health = info.health if found.partition is None else found.partition.health
    if not running and not (info.health.in_service and health.in_service):
        bad = health if not health.in_service else info.health
        told = f"{info.key}: {bad.reason}: {bad.message}"
        raise GrantRefused(Refusal.DEVICE_OUT_OF_SERVICE, told)
    if not running and not info.resources and found.partition is None:
        told = f"{info.key}: {info.health.message}"
        raise GrantRefused(Refusal.DEVICE_NOT_GRANTABLE, told)


def totals_of(device: VendorDevice) -> Mapping[str, int]:
    """Return how much of each resource the device has, in base units."""
    return _totals(device.resources) or _PERCENT[device.kind.wire_type]


@lru_cache(maxsize=128)
def _totals(resources: Pairs) -> Mapping[str, int]:
    told = ((name, parse_quantity(text)) for name, text in resources)
    return {name: quantity.value for name, quantity in told if quantity is not None}


def takes_all(amounts: Mapping[str, int], totals: Mapping[str, int]) -> bool:
    """Say whether amounts are those of the whole device.

    Its memory decides, of which nothing is left then; where none was granted, any amount does.
    """
    deciding = [name for name in (RATIO, MEMORY) if name in amounts] or list(amounts)
    return any(amounts[name] >= totals[name] for name in deciding)
