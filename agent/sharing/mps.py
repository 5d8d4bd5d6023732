"""MPS daemons of this host, by their processes. Nothing is asked of them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from agent.errors import HostFileError
from agent.host.files import HostFiles
from agent.model.grant.sharing import MpsDaemon

COMMAND = b"nvidia-cuda-mps"  # the kernel cuts both names to these fifteen characters
CONTROL, SERVER = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"
DEFAULT_PIPES, DEFAULT_LOGS = "/tmp/nvidia-mps", "/var/log/nvidia-mps"  # noqa: S108 - CUDA's own
MAX_DAEMONS = 64
MAX_TEXT = 512  # characters of a folder's name
_COMM_BYTES = 32
_ARGUMENT_BYTES = 4096
_ENVIRONMENT_BYTES = 64 * 1024


class _Process(msgspec.Struct, frozen=True):
    """A process of MPS."""

    pid: int
    program: str
    parent: int | None


def read_mps(host: HostFiles) -> tuple[MpsDaemon, ...]:
    """Return the control daemons by pid, each with its servers.

    A daemon whose environment may not be read has no folders and no cards. Any process can take
    these names: what is found says what runs, not whom to trust.
    """
    found = list(_processes(host))
    servers = [process for process in found if process.program == SERVER]
    daemons = [_daemon(host, process) for process in found if process.program == CONTROL]
    return tuple(
        replace(daemon, servers=tuple(s.pid for s in servers if s.parent == daemon.pid))
        for daemon in daemons[:MAX_DAEMONS]
    )


def _processes(host: HostFiles) -> Iterator[_Process]:
    try:
        names = host.names("/proc")
    except HostFileError:
        return
    for pid in sorted(int(name) for name in names if name.isascii() and name.isdecimal()):
        if not _read(host, pid, "comm", _COMM_BYTES).startswith(COMMAND):
            continue
        program = _read(host, pid, "cmdline", _ARGUMENT_BYTES).partition(b"\0")[0]
        name = program.rpartition(b"/")[2].decode("ascii", "replace")
        yield _Process(pid, name, parent_of(_read(host, pid, "stat", _ARGUMENT_BYTES)))


def parent_of(stat: bytes) -> int | None:
    """Return the parent's pid from `stat`; the name in it may hold blanks and brackets."""
    fields = stat.rpartition(b")")[2].split()
    parent = fields[1] if len(fields) > 1 else b""
    return int(parent) if parent.isdigit() and len(parent) < 11 else None


def _daemon(host: HostFiles, process: _Process) -> MpsDaemon:
    data = _read(host, process.pid, "environ", _ENVIRONMENT_BYTES)
    if not data:
        return MpsDaemon(pid=process.pid)
    text = data.decode("utf-8", "replace")
    env = dict(pair.partition("=")[::2] for pair in text.split("\0"))
    cards = env.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return MpsDaemon(
        pid=process.pid,
        pipe_dir=env.get("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPES)[:MAX_TEXT],
        log_dir=env.get("CUDA_MPS_LOG_DIRECTORY", DEFAULT_LOGS)[:MAX_TEXT],
        cards=tuple(card.strip()[:MAX_TEXT] for card in cards[:64] if card.strip()),
    )


def _read(host: HostFiles, pid: int, name: str, limit: int) -> bytes:
    """Return a process's file; nothing if it has ended or may not be read."""
    try:
        return host.read(f"/proc/{pid}/{name}", limit)
    except HostFileError:
        return b""
