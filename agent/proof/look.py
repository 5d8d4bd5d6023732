"""One look at one container from the host: bounded, read-only, of the collector thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from agent.cgroup.layout import CgroupLayout
from agent.errors import HostFileError
from agent.host.files import HostFiles
from agent.model.grant.edits import ContainerEdits
from agent.proof.evidence import Evidence, MountFound, NodeFound, Record, Rule
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
INIT = "_LIBCONTAINER_"  # runc's own first process has such variables, before the container's


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """Where a container is to be looked for."""

    container_id: str
    pod_cgroups: tuple[str, ...]  # any of them may not be there


class Looker:
    """Looks from one host; `proc` is where this process sees that host's processes."""

    def __init__(
        self, host: HostFiles, *, proc: str = "/proc", records: tuple[str, ...] = RECORDS
    ) -> None:
        self._host, self._proc, self._records = host, proc, records

    def look(self, layout: CgroupLayout, where: Whereabouts, edits: ContainerEdits) -> Evidence:
        """Return what is there; raises nothing for what is not. `edits` say what is asked for."""
        record = self._record(where.container_id)
        cgroup = group_of(self._host, layout, where.pod_cgroups, where.container_id)
        if cgroup is None:
            return Evidence(absent="it has no cgroup (yet)", record=record)
        first = first_of(self._host, layout, cgroup)
        if first is None:
            return Evidence(absent="it has no process (yet)", record=record)
        seen = self._process(first, edits)
        if seen.env is not None and any(name.startswith(INIT) for name, _ in seen.env):
            return Evidence(absent="the runtime has not started it yet")
        if not lives(self._host, first):
            return Evidence(absent="it ended while it was looked at", record=record)
        return msgspec.structs.replace(seen, rules=self._rules(layout, cgroup), record=record)

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
            env=self._read(f"{folder}/environ", MAX_ENVIRON, parse_environ),
            mounts=mounts,
            nodes=nodes,
            limits=limits,
            origins=origins_of(self._host, (mount.host_path for mount in edits.mounts)),
        )

    def _rules(self, layout: CgroupLayout, cgroup: str) -> tuple[Rule, ...] | None:
        """Return the kernel's rules; cgroup 2 has no file of them, only the runtime's record."""
        folder = layout.directory("devices", cgroup) if layout.version == 1 else None
        if folder is None:
            return None
        return self._read(
            f"{folder}/devices.list",
            MAX_RULES,
            lambda data: parse_rules(data.decode("ascii", "replace")),
        )

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
