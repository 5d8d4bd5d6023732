"""`xpu-agent run`: which host, which mode, then the daemon."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from agent.cli.early_stop import EarlyStop
from agent.cli.options import load_settings
from agent.config.address import Address, parse_address
from agent.config.sections import Settings
from agent.daemon.runtime import hurry
from agent.errors import AgentError, BadConfig
from agent.node.crew import enlist
from agent.node.vendors import has_devices, wanted_vendors
from agent.probe.base import DeviceVendor
from agent.recording.open import OpenedHost, open_host

if TYPE_CHECKING:
    from agent.kube.session.target import ApiTarget
    from agent.node.lock import NodeLock
    from agent.node.parts import Parts

DONE = 0
STILL = "A recording stands still: it has totals, but no rates."
# settings, or sections of them, that act on the machine, and so have no effect on a recording
FOR_A_LIVE_HOST = (
    "node.state_dir",
    "node.run_dir",
    "node.host_root",
    "discovery.hotplug",
    "nri.",
    "device_plugin.",
    "cdi.",
    "enforce.",
    "proof.",
)
CHOOSE = "Another host: make run HOST=fixtures/hosts/NAME, or --host PATH; HOST=/ is this machine."


def choose_host(
    arguments: argparse.Namespace, vendors: Mapping[str, DeviceVendor]
) -> tuple[OpenedHost, str]:
    """Return the host to show, and in words which it is and why."""
    hint = CHOOSE if arguments.standalone else ""
    if arguments.host:
        opened = open_host(arguments.host)
        if opened.spec is None:
            return opened, _notice("This machine, as asked.", hint)
        return opened, _notice(f"Recorded host {opened.source}, as asked.", STILL, hint)
    live = open_host(None)
    if not arguments.demo_host or has_devices(live.files, vendors):
        return live, _notice("This machine.", hint)
    opened = open_host(arguments.demo_host)
    reason = "because this machine has no accelerator and no RDMA device"
    return opened, _notice(f"Recorded host {opened.source}, {reason}.", STILL, hint)


def _notice(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def without_effect(opened: OpenedHost, origins: Mapping[str, str]) -> str:
    """Return a sentence with the settings that have no effect on a recorded host; empty: none."""
    keys = sorted(key for key in origins if key.startswith(FOR_A_LIVE_HOST))
    if opened.spec is None or not keys:
        return ""
    return f"Without effect on a recorded host: {', '.join(f'{k} ({origins[k]})' for k in keys)}."


def addresses(settings: Settings) -> tuple[Address, ...]:
    """Return where to listen; raise `BadConfig`."""
    metrics = settings.metrics
    found = [parse_address(metrics.listen)]
    if metrics.page_listen:
        found.append(parse_address(metrics.page_listen, "metrics.page_listen"))
    return tuple(found)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where what is published goes, and what keeps a second agent from writing there."""

    out: str
    cluster: ApiTarget | None = None
    lock: NodeLock | None = None


def in_cluster(
    settings: Settings, opened: OpenedHost, out: str, stop: EarlyStop
) -> tuple[Settings, Place | None]:
    """Find the API server and take this node's lock, waiting for it if another agent has it.

    Returns the settings with the Node's name; no place when a signal came while it waited. Raises
    `BadConfig`, `NoApiServer`, `LockError`. A recorded host is no node that others write for: what
    it needs of files is in `out`.
    """
    # imported here: a standalone agent needs none of it
    from agent.kube.session.target import where_is_api  # noqa: PLC0415 - see above
    from agent.node.identity import cluster_name  # noqa: PLC0415 - see above
    from agent.node.lock import stand_by, this_process  # noqa: PLC0415 - see above

    name = cluster_name(opened, settings)
    named = replace(settings, node=replace(settings.node, name=name))
    target = where_is_api(settings.api, os.environ)
    folder = settings.node.run_dir
    if opened.spec is not None:
        return named, Place(out=out, cluster=target)

    def say(words: str) -> None:
        print(f"xpu-agent: {words}", file=sys.stderr, flush=True)

    lock = stand_by(folder, lambda: this_process(name, time.time()), say, taken=stop.holds)
    return named, None if lock is None else Place(out=folder, cluster=target, lock=lock)


def run(arguments: argparse.Namespace) -> int:
    """Run the daemon until a signal, or with `--once` one cycle of everything."""
    if arguments.once and not arguments.standalone:
        raise BadConfig("run: --once is for files: add --standalone")
    if arguments.demo_host and not arguments.standalone:
        raise BadConfig("run: --demo-host is for show: add --standalone")
    hurry()
    if arguments.once:
        # an exception can be lost in the middle of an import
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        return _once(arguments)
    stop = EarlyStop()
    try:
        return _serve(arguments, stop)
    except AgentError:  # it is said, and was no crash
        stop.mark()
        raise


def _once(arguments: argparse.Namespace) -> int:
    from agent.daemon.once import run_once  # noqa: PLC0415 - the daemon does without

    loaded = load_settings(arguments)
    settings = loaded.settings
    vendors = wanted_vendors(settings)
    opened, notice = choose_host(arguments, vendors)
    print(_notice(notice, without_effect(opened, loaded.origins)), flush=True)
    parts = _parts(arguments, settings, opened, vendors)
    return run_once(parts, arguments.out, sys.stdout)


def _serve(arguments: argparse.Namespace, stop: EarlyStop) -> int:
    loaded = load_settings(arguments)
    settings = loaded.settings
    listen = addresses(settings)
    vendors = wanted_vendors(settings)
    opened, notice = choose_host(arguments, vendors)
    notice = _notice(notice, without_effect(opened, loaded.origins))
    place: Place | None = Place(out=arguments.out)
    if not arguments.standalone:
        settings, place = in_cluster(settings, opened, arguments.out, stop)
    if place is None:
        return DONE
    print(notice, flush=True)
    crew = enlist(vendors.values(), opened, settings)
    # what follows loads all the rest; the workers start meanwhile
    parts = _parts(arguments, settings, opened, vendors)
    from agent.daemon.options import ServeOptions  # noqa: PLC0415 - see above
    from agent.daemon.serve import serve  # noqa: PLC0415 - see above

    options = ServeOptions(
        listen=listen, out=place.out, notice=notice, cluster=place.cluster, lock=place.lock
    )
    return serve(parts, crew, options)


def _parts(
    arguments: argparse.Namespace,
    settings: Settings,
    opened: OpenedHost,
    vendors: Mapping[str, DeviceVendor],
) -> Parts:
    # imported here: the workers start meanwhile
    from agent.cli.context import pods_of  # noqa: PLC0415 - see above
    from agent.clock import SystemClock  # noqa: PLC0415 - see above
    from agent.log import configure  # noqa: PLC0415 - see above
    from agent.node.parts import build_parts  # noqa: PLC0415 - see above

    configure(settings.log.level)
    return build_parts(settings, opened, SystemClock(), pods_of(arguments), vendors)
