"""Plain data of cgroup writes, and the order in which the kernel accepts them. Pure.

A group's CPUs and quota must lie within its parent's on version 1 (EACCES, EBUSY, EINVAL), burst
within quota on both versions, and the kernel refuses a weight while a group is idle. If the
current and the desired values are legal, so is every prefix of a plan: an agent that is killed
halfway leaves a legal state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from agent.cgroup import cpu
from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import BURST, IDLE, SHARES, CgroupKey, CgroupValue
from agent.snapshot.publications import AuditRecord

WriteTarget = tuple[str, str]  # cgroup and the key's name


class DesiredValue(msgspec.Struct, frozen=True, kw_only=True):
    """A value wanted in one cgroup; values in `also` are left alone, they mean the same."""

    cgroup: str  # "/kubepods/…", below the controller's mount
    key: CgroupKey
    value: CgroupValue
    equivalents: tuple[CgroupValue, ...] = ()
    owner: str  # the hook that wants it
    message: str = ""  # for the audit: `set container cpuset to 0-3`

    @property
    def target(self) -> WriteTarget:
        """Return what this is about."""
        return self.cgroup, self.key.name

    def is_met(self, current: CgroupValue) -> bool:
        """Say whether what the file holds is as good as what is wanted."""
        return self.key.is_equivalent(self.value, current) or current in self.equivalents


class CgroupWrite(msgspec.Struct, frozen=True, kw_only=True):
    """One write. `after` is what is in force then, `last` whether that is what was wanted."""

    desired: DesiredValue
    file: str
    text: str
    value_after: CgroupValue
    is_last: bool
    is_widening: bool = False  # made before the files of the groups below


class WritePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Wishes that are not met, as found, and the writes that would meet them, in order."""

    desired: tuple[DesiredValue, ...] = ()
    current: Mapping[WriteTarget, CgroupValue] = {}
    steps: tuple[CgroupWrite, ...] = ()
    compared: int = 0
    unwritten: int = 0  # not met, and not to be written now


class WriteProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A file that people are to be told of, once; the reason is CamelCase."""

    desired: DesiredValue
    reason: str
    message: str


class WriteResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the prepared writes."""

    written: int = 0  # files that hold now what was wanted
    unwritten: int = 0
    audits: tuple[AuditRecord, ...] = ()
    problems: tuple[WriteProblem, ...] = ()


def plan_writes(
    desired_values: Iterable[DesiredValue], current: Mapping[WriteTarget, CgroupValue], version: int
) -> tuple[CgroupWrite, ...]:
    """Return the writes, in order, that make the found values the wanted ones.

    Of each target there is one wish. One that is met needs no write; one whose target is not in
    `current` could not be read, and is left out.
    """
    open_ = [desired for desired in desired_values if desired.target in current]
    outside_in = sorted(open_, key=_depth_order)
    phases = _WritePhases(current, version, {_parent(desired.cgroup) for desired in open_})
    return (
        *phases.idle(outside_in, ends=True),
        *phases.weights(outside_in),
        *phases.bursts(outside_in, lowered=True),
        *phases.widened(outside_in),
        *phases.narrowed(reversed(outside_in)),
        *phases.bursts(outside_in, lowered=False),
        *phases.others(reversed(outside_in)),
        *phases.idle(outside_in, ends=False),
    )


def _parent(cgroup: str) -> str:
    return cgroup.rpartition("/")[0]


def _depth_order(desired: DesiredValue) -> tuple[int, str, str]:
    return desired.cgroup.count("/"), desired.cgroup, desired.key.name


class _WritePhases:
    """The parts of one plan; `now` follows what the writes so far have made of the files."""

    def __init__(
        self, current: Mapping[WriteTarget, CgroupValue], version: int, parents: Collection[str]
    ) -> None:
        self.found = current
        self.version = version
        self.parents = parents  # of groups that are written too
        self.now = dict(current)

    def idle(self, desired_values: Iterable[DesiredValue], *, ends: bool) -> Iterator[CgroupWrite]:
        """Yield the end of being idle, which comes before all else, or its begin, after all."""
        for desired in desired_values:
            if desired.key is IDLE and (desired.value == 0) is ends:
                yield from self._plain(desired)

    def weights(self, desired_values: Iterable[DesiredValue]) -> Iterator[CgroupWrite]:
        """Yield weights; none of a group that stays idle, for the kernel refuses it."""
        for desired in desired_values:
            if desired.key is not SHARES or self.now.get((desired.cgroup, IDLE.name)) == 1:
                continue
            # the kernel gives a group that is idle no longer the default weight
            reset = self.found.get((desired.cgroup, IDLE.name)) == 1
            if reset or not desired.is_met(self.found[desired.target]):
                yield from self._to(desired, desired.value)

    def bursts(
        self, desired_values: Iterable[DesiredValue], *, lowered: bool
    ) -> Iterator[CgroupWrite]:
        """Yield bursts that shrink, before any quota does, or those that grow, after it."""
        for desired in desired_values:
            if (
                desired.key is BURST
                and desired.key.is_looser(desired.value, self.now[desired.target]) != lowered
            ):
                yield from self._plain(desired)

    def widened(self, desired_values: Iterable[DesiredValue]) -> Iterator[CgroupWrite]:
        """Yield what allows both the old and the new, parents first.

        Nothing is in between for a group with nothing below it: what is wanted comes at once.
        """
        for desired in desired_values:
            old = self.now[desired.target]
            if (
                not _is_hierarchical(desired)
                or desired.is_met(old)
                or not desired.key.is_looser(desired.value, old)
            ):
                continue
            both = desired.key.merge(desired.value, old)
            if both == desired.value or desired.cgroup in self.parents:
                yield from self._to(desired, both, widens=True)

    def narrowed(self, desired_values: Iterable[DesiredValue]) -> Iterator[CgroupWrite]:
        """Yield what is wanted where that is less, children first."""
        for desired in desired_values:
            if _is_hierarchical(desired):
                yield from self._plain(desired)

    def others(self, desired_values: Iterable[DesiredValue]) -> Iterator[CgroupWrite]:
        """Yield what depends on nothing else, children first."""
        for desired in desired_values:
            if not desired.key.is_hierarchical and desired.key not in (IDLE, SHARES, BURST):
                yield from self._plain(desired)

    def _plain(self, desired: DesiredValue) -> Iterator[CgroupWrite]:
        if not desired.is_met(self.now[desired.target]):
            yield from self._to(desired, desired.value)

    def _to(
        self, desired: DesiredValue, value: CgroupValue, *, widens: bool = False
    ) -> Iterator[CgroupWrite]:
        old, self.now[desired.target] = self.now[desired.target], value
        if isinstance(value, Bandwidth) and isinstance(old, Bandwidth):
            raw: tuple[tuple[str, str, CgroupValue], ...] = cpu.bandwidth_writes(
                self.version, old, value
            )
        else:
            file = desired.key.files(self.version)[0]
            raw = ((file, desired.key.text(self.version, value), value),)
        for file, text, after in raw:
            last = after == desired.value
            yield CgroupWrite(
                desired=desired,
                file=file,
                text=text,
                value_after=after,
                is_last=last,
                is_widening=widens,
            )


def _is_hierarchical(desired: DesiredValue) -> bool:
    return desired.key.is_hierarchical and desired.key is not BURST
