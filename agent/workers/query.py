"""Queries all vendors once, for commands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from agent.clock import Clock, SystemClock
from agent.errors import WorkerError
from agent.recording.host_source import HostSource
from agent.snapshot.device import VendorDevice
from agent.snapshot.inventory import DeviceEvent, Inventory
from agent.snapshot.node import VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.vendor import LIVE_CONTEXT, DeviceVendor, SessionContext, VendorSettings
from agent.workers.call_journal import find_journal
from agent.workers.in_process_worker import InProcessWorker
from agent.workers.lifecycle import DEFAULT_TIMING, Worker, WorkerTiming
from agent.workers.process import InProcessSpec, WorkerSpec
from agent.workers.protocol import NOT_SUPPORTED
from agent.workers.tape import TapeWriter
from agent.workers.worker_process import WorkerProcess

log = logging.getLogger(__name__)

CLOSE_S = 1.0
MAX_PARTIAL_INVENTORIES = 128  # answers in which a vendor tells of its devices, as they come


async def query_vendors(  # noqa: PLR0913 - all but three are keywords that most callers leave out
    vendors: Iterable[DeviceVendor],
    host: HostSource,
    settings: Mapping[str, VendorSettings],
    *,
    context: SessionContext = LIVE_CONTEXT,
    samples: int = 1,
    timing: WorkerTiming = DEFAULT_TIMING,
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
    plan = _QueryPlan(samples, timing, clock or SystemClock())
    asked = []
    for vendor in sorted(vendors, key=lambda v: v.description.name):
        name = vendor.description.name
        own = settings.get(name) or vendor.description.settings()
        sighted = vendor.detect(host.files, own)
        if sighted or name in forced or host.tape(name) is not None:
            spec = WorkerSpec(
                vendor=name,
                host_spec=host.spec,
                settings=own,
                context=context,
                events=False,
                journal=find_journal(journals, name) if host.spec is None else "",
                record=False,
            )
            inside = _in_process_spec(vendor, host, spec)
            asked.append(_query_vendor(spec, inside, sighted, plan, (tapes or {}).get(name)))
    return tuple(await asyncio.gather(*asked))


def _in_process_spec(
    vendor: DeviceVendor, host: HostSource, spec: WorkerSpec
) -> InProcessSpec | None:
    """Return how to open a vendor without a process; `None` if it needs one, or has a tape."""
    if vendor.description.is_isolated or host.tape(vendor.description.name) is not None:
        return None
    context = spec.context if host.spec is None else SessionContext(is_replay=True)
    return InProcessSpec(
        vendor=vendor, host=host.files, settings=spec.settings, context=context, events=False
    )


class _QueryPlan(msgspec.Struct, frozen=True):
    samples: int
    timing: WorkerTiming
    clock: Clock


async def _query_vendor(
    spec: WorkerSpec,
    inside: InProcessSpec | None,
    sighted: tuple[VendorDevice, ...],
    plan: _QueryPlan,
    tape: TapeWriter | None,
) -> VendorState:
    first = Inventory(vendor=spec.vendor, devices=sighted)
    state = VendorState(vendor=spec.vendor, inventory=SnapshotPart(first, plan.clock.monotonic()))
    worker: Worker | None = None
    try:
        worker = (
            InProcessWorker(inside, _ignore_events)
            if inside
            else WorkerProcess.start(spec, _ignore_events)
        )
        await worker.wait_open(plan.timing.open_deadline_s)
        for _ in range(MAX_PARTIAL_INVENTORIES):
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
    worker: Worker, state: VendorState, plan: _QueryPlan, tape: TapeWriter | None
) -> VendorState:
    began_s = plan.clock.monotonic()
    inventory = await worker.discover(plan.timing.discover_deadline_s)
    now_s = plan.clock.monotonic()
    if tape is not None and not inventory.partial:
        tape.write_inventory(replace(inventory, subjects=None), now_s - began_s)
    return replace(state, state="ready", inventory=SnapshotPart(inventory, now_s))


async def _sample(
    worker: Worker, state: VendorState, plan: _QueryPlan, tape: TapeWriter | None
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
        tape.write_samples(samples, now_s - began_s)
    return replace(state, samples=SnapshotPart(samples, now_s))


async def _close(vendor: str, worker: Worker) -> None:
    try:
        await worker.close(CLOSE_S)
    except WorkerError as error:  # it has answered; how it ends is its own affair
        log.info("worker_not_closed", extra={"vendor": vendor, "error": str(error)})


def _ignore_events(events: tuple[DeviceEvent, ...]) -> None:
    """Take events that nobody asked for."""
