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
from agent.snapshot.settings import VendorSettings
from agent.snapshot.vendor import LIVE_CONTEXT, DeviceVendor, SessionContext
from agent.workers.call_journal import find_journal
from agent.workers.in_process_worker import InProcessWorker
from agent.workers.lifecycle import DEFAULT_TIMING, Worker, WorkerTiming
from agent.workers.process import InProcessSpec, WorkerSpec
from agent.workers.protocol import NOT_SUPPORTED
from agent.workers.reading_filter import ReadingFilter
from agent.workers.tape import TapeWriter
from agent.workers.worker_process import LATE, WorkerProcess

log = logging.getLogger(__name__)

CLOSE_S = 1.0
MAX_PARTIAL_INVENTORIES = 128  # answers in which a vendor reports its devices one after another


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
    within_s: float | None = None,
) -> tuple[VendorState, ...]:
    """Return the state of every vendor that has devices on this host or is forced, by name.

    All are queried at the same time: one discovery, then `samples` samples at the interval of
    `timing`. `settings` are by vendor. Answers also go to the vendor's writer in `tapes`, if there
    is one. A vendor that fails is `stalled`, with the reason and its answers until then; no process
    is left. `journals` is the folder of a running agent's journals of hung calls: these are skipped
    here as well. A vendor without an inventory after `within_s` seconds is stalled.
    """
    queries = []
    for vendor in sorted(vendors, key=lambda v: v.description.name):
        name = vendor.description.name
        vendor_settings = settings.get(name) or vendor.description.settings()
        detected_devices = vendor.detect(host.files, vendor_settings)
        if detected_devices or name in forced or host.tape(name) is not None:
            spec = WorkerSpec(
                vendor=name,
                host_spec=host.spec,
                settings=vendor_settings,
                context=context,
                events=False,
                journal=find_journal(journals, name) if host.spec is None else "",
                record=False,
            )
            in_process_spec = _in_process_spec(vendor, host, spec)
            plan = _QueryPlan(
                samples,
                timing,
                clock or SystemClock(),
                ReadingFilter(name, vendor.description.families),
                within_s,
            )
            queries.append(
                _query_vendor(
                    spec, in_process_spec, detected_devices, plan, (tapes or {}).get(name)
                )
            )
    return tuple(await asyncio.gather(*queries))


def _in_process_spec(
    vendor: DeviceVendor, host: HostSource, spec: WorkerSpec
) -> InProcessSpec | None:
    """Return the spec of a vendor without a process; `None` if it needs one, or has a tape."""
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
    filter: ReadingFilter
    within_s: float | None = None  # for all steps together; None: only each step is limited


async def _query_vendor(
    spec: WorkerSpec,
    in_process_spec: InProcessSpec | None,
    detected_devices: tuple[VendorDevice, ...],
    plan: _QueryPlan,
    tape: TapeWriter | None,
) -> VendorState:
    first = Inventory(vendor=spec.vendor, devices=detected_devices)
    state = VendorState(vendor=spec.vendor, inventory=SnapshotPart(first, plan.clock.monotonic()))
    worker: Worker | None = None
    try:
        worker = (
            InProcessWorker(in_process_spec, _ignore_events)
            if in_process_spec
            else WorkerProcess.start(spec, _ignore_events)
        )
        async with asyncio.timeout(plan.within_s):
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
    except TimeoutError:
        return late_state(state, plan.within_s or 0.0)
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


def late_state(state: VendorState, within_s: float) -> VendorState:
    """Return the state of a vendor whose time is over; its inventory may have come."""
    message = f"no answer within {within_s:g} s"
    if state.state == "ready":
        return replace(state, samples=replace(state.samples, error=message))
    inventory = replace(state.inventory, error=message)
    return replace(state, state="stalled", reason=LATE, message=message, inventory=inventory)


async def _discover(
    worker: Worker, state: VendorState, plan: _QueryPlan, tape: TapeWriter | None
) -> VendorState:
    began_s = plan.clock.monotonic()
    inventory = await worker.discover(plan.timing.discover_deadline_s)
    now_s = plan.clock.monotonic()
    if tape is not None and not inventory.partial:
        tape.write_inventory(replace(inventory, subjects=None), now_s - began_s)
    possible = plan.filter.filter_inventory(inventory)
    return replace(
        state,
        state="ready",
        inventory=SnapshotPart(possible, now_s),
        rejections=plan.filter.rejections,
    )


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
    possible = plan.filter.filter_samples(samples)
    return replace(state, samples=SnapshotPart(possible, now_s), rejections=plan.filter.rejections)


async def _close(vendor: str, worker: Worker) -> None:
    try:
        await worker.close(CLOSE_S)
    except WorkerError as error:  # it has answered; an unorderly end does not matter
        log.info("worker_not_closed", extra={"vendor": vendor, "error": str(error)})


def _ignore_events(events: tuple[DeviceEvent, ...]) -> None:
    """Ignore events."""
