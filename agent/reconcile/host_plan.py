"""What hooks and strategies would change on a host now, compared with its files. Writes nothing.

The host may be a recording: only reads are made.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.cgroup.enforcement import EnforcementPlan
from agent.cgroup.key_index import find_key
from agent.cgroup.keys import CgroupKey
from agent.cgroup.ledger import ChangeLedger, LedgerEntry
from agent.cgroup.processes import CORE_COOKIE, OOM_SCORE_ADJ
from agent.cgroup.values import CgroupValues, ExpectedBytes
from agent.cgroup.write_plan import DesiredValue, WritePlan
from agent.cgroup.writer import CgroupWriter
from agent.clock import Clock
from agent.containers.dispatch import ON, PLAN
from agent.containers.hooks import Hook
from agent.errors import HostFileError, ParseError
from agent.host.files import read_text
from agent.reconcile.desired_state import CycleInputs, DesiredState, desired_state_of
from agent.reconcile.managed_pods import ManagedPods
from agent.reconcile.qos_directories import (
    application_cpus,
    desired_directory_writes,
    desired_switches,
)
from agent.reconcile.requested_values import original_quota
from agent.snapshot.host_files import HostFiles
from agent.snapshot.node import NodeSnapshot


class ReadOnlyFiles:
    """The cgroup files of a recorded host; implements `agent.cgroup.values.CgroupFiles`."""

    def __init__(self, files: HostFiles) -> None:
        self._files = files

    def read(self, path: str, size: int) -> bytes:
        """Return the start of a file."""
        return self._files.read(path, size)

    def write(self, path: str, text: str) -> None:  # noqa: ARG002 - as its Protocol
        """Refuse the write."""
        raise HostFileError(path, errno.EROFS)

    def inode(self, path: str) -> int:
        """Return a number for an existing directory: a recording has no inodes."""
        if not self._files.exists(path):
            raise HostFileError(path, errno.ENOENT)
        return 1

    def holds(self, expected: Iterable[ExpectedBytes]) -> bool:
        """Return whether each file starts with these bytes."""
        return all(self.read(path, size) == data for path, size, data in expected)

    def generation(self, path: str) -> None:
        """Return `None`: no descriptor stays open."""

    def close(self, path: str) -> None:
        """Do nothing: no descriptor stays open."""


class PlannedChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change that would be made now.

    `action` is write, restore (the value from before the agent's first write), process (an
    attribute of all processes of a group, whose present value is not read), or make, remove and
    move of groups of resctrl.
    """

    action: str
    path: str  # of the file below the host's root, or the group of the processes
    key: str  # of a cgroup file its name in version 1
    current: str | None  # None: not read, or there is no such file
    desired: str
    owner: str  # the hook or strategy
    mode: str  # on; plan: it would not be written either
    message: str = ""
    source: str = ""  # the field that asks for it


class HostPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All changes in the order of the writes, and what could not be compared."""

    changes: tuple[PlannedChange, ...] = ()
    missing: tuple[PlannedChange, ...] = ()  # desired values of files that this host lacks
    compared: int = 0  # files, with those that have the desired value already
    failures: tuple[tuple[str, str], ...] = ()  # hook and error: bugs
    notes: tuple[tuple[str, str], ...] = ()  # pod and text: what hooks cannot set


class HostPlanner:
    """Compares the desired values of one host with its files."""

    def __init__(
        self,
        values: CgroupValues,
        host: HostFiles,
        ledger: ChangeLedger,
        hooks: tuple[Hook, ...],
        modes: Mapping[str, str],
        clock: Clock,
    ) -> None:
        """`ledger` has the changes of the agent on this host; it is read only."""
        self._values = values
        self._host = host
        self._ledger = ledger
        self._hooks = hooks
        self._modes = modes
        self._clock = clock
        self._writer = CgroupWriter(values, ChangeLedger(None, ""), clock)

    def plan(self, snapshot: NodeSnapshot, enforcement: EnforcementPlan) -> HostPlan:
        """Return what would be changed now; `enforcement` has the values of the strategies."""
        states = self._desired_states(snapshot)
        cpus = application_cpus(self._hooks, self._modes, snapshot)
        directories = desired_directory_writes(snapshot, self._values.layout, self._modes, cpus)
        strategies = [one.values for one in enforcement.enforced]
        overridden = {desired.target for values in strategies for desired in values}
        hooks = [
            tuple(desired for desired in state.writes if desired.target not in overridden)
            for state in states
        ]
        enforced = [directories, *strategies, *hooks]
        planned = [one.values for one in enforcement.planned] + [
            state.planned_writes for state in states
        ]
        changes = [
            *self._switch_changes(snapshot),
            *self._writes(enforced, ON),
            *self._writes(planned, PLAN),
            *self._process_changes(states),
            *self._restores({desired.target for one in enforced for desired in one}, enforcement),
        ]
        groups = ((ON, enforced), (PLAN, planned))
        missing = [
            self._change(desired, mode, None)
            for mode, values in groups
            for desired in (desired for value in values for desired in value)
            if self._current_value(desired) is None
        ]
        return HostPlan(
            changes=tuple(changes),
            missing=tuple(missing),
            compared=sum(len(value) for _, values in groups for value in values) - len(missing),
            failures=tuple(sorted({(f.hook, f.error) for state in states for f in state.failures})),
            notes=tuple(
                (f"{state.managed_pod.pod.namespace}/{state.managed_pod.pod.name}", note.message)
                for state in states
                for note in state.notes
            ),
        )

    def _desired_states(self, snapshot: NodeSnapshot) -> tuple[DesiredState, ...]:
        inputs = CycleInputs(
            hooks=self._hooks,
            modes=self._modes,
            snapshot=snapshot,
            cgroup_version=self._values.version,
            formulas={},
            requested_quota=lambda pod, container: original_quota(
                self._values, self._ledger, (container or pod).cgroup
            ),
            clock=self._clock,
        )
        return tuple(desired_state_of(one, inputs) for one in ManagedPods().list(snapshot))

    def _writes(
        self, groups: Iterable[tuple[DesiredValue, ...]], mode: str
    ) -> Iterator[PlannedChange]:
        now_s = self._clock.monotonic()
        for number, values in enumerate(groups):
            plan: WritePlan = self._writer.prepare(values, now_s, f"{mode} {number}")
            for step in plan.steps:
                if step.is_last:
                    current = plan.current[step.desired.target]
                    text = step.desired.key.text(self._values.version, current).strip()
                    yield self._change(step.desired, mode, text)

    def _change(self, desired: DesiredValue, mode: str, current: str | None) -> PlannedChange:
        paths = self._values.paths(desired.cgroup, desired.key)
        return PlannedChange(
            action="write",
            path=paths[0] if paths else f"{desired.cgroup}/{desired.key.name}",
            key=desired.key.name,
            current=current,
            desired=desired.text(self._values.version),
            owner=desired.owner,
            mode=mode,
            message=desired.message,
            source=desired.source,
        )

    def _current_value(self, desired: DesiredValue) -> object:
        try:
            return self._values.read_value(desired.cgroup, desired.key)
        except ParseError:
            return ""  # there is a file, and no value in it

    def _switch_changes(self, snapshot: NodeSnapshot) -> Iterator[PlannedChange]:
        for switch in desired_switches(snapshot, self._modes):
            current = read_text(self._host, switch.path)
            if current != switch.text:
                yield PlannedChange(
                    action="write",
                    path=switch.path,
                    key=switch.path.rpartition("/")[2],
                    current=current,
                    desired=switch.text,
                    owner=switch.owner,
                    mode=ON,
                )

    def _process_changes(self, states: Iterable[DesiredState]) -> Iterator[PlannedChange]:
        for state in states:
            for score in state.oom_scores:
                yield _process_change(score.cgroup, OOM_SCORE_ADJ, str(score.value), score.owner)
            for core in state.core_groups:
                text = core.group.id or "a group without a name" if core.group.enabled else "none"
                yield _process_change(core.cgroup, CORE_COOKIE, text, "core_scheduling")

    def _restores(
        self, desired: set[tuple[str, str]], enforcement: EnforcementPlan
    ) -> Iterator[PlannedChange]:
        """Yield the changes of owners that are off, or that do not want a file any more."""
        for entry in self._ledger.entries.values():
            mode = self._modes.get(entry.owner)
            is_dropped = entry.owner in enforcement.decided and (entry.path, entry.key) not in (
                desired
            )
            key = find_key(entry.key)
            if key is not None and (mode != ON or is_dropped):
                yield self._restore(entry, key)

    def _restore(self, entry: LedgerEntry, key: CgroupKey) -> PlannedChange:
        paths = self._values.paths(entry.path, key)
        try:
            value = self._values.read_value(entry.path, key)
        except ParseError:
            value = None
        return PlannedChange(
            action="restore",
            path=paths[0] if paths else entry.path,
            key=entry.key,
            current=None if value is None else key.text(self._values.version, value).strip(),
            desired=key.text(self._values.version, key.from_ledger(entry.original)).strip(),
            owner=entry.owner,
            mode=ON,
            message="the value before the agent's first write",
        )


def _process_change(cgroup: str, key: str, desired: str, owner: str) -> PlannedChange:
    return PlannedChange(
        action="process",
        path=cgroup,
        key=key,
        current=None,
        desired=desired,
        owner=owner,
        mode=ON,
    )
