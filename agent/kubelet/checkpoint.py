"""The CPU manager's checkpoint: which CPUs the kubelet gave to which containers for their own."""

from __future__ import annotations

import errno
import re

import msgspec

from agent.errors import HostFileError, ParseError
from agent.host.files import HostFiles
from agent.topology.text import parse_cpu_list

NAME = "cpu_manager_state"
MAX_BYTES = 4 << 20
MAX_PODS = 4096
MAX_CONTAINERS = 256  # of one pod

_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,127}")


class CpuCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What was given away; containers of a pod together."""

    policy: str | None = None
    default_cpus: frozenset[int] = frozenset()  # shared by all that have none of their own
    pod_cpus: tuple[tuple[str, frozenset[int]], ...] = ()  # by pod uid


class _File(msgspec.Struct, rename="camel"):
    policy_name: str
    default_cpu_set: str = ""
    entries: dict[str, dict[str, str]] | None = None


def read_checkpoint(files: HostFiles, root_dir: str) -> CpuCheckpoint | None:
    """Return the checkpoint below the kubelet's folder; `None` if there is none.

    Raises `HostFileError`, and `ParseError` for one that is damaged.
    """
    try:
        data = files.read(f"{root_dir}/{NAME}", MAX_BYTES + 1)
    except HostFileError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise
    return parse_checkpoint(data)


def parse_checkpoint(data: bytes) -> CpuCheckpoint:
    """Decode a checkpoint, whole or not at all: a part of it would make used CPUs look free.

    Its checksum is over the kubelet's own print of a Go struct, and is not looked at.
    """
    if len(data) > MAX_BYTES:
        raise ParseError(f"CPU manager checkpoint: more than {MAX_BYTES} bytes", "")
    try:
        found = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ParseError(f"CPU manager checkpoint: {str(error)[:120]}", "") from error
    entries = found.entries or {}
    if len(entries) > MAX_PODS or not all(map(_UID.fullmatch, entries)):
        raise ParseError("CPU manager checkpoint: entries", ", ".join(sorted(entries)[:3]))
    return CpuCheckpoint(
        policy=found.policy_name,
        default_cpus=parse_cpu_list(found.default_cpu_set),
        pod_cpus=tuple((uid, _union(uid, entries[uid])) for uid in sorted(entries)),
    )


def _union(uid: str, containers: dict[str, str]) -> frozenset[int]:
    if len(containers) > MAX_CONTAINERS:
        raise ParseError("CPU manager checkpoint: containers of", uid)
    return frozenset[int]().union(*map(parse_cpu_list, containers.values()))
