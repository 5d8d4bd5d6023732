"""What the agent writes: objects, events and files, and the state of each writer."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded event, with the number of its repeats."""

    time: str
    reason: str
    about: str
    message: str
    count: int = 1


Json = Mapping[str, object]

# (what the server has, what we want) -> what we write, where others write into the same field
Merge = Callable[[Json, Json], Json]


class DesiredObject(msgspec.Struct, frozen=True, kw_only=True):
    """One object as it should be. `body` is the whole object as JSON data, keys as on the wire.

    An `absent` object is removed if the agent owns it; its body has only a name.
    """

    file_name: str  # in standalone mode: device.yaml
    api_version: str
    kind: str
    name: str
    body: Json
    status_only: bool = False  # the agent writes only `status` (NodeMetric)
    is_absent: bool = False
    is_partial: bool = False  # more will be known in a moment, for which making the object may wait
    merge: Merge | None = None


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """One object as it was published last."""

    desired: DesiredObject
    where: str  # the file, or the object at the API server
    problem: str = ""  # why the last write failed


class PublisherStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of one publisher; counts are since the start of the process."""

    name: str
    success: bool = True  # of the last run
    duration_s: float | None = None  # of the last run; None: never ran
    last_success_s: float | None = None  # wall clock
    written: int = 0
    unchanged: int = 0
    failed: int = 0
    error: str = ""  # of the last run, for people


class WriterPhase(enum.Enum):
    """What an object's writer does."""

    IDLE = "idle"  # the server has the desired content
    PENDING = "pending"  # a change has to be written; after a failure, when the pause is over
    WRITING = "writing"
    IN_CONFLICT = "held"  # another writer owns some of the agent's fields; they stay its own
    ABSENT = "absent"  # the server does not have the resource: its CRD is not installed
    FORBIDDEN = "forbidden"
    REFUSED = "refused"  # the server refuses this content
    WAITING = "waiting"  # for the Node's uid, or for the creator of the object


class FieldConflict(msgspec.Struct, frozen=True, kw_only=True):
    """Another writer that owns some of the agent's fields, with other values."""

    manager: str  # its field manager
    fields: tuple[str, ...]  # .spec.devices, .metadata.labels["a/b"]
    time_s: float | None = None  # its last change, by the server's clock


class WriterState(msgspec.Struct, frozen=True, kw_only=True):
    """State of the writer of one object; counts are since the start, times Unix seconds."""

    kind: str
    name: str
    publisher: str
    uid: str = ""  # of the object; empty while none is known
    phase: WriterPhase = WriterPhase.PENDING
    error: str = ""  # why not idle, for people
    written: int = 0  # acknowledged by the server
    unchanged: int = 0  # offered contents that the server had already
    repaired: int = 0  # written again because another writer changed or removed it
    failed: int = 0  # failed calls
    last_ack_s: float | None = None  # when the server last confirmed the desired content
    ack_latency_s: float | None = None  # time of the last write, from its offer on
    pending_since_s: float | None = None  # offered and not acknowledged
    conflicts: tuple[FieldConflict, ...] = ()

    @property
    def is_behind(self) -> bool:
        """Return whether the server lacks a change that it should have by now."""
        if self.phase is WriterPhase.PENDING:
            return bool(self.error)
        return self.phase in (WriterPhase.IN_CONFLICT, WriterPhase.FORBIDDEN, WriterPhase.REFUSED)


HOOK_REASON = "runtime-hooks"  # Koordinator's term, which people search for
STRATEGY_REASONS: Mapping[str, str] = MappingProxyType(  # by strategy
    {
        "cpu_suppression": "UpdateCgroups",
        "cpu_burst": "UpdateCgroups",
        "memory_qos": "UpdateCgroups",
        "block_io": "UpdateCgroups",
        "cpu_eviction": "UpdateCgroups",
        "memory_eviction": "UpdateCgroups",
        "memory_reclaim": "UpdateCgroups",
        "kernel_settings": "UpdateSystemConfig",
        "resctrl": "UpdateResctrl",
    }
)


def audit_reason(owner: str) -> str:
    """Return Koordinator's reason for a write of this hook or strategy."""
    return STRATEGY_REASONS.get(owner, HOOK_REASON)


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the host, for the audit file and `/api/v1/audit`."""

    wall_s: float
    owner: str  # the hook or strategy
    reason: str = HOOK_REASON
    message: str = ""  # `set container cpuset to 0-3`
    source: str = ""  # the field that asks for it: `NodeSLO spec.cpuBurstStrategy.policy`
    path: str  # of the file, below the host's root
    key: str  # cgroup version 1's name
    old: str = ""
    new: str = ""
    errno: int = 0  # 0: the kernel accepted the write
    planned: bool = False  # the hook or strategy is in plan mode: nothing was written
    restore: str = ""  # restored, refused, foreign: an original value; empty: a desired one
