"""`xpu-agent restore`: restores original values of pod files, removes the agent's files.

With `--purge` it also removes the agent's state, so that nothing of the agent is left on the node.
With `--all-nodes` the pods of a DaemonSet do both, each on its node.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agent import durable
from agent.allocation.cdi_folder import CdiFolder
from agent.app.lock import LOCK_FILE, NRI_LOCK_FILE, describe_process, stop_signals, try_lock
from agent.app.pod_files import AUDIT_FILE, NO_AUDIT_FILE, create_ledger
from agent.cgroup.layout import CgroupLayout, LayoutLocator
from agent.cgroup.ledger import (
    LEDGER_FILE,
    MAX_LEDGER_BYTES,
    RESCTRL_HIERARCHY,
    SYSCTL_HIERARCHY,
    ChangeLedger,
    LedgerError,
)
from agent.cgroup.restore import RestoreResult, restore_all
from agent.cli.options import command_settings
from agent.clock import SystemClock
from agent.command_line import ExitStatus
from agent.config.settings import Settings
from agent.deviceplugin.kubelet_folder import KubeletFolder, plugin_folder
from agent.deviceplugin.resource_cache import FILE_NAME as RESOURCE_CACHE_FILE
from agent.devices.health_file import FILE_NAME as HEALTH_FILE
from agent.devices.published_minors import MINORS_FILE
from agent.errors import AgentError, BadConfig
from agent.host.files import LiveHostFiles
from agent.host.kernel import read_identity
from agent.kube.api import ObjectRequests
from agent.kube.endpoint import find_api_target
from agent.kube.node_restore import (
    DAEMON_SETS,
    list_unrestored_nodes,
    parse_daemon_set_name,
    start_restore,
    wait_until_restored,
)
from agent.kube.session import open_session
from agent.kubelet.pod_resources_socket import ProxySocketFile
from agent.objects.device_info_file import DeviceInfoFileSink
from agent.qos.eviction.history_file import FILE_NAME as EVICTIONS_FILE
from agent.reconcile.audit_file import OLDER_SUFFIX
from agent.usage.peak_monitor import FILE_NAME as PREDICTION_FILE
from agent.web.admin_socket import socket_path
from agent.wire_formats.json_values import JSON_ERRORS
from agent.workers.call_journal import journal_name
from agent.workers.load import vendor_descriptions

NOTHING_RECORDED = "nothing was recorded"

STATE_FILES = (
    *(LEDGER_FILE, AUDIT_FILE, MINORS_FILE, HEALTH_FILE),
    *(RESOURCE_CACHE_FILE, EVICTIONS_FILE, PREDICTION_FILE),
)
MAX_SLICE_FILE_BYTES = 1 << 20


class AgentStillRunning(AgentError):
    """An agent runs here and would write the restored values again."""


class CgroupsNotVisible(AgentError):
    """This process does not see the node's cgroups: it would take them for removed."""


def restore(arguments: argparse.Namespace) -> int:
    """Restore all values, or with --dry-run list them; status 1 if a value is not restored."""
    settings = command_settings(arguments)
    if arguments.all_nodes:
        return _restore_all_nodes(arguments, settings)
    if arguments.stay:  # from the beginning, so that no stop signal is lost
        signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
    status = _restore_this_node(arguments, settings)
    if arguments.stay and status == ExitStatus.OK:
        _wait_for_stop_signal()
    return status


def _restore_all_nodes(arguments: argparse.Namespace, settings: Settings) -> int:
    name = parse_daemon_set_name(arguments.all_nodes)
    if name is None or arguments.dry_run or arguments.force or arguments.stay:
        raise BadConfig(
            "restore: --all-nodes takes NAMESPACE/NAME of the agent's DaemonSet, and no other"
            " option than --purge and --timeout-s"
        )
    target = find_api_target(os.environ, settings.api.kubeconfig, settings.api.context)

    async def run() -> int:
        clock = SystemClock()
        session = await open_session(target, clock, os.environ)
        namespace, daemon_set_name = name
        requests = ObjectRequests(resource=DAEMON_SETS, name=daemon_set_name, namespace=namespace)
        try:
            daemon_set = await start_restore(session, requests, purge=arguments.purge)
            if await wait_until_restored(
                session, requests, clock, arguments.timeout_s, _print_line
            ):
                return ExitStatus.OK
            for node in await list_unrestored_nodes(session, namespace, daemon_set):
                _print_line(f"not restored: {node}")
        finally:
            await session.close()
        return ExitStatus.PROBLEM_FOUND

    return asyncio.run(run())


def _print_line(text: str) -> None:
    print(text, flush=True)


def _wait_for_stop_signal() -> None:
    """Keep a pod running whose node is restored: its DaemonSet would start it again."""
    sys.stdout.flush()
    signal.sigwait(stop_signals())


def _restore_this_node(arguments: argparse.Namespace, settings: Settings) -> int:
    if not settings.node.state_dir:
        text = "not set, so that no agent recorded what it found; name its settings with --config"
        raise BadConfig(f"node.state_dir: {text}")
    if arguments.dry_run:
        with tempfile.TemporaryDirectory() as folder:
            return _dry_run(settings, folder)
    lock = try_lock(settings.node.run_dir, describe_process("restore", time.time()))
    if lock is None:
        where = settings.node.run_dir
        raise AgentStillRunning(
            f"{where}: an agent holds the lock: stop it first, or it writes again"
        )
    try:
        ledger = _load_ledger(settings.node.state_dir)
        results = _undo(ledger, settings, force=arguments.force)
        _remove_files(settings)
        problems = [ledger.problem] if ledger.problem else []
        problems += [_newer_version_hint(ledger)] if ledger.newer_lines else []
        text = "\n".join(f"{ledger.path}: {problem}" for problem in problems)
        status = _print_result(results, text)
        return _purge(settings, status) if arguments.purge else status
    finally:
        with contextlib.suppress(AgentError):  # on a full disk
            lock.mark_leaving()
        lock.release()


def _remove_files(settings: Settings) -> None:
    """Remove the files that the runtime, the kubelet and koordlet read."""
    removed = [f"{settings.cdi.dir}/{name}" for name in CdiFolder(settings.cdi.dir).remove_all()]
    folder = plugin_folder(settings.kubelet.root_dir)
    KubeletFolder(folder, _ignore_change).remove_dead_sockets()
    removed += DeviceInfoFileSink(settings.publish.device_info_directory).remove()
    if settings.kubelet.pod_resources_proxy:
        removed += ProxySocketFile(settings.kubelet.pod_resources_proxy_dir).remove_dead()
    for path in removed:
        print(f"{path}: removed")


def _purge(settings: Settings, status: int) -> int:
    """Remove the state, unless it has what is needed to undo a change of the host."""
    folder = settings.node.state_dir
    if status != ExitStatus.OK:
        print(f"{folder}: stays: it has the original values that were not put back")
        return status
    if slices := _existing_slices(folder):
        print(f"{folder}: stays: slices of devices exist; end their pods, start the agent once")
        print("\n".join(slices))
        return ExitStatus.PROBLEM_FOUND
    for path in _state_paths(settings):
        if os.path.lexists(path):
            durable.remove(path)
            print(f"{path}: removed")
    for left_folder in (folder, settings.node.run_dir):
        with contextlib.suppress(OSError):  # a mount of this container, or other programs' files
            os.rmdir(left_folder)
    return status


class _SliceEntry(msgspec.Struct):
    """The part of an entry about a slice that all vendors have."""

    boot: str = ""  # a reboot removes slices


def _existing_slices(folder: str) -> list[str]:
    """Return a line for each file that lists slices of this boot, or cannot be read."""
    boot_id = read_identity(LiveHostFiles(), "", "").boot_id
    lines = []
    for vendor in vendor_descriptions():
        for path in (os.path.join(folder, name) for name in vendor.slice_files):
            try:
                data = durable.read_file(path, MAX_SLICE_FILE_BYTES)
                entries = msgspec.json.decode(data, type=list[_SliceEntry])
            except FileNotFoundError:
                continue
            except (OSError, *JSON_ERRORS) as error:
                lines.append(f"{path}: {error}")
                continue
            count = sum(entry.boot == boot_id for entry in entries)
            lines += [f"{path}: {count} slices of {vendor.name}"] if count else []
    return lines


def _state_paths(settings: Settings) -> Iterator[str]:
    """Yield the paths of all files that an agent may leave in its folders."""
    folder, run_dir = settings.node.state_dir, settings.node.run_dir
    vendors = vendor_descriptions()
    names = [name for vendor in vendors for name in (*vendor.state_files, *vendor.slice_files)]
    paths = [os.path.join(folder, name) for name in (*STATE_FILES, *names)]
    if settings.enforce.audit_file not in ("", NO_AUDIT_FILE):
        paths.append(settings.enforce.audit_file)
    for path in paths:
        yield from (path, f"{path}.bad", f"{path}{OLDER_SUFFIX}", durable.temporary_path(path))
    yield from (os.path.join(run_dir, journal_name(vendor.name)) for vendor in vendors)
    if (admin_socket := socket_path(settings.admin.socket, run_dir)) is not None:
        yield admin_socket
    # the lock is the last one: until here no agent can start
    yield from (os.path.join(run_dir, name) for name in (NRI_LOCK_FILE, LOCK_FILE))


def _ignore_change() -> None:
    """Ignore changes: the folder is read once."""


def _dry_run(settings: Settings, folder: str) -> int:
    """Read a copy of the ledger: loading the file itself repairs it, which needs the lock."""
    source = os.path.join(settings.node.state_dir, LEDGER_FILE)
    try:
        Path(folder, LEDGER_FILE).write_bytes(durable.read_file(source, MAX_LEDGER_BYTES + 1))
    except FileNotFoundError:
        pass  # nothing was recorded
    except OSError as error:
        raise LedgerError(source, error) from error
    ledger = _load_ledger(folder)
    results = _undo(ledger, settings, dry_run=True)
    for result in results:
        print(result.summary if result.state == "planned" else _remaining_line(result))
    if ledger.problem:
        print(f"{source}: damaged: what cannot be read of it cannot be put back")
    if ledger.newer_lines:
        print(f"{source}: {_newer_version_hint(ledger)}")
    if not (results or ledger.problem or ledger.newer_lines):
        print(NOTHING_RECORDED)
    remaining = [result for result in results if not (result.is_done or result.state == "planned")]
    return (
        ExitStatus.PROBLEM_FOUND
        if remaining or ledger.problem or ledger.newer_lines
        else ExitStatus.OK
    )


def _remaining_line(one: RestoreResult) -> str:
    return f"{one.summary}: {one.state}{': ' if one.detail else ''}{one.detail}"


def _newer_version_hint(ledger: ChangeLedger) -> str:
    """Return the remedy for lines that this version cannot read."""
    count = len(ledger.newer_lines)
    return f"{count} lines of a newer version stay as they are: run restore of that version"


def _load_ledger(folder: str) -> ChangeLedger:
    ledger = create_ledger(folder, read_identity(LiveHostFiles(), "", "").boot_id)
    ledger.load()
    return ledger


def _undo(
    ledger: ChangeLedger, settings: Settings, *, force: bool = False, dry_run: bool = False
) -> tuple[RestoreResult, ...]:
    root = LiveHostFiles()
    layout = _cgroup_layout(root, ledger, settings.kubelet.cgroup_root, force=force)
    return restore_all(ledger, layout, root, monotonic=time.monotonic, force=force, dry_run=dry_run)


def _cgroup_layout(
    root: LiveHostFiles, ledger: ChangeLedger, kubelet_root: str, *, force: bool
) -> CgroupLayout:
    """Return the layout; raises `CgroupsNotVisible` if the cgroups of pods are not visible."""
    layout = LayoutLocator(root, lambda: kubelet_root).refresh(time.monotonic())
    others = (SYSCTL_HIERARCHY, RESCTRL_HIERARCHY)
    of_groups = any(entry.hierarchy not in others for entry in ledger.entries.values())
    if of_groups and not force and (layout is None or layout.root is None):
        raise CgroupsNotVisible(
            "the cgroups of pods are not to be seen here: mount the node's /sys/fs/cgroup, or, if"
            " the kubelet is gone from this node, forget them with --force"
        )
    return layout or CgroupLayout(version=2, driver="", mounts=(), unified=None)


def _print_result(results: tuple[RestoreResult, ...], problem: str) -> int:
    remaining = [result for result in results if not result.is_done]
    for one in results:
        if one.state == "restored" and one.target:
            print(one.summary)
    for one in remaining:
        print(_remaining_line(one))
    counts = Counter(result.state for result in results)
    summary = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    if summary or not problem:
        print(summary or NOTHING_RECORDED)
    if problem:
        print(problem)
    return ExitStatus.PROBLEM_FOUND if remaining or problem else ExitStatus.OK
