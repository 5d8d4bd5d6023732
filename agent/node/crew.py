"""Which vendors get a worker on this host, and their first processes, started at once.

Imports no event loop: the workers start while the agent loads one, and everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from agent.config.sections import Settings
from agent.model.device import VendorDevice
from agent.node.vendors import forced, vendor_settings
from agent.probe.base import DeviceVendor
from agent.probe.process.launch import Launched, launch
from agent.probe.process.spec import WorkerSpec
from agent.recording.open import OpenedHost


class Enlisted(msgspec.Struct, frozen=True, kw_only=True):
    """One vendor that has something here. `launched` is `None` if the system refused."""

    spec: WorkerSpec
    sighted: tuple[VendorDevice, ...]
    launched: Launched | None = None


def enlist(
    vendors: Iterable[DeviceVendor], host: OpenedHost, settings: Settings
) -> tuple[Enlisted, ...]:
    """Start one process for each vendor that has something here, or is switched on.

    Call on a thread that lives as long as the agent: the kernel ends a worker with the thread
    that started it.
    """
    return tuple(
        msgspec.structs.replace(found, launched=_launch(found.spec))
        for found in recruits(vendors, host, settings)
    )


def recruits(
    vendors: Iterable[DeviceVendor], host: OpenedHost, settings: Settings
) -> Iterator[Enlisted]:
    """Yield the vendors that have something here, or are switched on; start nothing."""
    own = vendor_settings(settings)
    for vendor in vendors:
        seen = vendor.sighted(host.files)
        tape = host.tape(vendor.name)
        if not seen and tape is None and not forced(settings, vendor.name):
            continue
        spec = WorkerSpec(
            vendor=vendor.name,
            host_spec=host.spec,
            tape=None if tape is None or isinstance(tape, bytes) else str(tape),
            settings=own.get(vendor.name, {}),
        )
        yield Enlisted(spec=spec, sighted=seen)


def _launch(spec: WorkerSpec) -> Launched | None:
    try:
        return launch(spec)
    except (OSError, ValueError):  # the client tries again, and says why
        return None
