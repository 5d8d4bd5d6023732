"""Offers NICs and virtual functions to the kubelet, all as one resource. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from agent.snapshot.device import Device, DeviceKind, VendorDevice
from agent.snapshot.device_plugin import DeviceUnit
from agent.snapshot.inventory import Problem

_DEMONSTRATION = "fake"  # maker of devices from a file: no container can have one

# of the vendor's own device plug-in
SOCKET_PREFIXES: tuple[str, ...] = ()


class RdmaKubeletSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of `device_plugin` that concern NICs alone."""

    rdma_resource: str = "rdma/hca"


def serves_device(device: VendorDevice) -> bool:
    """Return whether the device is a NIC, of any maker."""
    return device.kind is DeviceKind.RDMA and device.vendor != _DEMONSTRATION


def kubelet_units(
    devices: Sequence[Device],
    settings: msgspec.Struct,
    problems: list[Problem],  # noqa: ARG001 - nothing can go wrong here
) -> Iterator[tuple[str, DeviceUnit]]:
    """Yield NICs by address; a NIC with virtual functions is offered as these only."""
    name = msgspec.convert(settings, RdmaKubeletSettings, from_attributes=True).rdma_resource
    for device in devices:
        info = device.info
        address = info.bus_id or info.uuid
        if not address or not info.managed or not info.resources:
            continue
        functions = [vf.bus_id for group in info.vf_groups for vf in group.vfs]
        if not functions:
            yield name, DeviceUnit(id=address, device=device, is_exclusive=False)
        for function in functions:
            yield (
                name,
                DeviceUnit(id=function, device=device, function=function, is_exclusive=False),
            )
