"""Comparing what files hold with what is wanted, every cycle, and writing only the difference.

Values are compared, never texts, and none is believed for having been written: each second every
file is read, through a descriptor that stays open. Bytes that were as wanted once are so again
while the wish is the same, which costs no parsing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from agent.cgroup.ledger.entry import Entry
from agent.cgroup.ledger.journal import Ledger, LedgerError
from agent.cgroup.values.keys import BY_NAME, IDLE, MEMORY, QUOTA, SHARES, Value
from agent.cgroup.writing.applying import Applying
from agent.cgroup.writing.foreign import Foreign
from agent.cgroup.writing.plan import plan
from agent.cgroup.writing.reclaim import limit_memory
from agent.cgroup.writing.refusals import Refusals
from agent.cgroup.writing.result import Prepared, Written
from agent.cgroup.writing.values import CgroupValues, Raw
from agent.cgroup.writing.wish import Step, Target, Wish
from agent.errors import HostFileError, ParseError

# what the kubelet asks anew when a pod is resized in place: that is what undoing gives back then
_OF_THE_SPEC = (SHARES, QUOTA, MEMORY)


class _Slot(msgspec.Struct):
    """One file, or a pair that holds one value."""

    paths: tuple[str, ...]
    wish: Wish | None = None  # that the bytes below are good for
    raw: Raw = ()
    last: Value | None = None  # as it was in force when it was looked at last, by our doing


class _Settled(msgspec.Struct):
    """Wishes of one pod that were all met, and the bytes that did."""

    wishes: tuple[Wish, ...]
    files: tuple[tuple[str, int, bytes], ...]  # path, how much of it is read, what was there


NOTHING_OPEN = Prepared()


class Writer:
    """Compares and writes the cgroup files of one host. Not for two threads."""

    def __init__(self, values: CgroupValues, ledger: Ledger, wall_s: Callable[[], float]) -> None:
        """Take over what the ledger says was written by an earlier run."""
        self.values = values
        self.ledger = ledger
        self.refusals = Refusals()
        self.foreign = Foreign()
        self._wall_s = wall_s
        self._slots: dict[Target, _Slot] = {}
        self._settled: dict[str, _Settled] = {}  # by the first wish's cgroup

    def prepare(self, wishes: Iterable[Wish], now_s: float) -> Prepared:
        """Compare the files of one pod; say what is to be written, in which order."""
        wishes = tuple(wishes)
        if not wishes:
            return NOTHING_OPEN
        if self._as_before(wishes):
            return Prepared(compared=len(wishes))
        prepared = self._compare(wishes, now_s)
        if prepared.compared == len(wishes) and not prepared.left and not prepared.wishes:
            self._settle(wishes)
        return prepared

    def _as_before(self, wishes: tuple[Wish, ...]) -> bool:
        """Say whether every file holds what it held when all of these very wishes were met."""
        settled = self._settled.get(wishes[0].cgroup)
        if settled is None or settled.wishes is not wishes:
            return False
        read = self.values.files.read
        try:
            return all(read(path, size) == data for path, size, data in settled.files)
        except HostFileError:
            return False

    def _settle(self, wishes: tuple[Wish, ...]) -> None:
        slots = [(wish.key.size, self._slots[wish.target]) for wish in wishes]
        files = tuple(
            (path, size, data)
            for size, slot in slots
            for path, data in zip(slot.paths, slot.raw, strict=True)
        )
        self._settled[wishes[0].cgroup] = _Settled(wishes, files)

    def _compare(self, wishes: tuple[Wish, ...], now_s: float) -> Prepared:
        open_: list[Wish] = []
        found: dict[Target, Value] = {}
        compared = left = 0
        woken = self._woken(wishes)
        for wish in wishes:
            slot = self._slots.get(wish.target) or self._slot(wish)
            if not slot.paths or self.refusals.absent(wish.target, now_s):
                continue
            try:
                raw = self.values.raw(slot.paths, wish.key)
            except HostFileError:
                self.refusals.not_there(wish.target, now_s)
                continue
            compared += 1
            reset = wish.key is SHARES and wish.cgroup in woken
            if raw == slot.raw and (wish is slot.wish or wish == slot.wish) and not reset:
                continue
            value = self._parsed(wish, raw)
            if value is not None:
                found[wish.target] = value
                if wish.met(value) and not reset:
                    self.met(wish, raw, value)
                    continue
                if self._may(wish, slot, value, now_s):
                    open_.append(wish)
                    continue
            left += 1
        steps = plan(open_, found, self.values.version) if open_ else ()
        return Prepared(wishes=tuple(open_), found=found, steps=steps, compared=compared, left=left)

    def remember(self, prepared: Prepared) -> None:
        """Put what the steps will change into the ledger, which the caller flushes before them."""
        after: dict[Target, list[Step]] = {}
        for step in prepared.steps:
            after.setdefault(step.wish.target, []).append(step)
        for target, steps in after.items():
            wish = steps[0].wish
            entry = self._entry(wish, prepared.found[target])
            if entry is not None:
                ours = (*entry.ours, *(wish.key.keep(step.after) for step in steps))
                self.ledger.set(msgspec.structs.replace(entry, owner=wish.owner, ours=ours))

    def adopt(self, wish: Wish, original: Value) -> None:
        """Take over a value that the runtime has set for us; `original` is what it was asked.

        Nothing is done if the file is in the ledger, or does not hold the wish.
        """
        value, key = self.values.value(wish.cgroup, wish.key), wish.key
        inode = self.values.inode(wish.cgroup, key)
        known = self.ledger.entries.get((self.values.hierarchy(key), *wish.target))
        if value is None or inode is None or not wish.met(value):
            return
        if (known is None or known.inode != inode) and not key.same(original, value):
            self.ledger.set(
                Entry(
                    hierarchy=self.values.hierarchy(key),
                    path=wish.cgroup,
                    inode=inode,
                    key=key.name,
                    owner=wish.owner,
                    original=key.keep(original),
                    ours=(key.keep(value),),
                )
            )

    def renew(self, wish: Wish, original: Value) -> None:
        """Have another value given back than what was found, or than what was asked before."""
        key = wish.key
        known = self.ledger.entries.get((self.values.hierarchy(key), *wish.target))
        if known is None or known.inode != self.values.inode(wish.cgroup, key):
            self.adopt(wish, original)
        else:
            self.ledger.set(msgspec.structs.replace(known, original=key.keep(original)))

    def apply(self, prepared: Prepared, now_s: float) -> Written:
        """Make the writes; where a neighbour's value is in the way, look and plan again, once."""
        work = Applying(self, now_s, self._wall_s())
        work.run(prepared.steps, prepared.found)
        if work.blocked:
            wishes = tuple(wish for wish in prepared.wishes if wish.target not in work.dead)
            found = {**prepared.found, **self._look(wishes)}
            steps = plan(wishes, found, self.values.version)
            self.remember(Prepared(wishes=wishes, found=found, steps=steps))
            try:
                self.ledger.flush()
            except LedgerError as error:  # the next flush fails too, and reports it
                if error.hangs:
                    return work.result()
            work.again()
            work.run(steps, found)
        return work.result()

    def limit_memory(self, step: Step, used: int) -> None:
        """Reclaim, then write a limit below the memory in use; see `reclaim.limit_memory`."""
        limit_memory(self.values, self.ledger, step, used)

    def original(self, wish: Wish) -> Value | None:
        """Return what the file held before the first write; `None` if we never wrote it."""
        entry = self.ledger.entries.get((self.values.hierarchy(wish.key), *wish.target))
        return None if entry is None else wish.key.kept(entry.original)

    def met(self, wish: Wish, raw: Raw, value: Value) -> None:
        """Remember bytes that are as wanted."""
        slot = self._slots.get(wish.target) or self._slot(wish)
        slot.wish, slot.raw, slot.last = wish, raw, value

    def keep(self, targets: frozenset[Target]) -> None:
        """Forget all other files, and let go of their descriptors."""
        self._settled.clear()
        for target in [target for target in self._slots if target not in targets]:
            for path in self._slots.pop(target).paths:
                self.values.files.close(path)
        self.refusals.keep(targets)
        self.foreign.keep(targets)

    def _slot(self, wish: Wish) -> _Slot:
        slot = self._slots[wish.target] = _Slot(self.values.paths(wish.cgroup, wish.key))
        return slot

    def _parsed(self, wish: Wish, raw: Raw) -> Value | None:
        try:
            return wish.key.parse(self.values.version, raw)
        except ParseError:
            return None  # no kernel prints it: nothing that we could compare with

    def _woken(self, wishes: Iterable[Wish]) -> frozenset[str]:
        """Return the groups that are to stop being idle: the kernel resets their weight then."""
        ends = (wish for wish in wishes if wish.key is IDLE and wish.value == 0)
        return frozenset(wish.cgroup for wish in ends if self._look((wish,)).get(wish.target) == 1)

    def _may(self, wish: Wish, slot: _Slot, value: Value, now_s: float) -> bool:
        """Say whether to write now: neither refused lately nor fought over."""
        if self.refusals.holds(wish, now_s):
            return False
        key = wish.key
        entry = self.ledger.entries.get((self.values.hierarchy(key), *wish.target))
        # also a value on the way between two wanted ones
        if entry is not None and key.is_any_of(value, entry.ours):
            return True
        if slot.last is None:
            first = entry is None or not entry.ours or key.is_any_of(value, (entry.original,))
        else:
            first = key.same(slot.last, value)
        return first or self.foreign.may_write(wish.target, now_s)

    def _entry(self, wish: Wish, found: Value) -> Entry | None:
        """Return the target's entry, a new one for a group that has none; `None` if it is gone."""
        key, kept = wish.key, wish.key.keep(found)
        inode = self.values.inode(wish.cgroup, key)
        if inode is None:
            return None
        hierarchy = self.values.hierarchy(key)
        known = self.ledger.entries.get((hierarchy, *wish.target))
        if known is None or known.inode != inode:
            return Entry(
                hierarchy=hierarchy,
                path=wish.cgroup,
                inode=inode,
                key=key.name,
                owner=wish.owner,
                original=kept,
            )
        if key in _OF_THE_SPEC and not key.is_any_of(found, known.ours):
            return msgspec.structs.replace(known, original=kept)
        return known

    def _look(self, wishes: Iterable[Wish]) -> dict[Target, Value]:
        found: dict[Target, Value] = {}
        for wish in wishes:
            try:
                value = self.values.value(wish.cgroup, BY_NAME[wish.key.name])
            except ParseError:
                continue
            if value is not None:
                found[wish.target] = value
        return found
