"""Cards and MIM instances as kubelet resources, named as in Cambricon's device plug-in. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from agent.snapshot.device import Device, DeviceKind, DevicePartition, VendorDevice
from agent.snapshot.device_plugin import DeviceUnit
from agent.snapshot.inventory import Problem
from plugins.shared.resources import slice_resource_name

RESOURCE = "cambricon.com/mlu"

MIM_MODE_REASON = "MIMMode"  # the card is out of service, and its instances are in service

# socket of the vendor's own device plug-in
SOCKET_PREFIXES: tuple[str, ...] = ("cambricon",)


def serves_device(device: VendorDevice) -> bool:
    """Return whether the device is a Cambricon card."""
    return device.vendor == "cambricon" and device.kind is DeviceKind.MLU


def kubelet_units(
    devices: Sequence[Device],
    settings: msgspec.Struct,  # noqa: ARG001 - no key concerns these cards
    problems: list[Problem],
) -> Iterator[tuple[str, DeviceUnit]]:
    """Yield whole cards, and instances of cards in MIM mode."""
    for device in devices:
        info = device.info
        if not info.uuid or not info.managed:
            continue
        if info.health.reason == MIM_MODE_REASON:
            for part in info.partitions:
                name = _mim_resource_name(device, part, problems)
                if name:
                    yield (
                        name,
                        DeviceUnit(
                            id=part.uuid, device=device, partition=part, serves_without_card=True
                        ),
                    )
        elif info.resources and not info.partitions:
            yield RESOURCE, DeviceUnit(id=info.uuid, device=device)


def _mim_resource_name(
    device: Device, part: DevicePartition, problems: list[Problem]
) -> str | None:
    name = slice_resource_name(part.profile.replace("+", "-"), f"{RESOURCE}.mim-")
    if name is None:
        text = f"{device.key}: profile {part.profile[:63]!r} makes no resource name"
        problems.append(Problem(reason="BadResourceName", message=text))
    return name
