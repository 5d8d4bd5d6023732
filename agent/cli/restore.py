"""`xpu-agent restore`: restores original values of pod files, removes the agent's files.

With `--all-nodes` the pods of a DaemonSet do so, each on its node.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from agent.allocation.cdi_folder import CdiFolder
from agent.app.lock import describe_process, stop_signals, try_lock
from agent.app.pod_files import create_ledger
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
from agent.durable import read_file
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

NOTHING_RECORDED = "nothing was recorded"


class AgentStillRunning(AgentError):
    """An agent runs here and would write the restored values again."""


class CgroupsNotVisible(AgentError):
    """This process does not see the node's cgroups: it would take them for removed."""


def restore(arguments: argparse.Namespace) -> int:
    """Restore all values, or with --dry-run list them; status 1 if a value is not restored."""
    settings = command_settings(arguments)
    if arguments.all_nodes:
        return _restore_all_nodes(arguments, settings)
    status = _restore_this_node(arguments, settings)
    if arguments.stay and status == ExitStatus.OK:
        _wait_for_stop_signal()
    return status


def _restore_all_nodes(arguments: argparse.Namespace, settings: Settings) -> int:
    name = parse_daemon_set_name(arguments.all_nodes)
    if name is None or arguments.dry_run or arguments.force or arguments.stay:
        raise BadConfig(
            "restore: --all-nodes takes NAMESPACE/NAME of the agent's DaemonSet, and no other"
            " option than --timeout-s"
        )
    target = find_api_target(os.environ, settings.api.kubeconfig, settings.api.context)

    async def run() -> int:
        clock = SystemClock()
        session = await open_session(target, clock, os.environ)
        namespace, daemon_set_name = name
        requests = ObjectRequests(resource=DAEMON_SETS, name=daemon_set_name, namespace=namespace)
        try:
            daemon_set = await start_restore(session, requests)
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
    signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
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
        removed = CdiFolder(settings.cdi.dir).remove_all()
        KubeletFolder(
            plugin_folder(settings.kubelet.root_dir), _ignore_change
        ).remove_dead_sockets()
    finally:
        lock.mark_leaving()
        lock.release()
    for name in removed:
        print(f"{settings.cdi.dir}/{name}: removed")
    problems = [ledger.problem] if ledger.problem else []
    problems += [_newer_version_hint(ledger)] if ledger.newer_lines else []
    return _print_result(results, "\n".join(f"{ledger.path}: {problem}" for problem in problems))


def _ignore_change() -> None:
    """Ignore changes: the folder is read once."""


def _dry_run(settings: Settings, folder: str) -> int:
    """Read a copy of the ledger: loading the file itself repairs it, which needs the lock."""
    source = os.path.join(settings.node.state_dir, LEDGER_FILE)
    try:
        Path(folder, LEDGER_FILE).write_bytes(read_file(source, MAX_LEDGER_BYTES + 1))
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
