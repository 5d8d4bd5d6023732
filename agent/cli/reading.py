"""Commands that look at a host once: devices, topology, snapshot, render."""

from __future__ import annotations

import argparse
import json
import sys

from agent.cli.context import parts_of
from agent.cli.devices_table import devices_text
from agent.cli.output import dump
from agent.cli.terminal import standard_output, write_document
from agent.model.part import Part
from agent.model.snapshot import NodeSnapshot
from agent.node.look import look
from agent.node.parts import Parts
from agent.publish.device_view import devices_json
from agent.publish.snapshot_json import dumps, snapshot_json

COULD_NOT = 3  # exit status: not all could be read


def devices(arguments: argparse.Namespace) -> int:
    """List the devices; status 1 when one of ours is out of service, or a vendor did not answer."""
    snapshot = look(parts_of(arguments), samples=0)
    found = snapshot.devices.value.devices
    if arguments.output != "table":
        write_document(dump(devices_json(snapshot.devices.value), arguments.output))
    elif found:
        print(devices_text(snapshot.devices.value, standard_output()), end="")
    else:
        print(f"{snapshot.node.source}: no accelerator and no RDMA device")
    for vendor, problem in snapshot.devices.value.problems:
        print(f"{vendor}: {problem.reason}: {problem.message}", file=sys.stderr)
    silent = [vendor for vendor in snapshot.vendors if vendor.state != "ready"]
    for state in silent:
        print(state.message, file=sys.stderr)
    bad = any(d.info.managed and not d.info.health.in_service for d in found)
    return 1 if bad or silent else 0


def topology(arguments: argparse.Namespace) -> int:
    """Print the topology as a tree, a matrix, JSON or SVG."""
    snapshot = look(parts_of(arguments), samples=0)
    _print_topology(snapshot, arguments.output)
    return _status(snapshot, 0)


def _status(snapshot: NodeSnapshot, status: int) -> int:
    """Name the vendors that did not answer; return 3 if there are any, else `status`."""
    silent = [vendor for vendor in snapshot.vendors if vendor.state != "ready"]
    for state in silent:
        text = f"vendor {state.vendor} did not answer: {state.message}"
        print(f"xpu-agent: {text}; its part is missing here", file=sys.stderr)
    return COULD_NOT if silent else status


def _print_topology(snapshot: NodeSnapshot, form: str) -> None:
    if form == "svg":
        from agent.web.svg import topology_svg  # noqa: PLC0415 - only for this form

        write_document(topology_svg(snapshot) + "\n")
        return
    from agent.cli.topology import views  # noqa: PLC0415 - not for the picture

    if form == "json":
        write_document(dump(views.topology_json(snapshot), "json"))
        return
    view = views.matrix_text if form == "matrix" else views.tree_text
    sys.stdout.write(view(snapshot, standard_output()).rstrip("\n") + "\n")


def snapshot(arguments: argparse.Namespace) -> int:
    """Print the whole snapshot with the age of each part."""
    parts = parts_of(arguments)
    now = look(parts, usage=True)
    data = snapshot_json(now, parts.clock.monotonic())
    if arguments.output == "yaml":
        write_document(dump(data, "yaml"))
    else:
        write_document(dumps(data).decode())
    return 0


def render(arguments: argparse.Namespace) -> int:
    """Print exactly what `run` would publish."""
    from agent.node.publishers import publishers  # noqa: PLC0415 - only for this command

    parts = parts_of(arguments)
    now = look(parts, usage=arguments.what in ("nodemetric", "metrics"))
    if arguments.what == "metrics":
        from agent.publish.exposition import render_metrics  # noqa: PLC0415 - only here

        page = render_metrics(
            now,
            parts.clock.monotonic(),
            vendor_families=parts.families(),
            pods=parts.settings.metrics.pods,
            aliases=parts.settings.metrics.aliases,
        )
        write_document(page.decode())
        return _status(now, 0)
    if arguments.what == "cdi":
        return _status(now, _cdi(parts, arguments.output))
    publisher = publishers(parts.settings)[arguments.what]
    found = publisher.render(now, parts.clock.wall())
    for desired in found:
        write_document(dump(desired.body, arguments.output))
    if not found:
        why = "; ".join(part.error for part in (now.cpus, now.numa, now.report) if part.error)
        told = why or "this host does not tell what belongs in it"
        print(f"xpu-agent: no {arguments.what} would be published: {told}", file=sys.stderr)
    return _status(now, 0 if found else 1)


def _cdi(parts: Parts, form: str) -> int:
    """Print the CDI files that the agent would keep, one after the other."""
    from agent.cdi.devices import wanted  # noqa: PLC0415 - only here
    from agent.cdi.driver import driver_of  # noqa: PLC0415 - only here
    from agent.daemon.containers.looking import means_reader  # noqa: PLC0415 - only here

    now = parts.store.current
    means = Part(means_reader(parts).read(now), parts.clock.monotonic())
    now = parts.store.put(means=means)
    driver = driver_of(now, parts.host()) if parts.settings.cdi.nvidia else None
    found = wanted(now, parts.vendors, driver)
    for file in found.files:
        write_document(dump(json.loads(file.text), form))
    for vendor, problem in found.problems:
        print(f"{vendor}: {problem.reason}: {problem.message}", file=sys.stderr)
    if not found.files:
        why = "no device here needs a name of ours"
        print(f"xpu-agent: no cdi file would be kept: {why}", file=sys.stderr)
    return 0 if found.files else 1
