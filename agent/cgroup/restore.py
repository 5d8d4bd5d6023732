"""Restores original values from the ledger, in an order that the kernel accepts."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable

import msgspec

from agent.cgroup.keys import CPUS, KEYS_BY_NAME, CgroupValue
from agent.cgroup.layout import CONTROLLERS, CgroupLayout
from agent.cgroup.ledger import (
    CORE_HIERARCHY,
    OOM_HIERARCHY,
    SWITCHES,
    SYSCTL_HIERARCHY,
    ChangeLedger,
    LedgerEntry,
)
from agent.cgroup.processes import restore_processes
from agent.cgroup.values import V2_HIERARCHY, CgroupFiles, CgroupValues, KernelFiles
from agent.cgroup.write_backoff import burst_cause
from agent.cgroup.write_plan import CgroupWrite, DesiredValue, WriteTarget, plan_writes
from agent.errors import HostFileError, ParseError
from agent.host.files import LiveHostFiles

BUDGET_S = 8.0
WIDEST_TEXT = (
    "all CPUs of the group above: the kernel does not empty the set of a group with processes"
)
KILLS_TEXT = "in use is more than this limit: the kernel would kill processes"
NEWER_VERSION_TEXT = "recorded by a newer version of the agent: this one cannot undo it"


def is_known_entry(entry: LedgerEntry) -> bool:
    """Return whether this version of the agent knows the file of an entry."""
    if entry.hierarchy in (OOM_HIERARCHY, CORE_HIERARCHY, SYSCTL_HIERARCHY):
        return True
    return entry.key in KEYS_BY_NAME and entry.hierarchy in (V2_HIERARCHY, *CONTROLLERS)


class RestoreResult(msgspec.Struct, frozen=True, kw_only=True):
    """One entry. `state`: restored, same, gone, foreign, refused, planned, late."""

    entry: LedgerEntry
    state: str
    current: str = ""  # as found
    target: str = ""  # what is written in place of an original that the kernel would not take
    detail: str = ""  # why not, or why the target, for people

    @property
    def is_done(self) -> bool:
        """Say whether nothing is left of what the agent did there."""
        return self.state in ("restored", "same", "gone")

    @property
    def summary(self) -> str:
        """Return what `--dry-run` prints."""
        name = "" if self.entry.hierarchy == SYSCTL_HIERARCHY else f"/{self.entry.key}"
        target = f"{self.target} ({self.detail})" if self.target else self.entry.original
        return f"{self.entry.path}{name} {self.current} → {target}"


class _RestoreState(msgspec.Struct):
    desired_values: list[DesiredValue] = []  # that need a write
    entries: dict[WriteTarget, LedgerEntry] = {}
    values: dict[WriteTarget, CgroupValue] = {}  # as found, of those wishes
    states: dict[tuple[str, str, str], RestoreResult] = {}
    cpus: dict[str, frozenset[int]] = {}  # by cgroup: in force afterwards, where that is a wish
    targets: dict[WriteTarget, str] = {}  # written in place of originals


def restore_all(
    ledger: ChangeLedger,
    layout: CgroupLayout,
    root: LiveHostFiles,
    *,
    monotonic: Callable[[], float],
    force: bool = False,
    dry_run: bool = False,
) -> tuple[RestoreResult, ...]:
    """Write the originals of all entries, as when the agent leaves; see `undo`."""
    files = KernelFiles(root)
    try:
        done = restore_entries(
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


def restore_entries(
    ledger: ChangeLedger,
    values: CgroupValues,
    entries: Iterable[LedgerEntry],
    *,
    monotonic: Callable[[], float],
    force: bool = False,
    dry_run: bool = False,
    budget_s: float = BUDGET_S,
) -> tuple[RestoreResult, ...]:
    """Write the originals of these entries; say of each what became of it.

    A value that is neither ours nor the original is somebody else's, and stays unless `force`. An
    entry that is done is dropped from the ledger, so that a run that is killed can be begun again;
    what the budget is too short for is `late`. Raise `LedgerError` if the ledger cannot be written.
    """
    until_s = monotonic() + budget_s
    wanted = tuple(entries)
    state = _read_all(values, wanted, force=force)
    if dry_run:
        _plan_restore(values, state)
    else:
        _remember_targets(ledger, state)
        _write(values, state, monotonic, until_s)
        _restore_processes(values, wanted, state, lambda: monotonic() < until_s, force=force)
        for one in state.states.values():
            if one.is_done:
                ledger.drop(one.entry, "gone" if one.state == "gone" else "undone")
        ledger.flush()
    late = {entry.id: RestoreResult(entry=entry, state="late") for entry in wanted}
    return tuple(state.states.get(entry.id, late[entry.id]) for entry in wanted)


def _read_all(
    values: CgroupValues, entries: Iterable[LedgerEntry], *, force: bool
) -> _RestoreState:
    """Read every file; settle what needs no write, wish for the original of the others."""
    found = _RestoreState()
    for entry in entries:
        if not is_known_entry(entry):
            found.states[entry.id] = RestoreResult(
                entry=entry, state="refused", detail=NEWER_VERSION_TEXT
            )
        elif entry.hierarchy not in (OOM_HIERARCHY, CORE_HIERARCHY, SYSCTL_HIERARCHY):
            _read_entry(values, found, entry)
    desired_values, found.desired_values = (
        sorted(found.desired_values, key=lambda desired: desired.cgroup.count("/")),
        [],
    )
    for read in desired_values:  # outermost first: a group can have only CPUs of the group above
        desired = _achievable(values, found, read)
        state = _state(
            desired, found.values[desired.target], found.entries[desired.target], force=force
        )
        if state:
            _set_state(found, desired.target, state)
            del found.values[desired.target]
        else:
            found.desired_values.append(desired)
            if desired.key is CPUS and isinstance(desired.value, frozenset):
                found.cpus[desired.cgroup] = desired.value
    return found


def _read_entry(values: CgroupValues, state: _RestoreState, entry: LedgerEntry) -> None:
    key = KEYS_BY_NAME[entry.key]
    if values.hierarchy(key) != entry.hierarchy:
        state.states[entry.id] = RestoreResult(entry=entry, state="gone")
        return
    try:
        original = key.from_ledger(entry.original)
        desired = DesiredValue(cgroup=entry.path, key=key, value=original, owner=entry.owner)
        current = _current(values, desired, entry)
    except ParseError as error:
        state.states[entry.id] = RestoreResult(entry=entry, state="refused", detail=str(error))
        return
    if current is None:
        state.states[entry.id] = RestoreResult(entry=entry, state="gone")
        return
    state.entries[desired.target] = entry
    state.values[desired.target] = current
    state.desired_values.append(desired)


def _current(values: CgroupValues, desired: DesiredValue, entry: LedgerEntry) -> CgroupValue | None:
    """Return what is in force; `None` if the group is gone, or another one has its name."""
    if values.inode(entry.path, desired.key) != entry.inode:
        return None
    return values.read_value(entry.path, desired.key)


def _achievable(values: CgroupValues, state: _RestoreState, desired: DesiredValue) -> DesiredValue:
    """Return the wish; for no CPUs at all, a wish for the widest set that the kernel takes."""
    if desired.key is not CPUS or desired.value or not state.values[desired.target]:
        return desired
    if values.version != 2 or not values.is_populated(desired.cgroup):
        return desired
    widest = _effective_after(values, state, desired.cgroup.rpartition("/")[0])
    if not widest:
        return desired
    state.targets[desired.target] = CPUS.to_ledger(widest)
    return msgspec.structs.replace(desired, value=widest)


def _effective_after(
    values: CgroupValues, state: _RestoreState, cgroup: str
) -> frozenset[int] | None:
    """Return the CPUs that a group has after the writes; `None` if that is not readable."""
    if not any(cgroup == one or cgroup.startswith(f"{one}/") for one in state.cpus):
        return values.effective_cpus(cgroup)
    above = _effective_after(values, state, cgroup.rpartition("/")[0])
    try:
        own = state.cpus[cgroup] if cgroup in state.cpus else values.read_value(cgroup, CPUS)
    except ParseError:
        return None
    if above is None or not isinstance(own, frozenset):
        return above
    return (own & above) or above


def _state(desired: DesiredValue, current: CgroupValue, entry: LedgerEntry, *, force: bool) -> str:
    """Return what is to be said of a file that needs no write; nothing for one that does."""
    if desired.is_met(current):
        return "same"
    return "" if force or desired.key.is_any_of(current, entry.ours) else "foreign"


def _plan_restore(values: CgroupValues, state: _RestoreState) -> None:
    """Settle each wish as planned, or as refused where the refusal can be foreseen."""
    refusals = {step.desired.target: _refusal(values, step) for step in _steps(values, state)}
    for target in state.values:
        refusal = refusals.get(target, "")
        _set_state(state, target, "refused" if refusal else "planned", refusal)


def _steps(values: CgroupValues, state: _RestoreState) -> tuple[CgroupWrite, ...]:
    return plan_writes(state.desired_values, state.values, values.version)


def _refusal(values: CgroupValues, step: CgroupWrite) -> str:
    """Return why a write must not be made; empty if it may be."""
    used = values.memory_above_limit(step)
    return "" if used is None else f"{used} bytes {KILLS_TEXT}"


def _remember_targets(ledger: ChangeLedger, state: _RestoreState) -> None:
    """Record the values that replace originals as ours, before they are written.

    A run that is killed between a write and the end of its entry can then be repeated.
    """
    replaced = [state.entries[target] for target in state.targets if target in state.values]
    for entry in replaced:
        target = state.targets[entry.path, entry.key]
        ledger.set(msgspec.structs.replace(entry, ours=(*entry.ours, target)))
    if replaced:
        ledger.flush()


def _write(
    values: CgroupValues, state: _RestoreState, monotonic: Callable[[], float], until_s: float
) -> None:
    """Make all writes in one order; a file that refuses stops only itself."""
    stuck: set[WriteTarget] = set()
    for step in _steps(values, state):
        target = step.desired.target
        if target in stuck:
            continue
        if monotonic() >= until_s:
            return
        refusal = _refusal(values, step)
        if refusal:
            stuck.add(target)
            _set_state(state, target, "refused", refusal)
            continue
        try:
            values.write(step)
            if step.is_last:
                _confirm(values, state, step)
        except HostFileError as error:
            stuck.add(target)
            _set_state(state, target, "refused", f"{error}{burst_cause(values, step, error.errno)}")


def _confirm(values: CgroupValues, state: _RestoreState, step: CgroupWrite) -> None:
    desired = step.desired
    try:
        now = values.read_value(desired.cgroup, desired.key)
    except ParseError:
        now = None
    is_in_place = now is not None and desired.is_met(now)
    _set_state(
        state,
        desired.target,
        "restored" if is_in_place else "refused",
        "" if is_in_place else "not kept",
    )


def _restore_processes(
    values: CgroupValues,
    entries: Iterable[LedgerEntry],
    found: _RestoreState,
    in_time: Callable[[], bool],
    *,
    force: bool,
) -> None:
    files = values.files
    for entry in entries:
        if (
            entry.hierarchy in (OOM_HIERARCHY, CORE_HIERARCHY)
            and isinstance(files, KernelFiles)
            and in_time()
        ):
            state, detail = restore_processes(files, values.layout, entry, force=force)
            found.states[entry.id] = RestoreResult(entry=entry, state=state, detail=detail)
    for entry in entries:  # last: what they switch is in use until here
        if entry.hierarchy == SYSCTL_HIERARCHY and in_time():
            found.states[entry.id] = _restore_sysctl(files, entry, force=force)


def _restore_sysctl(files: CgroupFiles, entry: LedgerEntry, *, force: bool) -> RestoreResult:
    current = ""
    if entry.path not in SWITCHES:
        return RestoreResult(
            entry=entry, state="refused", detail="not a switch that the agent writes"
        )
    try:
        current = files.read(entry.path, 64).decode("ascii", "replace").strip()
        if current == entry.original:
            return RestoreResult(entry=entry, state="same", current=current)
        if current not in entry.ours and not force:
            return RestoreResult(entry=entry, state="foreign", current=current)
        files.write(entry.path, entry.original)
    except HostFileError as error:
        is_missing = error.errno == errno.ENOENT
        state, detail = ("gone", "") if is_missing else ("refused", str(error))
        return RestoreResult(entry=entry, state=state, current=current, detail=detail)
    finally:
        files.close(entry.path)
    return RestoreResult(entry=entry, state="restored", current=current)


def _set_state(found: _RestoreState, target: WriteTarget, state: str, detail: str = "") -> None:
    entry = found.entries[target]
    current = KEYS_BY_NAME[entry.key].to_ledger(found.values[target])
    # a value that stays has no target
    text = found.targets.get(target, "") if state in ("planned", "restored", "same") else ""
    found.states[entry.id] = RestoreResult(
        entry=entry,
        state=state,
        current=current,
        target=text,
        detail=detail or (WIDEST_TEXT if text else ""),
    )
