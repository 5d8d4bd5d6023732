"""A diagnosis for one host, what the host shows, and what follows for devices described."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from agent.errors import HostFileError
from agent.host.files import HostFiles, LiveRoot, text
from agent.model.device import Health, HealthState, VendorDevice
from plugins.faults.nvidia.card_state import Now
from plugins.faults.nvidia.diagnosis import Diagnosis
from plugins.faults.nvidia.xid import rules

BOOT_ID = "/proc/sys/kernel/random/boot_id"
MODULE = "/sys/module/nvidia"


def open_diagnosis(
    host: HostFiles,
    settings: Mapping[str, object],
    environment: Mapping[str, str],
    wall: Callable[[], float],
) -> Diagnosis:
    """Return the diagnosis of a host's cards, with what its state folder keeps of them.

    `environment` may hold the variables of NVIDIA's device plug-in.
    """
    boot_id = text(host, BOOT_ID) or ""

    def now() -> Now:
        return Now(wall_s=wall(), boot_id=boot_id, module=module_identity(host))

    return Diagnosis(rules(settings, environment), now, settings.get("state_dir"))


def module_identity(host: HostFiles) -> str:
    """Name the kernel module that is loaded; another one after it was loaded again."""
    if not isinstance(host, LiveRoot):
        return ""
    try:
        # the kernel gives every object in sysfs a number of its own
        return str(os.stat(host.path(MODULE)).st_ino)
    except OSError:
        return ""


def fallen_off(host: HostFiles, bus_id: str) -> bool:
    """Say whether a function's config space reads all ones: nothing is there any more.

    Only for cards that are under suspicion already; reading wakes a sleeping one.
    """
    try:
        return host.read(f"/sys/bus/pci/devices/{bus_id}/config", 2) == b"\xff\xff"
    except HostFileError:
        return False  # gone from sysfs as well, or not ours to read: the library is asked


def judged(found: Health, standing: Health | None) -> Health:
    """Return the verdict on a card: its causes first, then what no look at it can lift."""
    return found if standing is None or found.state is HealthState.FAILED else standing


def applied(device: VendorDevice, diagnosis: Diagnosis) -> VendorDevice:
    """Return the device with the verdict of its causes, on its slices as well.

    What the discovery itself has against the card stays, unless a cause is graver; what takes
    the card out of service takes its slices along.
    """
    if not device.managed:
        return device
    conditions = (
        *(c for c in device.conditions if c.type != "Degraded"),
        *diagnosis.conditions(device.key),
    )
    whole = device.health if device.health.state is HealthState.FAILED else None
    parts = tuple(
        replace(part, health=_over(whole or part.health, diagnosis.health(device.key, part.uuid)))
        for part in device.partitions
    )
    health = _over(device.health, diagnosis.health(device.key))
    return replace(device, health=health, conditions=conditions, partitions=parts)


def _over(own: Health, found: Health) -> Health:
    plain = own.state is HealthState.HEALTHY and own.certain
    return judged(found, None if plain else own)
