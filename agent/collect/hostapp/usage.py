"""What host applications use, measured beside the pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from agent.cgroup import files, parse
from agent.cgroup.files import CgroupFile
from agent.cgroup.layout import CgroupLayout, detect
from agent.collect.groups import GroupReader, paths
from agent.collect.hostapp.places import apart, cgroup
from agent.collect.reader import Door, FileColumn
from agent.collect.slow import Pace
from agent.host.files import HostFiles
from agent.model.slo.spec import HostApplication
from agent.model.usage import GroupUsage

Applications = Callable[[], tuple[HostApplication, ...]]

LOOK_AGAIN_S = 10.0  # for directories of applications that did not run
NO_PRESSURE = Pace(pressure=None)
# all of the group's memory: the kernel's own for it too, as Koordinator counts applications
WHOLE_V1 = CgroupFile("memory", "memory.usage_in_bytes", files.SMALL)
WHOLE_V2 = CgroupFile("memory", "memory.current", files.SMALL)


def none_known() -> tuple[HostApplication, ...]:
    """Know no applications."""
    return ()


class ApplicationUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One cycle's usage of those that run, and what of it is nobody else's."""

    by_name: Mapping[str, GroupUsage]
    cpu_cores: float = 0.0  # sums of what is known; an application without a value counts as none
    memory_bytes: int = 0  # without page cache, as the memory it is subtracted from


NOTHING = ApplicationUsage(by_name={})


class _Columns:
    """The files of one layout's groups."""

    def __init__(self, host: HostFiles, door: Door, layout: CgroupLayout) -> None:
        self.layout = layout
        self.groups = GroupReader(host, door, layout, NO_PRESSURE)
        self.whole = FileColumn(door, parse.counter, files.SMALL)

    def follow(self, cgroups: Mapping[str, str]) -> None:
        self.groups.follow(cgroups)
        whole = WHOLE_V2 if self.layout.version == 2 else WHOLE_V1
        self.whole.follow(paths(whole, self.layout, tuple(cgroups.values())))

    def lost(self) -> bool:
        return self.groups.lost() | self.whole.lost()


class ApplicationReader:
    """Reads the applications that `known` tells of, as long as their directories are there.

    One that starts is seen within ten seconds, one that stops in the next cycle.
    """

    def __init__(self, host: HostFiles, door: Door, known: Applications = none_known) -> None:
        self._host = host
        self._door = door
        self._known = known
        self._wanted: tuple[HostApplication, ...] = ()
        self._apart: frozenset[str] = frozenset()
        self._looked_s = 0.0
        self._columns: _Columns | None = None

    def read(self, now_s: float, layout: CgroupLayout | None) -> ApplicationUsage:
        """Measure once; without a `layout` the host's is looked for, if there is need of one."""
        wanted = self._known()
        if not wanted and self._columns is None:
            return NOTHING
        if self._must_look(now_s, wanted, layout):
            self._looked_s, self._wanted = now_s, wanted
            self._look(layout or detect(self._host) if wanted else None)
        return NOTHING if self._columns is None else self._measure(self._columns, now_s)

    def close(self) -> None:
        """Let go of all descriptors."""
        if self._columns is not None:
            self._columns.follow({})
            self._columns = None

    def _must_look(
        self, now_s: float, wanted: tuple[HostApplication, ...], layout: CgroupLayout | None
    ) -> bool:
        if wanted != self._wanted or now_s - self._looked_s >= LOOK_AGAIN_S:
            return True
        if self._columns is None:
            return False
        return self._columns.lost() or (layout is not None and layout != self._columns.layout)

    def _look(self, layout: CgroupLayout | None) -> None:
        """Follow the applications whose directories are there."""
        if layout is None:
            self.close()
            return
        if self._columns is None or self._columns.layout != layout:
            self.close()
            self._columns = _Columns(self._host, self._door, layout)
        names: dict[str, str] = {}  # by cgroup: of two names of one, the first is measured
        for one in self._wanted:
            path = cgroup(layout, one)
            if path is not None and self._runs(layout, path):
                names.setdefault(path, one.name)
        running = {name: path for path, name in names.items()}
        self._apart = apart(running, layout)
        self._columns.follow(running)

    def _runs(self, layout: CgroupLayout, path: str) -> bool:
        found = {layout.directory(name, path) for name in ("cpuacct", "memory")}
        return any(place is not None and self._host.exists(place) for place in found)

    def _measure(self, columns: _Columns, now_s: float) -> ApplicationUsage:
        table, whole = columns.groups.read(now_s), columns.whole.read()
        by_name = {}
        for name, row in table.index.items():
            if table.cpu_ns[row] is None and table.memory[row] is None:
                continue  # it stopped after the last look
            by_name[name] = msgspec.structs.replace(table[name], memory_with_cache_bytes=whole[row])
        alone = [use for name, use in by_name.items() if name in self._apart]
        return ApplicationUsage(
            by_name=by_name,
            cpu_cores=sum(use.cpu_cores or 0.0 for use in alone),
            memory_bytes=sum(use.memory_bytes or 0 for use in alone),
        )
