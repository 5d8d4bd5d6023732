"""What one cycle, or one pod's writes, came to: plain data for logs, events and metrics."""

from __future__ import annotations

import msgspec

from agent.cgroup.writing.audit import Audit
from agent.model.grant.edits import Note


class PodNote(msgspec.Struct, frozen=True, kw_only=True):
    """An event for a pod. Equal notes are told once until they change or the pod goes."""

    uid: str
    namespace: str = ""
    name: str = ""
    note: Note


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """Something that stays wrong until it is mended; CamelCase reason, as of a Node condition."""

    reason: str
    message: str


class PodReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one pod's files. `left` counts those that are not as wanted."""

    written: int = 0
    left: int = 0
    audits: tuple[Audit, ...] = ()
    notes: tuple[PodNote, ...] = ()


class CycleReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one cycle; `pods_later` were put off to the next to keep this one short."""

    pods: int = 0
    pods_later: int = 0
    files: int = 0  # compared
    written: int = 0
    left: int = 0  # not as wanted: refused, held back, or gone
    planned: int = 0  # would be written if the mode of their hooks were on
    failed_hooks: tuple[tuple[str, str], ...] = ()  # hook and error: bugs, new ones only
    notes: tuple[PodNote, ...] = ()  # new ones only
    conditions: tuple[Condition, ...] = ()  # all that hold now
