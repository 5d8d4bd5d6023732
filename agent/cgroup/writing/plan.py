"""The order of writes in which the kernel takes every one of them. Pure.

A group's CPUs and quota must lie within its parent's on version 1 (EACCES, EBUSY, EINVAL), burst
within quota on both, and a weight is refused while a group is idle. If what is found is legal and
what is wanted is legal, then so is every prefix of a plan: an agent that is killed in the middle
leaves nothing that the next one could not finish.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from agent.cgroup.values import bandwidth
from agent.cgroup.values.bandwidth import Bandwidth
from agent.cgroup.values.keys import BURST, IDLE, SHARES, Value
from agent.cgroup.writing.wish import Step, Target, Wish


def plan(wishes: Iterable[Wish], found: Mapping[Target, Value], version: int) -> tuple[Step, ...]:
    """Return the writes, in order, that make the found values the wanted ones.

    Of each target there is one wish. One that is met needs no write; one whose target is not in
    `found` could not be read, and is left out.
    """
    open_ = [wish for wish in wishes if wish.target in found]
    outside_in = sorted(open_, key=_depth)
    phases = _Phases(found, version, {_parent(wish.cgroup) for wish in open_})
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


def _depth(wish: Wish) -> tuple[int, str, str]:
    return wish.cgroup.count("/"), wish.cgroup, wish.key.name


class _Phases:
    """The parts of one plan; `now` follows what the writes so far have made of the files."""

    def __init__(
        self, found: Mapping[Target, Value], version: int, parents: Collection[str]
    ) -> None:
        self.found = found
        self.version = version
        self.parents = parents  # of groups that are written too
        self.now = dict(found)

    def idle(self, wishes: Iterable[Wish], *, ends: bool) -> Iterator[Step]:
        """Yield the end of being idle, which comes before all else, or its begin, after all."""
        for wish in wishes:
            if wish.key is IDLE and (wish.value == 0) is ends:
                yield from self._plain(wish)

    def weights(self, wishes: Iterable[Wish]) -> Iterator[Step]:
        """Yield weights; none of a group that stays idle, for the kernel refuses it."""
        for wish in wishes:
            if wish.key is not SHARES or self.now.get((wish.cgroup, IDLE.name)) == 1:
                continue
            # the kernel gives a group that is idle no longer the default weight
            reset = self.found.get((wish.cgroup, IDLE.name)) == 1
            if reset or not wish.met(self.found[wish.target]):
                yield from self._to(wish, wish.value)

    def bursts(self, wishes: Iterable[Wish], *, lowered: bool) -> Iterator[Step]:
        """Yield bursts that shrink, before any quota does, or those that grow, after it."""
        for wish in wishes:
            if wish.key is BURST and wish.key.looser(wish.value, self.now[wish.target]) != lowered:
                yield from self._plain(wish)

    def widened(self, wishes: Iterable[Wish]) -> Iterator[Step]:
        """Yield what allows both the old and the new, parents first.

        Nothing is in between for a group with nothing below it: what is wanted comes at once.
        """
        for wish in wishes:
            old = self.now[wish.target]
            if not _leveled(wish) or wish.met(old) or not wish.key.looser(wish.value, old):
                continue
            both = wish.key.merged(wish.value, old)
            if both == wish.value or wish.cgroup in self.parents:
                yield from self._to(wish, both, widens=True)

    def narrowed(self, wishes: Iterable[Wish]) -> Iterator[Step]:
        """Yield what is wanted where that is less, children first."""
        for wish in wishes:
            if _leveled(wish):
                yield from self._plain(wish)

    def others(self, wishes: Iterable[Wish]) -> Iterator[Step]:
        """Yield what depends on nothing else, children first."""
        for wish in wishes:
            if not wish.key.leveled and wish.key not in (IDLE, SHARES, BURST):
                yield from self._plain(wish)

    def _plain(self, wish: Wish) -> Iterator[Step]:
        if not wish.met(self.now[wish.target]):
            yield from self._to(wish, wish.value)

    def _to(self, wish: Wish, value: Value, *, widens: bool = False) -> Iterator[Step]:
        old, self.now[wish.target] = self.now[wish.target], value
        if isinstance(value, Bandwidth) and isinstance(old, Bandwidth):
            raw: tuple[tuple[str, str, Value], ...] = bandwidth.steps(self.version, old, value)
        else:
            file = wish.key.files(self.version)[0]
            raw = ((file, wish.key.text(self.version, value), value),)
        for file, text, after in raw:
            last = after == wish.value
            yield Step(wish=wish, file=file, text=text, after=after, last=last, widens=widens)


def _leveled(wish: Wish) -> bool:
    return wish.key.leveled and wish.key is not BURST
