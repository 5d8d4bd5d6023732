"""Which devices of the joined view are whose."""

from __future__ import annotations

from collections.abc import Mapping

from agent.model.device import VendorDevice
from agent.model.snapshot import NodeSnapshot


def devices_by_vendor(snapshot: NodeSnapshot) -> Mapping[str, tuple[VendorDevice, ...]]:
    """Return the devices of each vendor by its plug-in's name, as the joined view has them.

    The plug-in's name is not the maker's: NVIDIA's NICs are those of `rdma`.
    """
    owners: dict[tuple[str, str], str] = {}
    for state in snapshot.vendors:
        for info in state.inventory.value.devices if state.inventory.value else ():
            owners.setdefault((info.kind.value, info.key), state.vendor)
    found: dict[str, list[VendorDevice]] = {}
    for device in snapshot.devices.value.devices:
        owner = owners.get((device.info.kind.value, device.key))
        if owner is not None:
            found.setdefault(owner, []).append(device.info)
    return {name: tuple(devices) for name, devices in found.items()}
