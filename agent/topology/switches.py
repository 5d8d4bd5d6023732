"""The PCIe switches above a function, and which of their ports are one chip."""

from __future__ import annotations

from agent.snapshot.pci import PciFunction, PciTree
from agent.topology.pci_config import DOWNSTREAM_PORT, ROOT_PORT, UPSTREAM_PORT

_BROADCOM = 0x1000
_GEN4 = 0xC010
_GEN5 = 0xC030

# For people only: no rule looks at these. Ids of the PCI SIG, and names of the makers' pages.
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

    What the bridge's configuration space says wins for that bridge; else the position below
    the last root counts: root port, then upstream and downstream ports in turn. Bridges above
    the last root (an Intel VMD's own function) are none of these: `None`.
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


def switch_chips(tree: PciTree, above: tuple[str, ...]) -> tuple[str, ...]:
    """Fold the switches above a function into chips: two levels of one Broadcom chip are one.

    A chip is named by its outermost upstream port, as NCCL does when it merges the same pairs.
    """
    chips: list[str] = []
    for outer, inner in zip((None, *above), above, strict=False):
        if outer is None or not _is_one_chip(tree.get(outer), tree.get(inner)):
            chips.append(inner)
    return tuple(chips)


def _is_one_chip(outer: PciFunction | None, inner: PciFunction | None) -> bool:
    if outer is None or inner is None or outer.vendor_id != _BROADCOM:
        return False
    if (outer.vendor_id, outer.device_id) != (inner.vendor_id, inner.device_id):
        return False
    above, below = _family_subsystem(outer), _family_subsystem(inner)
    if above is None or below is None:
        return False
    if outer.device_id == _GEN4:
        return above & 0xFF00 == below & 0xFF00 == 0xA000
    return outer.device_id == _GEN5 and above & 0xF000 == 0 and below & 0xF000 == 0x1000


def _family_subsystem(port: PciFunction) -> int | None:
    """Return the subsystem device of a port that Broadcom made the subsystem of, too."""
    return port.subsystem_device_id if port.subsystem_vendor_id == _BROADCOM else None


def switch_display_name(port: PciFunction) -> str:
    """Name a switch for people; ids where its maker is not known."""
    vendor, device = port.vendor_id, port.device_id
    if vendor is None or device is None:
        return "unknown"
    return _FAMILIES.get((vendor, device)) or _MAKERS.get(vendor) or f"{vendor:04x}:{device:04x}"
