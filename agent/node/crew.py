"""Which vendors get a worker on this host, and their first processes, started at once.

Imports no event loop: the workers start while the agent loads one, and everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from agent.config.sections import Settings
from agent.host.files import OneLook
from agent.model.device import VendorDevice
from agent.node.vendors import forced, vendor_settings
from agent.probe.base import DeviceVendor, Inside, is_isolated, replayed
from agent.probe.call_journal import prepare_journal
from agent.probe.process.launch import Launched, launch
from agent.probe.process.spec import WorkerSpec
from agent.recording.open import OpenedHost


class Enlisted(msgspec.Struct, frozen=True, kw_only=True):
    """One vendor that has something here. `launched` is `None` if the system refused.

    One with `inside` reads files only, and gets no process.
    """

    spec: WorkerSpec
    sighted: tuple[VendorDevice, ...]
    launched: Launched | None = None
    inside: Inside | None = None


def enlist(
    vendors: Iterable[DeviceVendor], host: OpenedHost, settings: Settings
) -> tuple[Enlisted, ...]:
    """Start one process for each vendor that has something here and is isolated.

    Call on a thread that lives as long as the agent: the kernel ends a worker with the thread
    that started it.
    """
    return tuple(
        msgspec.structs.replace(found, launched=None if found.inside else _launch(found.spec))
        for found in recruits(vendors, host, settings)
    )


def recruits(
    vendors: Iterable[DeviceVendor], host: OpenedHost, settings: Settings
) -> Iterator[Enlisted]:
    """Yield the vendors that have something here, or are switched on; start nothing."""
    own = vendor_settings(settings)
    files = OneLook(host.files)  # each vendor walks all PCI functions
    for vendor in vendors:
        seen = vendor.sighted(files)
        tape = host.tape(vendor.name)
        if not seen and tape is None and not forced(settings, vendor.name):
            continue
        isolated = is_isolated(vendor) or tape is not None
        calls = isolated and host.spec is None and tape is None
        spec = WorkerSpec(
            vendor=vendor.name,
            host_spec=host.spec,
            tape=None if tape is None or isinstance(tape, bytes) else str(tape),
            settings=own.get(vendor.name, {}),
            journal=prepare_journal(journal_folder(settings), vendor.name) if calls else "",
        )
        yield Enlisted(
            spec=spec, sighted=seen, inside=None if isolated else _inside(vendor, host, spec)
        )


def journal_folder(settings: Settings) -> str:
    """Return the folder of the journals of calls; empty where nothing outlives the agent."""
    return settings.node.run_dir if settings.node.state_dir else ""


def _inside(vendor: DeviceVendor, host: OpenedHost, spec: WorkerSpec) -> Inside:
    settings = spec.settings if host.spec is None else replayed(spec.settings)
    return Inside(vendor=vendor, host=host.files, settings=settings)


def _launch(spec: WorkerSpec) -> Launched | None:
    try:
        return launch(spec)
    except (OSError, ValueError):  # the client tries again, and says why
        return None
