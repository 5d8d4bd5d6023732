"""Restores original values from the ledger, in an order that the kernel accepts."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable

import msgspec

from agent.cgroup.host_settings import directory_of, find_setting
from agent.cgroup.key_index import find_key
from agent.cgroup.keys import CPUS, IDLE, SHARES, UNKNOWN_FEATURE, CgroupValue, ValueKind
from agent.cgroup.layout import CONTROLLERS, CgroupLayout
from agent.cgroup.ledger import (
    CORE_HIERARCHY,
    GROUP_PRESENT,
    OOM_HIERARCHY,
    RESCTRL_HIERARCHY,
    SWITCHES,
    SYSCTL_HIERARCHY,
    ChangeLedger,
    LedgerEntry,
)
from agent.cgroup.processes import restore_processes
from agent.cgroup.values import V2_HIERARCHY, CgroupFiles, CgroupValues, KernelFiles
from agent.cgroup.write_backoff import RefusalCause, burst_cause, nesting_cause
from agent.cgroup.write_plan import CgroupWrite, DesiredValue, WriteTarget, plan_writes
from agent.errors import HostFileError, ParseError
from agent.host.files import LiveHostFiles

BUDGET_S = 8.0
SWITCH_VALUES = ("0", "1")
WIDEST_TEXT = (
    "all CPUs of the group above: the kernel does not empty the set of a group with processes"
)
OFFLINE_TEXT = "without CPUs that are offline now: the kernel accepts none of them"
KILLS_TEXT = "in use is more than this limit: the kernel would kill processes"
NEWER_VERSION_TEXT = "recorded by a newer version of the agent: this one cannot undo it"


# of entries that are not files of cgroups
OTHER_HIERARCHIES = (OOM_HIERARCHY, CORE_HIERARCHY, SYSCTL_HIERARCHY, RESCTRL_HIERARCHY)


def is_known_entry(entry: LedgerEntry) -> bool:
    """Return whether this version of the agent knows the file of an entry."""
    if entry.hierarchy in OTHER_HIERARCHIES:
        return True
    return find_key(entry.key) is not None and entry.hierarchy in (V2_HIERARCHY, *CONTROLLERS)


class RestoreResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one entry. `state`: restored, same, gone, foreign, refused, planned, late."""

    entry: LedgerEntry
    state: str
    current: str = ""  # as read
    target: str = ""  # written instead of an original that the kernel would not accept
    detail: str = ""  # why not restored, or why there is a target, for people
    is_below: bool = False  # refused because a group below has more

    @property
    def is_done(self) -> bool:
        """Return whether nothing is left of the agent's change."""
        return self.state in ("restored", "same", "gone")

    @property
    def summary(self) -> str:
        """Return the line of `--dry-run`."""
        is_path = self.entry.hierarchy == SYSCTL_HIERARCHY and not _is_setting(self.entry)
        is_path = is_path or self.entry.hierarchy == RESCTRL_HIERARCHY
        name = "" if is_path else f"/{self.entry.key}"
        target = f"{self.target} ({self.detail})" if self.target else self.entry.original
        return f"{self.entry.path}{name} {self.current} → {target}"


class _RestoreState(msgspec.Struct):
    desired_values: list[DesiredValue] = []  # values to write
    entries: dict[WriteTarget, LedgerEntry] = {}
    values: dict[WriteTarget, CgroupValue] = {}  # as read, of the desired values
    states: dict[tuple[str, str, str], RestoreResult] = {}
    # by cgroup: the CPUs afterwards, of cgroups with a desired set
    cpus: dict[str, frozenset[int]] = {}
    targets: dict[WriteTarget, str] = {}  # written instead of originals


def restore_all(
    ledger: ChangeLedger,
    layout: CgroupLayout,
    root: LiveHostFiles,
    *,
    monotonic: Callable[[], float],
    force: bool = False,
    dry_run: bool = False,
) -> tuple[RestoreResult, ...]:
    """Write the originals of all entries, as when the agent is removed; see `restore_entries`."""
    files = KernelFiles(root)
    try:
        results = restore_entries(
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
    return results


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
    """Write the originals of these entries; return a result for each.

    A value that is neither the agent's nor the original was written by another program, and stays
    unless `force`. A restored entry is dropped from the ledger, so that a run that is killed can be
    repeated; an entry for which the time budget is too short is `late`. The budget is that of the
    writes: if it had to pay for reading all files, too many of them would never be restored. Raises
    `LedgerError` if the ledger cannot be written.
    """
    selected = tuple(entries)
    state = _read_all(values, selected, force=force)
    until_s = monotonic() + budget_s
    if dry_run:
        _plan_restore(values, state)
        _restore_switches(values, selected, state, lambda: True, force=force, dry_run=True)
        _restore_groups(values, selected, state, lambda: True, dry_run=True)
    else:
        _record_targets(ledger, state)
        _write(values, state, monotonic, until_s)
        _restore_processes(values, selected, state, lambda: monotonic() < until_s, force=force)
        # last: the switches are in use until here
        _restore_switches(values, selected, state, lambda: monotonic() < until_s, force=force)
        _restore_groups(values, selected, state, lambda: monotonic() < until_s)
        for result in state.states.values():
            if result.is_done:
                ledger.drop(result.entry, "gone" if result.state == "gone" else "undone")
        ledger.flush()
    late_results = {entry.id: RestoreResult(entry=entry, state="late") for entry in selected}
    return tuple(state.states.get(entry.id, late_results[entry.id]) for entry in selected)


def _read_all(
    values: CgroupValues, entries: Iterable[LedgerEntry], *, force: bool
) -> _RestoreState:
    """Read every file; set the state of those that need no write, collect the others."""
    restore_state = _RestoreState()
    for entry in entries:
        if not is_known_entry(entry):
            restore_state.states[entry.id] = RestoreResult(
                entry=entry, state="refused", detail=NEWER_VERSION_TEXT
            )
        elif _is_setting(entry) or entry.hierarchy not in OTHER_HIERARCHIES:
            _read_entry(values, restore_state, entry)
    desired_values, restore_state.desired_values = (
        sorted(restore_state.desired_values, key=lambda desired: desired.cgroup.count("/")),
        [],
    )
    for (
        original_value
    ) in desired_values:  # outermost first: a group can have only CPUs of the group above
        desired = _achievable(values, restore_state, original_value)
        state = _state(
            desired,
            restore_state.values[desired.target],
            restore_state.entries[desired.target],
            force=force,
        )
        if not state and _stays_idle(values, restore_state, desired):
            state = "same"
        if state:
            _set_state(restore_state, desired.target, state)
            del restore_state.values[desired.target]
        else:
            restore_state.desired_values.append(desired)
            if desired.key is CPUS and isinstance(desired.value, frozenset):
                restore_state.cpus[desired.cgroup] = desired.value
    return restore_state


def _stays_idle(values: CgroupValues, state: _RestoreState, desired: DesiredValue) -> bool:
    """Return whether a weight belongs to a group that is idle afterwards.

    The kernel has no weight for such a group, and refuses one.
    """
    if desired.key is not SHARES:
        return False
    entry = state.entries.get((desired.cgroup, IDLE.name))
    try:
        if entry is not None:
            return IDLE.from_ledger(entry.original) == 1
        return values.read_value(desired.cgroup, IDLE) == 1
    except ParseError:
        return False


def _is_setting(entry: LedgerEntry) -> bool:
    """Return whether an entry is that of a kernel setting outside of cgroups."""
    return entry.hierarchy == SYSCTL_HIERARCHY and find_setting(entry.key) is not None


def _read_entry(values: CgroupValues, state: _RestoreState, entry: LedgerEntry) -> None:
    key = find_key(entry.key)
    if key is None or values.hierarchy(key) != entry.hierarchy:
        state.states[entry.id] = RestoreResult(entry=entry, state="gone")
        return
    try:
        original = key.from_ledger(entry.original)
        if key.host_file and entry.path != directory_of(key):  # the ledger may be damaged
            raise ParseError(f"directory of {key.name}", entry.path)
        desired = DesiredValue(cgroup=entry.path, key=key, value=original, owner=entry.owner)
        current = _current(values, desired, entry)
        if key.host_file and current not in (None, UNKNOWN_FEATURE):
            key.check(values.version, original)
    except ParseError as error:
        state.states[entry.id] = RestoreResult(entry=entry, state="refused", detail=str(error))
        return
    is_unknown = desired.key.kind is ValueKind.FEATURE and current == UNKNOWN_FEATURE
    if current is None or is_unknown:
        state.states[entry.id] = RestoreResult(entry=entry, state="gone")
        return
    state.entries[desired.target] = entry
    state.values[desired.target] = current
    state.desired_values.append(desired)


def _current(values: CgroupValues, desired: DesiredValue, entry: LedgerEntry) -> CgroupValue | None:
    """Return the current value; `None` if the group was removed, or another one has its name."""
    if values.inode(entry.path, desired.key) != entry.inode:
        return None
    return values.read_value(entry.path, desired.key)


def _achievable(values: CgroupValues, state: _RestoreState, desired: DesiredValue) -> DesiredValue:
    """Return the desired value; for CPUs that the kernel does not accept, the widest such set."""
    if desired.key is not CPUS or not state.values[desired.target]:
        return desired
    cpus = _accepted_cpus(values, state, desired)
    if not cpus or cpus == desired.value:
        return desired
    state.targets[desired.target] = CPUS.to_ledger(cpus)
    return msgspec.structs.replace(desired, value=cpus)


def _accepted_cpus(
    values: CgroupValues, state: _RestoreState, desired: DesiredValue
) -> CgroupValue | None:
    """Return the CPUs to write instead of a desired set; `None` or empty: there are none.

    Version 1 accepts no CPU that is offline, version 2 no empty set of a group with processes.
    """
    if values.version == 1:
        try:
            online = values.read_value("/", CPUS)
        except ParseError:
            return None
        if not isinstance(online, frozenset) or not isinstance(desired.value, frozenset):
            return None
        return desired.value & online
    if desired.value or not values.is_populated(desired.cgroup):
        return None
    return _effective_after(values, state, desired.cgroup.rpartition("/")[0])


def _effective_after(
    values: CgroupValues, state: _RestoreState, cgroup: str
) -> frozenset[int] | None:
    """Return the CPUs of a group after the writes; `None` if that is not readable."""
    if not any(cgroup == group or cgroup.startswith(f"{group}/") for group in state.cpus):
        return values.effective_cpus(cgroup)
    parent_cpus = _effective_after(values, state, cgroup.rpartition("/")[0])
    try:
        own_cpus = state.cpus[cgroup] if cgroup in state.cpus else values.read_value(cgroup, CPUS)
    except ParseError:
        return None
    if parent_cpus is None or not isinstance(own_cpus, frozenset):
        return parent_cpus
    return (own_cpus & parent_cpus) or parent_cpus


def _state(desired: DesiredValue, current: CgroupValue, entry: LedgerEntry, *, force: bool) -> str:
    """Return the state of a file that needs no write; empty if it needs one."""
    if desired.is_met(current):
        return "same"
    return "" if force or desired.key.is_any_of(current, entry.own_values) else "foreign"


def _plan_restore(values: CgroupValues, state: _RestoreState) -> None:
    """Mark each desired value as planned, or as refused if the refusal is foreseeable."""
    refusals = {step.desired.target: _refusal(values, step) for step in _steps(values, state)}
    for target in state.values:
        refusal = refusals.get(target, "")
        _set_state(state, target, "refused" if refusal else "planned", refusal)


def _steps(values: CgroupValues, state: _RestoreState) -> tuple[CgroupWrite, ...]:
    return plan_writes(state.desired_values, state.values, values.version)


def _refusal(values: CgroupValues, step: CgroupWrite) -> str:
    """Return why a write must not be made; empty if it may be made."""
    used = values.memory_above_limit(step)
    return "" if used is None else f"{used} bytes {KILLS_TEXT}"


def _record_targets(ledger: ChangeLedger, state: _RestoreState) -> None:
    """Record the values that replace originals as the agent's, before they are written.

    A run that is killed between a write and the end of its entry can then be repeated.
    """
    changed_entries = [state.entries[target] for target in state.targets if target in state.values]
    for entry in changed_entries:
        target = state.targets[entry.path, entry.key]
        ledger.set(entry.with_own_values([target]))
    if changed_entries:
        ledger.flush()


def _write(
    values: CgroupValues, state: _RestoreState, monotonic: Callable[[], float], until_s: float
) -> None:
    """Make all writes in one order; a refusal stops only writes to the same file."""
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
            if error.errno == errno.ENODEV and step.desired.key.device:  # the disk was removed
                _set_state(state, target, "gone")
                continue
            text = burst_cause(values, step, error.errno)
            cause = RefusalCause(text) if text else nesting_cause(values, step, error.errno)
            detail = f"{error}{cause.text}"
            _set_state(state, target, "refused", detail, is_below=cause.is_below)


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
    restore_state: _RestoreState,
    has_time: Callable[[], bool],
    *,
    force: bool,
) -> None:
    files = values.files
    for entry in entries:
        if (
            entry.hierarchy in (OOM_HIERARCHY, CORE_HIERARCHY)
            and isinstance(files, KernelFiles)
            and has_time()
        ):
            state, detail = restore_processes(files, values.layout, entry, force=force)
            restore_state.states[entry.id] = RestoreResult(entry=entry, state=state, detail=detail)


def _restore_switches(
    values: CgroupValues,
    entries: Iterable[LedgerEntry],
    restore_state: _RestoreState,
    has_time: Callable[[], bool],
    *,
    force: bool,
    dry_run: bool = False,
) -> None:
    for entry in entries:
        if entry.hierarchy == SYSCTL_HIERARCHY and not _is_setting(entry) and has_time():
            result = _restore_switch(values.files, entry, force=force, dry_run=dry_run)
            restore_state.states[entry.id] = result


def _restore_groups(
    values: CgroupValues,
    entries: Iterable[LedgerEntry],
    restore_state: _RestoreState,
    has_time: Callable[[], bool],
    *,
    dry_run: bool = False,
) -> None:
    """Remove resctrl groups, those inside of others first; their tasks return to the root group."""
    groups = [entry for entry in entries if entry.hierarchy == RESCTRL_HIERARCHY]
    for entry in sorted(groups, key=lambda one: one.path.count("/"), reverse=True):
        if isinstance(values.files, KernelFiles) and has_time():
            result = _restore_group(values.files, entry, dry_run=dry_run)
            restore_state.states[entry.id] = result


def _restore_group(files: KernelFiles, entry: LedgerEntry, *, dry_run: bool) -> RestoreResult:
    try:
        files.inode(f"{entry.path}/tasks")  # of any other folder nothing is removed
        if entry.inode not in (0, files.inode(entry.path)):
            return RestoreResult(entry=entry, state="gone")  # another program made it again
        if not dry_run:
            files.remove_directory(entry.path)
    except HostFileError as error:
        is_missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        state, detail = ("gone", "") if is_missing else ("refused", str(error))
        return RestoreResult(entry=entry, state=state, current=GROUP_PRESENT, detail=detail)
    state = "planned" if dry_run else "restored"
    return RestoreResult(entry=entry, state=state, current=GROUP_PRESENT)


def _restore_switch(
    files: CgroupFiles, entry: LedgerEntry, *, force: bool, dry_run: bool
) -> RestoreResult:
    current = ""
    if entry.path not in SWITCHES or entry.original not in SWITCH_VALUES:
        return RestoreResult(
            entry=entry, state="refused", detail="not a switch that the agent writes"
        )
    try:
        current = files.read(entry.path, 64).decode("ascii", "replace").strip()
        if current == entry.original:
            return RestoreResult(entry=entry, state="same", current=current)
        if current not in entry.own_values and not force:
            return RestoreResult(entry=entry, state="foreign", current=current)
        if dry_run:
            return RestoreResult(entry=entry, state="planned", current=current)
        files.write(entry.path, entry.original)
        after = files.read(entry.path, 64).decode("ascii", "replace").strip()
    except HostFileError as error:
        is_missing = error.errno == errno.ENOENT
        state, detail = ("gone", "") if is_missing else ("refused", str(error))
        return RestoreResult(entry=entry, state=state, current=current, detail=detail)
    finally:
        files.close(entry.path)
    if after != entry.original:
        return RestoreResult(entry=entry, state="refused", current=current, detail="not kept")
    return RestoreResult(entry=entry, state="restored", current=current)


def _set_state(
    restore_state: _RestoreState,
    target: WriteTarget,
    state: str,
    detail: str = "",
    *,
    is_below: bool = False,
) -> None:
    entry = restore_state.entries[target]
    key = find_key(entry.key)
    current = "" if key is None else key.to_ledger(restore_state.values[target])
    # a value that stays has no target
    text = restore_state.targets.get(target, "") if state in ("planned", "restored", "same") else ""
    restore_state.states[entry.id] = RestoreResult(
        entry=entry,
        state=state,
        current=current,
        target=text,
        detail=detail or (text and (OFFLINE_TEXT if entry.original else WIDEST_TEXT)),
        is_below=is_below,
    )
