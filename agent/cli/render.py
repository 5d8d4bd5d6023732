"""Commands that read a host once: devices, topology, snapshot, render."""

from __future__ import annotations

import argparse
import json
import sys

from agent.allocation.cdi_files import build_cdi_files
from agent.app.allocation import read_driver_edits
from agent.app.composition import AgentInputs, alias_tables, metric_families
from agent.app.oneshot import build_host_device_reader, inspect_host
from agent.cli.context import command_inputs, report_silent_vendors
from agent.cli.output import format_document
from agent.cli.terminal import write_document
from agent.metrics.exposition import render_metrics
from agent.objects.publishers import publishers
from agent.snapshot.part import SnapshotPart
from agent.wire_formats.snapshot_json import encode_json, snapshot_json


def snapshot(arguments: argparse.Namespace) -> int:
    """Print the whole snapshot with the age of each part."""
    inputs = command_inputs(arguments)
    now = inspect_host(inputs, usage=True)
    data = snapshot_json(now, inputs.clock.monotonic())
    if arguments.output == "yaml":
        write_document(format_document(data, "yaml"))
    else:
        write_document(encode_json(data).decode())
    return 0


def render(arguments: argparse.Namespace) -> int:
    """Print exactly what `run` would publish."""
    inputs = command_inputs(arguments)
    now = inspect_host(inputs, usage=arguments.what in ("nodemetric", "metrics"))
    if arguments.what == "metrics":
        page = render_metrics(
            now,
            inputs.clock.monotonic(),
            vendor_families=metric_families(inputs.vendors),
            pods=inputs.settings.metrics.pods,
            aliases=inputs.settings.metrics.aliases,
            max_series=inputs.settings.metrics.max_series,
            alias_tables=alias_tables(inputs.vendors),
            runbook=inputs.runbook,
        )
        write_document(page.decode())
        return report_silent_vendors(now, 0)
    if arguments.what == "cdi":
        return report_silent_vendors(now, _render_cdi(inputs, arguments.output))
    publisher = publishers(inputs.settings, inputs.runbook)[arguments.what]
    rendered = publisher.render(now, inputs.clock.wall())
    for desired in rendered:
        write_document(format_document(desired.body, arguments.output))
    if not rendered:
        why = "; ".join(part.error for part in (now.cpus, now.numa, now.report) if part.error)
        reason = why or "this host does not tell what belongs in it"
        print(f"xpu-agent: no {arguments.what} would be published: {reason}", file=sys.stderr)
    return report_silent_vendors(now, 0 if rendered else 1)


def _render_cdi(inputs: AgentInputs, form: str) -> int:
    """Print the CDI files that the agent would write."""
    now = inputs.store.current
    host_devices = build_host_device_reader(inputs).read(now)
    now = inputs.store.put(host_devices=SnapshotPart(host_devices, inputs.clock.monotonic()))
    edits = read_driver_edits(inputs.settings.cdi, inputs.vendors, inputs.node_files, now)
    files = build_cdi_files(now, inputs.vendors, edits)
    for file in files.files:
        write_document(format_document(json.loads(file.text), form))
    for vendor, problem in files.problems:
        print(f"{vendor}: {problem.reason}: {problem.message}", file=sys.stderr)
    if not files.files:
        reason = "no device here needs a name of the agent"
        print(f"xpu-agent: no CDI file would be written: {reason}", file=sys.stderr)
    return 0 if files.files else 1
