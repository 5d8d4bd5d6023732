"""Stores what cards were for the next worker, in `cambricon-devices.json`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from agent.snapshot.device import Health, VendorDevice
from agent.snapshot.inventory import Problem
from plugins.shared.state_file import JsonStateFile

FILE_NAME = "cambricon-devices.json"


class _MluStoreFile(msgspec.Struct, frozen=True, kw_only=True):
    boot: str  # id of the boot: after another one, numbers and instances may be different
    devices: tuple[VendorDevice, ...] = ()


def serial_of(device: VendorDevice) -> str | None:
    """Return the serial number of a described card; `None` if it has not said it."""
    return dict(device.facts).get("serial")


class MluStore:
    """The last descriptions of cards in this boot, also those of an earlier worker."""

    def __init__(self, folder: str, boot: str) -> None:
        self._file = JsonStateFile(folder, FILE_NAME, _MluStoreFile)
        self._boot = boot
        stored = self._file.load()
        is_same_boot = stored is not None and bool(boot) and stored.boot == boot
        self._devices = stored.devices if stored is not None and is_same_boot else ()

    @property
    def problem(self) -> Problem | None:
        """The problem of the file, if there is one."""
        return self._file.problem

    def find(
        self, uuid: str | None, serial: str | None, bus_id: str | None, number: int
    ) -> VendorDevice | None:
        """Return the card with this uuid; of a card without one now, that of its serial number.

        A serial number that several cards have, as the chips of one board do, says of none which it
        is, and neither does one at another address. If the card's `number` is new, its instances
        have no nodes: those of the old number may be another card's.
        """
        if uuid is not None:
            found = [device for device in self._devices if device.uuid == uuid]
        else:
            found = [device for device in self._devices if serial and serial_of(device) == serial]
        if len(found) != 1:
            return None
        (device,) = found
        if uuid is None and bus_id is not None and device.bus_id != bus_id:
            return None
        if device.vendor_minor == number:
            return device
        parts = tuple(replace(part, nodes=()) for part in device.partitions)
        return replace(device, partitions=parts)

    def unlisted(
        self, functions: Collection[str], listed: Sequence[VendorDevice]
    ) -> dict[str | None, VendorDevice]:
        """Return by address the cards whose functions are there and that are not `listed`."""
        taken = {name for device in listed for name in (device.uuid, device.bus_id, device.minor)}
        return {
            device.bus_id: device
            for device in self._devices
            if device.bus_id in functions
            and taken.isdisjoint((device.uuid, device.bus_id, device.minor))
        }

    def save(self, devices: Iterable[VendorDevice]) -> None:
        """Store the devices that have a uuid, without their health."""
        self._devices = tuple(
            replace(device, health=Health()) for device in devices if device.uuid is not None
        )
        self._file.save(_MluStoreFile(boot=self._boot, devices=self._devices))
