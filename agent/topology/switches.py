"""The PCIe switches above a function, and which of their ports are one chip."""

from __future__ import annotations

from agent.snapshot.pci import PciFunction, PciTree
from agent.topology.pci_config import DOWNSTREAM_PORT, ROOT_PORT, UPSTREAM_PORT

_BROADCOM = 0x1000
_GEN4 = 0xC010
_GEN5 = 0xC030

# for people only: no rule uses these; ids of the PCI SIG, names of the vendors' pages
_FAMILIES = {
    (_BROADCOM, _GEN4): "Broadcom PEX88000 (Gen4)",
    (_BROADCOM, _GEN5): "Broadcom PEX89000 (Gen5)",
    (0x15B3, 0x1979): "NVIDIA ConnectX or BlueField internal",
    (0x15B3, 0x197B): "NVIDIA ConnectX or BlueField internal",
    (0x15B3, 0x197C): "NVIDIA ConnectX or BlueField internal",
}
_MAKERS = {
    0x10B5: "PLX",
    _BROADCOM: "Broadcom",
    0x11F8: "Microchip Switchtec",
    0x104C: "Texas Instruments (often emulated)",
    0x12D8: "Pericom",
    0x111D: "IDT or Renesas",
    0x1B21: "ASMedia",
}


def port_types(tree: PciTree, function: PciFunction) -> tuple[int | None, ...]:
    """Return the PCIe port type of each bridge above the function, from the root down.

    The configuration space of a bridge decides; without it the position below the last root: root
    port, then upstream and downstream ports in turn. Bridges above the last root (an Intel VMD's
    own function) have none of these types: `None`.
    """
    types: list[int | None] = [None] * function.outer_bridges
    for position, address in enumerate(function.bridges[function.outer_bridges :]):
        bridge = tree.get(address)
        if bridge is not None and bridge.port_type is not None:
            types.append(bridge.port_type)
        elif position == 0:
            types.append(ROOT_PORT)
        else:
            types.append(UPSTREAM_PORT if position % 2 else DOWNSTREAM_PORT)
    return tuple(types)


def switches_above(tree: PciTree, function: PciFunction) -> tuple[str, ...]:
    """Return the upstream ports above a function, outermost first; the last is its own switch."""
    types = port_types(tree, function)
    pairs = zip(function.bridges, types, strict=True)
    return tuple(address for address, kind in pairs if kind == UPSTREAM_PORT)


def switch_chips(tree: PciTree, switches: tuple[str, ...]) -> tuple[str, ...]:
    """Return the chips above a function: two levels of one Broadcom chip are one.

    A chip has the name of its outermost upstream port, as in NCCL.
    """
    chips: list[str] = []
    for outer, inner in zip((None, *switches), switches, strict=False):
        if outer is None or not _are_one_chip(tree.get(outer), tree.get(inner)):
            chips.append(inner)
    return tuple(chips)


def _are_one_chip(outer: PciFunction | None, inner: PciFunction | None) -> bool:
    if outer is None or inner is None or outer.vendor_id != _BROADCOM:
        return False
    if (outer.vendor_id, outer.device_id) != (inner.vendor_id, inner.device_id):
        return False
    outer_family, inner_family = _family_subsystem(outer), _family_subsystem(inner)
    if outer_family is None or inner_family is None:
        return False
    if outer.device_id == _GEN4:
        return outer_family & 0xFF00 == inner_family & 0xFF00 == 0xA000
    return (
        outer.device_id == _GEN5 and outer_family & 0xF000 == 0 and inner_family & 0xF000 == 0x1000
    )


def _family_subsystem(port: PciFunction) -> int | None:
    """Return the subsystem device id of a port whose subsystem vendor is Broadcom."""
    return port.subsystem_device_id if port.subsystem_vendor_id == _BROADCOM else None


def switch_display_name(port: PciFunction) -> str:
    """Return the name of a switch for people; its ids if the vendor is unknown."""
    vendor, device = port.vendor_id, port.device_id
    if vendor is None or device is None:
        return "unknown"
    return _FAMILIES.get((vendor, device)) or _MAKERS.get(vendor) or f"{vendor:04x}:{device:04x}"
