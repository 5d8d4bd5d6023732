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
from agent.snapshot.inventory import MetricFamily
from agent.snapshot.settings import HealthOverrides
from agent.snapshot.vendor import DeviceVendor, SessionContext
from agent.workers.call_journal import prepare_journal
from agent.workers.load import detect_devices, is_forced
from agent.workers.process import InProcessSpec, LaunchedProcess, WorkerSpec, launch


class SelectedVendor(msgspec.Struct, frozen=True, kw_only=True):
    """One vendor with devices here. `launched` is `None` if the system refused the process.

    A vendor with `in_process_spec` only reads files, and gets no process.
    """

    spec: WorkerSpec
    detected_devices: tuple[VendorDevice, ...]
    health: HealthOverrides = HealthOverrides()
    families: tuple[MetricFamily, ...] = ()  # of its samples
    launched: LaunchedProcess | None = None
    in_process_spec: InProcessSpec | None = None


def launch_workers(
    vendors: Iterable[DeviceVendor], host: HostSource, settings: Settings
) -> tuple[SelectedVendor, ...]:
    """Start one process for each isolated vendor that has devices here.

    Call it on a thread that lives as long as the agent: the kernel ends a worker with the thread
    that started it.
    """
    return tuple(
        msgspec.structs.replace(
            selected, launched=None if selected.in_process_spec else _launch_process(selected.spec)
        )
        for selected in select_vendors(vendors, host, settings)
    )


def select_vendors(
    vendors: Iterable[DeviceVendor], host: HostSource, settings: Settings
) -> Iterator[SelectedVendor]:
    """Yield the vendors that have devices here or are forced; start nothing."""
    context = session_context(settings, host)
    files = CachedHostFiles(host.files)  # each vendor reads all PCI functions
    for vendor in vendors:
        name = vendor.description.name
        detected_devices = detect_devices(vendor, files, settings)
        tape = host.tape(name)
        if not detected_devices and tape is None and not is_forced(settings, vendor):
            continue
        isolated = vendor.description.is_isolated or tape is not None
        has_journal = isolated and host.spec is None and tape is None
        spec = WorkerSpec(
            vendor=name,
            host_spec=host.spec,
            tape=None if tape is None or isinstance(tape, bytes) else str(tape),
            settings=settings.discovery.of(vendor.description),
            context=context,
            journal=prepare_journal(journal_folder(settings), name) if has_journal else "",
        )
        yield SelectedVendor(
            spec=spec,
            detected_devices=detected_devices,
            health=vendor.description.health,
            families=vendor.description.families,
            in_process_spec=None if isolated else _in_process_vendor(vendor, host, spec),
        )


def session_context(settings: Settings, host: HostSource) -> SessionContext:
    """Return the context of a session on this host.

    A session on a recorded host has no state folder: that folder belongs to this machine.
    """
    if host.spec is not None:
        return SessionContext(is_replay=True)
    return SessionContext(state_dir=settings.node.state_dir)


def journal_folder(settings: Settings) -> str:
    """Return the folder of the call journals; empty if nothing outlives the agent."""
    return settings.node.run_dir if settings.node.state_dir else ""


def _in_process_vendor(vendor: DeviceVendor, host: HostSource, spec: WorkerSpec) -> InProcessSpec:
    return InProcessSpec(
        vendor=vendor, host=host.files, settings=spec.settings, context=spec.context
    )


def _launch_process(spec: WorkerSpec) -> LaunchedProcess | None:
    try:
        return launch(spec)
    except (OSError, ValueError):  # the client tries again, and logs the error
        return None
