"""When the kubelet is sent a list again. Pure."""

from __future__ import annotations

from agent.deviceplugin.base import Listed


def due_in_s(
    sent: tuple[Listed, ...] | None,
    sent_s: float,
    devices: tuple[Listed, ...],
    now_s: float,
    list_s: float,
) -> float | None:
    """Return how long a list has to wait; 0: send it now; `None`: it says nothing new.

    The first list goes at once, and so does one in which a device's health turned or a device is
    gone, which nobody must be given any more. The kubelet writes a file for each: all else waits
    until `list_s` after the last.
    """
    if sent is None:
        return 0.0
    if devices is sent or devices == sent:
        return None
    now = {device.id: device.healthy for device in devices}
    if any(now.get(device.id) is not device.healthy for device in sent):
        return 0.0
    return max(0.0, sent_s + list_s - now_s)
