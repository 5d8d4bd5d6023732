"""Plain data of cgroup writes, and the order in which the kernel accepts them. Pure.

A group's CPUs and quota must lie within its parent's on version 1 (EACCES, EBUSY, EINVAL), burst
within quota on both versions, and the kernel refuses a weight while a group is idle. If the current
and the desired values are legal, so is every prefix of a plan: an agent that is killed halfway
leaves a legal state.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from agent.cgroup import cpu
from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import BURST, IDLE, SHARES, CgroupKey, CgroupValue, ValueKind
from agent.snapshot.publications import AuditRecord, audit_reason

WriteTarget = tuple[str, str]  # cgroup and the key's name


class DesiredValue(msgspec.Struct, frozen=True, kw_only=True):
    """The desired value of one file; a current value in `equivalents` is not overwritten."""

    cgroup: str  # "/kubepods/…", below the controller's mount; or a setting's directory
    key: CgroupKey
    value: CgroupValue
    equivalents: tuple[CgroupValue, ...] = ()
    owner: str  # the hook or strategy that sets it
    message: str = ""  # for the audit: `set container cpuset to 0-3`
    source: str = ""  # the field that asks for it: `NodeSLO spec.cpuBurstStrategy.policy`
    # to be restored instead of the first value that is read: that one follows from the agent's
    # own writes to the group above
    original: CgroupValue | None = None

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


class CgroupWrite(msgspec.Struct, frozen=True, kw_only=True):
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
    open_values = [desired for desired in desired_values if desired.target in current]
    parts: dict[_Part, list[DesiredValue]] = {part: [] for part in _Part}
    for desired in sorted(open_values, key=_depth_order):
        parts[_part_of(desired.key)].append(desired)
    phases = _WritePhases(current, version, {_parent(desired.cgroup) for desired in open_values})
    return (
        *phases.idle(parts[_Part.IDLE], ends=True),
        *phases.weights(parts[_Part.WEIGHT]),
        *phases.bursts(parts[_Part.BURST], are_shrinking=True),
        *phases.widening(parts[_Part.HIERARCHICAL]),
        *phases.remaining(reversed(parts[_Part.HIERARCHICAL])),
        *phases.bursts(parts[_Part.BURST], are_shrinking=False),
        *phases.remaining(parts[_Part.DEVICE]),  # the root first: it begins the control of IO
        *phases.remaining(reversed(parts[_Part.INDEPENDENT])),
        *phases.idle(parts[_Part.IDLE], ends=False),
        *phases.remaining(parts[_Part.HOST_SETTING]),
    )


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


def _parent(cgroup: str) -> str:
    return cgroup.rpartition("/")[0]


def _depth_order(desired: DesiredValue) -> tuple[int, str, str]:
    return desired.cgroup.count("/"), desired.cgroup, desired.key.name


class _WritePhases:
    """The phases of one plan; `now` has the values after the writes so far."""

    def __init__(
        self, current: Mapping[WriteTarget, CgroupValue], version: int, parents: Collection[str]
    ) -> None:
        self.current = current
        self.version = version
        self.parents = parents  # of groups that are also written
        self.now = dict(current)

    def idle(self, desired_values: Iterable[DesiredValue], *, ends: bool) -> Iterator[CgroupWrite]:
        """Yield the writes that end idle, which come first, or begin it, which come last."""
        for desired in desired_values:
            if (desired.value == 0) is ends:
                yield from self._write_if_needed(desired)

    def weights(self, desired_values: Iterable[DesiredValue]) -> Iterator[CgroupWrite]:
        """Yield weights; none of a group that stays idle, because the kernel refuses it."""
        for desired in desired_values:
            if self.now.get((desired.cgroup, IDLE.name)) == 1:
                continue
            # the kernel resets the weight of a group that stops being idle
            is_reset = self.current.get((desired.cgroup, IDLE.name)) == 1
            if is_reset or not desired.is_met(self.current[desired.target]):
                yield from self._writes_to(desired, desired.value)

    def bursts(
        self, desired_values: Iterable[DesiredValue], *, are_shrinking: bool
    ) -> Iterator[CgroupWrite]:
        """Yield bursts that shrink, which precede quotas, or that grow, which follow them."""
        for desired in desired_values:
            if desired.key.is_looser(desired.value, self.now[desired.target]) != are_shrinking:
                yield from self._write_if_needed(desired)

    def widening(self, desired_values: Iterable[DesiredValue]) -> Iterator[CgroupWrite]:
        """Yield values that allow both the old and the new, parents first.

        A group without groups below gets the desired value at once.
        """
        for desired in desired_values:
            old = self.now[desired.target]
            if desired.is_met(old) or not desired.key.is_looser(desired.value, old):
                continue
            merged = desired.key.merge(desired.value, old)
            if merged == desired.value or desired.cgroup in self.parents:
                yield from self._writes_to(desired, merged, widens=True)

    def remaining(self, desired_values: Iterable[DesiredValue]) -> Iterator[CgroupWrite]:
        """Yield the writes of all values that are not met yet, in the order given."""
        for desired in desired_values:
            yield from self._write_if_needed(desired)

    def _write_if_needed(self, desired: DesiredValue) -> Iterator[CgroupWrite]:
        if not desired.is_met(self.now[desired.target]):
            yield from self._writes_to(desired, desired.value)

    def _writes_to(
        self, desired: DesiredValue, value: CgroupValue, *, widens: bool = False
    ) -> Iterator[CgroupWrite]:
        old, self.now[desired.target] = self.now[desired.target], value
        if isinstance(value, Bandwidth) and isinstance(old, Bandwidth):
            raw_writes: tuple[tuple[str, str, CgroupValue], ...] = cpu.bandwidth_writes(
                self.version, old, value
            )
        else:
            file = desired.key.files(self.version)[0]
            raw_writes = ((file, desired.key.text(self.version, value), value),)
        for file, text, after in raw_writes:
            is_last = after == desired.value
            yield CgroupWrite(
                desired=desired,
                file=file,
                text=text,
                value_after=after,
                is_last=is_last,
                is_widening=widens,
            )
