"""Putting back what stood in the files, from the ledger alone, in an order the kernel takes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable

import msgspec

from agent.cgroup.layout import CONTROLLERS, CgroupLayout
from agent.cgroup.ledger.entry import CORE, OOM, SWITCHES, SYSCTL, Entry
from agent.cgroup.ledger.journal import Ledger
from agent.cgroup.ledger.processes import restore_processes
from agent.cgroup.values.keys import BY_NAME, CPUS, Value
from agent.cgroup.writing.kernel import CgroupFiles, KernelFiles
from agent.cgroup.writing.plan import plan
from agent.cgroup.writing.refusals import burst_cause
from agent.cgroup.writing.values import V2, CgroupValues
from agent.cgroup.writing.wish import Step, Target, Wish
from agent.errors import HostFileError, ParseError
from agent.host.files import LiveRoot

BUDGET_S = 8.0
WIDEST = "all CPUs of the group above: the kernel does not empty the set of a group with processes"
KILLS = "in use is more than this limit: the kernel would kill processes"
NEWER = "recorded by a newer version of the agent: this one cannot undo it"


def of_this_version(entry: Entry) -> bool:
    """Return whether this version of the agent knows the file of an entry."""
    if entry.hierarchy in (OOM, CORE, SYSCTL):
        return True
    return entry.key in BY_NAME and entry.hierarchy in (V2, *CONTROLLERS)


class Undone(msgspec.Struct, frozen=True, kw_only=True):
    """One entry. `state`: restored, same, gone, foreign, refused, planned, late."""

    entry: Entry
    state: str
    current: str = ""  # as found
    target: str = ""  # what is written in place of an original that the kernel would not take
    detail: str = ""  # why not, or why the target, for people

    @property
    def done(self) -> bool:
        """Say whether nothing is left of what the agent did there."""
        return self.state in ("restored", "same", "gone")

    @property
    def line(self) -> str:
        """Return what `--dry-run` prints."""
        name = "" if self.entry.hierarchy == SYSCTL else f"/{self.entry.key}"
        target = f"{self.target} ({self.detail})" if self.target else self.entry.original
        return f"{self.entry.path}{name} {self.current} → {target}"


class _Found(msgspec.Struct):
    wishes: list[Wish] = []  # that need a write
    entries: dict[Target, Entry] = {}
    values: dict[Target, Value] = {}  # as found, of those wishes
    states: dict[tuple[str, str, str], Undone] = {}
    cpus: dict[str, frozenset[int]] = {}  # by cgroup: in force afterwards, where that is a wish
    targets: dict[Target, str] = {}  # written in place of originals


def undo_all(
    ledger: Ledger,
    layout: CgroupLayout,
    root: LiveRoot,
    *,
    monotonic: Callable[[], float],
    force: bool = False,
    dry_run: bool = False,
) -> tuple[Undone, ...]:
    """Write the originals of all entries, as when the agent leaves; see `undo`."""
    files = KernelFiles(root)
    try:
        done = undo(
            ledger,
            CgroupValues(files, layout),
            tuple(ledger.entries.values()),
            monotonic=monotonic,
            force=force,
            dry_run=dry_run,
        )
    finally:
        files.close_all()
    if not dry_run:
        ledger.remove_if_empty()
    return done


def undo(
    ledger: Ledger,
    values: CgroupValues,
    entries: Iterable[Entry],
    *,
    monotonic: Callable[[], float],
    force: bool = False,
    dry_run: bool = False,
    budget_s: float = BUDGET_S,
) -> tuple[Undone, ...]:
    """Write the originals of these entries; say of each what became of it.

    A value that is neither ours nor the original is somebody else's, and stays unless `force`. An
    entry that is done is dropped from the ledger, so that a run that is killed can be begun again;
    what the budget is too short for is `late`. Raise `LedgerError` if the ledger cannot be written.
    """
    until_s = monotonic() + budget_s
    wanted = tuple(entries)
    found = _look(values, wanted, force=force)
    if dry_run:
        _plan(values, found)
    else:
        _remember_targets(ledger, found)
        _write(values, found, monotonic, until_s)
        _of_processes(values, wanted, found, lambda: monotonic() < until_s, force=force)
        for one in found.states.values():
            if one.done:
                ledger.drop(one.entry, "gone" if one.state == "gone" else "undone")
        ledger.flush()
    late = {entry.id: Undone(entry=entry, state="late") for entry in wanted}
    return tuple(found.states.get(entry.id, late[entry.id]) for entry in wanted)


def _look(values: CgroupValues, entries: Iterable[Entry], *, force: bool) -> _Found:
    """Read every file; settle what needs no write, wish for the original of the others."""
    found = _Found()
    for entry in entries:
        if not of_this_version(entry):
            found.states[entry.id] = Undone(entry=entry, state="refused", detail=NEWER)
        elif entry.hierarchy not in (OOM, CORE, SYSCTL):
            _look_at(values, found, entry)
    wishes, found.wishes = sorted(found.wishes, key=lambda wish: wish.cgroup.count("/")), []
    for read in wishes:  # outermost first: a group can have only CPUs of the group above
        wish = _possible(values, found, read)
        state = _state(wish, found.values[wish.target], found.entries[wish.target], force=force)
        if state:
            _settle(found, wish.target, state)
            del found.values[wish.target]
        else:
            found.wishes.append(wish)
            if wish.key is CPUS and isinstance(wish.value, frozenset):
                found.cpus[wish.cgroup] = wish.value
    return found


def _look_at(values: CgroupValues, found: _Found, entry: Entry) -> None:
    key = BY_NAME[entry.key]
    if values.hierarchy(key) != entry.hierarchy:
        found.states[entry.id] = Undone(entry=entry, state="gone")
        return
    try:
        original = key.kept(entry.original)
        wish = Wish(cgroup=entry.path, key=key, value=original, owner=entry.owner)
        current = _current(values, wish, entry)
    except ParseError as error:
        found.states[entry.id] = Undone(entry=entry, state="refused", detail=str(error))
        return
    if current is None:
        found.states[entry.id] = Undone(entry=entry, state="gone")
        return
    found.entries[wish.target] = entry
    found.values[wish.target] = current
    found.wishes.append(wish)


def _current(values: CgroupValues, wish: Wish, entry: Entry) -> Value | None:
    """Return what is in force; `None` if the group is gone, or another one has its name."""
    if values.inode(entry.path, wish.key) != entry.inode:
        return None
    return values.value(entry.path, wish.key)


def _possible(values: CgroupValues, found: _Found, wish: Wish) -> Wish:
    """Return the wish; for no CPUs at all, a wish for the widest set that the kernel takes."""
    if wish.key is not CPUS or wish.value or not found.values[wish.target]:
        return wish
    if values.version != 2 or not values.populated(wish.cgroup):
        return wish
    widest = _effective_after(values, found, wish.cgroup.rpartition("/")[0])
    if not widest:
        return wish
    found.targets[wish.target] = CPUS.keep(widest)
    return msgspec.structs.replace(wish, value=widest)


def _effective_after(values: CgroupValues, found: _Found, cgroup: str) -> frozenset[int] | None:
    """Return the CPUs that a group has after the writes; `None` if that is not readable."""
    if not any(cgroup == one or cgroup.startswith(f"{one}/") for one in found.cpus):
        return values.effective_cpus(cgroup)
    above = _effective_after(values, found, cgroup.rpartition("/")[0])
    try:
        own = found.cpus[cgroup] if cgroup in found.cpus else values.value(cgroup, CPUS)
    except ParseError:
        return None
    if above is None or not isinstance(own, frozenset):
        return above
    return (own & above) or above


def _state(wish: Wish, current: Value, entry: Entry, *, force: bool) -> str:
    """Return what is to be said of a file that needs no write; nothing for one that does."""
    if wish.met(current):
        return "same"
    return "" if force or wish.key.is_any_of(current, entry.ours) else "foreign"


def _plan(values: CgroupValues, found: _Found) -> None:
    """Settle each wish as planned, or as refused where the refusal can be foreseen."""
    refusals = {step.wish.target: _refusal(values, step) for step in _steps(values, found)}
    for target in found.values:
        refusal = refusals.get(target, "")
        _settle(found, target, "refused" if refusal else "planned", refusal)


def _steps(values: CgroupValues, found: _Found) -> tuple[Step, ...]:
    return plan(found.wishes, found.values, values.version)


def _refusal(values: CgroupValues, step: Step) -> str:
    """Return why a write must not be made; empty if it may be."""
    used = values.used_above(step)
    return "" if used is None else f"{used} bytes {KILLS}"


def _remember_targets(ledger: Ledger, found: _Found) -> None:
    """Record the values that replace originals as ours, before they are written.

    A run that is killed between a write and the end of its entry can then be repeated.
    """
    replaced = [found.entries[target] for target in found.targets if target in found.values]
    for entry in replaced:
        target = found.targets[entry.path, entry.key]
        ledger.set(msgspec.structs.replace(entry, ours=(*entry.ours, target)))
    if replaced:
        ledger.flush()


def _write(
    values: CgroupValues, found: _Found, monotonic: Callable[[], float], until_s: float
) -> None:
    """Make all writes in one order; a file that refuses stops only itself."""
    stuck: set[Target] = set()
    for step in _steps(values, found):
        target = step.wish.target
        if target in stuck:
            continue
        if monotonic() >= until_s:
            return
        refusal = _refusal(values, step)
        if refusal:
            stuck.add(target)
            _settle(found, target, "refused", refusal)
            continue
        try:
            values.write(step)
            if step.last:
                _confirm(values, found, step)
        except HostFileError as error:
            stuck.add(target)
            _settle(found, target, "refused", f"{error}{burst_cause(values, step, error.errno)}")


def _confirm(values: CgroupValues, found: _Found, step: Step) -> None:
    wish = step.wish
    try:
        now = values.value(wish.cgroup, wish.key)
    except ParseError:
        now = None
    kept = now is not None and wish.met(now)
    _settle(found, wish.target, "restored" if kept else "refused", "" if kept else "not kept")


def _of_processes(
    values: CgroupValues,
    entries: Iterable[Entry],
    found: _Found,
    in_time: Callable[[], bool],
    *,
    force: bool,
) -> None:
    files = values.files
    for entry in entries:
        if entry.hierarchy in (OOM, CORE) and isinstance(files, KernelFiles) and in_time():
            state, detail = restore_processes(files, values.layout, entry, force=force)
            found.states[entry.id] = Undone(entry=entry, state=state, detail=detail)
    for entry in entries:  # last: what they switch is in use until here
        if entry.hierarchy == SYSCTL and in_time():
            found.states[entry.id] = _switch_back(files, entry, force=force)


def _switch_back(files: CgroupFiles, entry: Entry, *, force: bool) -> Undone:
    current = ""
    if entry.path not in SWITCHES:
        return Undone(entry=entry, state="refused", detail="not a switch that the agent writes")
    try:
        current = files.read(entry.path, 64).decode("ascii", "replace").strip()
        if current == entry.original:
            return Undone(entry=entry, state="same", current=current)
        if current not in entry.ours and not force:
            return Undone(entry=entry, state="foreign", current=current)
        files.write(entry.path, entry.original)
    except HostFileError as error:
        gone = error.errno == errno.ENOENT
        state, detail = ("gone", "") if gone else ("refused", str(error))
        return Undone(entry=entry, state=state, current=current, detail=detail)
    finally:
        files.close(entry.path)
    return Undone(entry=entry, state="restored", current=current)


def _settle(found: _Found, target: Target, state: str, detail: str = "") -> None:
    entry = found.entries[target]
    current = BY_NAME[entry.key].keep(found.values[target])
    # a value that stays has no target
    text = found.targets.get(target, "") if state in ("planned", "restored", "same") else ""
    found.states[entry.id] = Undone(
        entry=entry,
        state=state,
        current=current,
        target=text,
        detail=detail or (WIDEST if text else ""),
    )
