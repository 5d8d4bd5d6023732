"""One cycle without services: the snapshot for commands, and `run --once`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from agent.app.context import AppContext
from agent.app.events import EventRecorder
from agent.app.pipeline import device_info_runner
from agent.app.publishing import WRITE_DEADLINE_S, FolderPublishSink
from agent.devices.published_minors import PublishedMinorStore
from agent.objects.device import DEVICE_FILE_NAME
from agent.objects.files import read_object
from agent.objects.publishers import enabled_publishers
from agent.snapshot.node import NodeSnapshot
from agent.usage.monitor import UsageMonitor
from agent.workers.lifecycle import WorkerTiming
from agent.workers.load import is_forced, vendor_settings
from agent.workers.manager import replace_vendor
from agent.workers.query import query_vendors
from agent.workers.selection import journal_folder, session_context
from agent.workers.tape import TapeWriter


def build_usage_monitor(context: AppContext) -> UsageMonitor:
    """Return the monitor of usage; it has read nothing yet."""
    return UsageMonitor(
        context.host_source,
        context.settings,
        context.store,
        context.clock,
        context.list_pods,
        kubelet_root=context.kubelet_root,
    )


def inspect_host(
    parts: AppContext,
    *,
    samples: int = 1,
    usage: bool = False,
    tapes: Mapping[str, TapeWriter] = {},
    minors: PublishedMinorStore | None = None,
) -> NodeSnapshot:
    """Read the host, ask every vendor once, measure usage twice if wanted; return the picture.

    With `usage`, vendors are sampled twice as well, and rates span one collector interval.
    """
    settings = parts.settings
    joiner = parts.device_joiner(minors)
    parts.host_reader().read_host()
    measuring = build_usage_monitor(parts) if usage else None
    if measuring is not None:
        measuring.cycle()
    interval_s = settings.collect.interval_s
    states = asyncio.run(
        query_vendors(
            parts.vendors.values(),
            parts.host_source,
            vendor_settings(settings, parts.vendors),
            context=session_context(settings, parts.host_source),
            samples=2 if usage else samples,
            timing=WorkerTiming(
                sample_every_s=0.0 if parts.host_source.spec else interval_s,
                discover_deadline_s=settings.discovery.discover_deadline_s,
                sample_deadline_s=settings.discovery.sample_deadline_s,
            ),
            forced=[name for name, vendor in parts.vendors.items() if is_forced(settings, vendor)],
            tapes=tapes,
            clock=parts.clock,
            journals=journal_folder(settings),
        )
    )
    for state in states:
        parts.store.change(lambda snapshot, state=state: replace_vendor(snapshot, state))  # type: ignore[misc]
    joiner.update(parts.store, parts.clock.monotonic())
    if measuring is not None:
        if not parts.host_source.spec and not states:
            time.sleep(interval_s)  # no vendor's second sample has taken that long
        measuring.cycle()
        measuring.report()
        measuring.close()
    return parts.store.current


DONE, FAILED = 0, 3


def run_once(parts: AppContext, out: str, say: TextIO) -> int:
    """Read, ask, measure and publish once; say each file. Status 3 when one was not written."""
    minors = parts.published_minors(stores=True, adopts=True)
    if not minors.is_complete:
        minors.adopt(read_object(Path(out, DEVICE_FILE_NAME)))
    inspect_host(parts, usage=True, minors=minors)
    folder = FolderPublishSink(out, parts.store, parts.clock)
    failed = False
    runs = [folder.runner(publisher) for publisher in enabled_publishers(parts.settings).values()]
    if parts.settings.publish.device_info_files:
        runs.append(device_info_runner(parts.settings.publish, parts.store, parts.clock))
    for run in runs:
        run.run_once()
        run.flush(WRITE_DEADLINE_S)
        failed = failed or not run.status.success
        for publication in run.publications():
            kind = publication.desired.kind
            say.write(f"{kind}: {publication.problem or publication.where}\n")
    events = EventRecorder(parts.store, parts.clock, folder.event_output())
    events.record_changes()
    events.flush(WRITE_DEADLINE_S)
    parts.state_writer.close()
    return FAILED if failed else DONE
