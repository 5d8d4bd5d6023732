"""`xpu-agent run`: chooses host and mode, starts the agent, handles signals during the start.

It starts the vendors' workers before it imports the agent itself: they load their libraries
meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
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
from agent.clock import SystemClock
from agent.command_line import ExitStatus
from agent.config.address import ListenAddress, listen_addresses
from agent.config.settings import MetricsSettings, Settings
from agent.config.sources import LoadedSettings
from agent.errors import AgentError, BadConfig
from agent.kube.endpoint import ApiTarget, find_api_target
from agent.log import configure_logging
from agent.recording.host_source import HostSource, open_host
from agent.snapshot.vendor import DeviceVendor
from agent.workers.load import any_vendor_has_devices, load_enabled_vendors
from agent.workers.selection import launch_workers

if TYPE_CHECKING:
    from agent.access.rules import AccessFiles
    from agent.app.composition import AgentInputs


# loaded while another agent holds the lock: the kubelet waits for the next one without devices
MODULES_OF_A_STANDBY = (
    *("agent.app.application", "agent.app.cluster", "agent.app.services"),
    "agent.deviceplugin.plugin",
)

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
    """Return the host to run on, and a sentence with its name and the reason."""
    hint = HOST_HINT if arguments.standalone else ""
    if arguments.host:
        host_source = open_host(arguments.host)
        if host_source.spec is None:
            return host_source, _join_sentences("This machine, as asked.", hint)
        return host_source, _join_sentences(
            f"Recorded host {host_source.source}, as asked.", STATIC_RECORDING, hint
        )
    live = open_host(None)
    if not arguments.demo_host or any_vendor_has_devices(live.files, vendors, settings):
        return live, _join_sentences("This machine.", hint)
    host_source = open_host(arguments.demo_host)
    reason = "because this machine has no accelerator and no RDMA device"
    return host_source, _join_sentences(
        f"Recorded host {host_source.source}, {reason}.", STATIC_RECORDING, hint
    )


def _join_sentences(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def unused_settings_notice(host_source: HostSource, origins: Mapping[str, str]) -> str:
    """Return a sentence with the settings that have no effect on a recorded host; else empty."""
    keys = sorted(key for key in origins if key.startswith(LIVE_HOST_SETTINGS))
    if host_source.spec is None or not keys:
        return ""
    return f"Without effect on a recorded host: {', '.join(f'{k} ({origins[k]})' for k in keys)}."


def read_access_rules(
    settings: Settings, listen: tuple[ListenAddress, ...], *, is_standalone: bool
) -> AccessFiles | None:
    """Return who may read the metrics, `None` for everybody; raises `BadConfig`."""
    metrics, default = settings.metrics, MetricsSettings()
    if (metrics.tls, metrics.auth, metrics.web_config_file) == (
        default.tls,
        default.auth,
        default.web_config_file,
    ):
        return None
    from agent.access.agent_settings import open_access  # noqa: PLC0415 - ssl, where it is used

    return open_access(metrics, listen, is_standalone=is_standalone)


class OutputLocation(msgspec.Struct, frozen=True, kw_only=True):
    """The destination of published objects, and the lock that excludes a second agent."""

    out: str
    cluster: ApiTarget | None = None
    lock: NodeLock | None = None


def join_cluster(
    settings: Settings, host_source: HostSource, out: str, stop: StartupSignals
) -> tuple[Settings, OutputLocation | None]:
    """Find the API server and wait for the lock of this node.

    Returns the settings with the Node's name; no location after a stop signal. Raises `BadConfig`,
    `NoApiServer`, `LockError`. A recorded host needs no lock, and its files are in `out`.
    """
    name = cluster_name(host_source, settings)
    named = replace(settings, node=replace(settings.node, name=name))
    target = find_api_target(os.environ, settings.api.kubeconfig, settings.api.context)
    folder = settings.node.run_dir
    if host_source.spec is not None:
        return named, OutputLocation(out=out, cluster=target)

    def report(message: str) -> None:
        for module in MODULES_OF_A_STANDBY:
            importlib.import_module(module)
        print(f"xpu-agent: {message}", file=sys.stderr, flush=True)

    lock = wait_for_lock(
        folder, lambda: describe_process(name, time.time()), report, on_lock=stop.set_lock
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
    host_source, notice = choose_host(arguments, vendors, settings)
    print(_join_sentences(notice, unused_settings_notice(host_source, loaded.origins)), flush=True)
    inputs = _create_inputs(arguments, loaded, host_source, vendors)
    return run_once(inputs, arguments.out, sys.stdout)


def _serve(arguments: argparse.Namespace, stop: StartupSignals) -> int:
    loaded = command_settings_with_origins(arguments)
    settings = loaded.settings
    listen = listen_addresses(settings.metrics)
    access = read_access_rules(settings, listen, is_standalone=arguments.standalone)
    vendors = load_enabled_vendors(settings)
    host_source, notice = choose_host(arguments, vendors, settings)
    notice = _join_sentences(notice, unused_settings_notice(host_source, loaded.origins))
    location: OutputLocation | None = OutputLocation(out=arguments.out)
    if not arguments.standalone:
        settings, location = join_cluster(settings, host_source, arguments.out, stop)
    if location is None:
        return ExitStatus.OK
    print(notice, flush=True)
    workers = launch_workers(vendors.values(), host_source, settings)
    from agent.app.application import run_application  # noqa: PLC0415 - the workers start first
    from agent.app.composition import ServeOptions  # noqa: PLC0415 - as above

    inputs = _create_inputs(
        arguments, LoadedSettings(settings, loaded.origins), host_source, vendors
    )
    options = ServeOptions(
        listen=listen,
        out=location.out,
        notice=notice,
        cluster=location.cluster,
        lock=location.lock,
        access=access,
    )
    return run_application(inputs, workers, options)


def _create_inputs(
    arguments: argparse.Namespace,
    loaded: LoadedSettings,
    host_source: HostSource,
    vendors: Mapping[str, DeviceVendor],
) -> AgentInputs:
    from agent.app.composition import create_inputs  # noqa: PLC0415 - the workers start first

    settings = loaded.settings
    configure_logging(settings.log.level)
    return create_inputs(
        settings, host_source, SystemClock(), pod_list_file(arguments), vendors, loaded.origins
    )


class StartupSignals:
    """Ends this process with status 0 at a stop signal, until the application handles them.

    In process 1 of a container, the kernel ignores signals without a handler.
    """

    def __init__(self) -> None:
        """Handle stop signals from now on."""
        self._lock: NodeLock | None = None
        for number in stop_signals():
            signal.signal(number, self._exit)

    def set_lock(self, lock: NodeLock) -> None:
        """Set the lock that is marked at the end."""
        self._lock = lock

    def mark_clean_exit(self) -> None:
        """Record in the lock file that this end is no crash."""
        if self._lock is not None:
            with contextlib.suppress(AgentError):  # then the next agent reports a crash
                self._lock.mark_leaving()

    def _exit(self, _: int, __: FrameType | None) -> None:
        self.mark_clean_exit()
        os._exit(ExitStatus.OK)  # an exception can be lost in the middle of an import
