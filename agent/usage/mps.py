"""Finds the MPS daemons of this host among its processes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from agent.errors import HostFileError
from agent.snapshot.host_files import HostFiles
from agent.snapshot.usage import MpsDaemon
from agent.wire_formats.kernel_text import parse_digits

MPS_COMMAND = b"nvidia-cuda-mps"  # the kernel cuts both names to these fifteen characters
CONTROL_PROGRAM, SERVER_PROGRAM = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"
DEFAULT_PIPE_FOLDER, DEFAULT_LOG_FOLDER = "/tmp/nvidia-mps", "/var/log/nvidia-mps"  # noqa: S108 - CUDA's own
MAX_DAEMONS = 64
MAX_TEXT = 512  # characters of a folder's name
_COMM_BYTES = 32
_ARGUMENT_BYTES = 4096
_ENVIRONMENT_BYTES = 64 * 1024


class _MpsProcess(msgspec.Struct, frozen=True):
    """A process of MPS."""

    pid: int
    program: str
    parent: int | None


def read_mps(host: HostFiles) -> tuple[MpsDaemon, ...]:
    """Return the control daemons by pid, each with its servers.

    A daemon whose environment may not be read has no folders and no cards. Any process can take
    these names: what is found says what runs, not whom to trust.
    """
    processes = list(_find_processes(host))
    servers = [process for process in processes if process.program == SERVER_PROGRAM]
    daemons = [
        _read_daemon(host, process) for process in processes if process.program == CONTROL_PROGRAM
    ]
    return tuple(
        replace(daemon, servers=tuple(s.pid for s in servers if s.parent == daemon.pid))
        for daemon in daemons[:MAX_DAEMONS]
    )


def _find_processes(host: HostFiles) -> Iterator[_MpsProcess]:
    try:
        names = host.names("/proc")
    except HostFileError:
        return
    for pid in sorted(int(name) for name in names if name.isascii() and name.isdecimal()):
        if not _read_process_file(host, pid, "comm", _COMM_BYTES).startswith(MPS_COMMAND):
            continue
        program = _read_process_file(host, pid, "cmdline", _ARGUMENT_BYTES).partition(b"\0")[0]
        name = program.rpartition(b"/")[2].decode("ascii", "replace")
        yield _MpsProcess(
            pid, name, parse_parent_pid(_read_process_file(host, pid, "stat", _ARGUMENT_BYTES))
        )


def parse_parent_pid(stat: bytes) -> int | None:
    """Return the parent's pid from `stat`; the name in it may hold blanks and brackets."""
    fields = stat.rpartition(b")")[2].split()
    parent = fields[1] if len(fields) > 1 else b""
    return parse_digits(parent, 10)


def _read_daemon(host: HostFiles, process: _MpsProcess) -> MpsDaemon:
    data = _read_process_file(host, process.pid, "environ", _ENVIRONMENT_BYTES)
    if not data:
        return MpsDaemon(pid=process.pid)
    text = data.decode("utf-8", "replace")
    env = dict(pair.partition("=")[::2] for pair in text.split("\0"))
    cards = env.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return MpsDaemon(
        pid=process.pid,
        pipe_dir=env.get("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPE_FOLDER)[:MAX_TEXT],
        log_dir=env.get("CUDA_MPS_LOG_DIRECTORY", DEFAULT_LOG_FOLDER)[:MAX_TEXT],
        cards=tuple(card.strip()[:MAX_TEXT] for card in cards[:64] if card.strip()),
    )


def _read_process_file(host: HostFiles, pid: int, name: str, limit: int) -> bytes:
    """Return a process's file; nothing if it has ended or may not be read."""
    try:
        return host.read(f"/proc/{pid}/{name}", limit)
    except HostFileError:
        return b""
