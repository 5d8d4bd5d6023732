"""All vendors asked once, for commands that look and leave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from agent.clock import Clock, SystemClock
from agent.errors import WorkerError
from agent.model.device import VendorDevice
from agent.model.inventory import DeviceEvent, Inventory
from agent.model.part import Part
from agent.model.snapshot import VendorState
from agent.probe.base import DeviceVendor, Inside, Settings, is_isolated, replayed
from agent.probe.call_journal import find_journal
from agent.probe.inside import InsideWorker
from agent.probe.life import TIMING, Timing, Worker
from agent.probe.process.spec import WorkerSpec
from agent.probe.process.worker_process import WorkerProcess
from agent.probe.tape import TapeWriter
from agent.probe.wire import NOT_SUPPORTED
from agent.recording.open import OpenedHost

log = logging.getLogger(__name__)

CLOSE_S = 1.0
MAX_PARTS = 128  # answers in which a vendor tells of its devices, as they come


async def survey(  # noqa: PLR0913 - all but three are keywords that most callers leave out
    vendors: Iterable[DeviceVendor],
    host: OpenedHost,
    settings: Mapping[str, Settings],
    *,
    samples: int = 1,
    timing: Timing = TIMING,
    forced: Container[str] = (),
    tapes: Mapping[str, TapeWriter] | None = None,
    clock: Clock | None = None,
    journals: str = "",
) -> tuple[VendorState, ...]:
    """Return the state of every vendor that has something on this host or is forced, by name.

    All are asked at the same time: one discovery, then `samples` samples, apart as `timing` says.
    `settings` are by vendor. Answers also go to the vendor's writer in `tapes`, if it has one.
    A vendor that fails is `stalled` with the reason and what it said until then; no process is
    left. `journals` is the folder in which a running agent notes calls that hung: they are left
    out here as well.
    """
    plan = _Plan(samples, timing, clock or SystemClock())
    asked = []
    for vendor in sorted(vendors, key=lambda v: v.name):
        sighted = vendor.sighted(host.files)
        if sighted or vendor.name in forced or host.tape(vendor.name) is not None:
            spec = WorkerSpec(
                vendor=vendor.name,
                host_spec=host.spec,
                settings=settings.get(vendor.name, {}),
                events=False,
                journal=find_journal(journals, vendor.name) if host.spec is None else "",
                record=False,
            )
            inside = _inside(vendor, host, spec)
            asked.append(_survey_one(spec, inside, sighted, plan, (tapes or {}).get(vendor.name)))
    return tuple(await asyncio.gather(*asked))


def _inside(vendor: DeviceVendor, host: OpenedHost, spec: WorkerSpec) -> Inside | None:
    """Return how to open a vendor without a process; `None` if it needs one, or has a tape."""
    if is_isolated(vendor) or host.tape(vendor.name) is not None:
        return None
    settings = spec.settings if host.spec is None else replayed(spec.settings)
    return Inside(vendor=vendor, host=host.files, settings=settings, events=False)


class _Plan(msgspec.Struct, frozen=True):
    samples: int
    timing: Timing
    clock: Clock


async def _survey_one(
    spec: WorkerSpec,
    inside: Inside | None,
    sighted: tuple[VendorDevice, ...],
    plan: _Plan,
    tape: TapeWriter | None,
) -> VendorState:
    first = Inventory(vendor=spec.vendor, devices=sighted)
    state = VendorState(vendor=spec.vendor, inventory=Part(first, plan.clock.monotonic()))
    worker: Worker | None = None
    try:
        worker = InsideWorker(inside, _ignore) if inside else WorkerProcess.start(spec, _ignore)
        await worker.opened(plan.timing.open_deadline_s)
        for _ in range(MAX_PARTS):
            state = await _discover(worker, state, plan, tape)
            if state.inventory.value is None or not state.inventory.value.partial:
                break
        for turn in range(plan.samples):
            if turn:
                await asyncio.sleep(plan.timing.sample_every_s)
            state = await _sample(worker, state, plan, tape)
        await _close(spec.vendor, worker)
    except WorkerError as error:
        return replace(
            state,
            state="stalled",
            reason=error.reason,
            message=str(error),
            inventory=replace(state.inventory, error=str(error)),
        )
    else:
        return state
    finally:
        if worker is not None:
            await worker.kill()


async def _discover(
    worker: Worker, state: VendorState, plan: _Plan, tape: TapeWriter | None
) -> VendorState:
    began_s = plan.clock.monotonic()
    inventory = await worker.discover(plan.timing.discover_deadline_s)
    now_s = plan.clock.monotonic()
    if tape is not None and not inventory.partial:
        tape.discovered(replace(inventory, subjects=None), now_s - began_s)
    return replace(state, state="ready", inventory=Part(inventory, now_s))


async def _sample(
    worker: Worker, state: VendorState, plan: _Plan, tape: TapeWriter | None
) -> VendorState:
    began_s = plan.clock.monotonic()
    try:
        samples = await worker.sample(plan.timing.sample_deadline_s)
    except WorkerError as error:
        if error.reason != NOT_SUPPORTED:
            raise
        return replace(state, samples=replace(state.samples, error=str(error)))
    now_s = plan.clock.monotonic()
    if tape is not None:
        tape.sampled(samples, now_s - began_s)
    return replace(state, samples=Part(samples, now_s))


async def _close(vendor: str, worker: Worker) -> None:
    try:
        await worker.close(CLOSE_S)
    except WorkerError as error:  # it has answered; how it ends is its own affair
        log.info("worker_not_closed", extra={"vendor": vendor, "error": str(error)})


def _ignore(events: tuple[DeviceEvent, ...]) -> None:
    """Take events that nobody asked for."""
