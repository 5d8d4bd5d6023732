"""Names of devices for people: GPU0, NIC3, and what they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agent.model.device import Device, DeviceKind

_SHORT = {DeviceKind.RDMA: "NIC"}
NAME_FACT = "name"  # of an RDMA device: mlx5_0


def short_names(devices: Sequence[Device]) -> dict[str, str]:
    """Return a name for each device by its key: kind and minor, or a letter where that is taken.

    Kinds count on their own; a device without a minor is counted by its place in the order.
    """
    names: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for index, device in enumerate(devices):
        kind = device.info.kind
        number = device.info.minor
        stem = _SHORT.get(kind, kind.value.upper())
        name = f"{stem}{number}" if number is not None else f"{stem}?{index}"
        seen[name] += 1
        names[device.key] = name if seen[name] == 1 else f"{name}.{seen[name]}"
    return names


def display_name(device: Device) -> str:
    """Say what a device is: the name the system gives it, then its model."""
    info = device.info
    name = dict(info.facts).get(NAME_FACT)
    words = [word for word in (name, info.model or info.vendor) if word]
    return " ".join(words)
