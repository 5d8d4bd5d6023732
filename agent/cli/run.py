"""`xpu-agent run`: chooses host and mode, starts the agent, handles signals during the start.

It starts the vendors' workers before it imports the agent itself: they load their libraries
meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from agent.app.identity import cluster_name
from agent.app.lock import NodeLock, describe_process, stop_signals, wait_for_lock
from agent.cli.options import command_settings_with_origins, pod_list_file
from agent.cli.parser import ExitStatus
from agent.clock import SystemClock
from agent.config.address import ListenAddress, parse_listen_address
from agent.config.settings import Settings
from agent.errors import AgentError, BadConfig
from agent.kube.endpoint import ApiTarget, find_api_target
from agent.log import configure_logging
from agent.recording.host_source import HostSource, open_host
from agent.snapshot.vendor import DeviceVendor
from agent.workers.load import any_vendor_has_devices, load_enabled_vendors
from agent.workers.selection import launch_workers

if TYPE_CHECKING:
    from agent.app.composition import AgentInputs


STATIC_RECORDING = "A recording stands still: it has totals, but no rates."

# settings, or sections of them, that act on the machine, and so have no effect on a recording
LIVE_HOST_SETTINGS = (
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

HOST_HINT = (
    "Another host: make run HOST=fixtures/hosts/NAME, or --host PATH; HOST=/ is this machine."
)


def choose_host(
    arguments: argparse.Namespace, vendors: Mapping[str, DeviceVendor], settings: Settings
) -> tuple[HostSource, str]:
    """Return the host to show, and in words which it is and why."""
    hint = HOST_HINT if arguments.standalone else ""
    if arguments.host:
        opened = open_host(arguments.host)
        if opened.spec is None:
            return opened, _join_sentences("This machine, as asked.", hint)
        return opened, _join_sentences(
            f"Recorded host {opened.source}, as asked.", STATIC_RECORDING, hint
        )
    live = open_host(None)
    if not arguments.demo_host or any_vendor_has_devices(live.files, vendors, settings):
        return live, _join_sentences("This machine.", hint)
    opened = open_host(arguments.demo_host)
    reason = "because this machine has no accelerator and no RDMA device"
    return opened, _join_sentences(
        f"Recorded host {opened.source}, {reason}.", STATIC_RECORDING, hint
    )


def _join_sentences(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def unused_settings_notice(opened: HostSource, origins: Mapping[str, str]) -> str:
    """Return a sentence with the settings that have no effect on a recorded host; empty: none."""
    keys = sorted(key for key in origins if key.startswith(LIVE_HOST_SETTINGS))
    if opened.spec is None or not keys:
        return ""
    return f"Without effect on a recorded host: {', '.join(f'{k} ({origins[k]})' for k in keys)}."


def listen_addresses(settings: Settings) -> tuple[ListenAddress, ...]:
    """Return where to listen; raise `BadConfig`."""
    metrics = settings.metrics
    addresses = [parse_listen_address(metrics.listen)]
    if metrics.page_listen:
        addresses.append(parse_listen_address(metrics.page_listen, "metrics.page_listen"))
    return tuple(addresses)


class OutputLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where what is published goes, and what keeps a second agent from writing there."""

    out: str
    cluster: ApiTarget | None = None
    lock: NodeLock | None = None


def join_cluster(
    settings: Settings, opened: HostSource, out: str, stop: StartupSignals
) -> tuple[Settings, OutputLocation | None]:
    """Find the API server and take this node's lock, waiting for it if another agent has it.

    Returns the settings with the Node's name; no place when a signal came while it waited. Raises
    `BadConfig`, `NoApiServer`, `LockError`. A recorded host is no node that others write for: what
    it needs of files is in `out`.
    """
    name = cluster_name(opened, settings)
    named = replace(settings, node=replace(settings.node, name=name))
    target = find_api_target(settings.api, os.environ)
    folder = settings.node.run_dir
    if opened.spec is not None:
        return named, OutputLocation(out=out, cluster=target)

    def say(words: str) -> None:
        print(f"xpu-agent: {words}", file=sys.stderr, flush=True)

    lock = wait_for_lock(
        folder, lambda: describe_process(name, time.time()), say, taken=stop.set_lock
    )
    return named, None if lock is None else OutputLocation(out=folder, cluster=target, lock=lock)


def run(arguments: argparse.Namespace) -> int:
    """Run the agent until a signal, or with `--once` for one cycle."""
    if arguments.once and not arguments.standalone:
        raise BadConfig("run: --once is for files: add --standalone")
    if arguments.demo_host and not arguments.standalone:
        raise BadConfig("run: --demo-host is for show: add --standalone")
    gc.disable()  # until `tune_interpreter`: a start leaves no garbage, and a search costs a tenth
    if arguments.once:
        # an exception can be lost in the middle of an import
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        return _once(arguments)
    stop = StartupSignals()
    try:
        return _serve(arguments, stop)
    except AgentError:  # `main` prints it: this is no crash
        stop.mark_clean_exit()
        raise


def _once(arguments: argparse.Namespace) -> int:
    from agent.app.oneshot import run_once  # noqa: PLC0415 - a run that serves does without

    loaded = command_settings_with_origins(arguments)
    settings = loaded.settings
    vendors = load_enabled_vendors(settings)
    opened, notice = choose_host(arguments, vendors, settings)
    print(_join_sentences(notice, unused_settings_notice(opened, loaded.origins)), flush=True)
    context = _create_inputs(arguments, settings, opened, vendors)
    return run_once(context, arguments.out, sys.stdout)


def _serve(arguments: argparse.Namespace, stop: StartupSignals) -> int:
    loaded = command_settings_with_origins(arguments)
    settings = loaded.settings
    listen = listen_addresses(settings)
    vendors = load_enabled_vendors(settings)
    opened, notice = choose_host(arguments, vendors, settings)
    notice = _join_sentences(notice, unused_settings_notice(opened, loaded.origins))
    place: OutputLocation | None = OutputLocation(out=arguments.out)
    if not arguments.standalone:
        settings, place = join_cluster(settings, opened, arguments.out, stop)
    if place is None:
        return ExitStatus.OK
    print(notice, flush=True)
    workers = launch_workers(vendors.values(), opened, settings)
    from agent.app.application import run_application  # noqa: PLC0415 - the workers start first
    from agent.app.composition import ServeOptions  # noqa: PLC0415 - as above

    context = _create_inputs(arguments, settings, opened, vendors)
    options = ServeOptions(
        listen=listen, out=place.out, notice=notice, cluster=place.cluster, lock=place.lock
    )
    return run_application(context, workers, options)


def _create_inputs(
    arguments: argparse.Namespace,
    settings: Settings,
    opened: HostSource,
    vendors: Mapping[str, DeviceVendor],
) -> AgentInputs:
    from agent.app.composition import create_inputs  # noqa: PLC0415 - the workers start first

    configure_logging(settings.log.level)
    return create_inputs(settings, opened, SystemClock(), pod_list_file(arguments), vendors)


class StartupSignals:
    """Ends this process with status 0 at a signal of `STOP`, until the daemon handles them.

    In process 1 of a container, a signal that nobody handles would not be noticed at all.
    """

    def __init__(self) -> None:
        """Handle them from now on."""
        self._lock: NodeLock | None = None
        for number in stop_signals():
            signal.signal(number, self._exit)

    def set_lock(self, lock: NodeLock) -> None:
        """Take the lock that is marked from now on."""
        self._lock = lock

    def mark_clean_exit(self) -> None:
        """Have whoever takes the lock next know that this end was no crash."""
        if self._lock is not None:
            with contextlib.suppress(AgentError):  # it is told of a crash that was none
                self._lock.mark_leaving()

    def _exit(self, _: int, __: FrameType | None) -> None:
        self.mark_clean_exit()
        os._exit(ExitStatus.OK)  # an exception can be lost in the middle of an import
