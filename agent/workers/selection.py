"""Chooses the vendors that get a worker on this host, and starts their processes.

It imports no event loop: the workers start while the agent loads one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from agent.config.settings import Settings
from agent.host.files import CachedHostFiles
from agent.recording.host_source import HostSource
from agent.snapshot.device import VendorDevice
from agent.snapshot.settings import HealthOverrides
from agent.snapshot.vendor import DeviceVendor, SessionContext
from agent.workers.call_journal import prepare_journal
from agent.workers.load import detect_devices, is_forced
from agent.workers.process import InProcessSpec, LaunchedProcess, WorkerSpec, launch


class SelectedVendor(msgspec.Struct, frozen=True, kw_only=True):
    """One vendor that has something here. `launched` is `None` if the system refused.

    One with `inside` reads files only, and gets no process.
    """

    spec: WorkerSpec
    sighted: tuple[VendorDevice, ...]
    health: HealthOverrides = HealthOverrides()
    launched: LaunchedProcess | None = None
    inside: InProcessSpec | None = None


def launch_workers(
    vendors: Iterable[DeviceVendor], host: HostSource, settings: Settings
) -> tuple[SelectedVendor, ...]:
    """Start one process for each vendor that has something here and is isolated.

    Call on a thread that lives as long as the agent: the kernel ends a worker with the thread
    that started it.
    """
    return tuple(
        msgspec.structs.replace(
            found, launched=None if found.inside else _launch_process(found.spec)
        )
        for found in select_vendors(vendors, host, settings)
    )


def select_vendors(
    vendors: Iterable[DeviceVendor], host: HostSource, settings: Settings
) -> Iterator[SelectedVendor]:
    """Yield the vendors that have something here, or are switched on; start nothing."""
    context = session_context(settings, host)
    files = CachedHostFiles(host.files)  # each vendor walks all PCI functions
    for vendor in vendors:
        name = vendor.description.name
        seen = detect_devices(vendor, files, settings)
        tape = host.tape(name)
        if not seen and tape is None and not is_forced(settings, vendor):
            continue
        isolated = vendor.description.is_isolated or tape is not None
        calls = isolated and host.spec is None and tape is None
        spec = WorkerSpec(
            vendor=name,
            host_spec=host.spec,
            tape=None if tape is None or isinstance(tape, bytes) else str(tape),
            settings=settings.discovery.of(vendor.description),
            context=context,
            journal=prepare_journal(journal_folder(settings), name) if calls else "",
        )
        yield SelectedVendor(
            spec=spec,
            sighted=seen,
            health=vendor.description.health,
            inside=None if isolated else _in_process_vendor(vendor, host, spec),
        )


def session_context(settings: Settings, host: HostSource) -> SessionContext:
    """Return what a session knows of its surroundings.

    A session on a recorded host has no folder for lasting state: that one is of this machine.
    """
    if host.spec is not None:
        return SessionContext(is_replay=True)
    return SessionContext(state_dir=settings.node.state_dir)


def journal_folder(settings: Settings) -> str:
    """Return the folder of the journals of calls; empty where nothing outlives the agent."""
    return settings.node.run_dir if settings.node.state_dir else ""


def _in_process_vendor(vendor: DeviceVendor, host: HostSource, spec: WorkerSpec) -> InProcessSpec:
    return InProcessSpec(
        vendor=vendor, host=host.files, settings=spec.settings, context=spec.context
    )


def _launch_process(spec: WorkerSpec) -> LaunchedProcess | None:
    try:
        return launch(spec)
    except (OSError, ValueError):  # the client tries again, and says why
        return None
