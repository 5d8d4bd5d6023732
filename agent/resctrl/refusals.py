"""What the kernel refused, rounded, or another program overwrote: what is not tried again yet."""

from __future__ import annotations

import errno

from agent.cgroup.write_backoff import OverwriteTracker
from agent.resctrl.files import ResctrlContent
from agent.resctrl.plan import REFUSED, ExistingGroup, PlannedGroup, RefusedLine, ResctrlPlan
from agent.resctrl.schemata import Schemata, format_line
from agent.snapshot.inventory import Problem

GROUP_RETRY_S = 60.0  # a freed monitoring id rests about that long
DENIED_RETRY_S = 600.0
CONTESTED = "ResctrlForeignWriter"
DENIED = "ResctrlNotPermitted"
SCHEMATA = "schemata"

_NEVER = float("-inf")


class RefusalMemory:
    """Remembers refusals until the value, the root group or the mount changes."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}  # by errno
        self._lines: dict[RefusedLine, str] = {}  # with the reason, for people
        self._groups: dict[str, float] = {}  # by path: the end of the pause
        # what the kernel made of a value: by group, line and domain the written and the read one
        self._roundings: dict[tuple[str, str, int], tuple[int, int]] = {}
        self._last_values: dict[str, Schemata] = {}  # by group: values after the last write
        self._overwrites = OverwriteTracker()
        self._denied_until_s, self._denied_reason = _NEVER, ""
        self._root_text = ""
        self._mount_id = ""

    @property
    def lines(self) -> frozenset[RefusedLine]:
        """Return the lines that the kernel refused."""
        return frozenset(self._lines)

    def groups(self, now_s: float) -> frozenset[str]:
        """Return the paths that could not be made a short while ago."""
        self._groups = {path: until for path, until in self._groups.items() if now_s < until}
        return frozenset(self._groups)

    def count(self, number: int) -> str:
        """Count a refusal; return the name of its errno."""
        name = errno.errorcode.get(number, str(number))
        self.counts[name] = self.counts.get(name, 0) + 1
        return name

    def follow(self, content: ResctrlContent) -> None:
        """Forget what another root group or another mount may accept."""
        is_new_mount = content.mount.id != self._mount_id
        if is_new_mount or content.root_text != self._root_text:
            self._lines.clear()
        if is_new_mount:
            self._groups.clear()
            self._denied_until_s = _NEVER
        self._mount_id, self._root_text = content.mount.id, content.root_text

    def retain(self, plan: ResctrlPlan) -> None:
        """Forget values that are not desired any more."""
        self._lines = {one: why for one, why in self._lines.items() if one in plan.refused_lines}
        names = {group.name for group in plan.groups}
        self._roundings = {key: two for key, two in self._roundings.items() if key[0] in names}
        self._last_values = {
            name: values for name, values in self._last_values.items() if name in names
        }
        self._overwrites.retain(frozenset((name, SCHEMATA) for name in names))

    def record_line(self, group: PlannedGroup, line: str, reason: str) -> None:
        """Record that the kernel refused one line of a group."""
        self._lines[group.name, format_line(line, group.values[line])] = reason

    def record_group(self, path: str, now_s: float) -> None:
        """Record that a group cannot be made now."""
        self._groups[path] = now_s + GROUP_RETRY_S

    def record_denial(self, reason: str, now_s: float) -> None:
        """Record that the kernel permits nothing."""
        self._denied_until_s, self._denied_reason = now_s + DENIED_RETRY_S, reason

    def is_denied(self, now_s: float) -> bool:
        """Return whether the kernel permitted nothing a short while ago."""
        return now_s < self._denied_until_s

    def record_new_group(self, name: str) -> None:
        """Record that a group was made: its values are the kernel's."""
        self._last_values.pop(name, None)

    def record_values(self, group: PlannedGroup, values: Schemata) -> None:
        """Record what the kernel made of the written values."""
        for line, domains in group.values.items():
            if (group.name, format_line(line, domains)) in self._lines:
                continue
            for domain, written in domains.items():
                read = values.get(line, {}).get(domain, written)
                self._roundings.pop((group.name, line, domain), None)
                if read != written:
                    self._roundings[group.name, line, domain] = (written, read)
        self._last_values[group.name] = group.values

    def as_written(self, name: str, group: ExistingGroup) -> ExistingGroup:
        """Return the group with the values that were written where the kernel rounds them."""
        if not self._roundings:
            return group
        values = {
            line: {
                domain: self._unrounded(name, line, domain, one) for domain, one in items.items()
            }
            for line, items in group.values.items()
        }
        return ExistingGroup(
            is_own=group.is_own,
            values=values,
            tasks=group.tasks,
            monitored=group.monitored,
            foreign_monitored=group.foreign_monitored,
        )

    def _unrounded(self, name: str, line: str, domain: int, value: int) -> int:
        written, read = self._roundings.get((name, line, domain), (value, value))
        return written if read == value else value

    def may_write(self, group: PlannedGroup, now_s: float) -> bool:
        """Return whether to write: another program may have replaced what the agent wrote."""
        if self._last_values.get(group.name) != group.values:
            return True
        return self._overwrites.may_write((group.name, SCHEMATA), now_s)

    def problems(self, now_s: float) -> tuple[Problem, ...]:
        """Return the lasting problems."""
        reasons = dict.fromkeys(self._lines.values())
        problems = [Problem(reason=REFUSED, message=reason) for reason in reasons]
        if self.is_denied(now_s):
            problems.append(Problem(reason=DENIED, message=self._denied_reason))
        for path, name in sorted(self._overwrites.contested_targets(now_s)):
            message = f"another program writes {path}/{name}, too"
            problems.append(Problem(reason=CONTESTED, message=message))
        return tuple(problems)
