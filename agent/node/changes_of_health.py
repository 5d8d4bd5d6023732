"""What the agent itself adds to a vendor's health: since when, how often, after which event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from agent.model.device import Health, VendorDevice
from agent.model.inventory import DeviceEvent, Inventory


def with_events(inventory: Inventory, events: Iterable[DeviceEvent], wall_s: float) -> Inventory:
    """Return the inventory with the health that events tell; an event with no key is for all."""
    devices = list(inventory.devices)
    for event in events:
        if event.state is None:
            continue
        for index, device in enumerate(devices):
            old = device.health
            if event.key in ("", device.key) and old.state is not event.state:
                health = Health(state=event.state, reason=event.reason, message=event.message)
                devices[index] = replace(device, health=_followed(old, health, wall_s))
    return replace(inventory, devices=tuple(devices))


def dated(before: Inventory | None, answer: Inventory, wall_s: float) -> Inventory:
    """Return an answer with the times of the changes since the one before; itself if none is known.

    A vendor that dates its changes is believed. What is different at the first answer has not
    changed: nobody saw how it was.
    """
    known = {} if before is None else {device.key: device.health for device in before.devices}
    devices = tuple(_dated(known.get(device.key), device, wall_s) for device in answer.devices)
    return answer if devices == answer.devices else replace(answer, devices=devices)


def after_events(inventory: Inventory, last: Mapping[str, str]) -> Inventory:
    """Return the inventory with the reason of each device's last event, by key of the device."""
    if not last:
        return inventory
    devices = tuple(
        replace(device, health=replace(device.health, last_event=last[device.key]))
        if device.key in last
        else device
        for device in inventory.devices
    )
    return replace(inventory, devices=devices)


def _dated(old: Health | None, device: VendorDevice, wall_s: float) -> VendorDevice:
    if old is None:
        return device
    return replace(device, health=_followed(old, device.health, wall_s))


def _followed(old: Health, new: Health, wall_s: float) -> Health:
    """Return the new health with the time and number of its change from the old one."""
    if new.state is old.state:
        since_s = old.since_s if new.since_s is None else new.since_s
        return replace(new, since_s=since_s, changes=old.changes)
    since_s = wall_s if new.since_s is None else new.since_s
    return replace(new, since_s=since_s, changes=old.changes + 1)
