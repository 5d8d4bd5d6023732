"""One look at one container from the host: bounded, read-only, of the collector thread."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import msgspec

from agent.cgroup.layout import CgroupLayout
from agent.clock import Clock
from agent.errors import HostFileError
from agent.host.files import HostFiles, text
from agent.means.stamps import ABSENT, Stamp, stamp
from agent.model.grant.edits import ContainerEdits
from agent.proof.evidence import Evidence, MountFound, NodeFound, Record, Rule
from agent.proof.judge import Numbers
from agent.proof.nodes import nodes_in
from agent.proof.origins import origins_of
from agent.proof.process import First, first_of, group_of, lives
from agent.proof.procfs import parse_environ, parse_limits, parse_mountinfo, parse_rules
from agent.proof.record import parse_record

T = TypeVar("T")

# where runtimes keep what they were told; containerd, its kin of k3s and RKE2, CRI-O
RECORDS = (
    "/run/containerd/io.containerd.runtime.v2.task/k8s.io/{id}/config.json",
    "/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/{id}/config.json",
    "/run/containers/storage/overlay-containers/{id}/userdata/config.json",
)
MAX_ENVIRON, MAX_MOUNTS, MAX_RECORD, MAX_RULES = 1 << 20, 1 << 20, 2 << 20, 64 << 10  # bytes
BOOT_TIME_S = 1.0  # resolution of the boot time in /proc/stat
# systemd writes it when it has loaded its units: at a start, a reload, a re-execution
UNITS_LOADED = "/run/systemd/systemd-units-load"
MAX_STAT = 1 << 20  # bytes; a line of it counts each interrupt of the machine
INIT = "_LIBCONTAINER_"  # runc's own first process has such variables, before the container's


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """Where a container is to be looked for."""

    container_id: str
    pod_cgroups: tuple[str, ...]  # any of them may not be there


class Looker:
    """Looks from one host; `proc` is where this process sees that host's processes."""

    def __init__(
        self,
        host: HostFiles,
        clock: Clock,
        *,
        proc: str = "/proc",
        records: tuple[str, ...] = RECORDS,
    ) -> None:
        self._host, self._clock, self._proc, self._records = host, clock, proc, records
        # by container: the kernel's file of its device rules, as it was at the last look
        self._rule_files: dict[str, tuple[str, bytes]] = {}

    def look(
        self,
        layout: CgroupLayout,
        where: Whereabouts,
        edits: ContainerEdits,
        numbers: Collection[Numbers] = (),
    ) -> Evidence:
        """Return what is in a container; nothing is raised for what is absent.

        `edits` name what is looked for, `numbers` are those of the granted devices' nodes.
        """
        self._rule_files.pop(where.container_id, None)
        record = self._record(where.container_id)
        cgroup = group_of(self._host, layout, where.pod_cgroups, where.container_id)
        if cgroup is None:
            return Evidence(absent="it has no cgroup (yet)", record=record)
        first = first_of(self._host, layout, cgroup)
        if first is None:
            return Evidence(absent="it has no process (yet)", record=record)
        # read first: while they are the variables of the runtime, it is still making device nodes
        env = self._read(f"/proc/{first.pid}/environ", MAX_ENVIRON, parse_environ)
        if env is not None and any(name.startswith(INIT) for name, _ in env):
            return Evidence(absent="the runtime has not started it yet")
        seen = self._process(first, edits)
        rules = self._rules(layout, cgroup, where.container_id)
        if not lives(self._host, first):
            return Evidence(absent="it ended while it was looked at", record=record)
        by_systemd = layout.version == 2 and cgroup.endswith(".scope")
        return msgspec.structs.replace(
            seen,
            env=env,
            rules=rules,
            record=record,
            reloaded=self._reloaded(first, numbers) if by_systemd else frozenset(),
        )

    def units_loaded(self) -> Stamp:
        """Return a value that differs after systemd was reloaded."""
        return stamp(self._host, UNITS_LOADED, self._clock.wall())

    def changed(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Return the containers whose device rules in the kernel differ from the last look."""
        return tuple(key for key in ids if key in self._rule_files and self._differs(key))

    def forget(self, ids: Collection[str]) -> None:
        """Keep nothing of containers that are not among these."""
        self._rule_files = {key: one for key, one in self._rule_files.items() if key in ids}

    def _differs(self, container_id: str) -> bool:
        path, before = self._rule_files[container_id]
        return self._read(path, MAX_RULES, bytes) != before

    def _reloaded(self, first: First, numbers: Collection[Numbers]) -> frozenset[Numbers]:
        """Return the devices that a reloaded systemd denies: those without a link in /dev/char."""
        loaded, booted_s = self.units_loaded(), self._booted_s()
        if loaded == ABSENT or booted_s is None:
            return frozenset()
        started_s = booted_s + first.started / os.sysconf("SC_CLK_TCK")
        if loaded[0] / 1e9 <= started_s + BOOT_TIME_S:
            return frozenset()
        return frozenset(
            one for one in numbers if not self._host.exists(f"/dev/char/{one[0]}:{one[1]}")
        )

    def _booted_s(self) -> int | None:
        """Return the wall time of the kernel's start; `None` if it is not readable."""
        lines = text(self._host, "/proc/stat", MAX_STAT) or ""
        found = re.search(r"^btime (\d{1,12})$", lines, re.MULTILINE)
        return int(found[1]) if found else None

    def _process(self, first: First, edits: ContainerEdits) -> Evidence:
        folder = f"/proc/{first.pid}"
        mounts: tuple[MountFound, ...] | None
        mounts = self._read(f"{folder}/mountinfo", MAX_MOUNTS, parse_mountinfo)
        nodes: tuple[NodeFound, ...] | None = None
        if mounts is not None:
            nodes = nodes_in(f"{self._proc}/{first.pid}/root", mounts)
        limits = None
        if edits.rlimits:
            limits = self._read(
                f"{folder}/limits",
                MAX_RULES,
                lambda data: parse_limits(data.decode("ascii", "replace")),
            )
        return Evidence(
            mounts=mounts,
            nodes=nodes,
            limits=limits,
            origins=origins_of(self._host, (mount.host_path for mount in edits.mounts)),
        )

    def _rules(
        self, layout: CgroupLayout, cgroup: str, container_id: str
    ) -> tuple[Rule, ...] | None:
        """Return the kernel's rules; cgroup 2 has no file of them, only the runtime's record."""
        folder = layout.directory("devices", cgroup) if layout.version == 1 else None
        if folder is None:
            return None
        path = f"{folder}/devices.list"
        data = self._read(path, MAX_RULES, bytes)
        if data is None:
            return None
        self._rule_files[container_id] = path, data
        return parse_rules(data.decode("ascii", "replace"))

    def _record(self, container_id: str) -> Record | None:
        for path in self._records:
            found = self._read(path.format(id=container_id), MAX_RECORD, parse_record)
            if found is not None:
                return found
        return None

    def _read(self, path: str, limit: int, parse: Callable[[bytes], T]) -> T | None:
        """Return what a file says; `None` if it is not readable, or longer than anybody needs."""
        try:
            data = self._host.read(path, limit)
        except HostFileError:
            return None
        return parse(data) if len(data) < limit else None
