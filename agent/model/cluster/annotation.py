"""Annotations are written by people and by programs of others: each is decoded as hostile input."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.errors import AgentError, ParseError
from agent.model.pod import PodView
from agent.topology.cpu import CpuSet
from agent.topology.text import parse_cpu_list

MAX_BYTES = 64 * 1024
MAX_CPUS = 8192  # no machine has more, and every pod may have its list read at each change
MAX_LIST_CHARS = 4096


class BadAnnotation(AgentError):
    """It is not used; the message says why, and never repeats its value."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """An annotation, or one member of it, that is not used."""

    path: str  # "node.koordinator.sh/reservation.reservedCPUs"
    why: str
    pod: PodView | None = None  # whose; None: the Node's

    @property
    def of(self) -> str:
        """Name the object: `Node`, or `Pod namespace/name`."""
        return "Node" if self.pod is None else f"Pod {self.pod.namespace}/{self.pod.name}"


def json_object(text: str) -> Mapping[str, object]:
    """Return the members of a JSON object; raise `BadAnnotation` for anything else."""
    if len(text) > MAX_BYTES:
        raise BadAnnotation(f"longer than {MAX_BYTES} characters")
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadAnnotation("no JSON") from error
    if not isinstance(found, dict):
        raise BadAnnotation("no JSON object")
    return found


def cpu_list(value: object) -> CpuSet:
    """Return the CPUs of a Linux list, `0-3,8`; raise `BadAnnotation` for anything else."""
    if not isinstance(value, str):
        raise BadAnnotation("no text; a list of CPUs is written as 0-3,8")
    if len(value) > MAX_LIST_CHARS:
        raise BadAnnotation(f"a list of CPUs longer than {MAX_LIST_CHARS} characters")
    if ":" in value:  # the kernel's `0-31:2/4`, which no scheduler writes and which takes long
        raise BadAnnotation("no list of CPUs such as 0-3,8")
    try:
        return parse_cpu_list(value, MAX_CPUS)
    except ParseError as error:
        raise BadAnnotation("no list of CPUs such as 0-3,8") from error
