"""One cycle without services: the snapshot for commands, and `run --once`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from agent.allocation.host_devices import HostDeviceReader
from agent.app.composition import (
    AgentInputs,
    build_device_joiner,
    build_host_reader,
    build_layout_locator,
    build_minor_store,
)
from agent.app.events import EventRecorder
from agent.app.publishing import WRITE_DEADLINE_S, FolderPublishSink, device_info_runner
from agent.devices.published_minors import PublishedMinorStore
from agent.objects.device import DEVICE_FILE_NAME
from agent.objects.files import read_object
from agent.objects.publishers import enabled_publishers
from agent.snapshot.node import NodeSnapshot
from agent.usage.monitor import UsageMonitor
from agent.usage.peak_monitor import PeakMonitor
from agent.workers.lifecycle import WorkerTiming
from agent.workers.load import is_forced, vendor_settings
from agent.workers.manager import replace_vendor
from agent.workers.query import query_vendors
from agent.workers.selection import journal_folder, session_context
from agent.workers.tape import TapeWriter


def build_usage_monitor(inputs: AgentInputs, peaks: PeakMonitor | None = None) -> UsageMonitor:
    """Return the monitor of usage; it has read nothing yet, and predicts with `peaks` only."""
    return UsageMonitor(
        inputs.host_source,
        inputs.settings,
        inputs.store,
        inputs.clock,
        pod_file=inputs.pod_file,
        locator=build_layout_locator(inputs, inputs.host_source.files),
        peaks=peaks,
        traffic={name: vendor.description.traffic for name, vendor in inputs.vendors.items()},
    )


def build_host_device_reader(inputs: AgentInputs) -> HostDeviceReader:
    """Return the reader of what the host has for containers."""
    settings = vendor_settings(inputs.settings, inputs.vendors)
    files = inputs.node_files
    locator = build_layout_locator(inputs, files)
    return HostDeviceReader(files, inputs.vendors, settings, inputs.clock, locator)


def inspect_host(
    inputs: AgentInputs,
    *,
    samples: int = 1,
    usage: bool = False,
    tapes: Mapping[str, TapeWriter] = {},
    minors: PublishedMinorStore | None = None,
    within_s: float | None = None,
) -> NodeSnapshot:
    """Read the host and ask every vendor once; return the snapshot.

    A vendor that has no inventory `within_s` seconds after the request is stalled.
    With `usage`, measure usage and sample vendors twice: rates span one collector interval.
    """
    settings = inputs.settings
    joiner = build_device_joiner(inputs, minors)
    build_host_reader(inputs).read_host()
    usage_monitor = build_usage_monitor(inputs) if usage else None
    if usage_monitor is not None:
        usage_monitor.cycle()
    interval_s = settings.collect.interval_s
    states = asyncio.run(
        query_vendors(
            inputs.vendors.values(),
            inputs.host_source,
            vendor_settings(settings, inputs.vendors),
            context=session_context(settings, inputs.host_source),
            samples=2 if usage else samples,
            timing=WorkerTiming(
                sample_every_s=0.0 if inputs.host_source.spec else interval_s,
                discover_deadline_s=settings.discovery.discover_deadline_s,
                sample_deadline_s=settings.discovery.sample_deadline_s,
            ),
            forced=[name for name, vendor in inputs.vendors.items() if is_forced(settings, vendor)],
            tapes=tapes,
            clock=inputs.clock,
            journals=journal_folder(settings),
            within_s=within_s,
        )
    )
    for state in states:
        inputs.store.change(lambda snapshot, state=state: replace_vendor(snapshot, state))  # type: ignore[misc]
    joiner.update(inputs.store, inputs.clock.monotonic())
    if usage_monitor is not None:
        if not inputs.host_source.spec and not states:
            time.sleep(interval_s)  # no vendor's second sample has taken that long
        usage_monitor.cycle()
        usage_monitor.report()
        usage_monitor.close()
    return inputs.store.current


DONE, FAILED = 0, 3  # exit statuses


def run_once(inputs: AgentInputs, out: str, output: TextIO) -> int:
    """Publish once and print each file; return `FAILED` if one was not written."""
    minors = build_minor_store(inputs, stores=True, adopts=True)
    if not minors.is_complete:
        minors.adopt(read_object(Path(out, DEVICE_FILE_NAME)))
    inspect_host(inputs, usage=True, minors=minors)
    sink = FolderPublishSink(out, inputs.store, inputs.clock)
    failed = False
    publishers = enabled_publishers(inputs.settings, inputs.runbook)
    runners = [sink.runner(publisher) for publisher in publishers.values()]
    if inputs.settings.publish.device_info_files:
        runners.append(device_info_runner(inputs.settings.publish, inputs.store, inputs.clock))
    for runner in runners:
        runner.run_once()
        runner.flush(WRITE_DEADLINE_S)
        failed = failed or not runner.status.success
        for publication in runner.publications():
            kind = publication.desired.kind
            output.write(f"{kind}: {publication.problem or publication.where}\n")
    events = EventRecorder(inputs.store, inputs.clock, sink.event_output())
    events.record_changes()
    events.flush(WRITE_DEADLINE_S)
    inputs.state_writer.close()
    return FAILED if failed else DONE
