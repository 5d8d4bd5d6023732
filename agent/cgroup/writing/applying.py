"""One run of planned writes: each made once, read back, told; a refusal costs its own file only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Protocol

from agent.cgroup.ledger.journal import LedgerError
from agent.cgroup.values.keys import BURST, CPUS, HIGH, Value
from agent.cgroup.writing.audit import Audit
from agent.cgroup.writing.refusals import Answer, Refusals, burst_cause, classify
from agent.cgroup.writing.result import Trouble, Written
from agent.cgroup.writing.values import CgroupValues, Raw
from agent.cgroup.writing.wish import Step, Target, Wish
from agent.errors import HostFileError, ParseError


class Host(Protocol):
    """What a run needs of the writer."""

    values: CgroupValues
    refusals: Refusals

    def met(self, wish: Wish, raw: Raw, value: Value) -> None:
        """Remember bytes that are as wanted."""
        ...

    def limit_memory(self, step: Step, used: int) -> None:
        """Reclaim, then write a limit below the memory in use; see `reclaim.limit_memory`."""
        ...

    def original(self, wish: Wish) -> Value | None:
        """Return what the file held before the first write; `None` if we never wrote it."""
        ...


class Applying:
    """The state of one run."""

    def __init__(self, host: Host, now_s: float, wall_s: float) -> None:
        self._host = host
        self._now_s = now_s
        self._wall_s = wall_s
        self._last_try = False
        self._stuck: set[Target] = set()  # a write of theirs failed in this run
        self._done: set[Target] = set()
        self._left: set[Target] = set()
        self._audits: list[Audit] = []
        self._troubles: list[Trouble] = []
        self.dead: set[Target] = set()  # not to be tried again
        self.blocked = False  # by a neighbour's value

    def run(self, steps: Iterable[Step], found: Mapping[Target, Value]) -> None:
        """Make the writes in order, without those that could only fail."""
        for step in steps:
            target = step.wish.target
            if target in self._stuck or target in self.dead:
                continue
            if step.widens and self._below_stuck(target):
                self._stuck.add(target)
                self._left.add(target)
                continue
            self._make(step, found)

    def again(self) -> None:
        """Begin the second try: what is refused now stays so for a while."""
        self._last_try, self.blocked = True, False
        self._stuck.clear()

    def result(self) -> Written:
        """Return what became of it."""
        return Written(
            written=len(self._done),
            left=len(self._left - self._done),
            audits=tuple(self._audits),
            troubles=tuple(self._troubles),
        )

    def _make(self, step: Step, found: Mapping[Target, Value]) -> None:
        wish, values = step.wish, self._host.values
        used = values.used_above(step)
        try:
            if used is None:
                values.write(step)
            else:
                self._host.limit_memory(step, used)
        except HostFileError as error:
            self._failed(step, error.errno, found, used)
            return
        except LedgerError:  # the next flush fails too, and reports it
            self._stuck.add(wish.target)
            self._left.add(wish.target)
            return
        if not step.last:
            return
        paths = values.paths(wish.cgroup, wish.key)
        try:
            raw = values.raw(paths, wish.key)
            value = wish.key.parse(values.version, raw)
        except (HostFileError, ParseError):  # it went, together with what was written
            self.dead.add(wish.target)
            self._left.add(wish.target)
            return
        self._audit(step, found, 0, reclaimed=used is not None)
        if wish.met(value):
            self._host.met(wish, raw, value)
            self._host.refusals.took(wish)
            self._done.add(wish.target)
            self._check_effect(wish)
            return
        self._refuse(wish, Answer.REFUSED, "taken, but not kept: it reads back otherwise")

    def _failed(
        self, step: Step, number: int, found: Mapping[Target, Value], used: int | None
    ) -> None:
        wish = step.wish
        self._stuck.add(wish.target)
        self._left.add(wish.target)
        answer = classify(number, wish.key, self._host.values.version)
        if answer is Answer.GONE:
            self.dead.add(wish.target)
            return
        if answer is Answer.ORDER and not self._last_try:
            self.blocked = True
            return
        self._audit(step, found, number)
        cause = self._cause(step, number, used)
        if answer is Answer.DENIED:
            self.dead.add(wish.target)
            if self._host.refusals.denied(wish.owner, cause, self._now_s):
                self._tell(wish, "WriteNotPermitted", cause)
            return
        self._refuse(wish, answer, cause)

    def _cause(self, step: Step, number: int, used: int | None) -> str:
        """Return why a write was refused, for people."""
        if used is not None:
            return (
                f"{used} bytes were in use: at this limit the kernel would kill processes;"
                f" they are reclaimed by {HIGH.name} first, as far as that is possible"
            )
        words = os.strerror(number)
        cause = burst_cause(self._host.values, step, number)
        if cause:
            burst = Wish(cgroup=step.wish.cgroup, key=BURST, value=0, owner=step.wish.owner)
            cause += "" if self._host.original(burst) is not None else "; another agent left it"
        return words + cause

    def _refuse(self, wish: Wish, answer: Answer, cause: str) -> None:
        self.dead.add(wish.target)
        self._left.add(wish.target)
        if self._host.refusals.refused(wish, answer, self._now_s):
            self._tell(wish, "LimitInUse" if answer is Answer.BUSY else "ValueRefused", cause)

    def _check_effect(self, wish: Wish) -> None:
        """Tell where version 2 took a set of CPUs without giving it: the parent has none of it."""
        wanted = wish.value
        if wish.key is not CPUS or not wanted or not isinstance(wanted, frozenset):
            return
        effective = self._host.values.effective_cpus(wish.cgroup)
        if effective is not None and not effective <= wanted:
            self._tell(wish, "CPUsNotInForce", "the group above has none of these CPUs")

    def _tell(self, wish: Wish, reason: str, cause: str) -> None:
        text = wish.key.text(self._host.values.version, wish.value).strip()
        message = f"{wish.key.name} of {wish.cgroup} to {text!r}: {cause}"
        self._troubles.append(Trouble(wish=wish, reason=reason, message=message))

    def _audit(
        self,
        step: Step,
        found: Mapping[Target, Value],
        number: int,
        *,
        reclaimed: bool = False,
    ) -> None:
        wish, values = step.wish, self._host.values
        old = found.get(wish.target)
        self._audits.append(
            Audit(
                wall_s=self._wall_s,
                owner=wish.owner,
                message=wish.message + (f", after reclaim by {HIGH.name}" if reclaimed else ""),
                path=f"{values.layout.directory(wish.key.controller, wish.cgroup)}/{step.file}",
                key=wish.key.name,
                old="" if old is None else wish.key.text(values.version, old).strip(),
                new=wish.key.text(values.version, wish.value).strip(),
                errno=number,
            )
        )

    def _below_stuck(self, target: Target) -> bool:
        """Say whether a group above could not be widened: this one could only fail."""
        cgroup, key = target
        return any(k == key and cgroup.startswith(f"{above}/") for above, k in self._stuck)
