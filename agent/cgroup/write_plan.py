"""Plain data of cgroup writes, and the order in which the kernel accepts them. Pure.

A group's CPUs and quota must lie within its parent's on version 1 (EACCES, EBUSY, EINVAL), burst
within quota on both versions, and the kernel refuses a weight while a group is idle. If the current
and the desired values are legal, so is every prefix of a plan: an agent that is killed halfway
leaves a legal state.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from agent.cgroup import cpu
from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import BURST, IDLE, SHARES, CgroupKey, CgroupValue, ValueKind
from agent.snapshot.publications import AuditRecord, audit_reason

WriteTarget = tuple[str, str]  # cgroup and the key's name


class DesiredValue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The desired value of one file; a current value in `equivalents` is not overwritten."""

    cgroup: str  # "/kubepods/…", below the controller's mount; or a setting's directory
    key: CgroupKey
    value: CgroupValue
    equivalents: tuple[CgroupValue, ...] = ()
    owner: str  # the hook or strategy that sets it
    message: str = ""  # for the audit: `set container cpuset to 0-3`
    source: str = ""  # the field that asks for it: `NodeSLO spec.cpuBurstStrategy.policy`
    # to be restored instead of the first value that was read: that one follows from the agent's
    # own writes to the group above, or from a limit that the container does not have any more
    original: CgroupValue | None = None
    # the value that it was decided from; only that one is overwritten, none that another program
    # has written since. None: any value is overwritten
    replaces: CgroupValue | None = None
    # a higher number than before if it was decided after another program had written: so it is
    # another value, even if all else is as before that
    attempt: int = 0

    @property
    def target(self) -> WriteTarget:
        """Return the cgroup and the key."""
        return self.cgroup, self.key.name

    @property
    def key_name(self) -> str:
        """Return the name of the file in cgroup version 1."""
        return self.key.name

    def text(self, version: int) -> str:
        """Return the text of the file."""
        return self.key.text(version, self.value).strip()

    def is_met(self, current: CgroupValue) -> bool:
        """Return whether the file's value has the desired effect."""
        return self.key.is_equivalent(self.value, current) or current in self.equivalents


class CgroupWrite(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One write. `value_after` is in force afterwards; `is_last`: it is the desired value."""

    desired: DesiredValue
    file: str
    text: str
    value_after: CgroupValue
    is_last: bool
    is_widening: bool = False  # made before the writes to the groups below


class WritePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Desired values that differ from the current ones, and the ordered writes that set them."""

    desired: tuple[DesiredValue, ...] = ()
    current: Mapping[WriteTarget, CgroupValue] = {}
    steps: tuple[CgroupWrite, ...] = ()
    # values that are in force, of files that another value is restored to
    adopted: tuple[DesiredValue, ...] = ()
    compared: int = 0
    unwritten: int = 0  # they differ, but are not written now


class WriteProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is reported to people, once; the reason is CamelCase."""

    desired: DesiredValue
    reason: str
    message: str


class WriteResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a write plan."""

    written: int = 0  # files that have the desired value now
    unwritten: int = 0
    audits: tuple[AuditRecord, ...] = ()
    problems: tuple[WriteProblem, ...] = ()


def write_record(
    desired: DesiredValue, *, path: str, old: CgroupValue | None, version: int, wall_s: float
) -> AuditRecord:
    """Return the record of a write; without a message of its own it has Koordinator's."""
    new = desired.text(version)
    return AuditRecord(
        wall_s=wall_s,
        owner=desired.owner,
        reason=audit_reason(desired.owner),
        message=desired.message or f"update {path} to {new}",
        source=desired.source,
        path=path,
        key=desired.key.name,
        old="" if old is None else desired.key.text(version, old).strip(),
        new=new,
    )


def plan_writes(
    desired_values: Iterable[DesiredValue], current: Mapping[WriteTarget, CgroupValue], version: int
) -> tuple[CgroupWrite, ...]:
    """Return the ordered writes that turn the current values into the desired ones.

    Each target has one desired value. A value that is met needs no write; a target that is not in
    `current` could not be read, and is left out.
    """
    parts: dict[_Part, list[_Change]] = {part: [] for part in _Part}
    parts_by_key: dict[str, list[_Change]] = {}
    for desired in desired_values:
        old = current.get(desired.target)
        if old is None:
            continue
        part = parts_by_key.get(desired.key.name)
        if part is None:
            part = parts_by_key[desired.key.name] = parts[_part_of(desired.key)]
        part.append((desired, old))
    for part in parts.values():
        part.sort(key=_depth)
    begins, ends = _split(parts[_Part.IDLE], lambda desired, _: desired.value == 0)
    shrinking, growing = _split(
        parts[_Part.BURST], lambda desired, old: desired.key.is_looser(desired.value, old)
    )
    plan = _WriteSequence(version)
    plan.add(ends)
    plan.add_weights(parts[_Part.WEIGHT], current, {desired.cgroup for desired, _ in ends})
    plan.add(shrinking)
    narrowing = plan.widen(parts[_Part.HIERARCHICAL])
    plan.add(reversed(narrowing))
    plan.add(growing)
    plan.add(parts[_Part.DEVICE])  # the root first: it begins the control of IO
    plan.add(sorted(parts[_Part.INDEPENDENT], key=_depth, reverse=True))
    plan.add(begins)
    plan.add(parts[_Part.HOST_SETTING])
    return tuple(plan.steps)


_Change = tuple[DesiredValue, CgroupValue]  # the value to write, and the value in force before


class _Part(enum.Enum):
    """Values that are written in the same phases."""

    IDLE = "idle"
    WEIGHT = "weight"
    BURST = "burst"
    HIERARCHICAL = "hierarchical"
    DEVICE = "device"
    INDEPENDENT = "independent"
    HOST_SETTING = "host setting"


_OWN_PARTS = {IDLE.name: _Part.IDLE, SHARES.name: _Part.WEIGHT, BURST.name: _Part.BURST}


def _part_of(key: CgroupKey) -> _Part:
    if key.host_file:
        return _Part.HOST_SETTING
    if key.name in _OWN_PARTS:
        return _OWN_PARTS[key.name]
    if key.kind is ValueKind.DEVICE:
        return _Part.DEVICE
    return _Part.HIERARCHICAL if key.is_hierarchical else _Part.INDEPENDENT


def _depth(change: _Change) -> int:
    return change[0].cgroup.count("/")


def _split(
    changes: Iterable[_Change], condition: Callable[[DesiredValue, CgroupValue], bool]
) -> tuple[list[_Change], list[_Change]]:
    """Return the changes that do not meet the condition, and those that do."""
    parts: tuple[list[_Change], list[_Change]] = ([], [])
    for change in changes:
        parts[condition(*change)].append(change)
    return parts


class _WriteSequence:
    """The writes of one plan so far."""

    def __init__(self, version: int) -> None:
        self.steps: list[CgroupWrite] = []
        self._version = version
        self._files: dict[str, str] = {}  # by key

    def add(self, changes: Iterable[_Change]) -> None:
        """Add the writes of all values that are not met yet, in the order given."""
        for desired, old in changes:
            if not desired.is_met(old):
                self._write(desired, old, desired.value)

    def add_weights(
        self,
        changes: Iterable[_Change],
        current: Mapping[WriteTarget, CgroupValue],
        waking_groups: Collection[str],
    ) -> None:
        """Add weights; none of a group that stays idle, because the kernel refuses it."""
        for desired, old in changes:
            # the kernel resets the weight of a group that stops being idle
            is_idle = current.get((desired.cgroup, IDLE.name)) == 1
            if is_idle and desired.cgroup not in waking_groups:
                continue
            if is_idle or not desired.is_met(old):
                self._write(desired, old, desired.value)

    def widen(self, changes: Collection[_Change]) -> list[_Change]:
        """Add values that allow both the old and the new, parents first; return what is left.

        A group without groups below gets the desired value at once.
        """
        parents = {desired.cgroup.rpartition("/")[0] for desired, _ in changes}
        remaining: list[_Change] = []
        for desired, old in changes:
            if desired.is_met(old):
                continue
            merged = desired.key.merge(desired.value, old)
            if merged == old or (merged != desired.value and desired.cgroup not in parents):
                remaining.append((desired, old))
                continue
            self._write(desired, old, merged, is_widening=True)
            if merged != desired.value:
                remaining.append((desired, merged))
        return remaining

    def _write(
        self,
        desired: DesiredValue,
        old: CgroupValue,
        value: CgroupValue,
        *,
        is_widening: bool = False,
    ) -> None:
        if isinstance(value, Bandwidth) and isinstance(old, Bandwidth):
            raw_writes: tuple[tuple[str, str, CgroupValue], ...] = cpu.bandwidth_writes(
                self._version, old, value
            )
        else:
            key = desired.key
            file = self._files.get(key.name)
            if file is None:
                file = self._files[key.name] = key.files(self._version)[0]
            raw_writes = ((file, key.text(self._version, value), value),)
        for file, text, after in raw_writes:
            self.steps.append(
                CgroupWrite(
                    desired=desired,
                    file=file,
                    text=text,
                    value_after=after,
                    is_last=after == desired.value,
                    is_widening=is_widening,
                )
            )
