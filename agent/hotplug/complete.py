"""What a function that came still lacks to be usable, judged from the snapshot alone."""

from __future__ import annotations

from collections.abc import Iterator

from agent.model.assemble import parent_of
from agent.model.device import DeviceKind, VendorDevice
from agent.model.snapshot import NodeSnapshot
from agent.topology.pci import PciFunction

_DISPLAY, _PROCESSING, _COPROCESSOR = 0x03, 0x12, 0x0B40
_INFINIBAND = 0x0207


def missing(snapshot: NodeSnapshot, address: str) -> tuple[str, ...]:
    """Name what a function lacks: driver, infiniband, uverbs, ports; empty if it is complete.

    A function that is of no use to us, that has left again, or that is a virtual one, which its
    owner may leave without a driver, lacks nothing.
    """
    function = snapshot.pci.value.get(address)
    if function is None or function.physfn is not None:
        return ()
    devices = [d.info for d in snapshot.devices.value.devices if parent_of(d.info) == address]
    if not devices and not _ours(function):
        return ()
    if function.driver is None:
        return ("driver",)
    if not devices and function.base_class == _INFINIBAND:
        return ("infiniband",)
    return tuple(sorted({what for device in devices for what in _lacks(device)}))


def _ours(function: PciFunction) -> bool:
    kind = function.base_class
    if kind is None:
        return False
    return kind in (_INFINIBAND, _COPROCESSOR) or kind >> 8 in (_DISPLAY, _PROCESSING)


def _lacks(device: VendorDevice) -> Iterator[str]:
    if device.kind is not DeviceKind.RDMA:
        return
    if not device.nodes:
        yield "uverbs"
    if not device.ports:
        yield "ports"
