"""`xpu-agent restore`: puts back what the agent found in files of pods, and removes its own."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

from agent.cdi.keeping import CdiFolder
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger.entry import SYSCTL
from agent.cgroup.ledger.journal import MAX_BYTES, Ledger, LedgerError
from agent.cgroup.ledger.undo import Undone, undo_all
from agent.cgroup.locate import LayoutLocator
from agent.cli.options import settings_of
from agent.config.sections import Settings
from agent.daemon.containers.keeping import LEDGER, ledger_of
from agent.deviceplugin.kubelet.folder import KubeletFolder
from agent.deviceplugin.serve.names import plugin_folder
from agent.durable import read_file
from agent.errors import AgentError, BadConfig
from agent.host.boot import read_identity
from agent.host.files import LiveRoot
from agent.node.lock import take, this_process

DONE, BAD_NEWS = 0, 1
NOTHING = "nothing was recorded"


class StillRunning(AgentError):
    """An agent runs here, and would write again what is put back."""


class CgroupsNotSeen(AgentError):
    """This process does not see the node's cgroups: what it misses would count as gone."""


def restore(arguments: argparse.Namespace) -> int:
    """Put everything back, or say what would be; status 1 if something stays as it is."""
    settings = settings_of(arguments)
    if not settings.node.state_dir:
        words = "not set, so that no agent recorded what it found; name its settings with --config"
        raise BadConfig(f"node.state_dir: {words}")
    if arguments.dry_run:
        with tempfile.TemporaryDirectory() as folder:
            return _dry(settings, folder)
    lock = take(settings.node.run_dir, this_process("restore", time.time()))
    if lock is None:
        where = settings.node.run_dir
        raise StillRunning(f"{where}: an agent holds the lock: stop it first, or it writes again")
    try:
        ledger = _ledger(settings.node.state_dir)
        found = _undo(ledger, settings, force=arguments.force)
        removed = CdiFolder(settings.cdi.dir).remove_all()
        KubeletFolder(plugin_folder(settings.kubelet.root_dir), _nobody).sweep()
    finally:
        lock.leave()
        lock.release()
    for name in removed:
        print(f"{settings.cdi.dir}/{name}: removed")
    problems = [ledger.problem] if ledger.problem else []
    problems += [_newer(ledger)] if ledger.newer else []
    return _say(found, "\n".join(f"{ledger.path}: {problem}" for problem in problems))


def _nobody() -> None:
    """Hear of no news: the folder is looked at once."""


def _dry(settings: Settings, folder: str) -> int:
    """Look at a copy: reading a ledger mends it, which is for who holds the lock."""
    source = os.path.join(settings.node.state_dir, LEDGER)
    try:
        Path(folder, LEDGER).write_bytes(read_file(source, MAX_BYTES + 1))
    except FileNotFoundError:
        pass  # nothing was recorded
    except OSError as error:
        raise LedgerError(source, error) from error
    ledger = _ledger(folder)
    found = _undo(ledger, settings, dry_run=True)
    for one in found:
        print(one.line if one.state == "planned" else _left(one))
    if ledger.problem:
        print(f"{source}: damaged: what cannot be read of it cannot be put back")
    if ledger.newer:
        print(f"{source}: {_newer(ledger)}")
    if not (found or ledger.problem or ledger.newer):
        print(NOTHING)
    left = [one for one in found if not (one.done or one.state == "planned")]
    return BAD_NEWS if left or ledger.problem or ledger.newer else DONE


def _left(one: Undone) -> str:
    return f"{one.line}: {one.state}{': ' if one.detail else ''}{one.detail}"


def _newer(ledger: Ledger) -> str:
    """Return what to do about lines that this version cannot read."""
    count = len(ledger.newer)
    return f"{count} lines of a newer version stay as they are: run restore of that version"


def _ledger(folder: str) -> Ledger:
    ledger = ledger_of(folder, read_identity(LiveRoot(), "", "").boot_id)
    ledger.load()
    return ledger


def _undo(
    ledger: Ledger, settings: Settings, *, force: bool = False, dry_run: bool = False
) -> tuple[Undone, ...]:
    root = LiveRoot()
    layout = _layout(root, ledger, settings.kubelet.cgroup_root, force=force)
    return undo_all(ledger, layout, root, monotonic=time.monotonic, force=force, dry_run=dry_run)


def _layout(root: LiveRoot, ledger: Ledger, kubelet_root: str, *, force: bool) -> CgroupLayout:
    """Return where cgroups are; raise `CgroupsNotSeen` where those of pods are not to be seen."""
    layout = LayoutLocator(root, lambda: kubelet_root).look(time.monotonic())
    of_groups = any(entry.hierarchy != SYSCTL for entry in ledger.entries.values())
    if of_groups and not force and (layout is None or layout.root is None):
        raise CgroupsNotSeen(
            "the cgroups of pods are not to be seen here: mount the node's /sys/fs/cgroup, or, if"
            " the kubelet is gone from this node, forget them with --force"
        )
    return layout or CgroupLayout(version=2, driver="", mounts=(), unified=None)


def _say(found: tuple[Undone, ...], problem: str) -> int:
    left = [one for one in found if not one.done]
    for one in found:
        if one.state == "restored" and one.target:
            print(one.line)
    for one in left:
        print(_left(one))
    counts = Counter(one.state for one in found)
    words = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    if words or not problem:
        print(words or NOTHING)
    if problem:
        print(problem)
    return BAD_NEWS if left or problem else DONE
