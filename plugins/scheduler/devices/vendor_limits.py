"""The limits of annotations for vendors' own device plug-ins.

Texts are those of Koordinator's `deviceshare/device_plugin_adapter.go`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from plugins.scheduler.devices.device_table import GPU_CORE, GPU_MEMORY, Amounts


class VendorLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the plug-in of one vendor can serve. Each card needs an amount of its core."""

    unit_bytes: int  # it is given the memory of a card in whole units
    max_cards: int | None = None  # of one pod; None: any number


VENDOR_LIMITS: Mapping[str, VendorLimits] = {
    "cambricon": VendorLimits(unit_bytes=256 << 20, max_cards=1),
    "metax": VendorLimits(unit_bytes=1 << 20),
}


def vendor_refusal(vendor: str, count: int, amounts: Amounts) -> str:
    """Return why the vendor's plug-in cannot serve `count` cards with these amounts of each.

    Empty if it can, and for vendors whose annotations express everything.
    """
    limits = VENDOR_LIMITS.get(vendor)
    if limits is None:
        return ""
    if limits.max_cards is not None and count > limits.max_cards:
        return "multiple gpu share is not supported on device side"
    if GPU_CORE not in amounts:
        return "gpu core resource is required"
    if amounts.get(GPU_MEMORY, 0) < limits.unit_bytes:
        return f"gpu memory must not be less than {limits.unit_bytes} bytes"
    return ""
