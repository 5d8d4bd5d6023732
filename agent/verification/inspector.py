"""Observes one container from the host: mounts, device nodes, limits, device rules. Read-only.

The inspector follows no link of a container and does not wait for a file system of a container.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from agent.allocation.file_stamp import ABSENT_FILE, HostFileStamp, read_stamp
from agent.cgroup.layout import CgroupLayout
from agent.clock import Clock
from agent.errors import HostFileError
from agent.host.files import read_text
from agent.snapshot.edits import ContainerEdits
from agent.snapshot.host_files import HostFiles
from agent.verification.container_check import DeviceNumbers
from agent.verification.observation import (
    ContainerObservation,
    DeviceRule,
    MountOrigin,
    ObservedMount,
    ObservedNode,
    RuntimeRecord,
)
from agent.verification.processes import FirstProcess, container_cgroup, first_process, is_alive
from agent.verification.procfs import parse_environ, parse_limits, parse_mountinfo, parse_rules
from agent.verification.runtime_record import parse_runtime_record

T = TypeVar("T")

# where runtimes store a container's specification: containerd, k3s and RKE2, CRI-O
RUNTIME_RECORDS = (
    "/run/containerd/io.containerd.runtime.v2.task/k8s.io/{id}/config.json",
    "/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/{id}/config.json",
    "/run/containers/storage/overlay-containers/{id}/userdata/config.json",
)

MAX_ENVIRON, MAX_MOUNTS, MAX_RECORD, MAX_RULES = 1 << 20, 1 << 20, 2 << 20, 64 << 10  # bytes

BOOT_TIME_S = 1.0  # resolution of the boot time in /proc/stat

# systemd writes this file after it has loaded its units: at a start, reload or re-execution
UNITS_LOADED = "/run/systemd/systemd-units-load"

MAX_STAT = 1 << 20  # bytes; one line counts each interrupt of the machine

RUNC_INIT_PREFIX = (
    "_LIBCONTAINER_"  # variables of runc's init process, before it becomes the container's
)


class ContainerLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where to find a container on the host."""

    container_id: str
    pod_cgroups: tuple[str, ...]  # each of them may be absent


class ContainerProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The first process of a container, or why it has none."""

    cgroup: str = ""
    process: FirstProcess | None = None
    absence_reason: str = ""


class ContainerInspector:
    """Observes containers of one host.

    `proc` is the folder with that host's processes for system calls of this process.
    """

    def __init__(
        self,
        host: HostFiles,
        clock: Clock,
        *,
        proc: str = "/proc",
        records: tuple[str, ...] = RUNTIME_RECORDS,
    ) -> None:
        self._host, self._clock, self._proc, self._records = host, clock, proc, records
        # by container: path and content of the kernel's device rules at the last check
        self._rule_files: dict[str, tuple[str, bytes]] = {}

    def find_process(self, layout: CgroupLayout, location: ContainerLocation) -> ContainerProcess:
        """Return the first process of a container."""
        cgroup = container_cgroup(self._host, layout, location.pod_cgroups, location.container_id)
        if cgroup is None:
            return ContainerProcess(absence_reason="it has no cgroup (yet)")
        process = first_process(self._host, layout, cgroup)
        if process is None:
            return ContainerProcess(absence_reason="it has no process (yet)")
        return ContainerProcess(cgroup=cgroup, process=process)

    def inspect(
        self,
        layout: CgroupLayout,
        container_id: str,
        container: ContainerProcess,
        edits: ContainerEdits,
        numbers: Collection[DeviceNumbers] = (),
    ) -> ContainerObservation:
        """Observe one container by its process; absent things are no errors.

        `edits` name the mounts and limits to observe, `numbers` are those of the allocated devices'
        nodes.
        """
        self._rule_files.pop(container_id, None)
        cgroup, process = container.cgroup, container.process
        if process is None:
            return ContainerObservation(absence_reason=container.absence_reason)
        record = self._record(container_id)
        # read first: as long as these are runc's variables, runc may still create device nodes
        env = self._read(f"/proc/{process.pid}/environ", MAX_ENVIRON, parse_environ)
        if env is not None and any(name.startswith(RUNC_INIT_PREFIX) for name, _ in env):
            return ContainerObservation(absence_reason="the runtime has not started it yet")
        observation = self._process(process, edits)
        rules = self._rules(layout, cgroup, container_id)
        if not is_alive(self._host, process):
            return ContainerObservation(absence_reason="it ended while it was looked at")
        by_systemd = layout.version == 2 and cgroup.endswith(".scope")
        return msgspec.structs.replace(
            observation,
            env=env,
            rules=rules,
            record=record,
            denied_after_reload=self._reloaded(process, numbers) if by_systemd else frozenset(),
        )

    def reload_stamp(self) -> HostFileStamp:
        """Return a value that differs after systemd was reloaded."""
        return read_stamp(self._host, UNITS_LOADED, self._clock.wall())

    def containers_with_changed_rules(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Return the containers whose kernel device rules differ from the last check."""
        return tuple(key for key in ids if key in self._rule_files and self._differs(key))

    def forget(self, ids: Collection[str]) -> None:
        """Forget containers that are not among these."""
        self._rule_files = {key: stamp for key, stamp in self._rule_files.items() if key in ids}

    def _differs(self, container_id: str) -> bool:
        path, before = self._rule_files[container_id]
        return self._read(path, MAX_RULES, bytes) != before

    def _reloaded(
        self, process: FirstProcess, numbers: Collection[DeviceNumbers]
    ) -> frozenset[DeviceNumbers]:
        """Return the devices that a reloaded systemd denies: those without a link in /dev/char."""
        reload_stamp, booted_s = self.reload_stamp(), self._booted_s()
        if reload_stamp == ABSENT_FILE or booted_s is None:
            return frozenset()
        started_s = booted_s + process.start_ticks / os.sysconf("SC_CLK_TCK")
        if reload_stamp[0] / 1e9 <= started_s + BOOT_TIME_S:
            return frozenset()
        return frozenset(
            number
            for number in numbers
            if not self._host.exists(f"/dev/char/{number[0]}:{number[1]}")
        )

    def _booted_s(self) -> int | None:
        """Return the wall time of the kernel's start; `None` if it is not readable."""
        lines = read_text(self._host, "/proc/stat", MAX_STAT) or ""
        match = re.search(r"^btime (\d{1,12})$", lines, re.MULTILINE)
        return int(match[1]) if match else None

    def _process(self, process: FirstProcess, edits: ContainerEdits) -> ContainerObservation:
        folder = f"/proc/{process.pid}"
        mounts: tuple[ObservedMount, ...] | None
        mounts = self._read(f"{folder}/mountinfo", MAX_MOUNTS, parse_mountinfo)
        nodes: tuple[ObservedNode, ...] | None = None
        if mounts is not None:
            nodes = list_nodes(f"{self._proc}/{process.pid}/root", mounts)
        limits = None
        if edits.rlimits:
            limits = self._read(
                f"{folder}/limits",
                MAX_RULES,
                lambda data: parse_limits(data.decode("ascii", "replace")),
            )
        return ContainerObservation(
            mounts=mounts,
            nodes=nodes,
            limits=limits,
            origins=find_origins(self._host, (mount.host_path for mount in edits.mounts)),
        )

    def _rules(
        self, layout: CgroupLayout, cgroup: str, container_id: str
    ) -> tuple[DeviceRule, ...] | None:
        """Return the kernel's rules; cgroup 2 has no file for them."""
        folder = layout.directory("devices", cgroup) if layout.version == 1 else None
        if folder is None:
            return None
        path = f"{folder}/devices.list"
        data = self._read(path, MAX_RULES, bytes)
        if data is None:
            return None
        self._rule_files[container_id] = path, data
        return parse_rules(data.decode("ascii", "replace"))

    def _record(self, container_id: str) -> RuntimeRecord | None:
        for path in self._records:
            record = self._read(path.format(id=container_id), MAX_RECORD, parse_runtime_record)
            if record is not None:
                return record
        return None

    def _read(self, path: str, limit: int, parse: Callable[[bytes], T]) -> T | None:
        """Return a parsed file; `None` if it is not readable or too long."""
        try:
            data = self._host.read(path, limit)
        except HostFileError:
            return None
        return parse(data) if len(data) < limit else None


MAX_ENTRIES = 4096  # read in one container's /dev

MAX_DEPTH = 4

# a process, perhaps of the container, may serve any other kind, and then a read may never return
SAFE_FILE_SYSTEMS = frozenset(
    ("tmpfs", "devtmpfs", "devpts", "overlay", "ext4", "xfs", "btrfs", "mqueue")
)

_OPEN_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def list_nodes(root: str, mounts: Iterable[ObservedMount]) -> tuple[ObservedNode, ...] | None:
    """Return the nodes below /dev of the container whose root folder is `root`.

    `mounts` are the container's; file systems of other kinds than `SAFE_FILE_SYSTEMS` are skipped.
    `None` if its /dev cannot be read, or has too many entries.
    """
    top = {mount.path: mount.file_system for mount in mounts}  # the latest of each path
    avoided = frozenset(path for path, kind in top.items() if kind not in SAFE_FILE_SYSTEMS)
    if "/dev" in avoided or "/" in avoided:
        return None
    walk = _FolderWalk(root, avoided)
    return tuple(walk.nodes) if walk.walk("/dev", MAX_DEPTH) else None


class _FolderWalk:
    """One walk, with the rest of its budget of entries."""

    def __init__(self, root: str, avoided: frozenset[str]) -> None:
        self._root, self._avoided = root, avoided
        self._budget = MAX_ENTRIES
        self.nodes: list[ObservedNode] = []

    def walk(self, folder: str, depth: int) -> bool:
        """Collect the nodes of a folder and its subfolders; return `False` if that failed."""
        try:
            fd = os.open(self._root + folder, _OPEN_FLAGS)
        except OSError:
            return False
        try:
            subfolders = self._entries(fd, folder)
        except OSError:
            return False
        finally:
            os.close(fd)
        if self._budget <= 0:
            return False
        for path in subfolders if depth > 1 else ():
            self.walk(path, depth - 1)  # a subfolder that was removed meanwhile has no nodes
        return self._budget > 0

    def _entries(self, fd: int, folder: str) -> list[str]:
        subfolders = []
        for name in os.listdir(fd):
            path = f"{folder}/{name}"
            self._budget -= 1
            if self._budget <= 0:
                break
            if path in self._avoided:
                continue
            try:
                info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(info.st_mode):
                subfolders.append(path)
            elif stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
                kind = "c" if stat.S_ISCHR(info.st_mode) else "b"
                numbers = os.major(info.st_rdev), os.minor(info.st_rdev)
                self.nodes.append(ObservedNode(path, kind, *numbers))
        return subfolders


# of the host's first process, and of this one: the agent may have its own mount namespace
MOUNT_TABLES = ("/proc/1/mountinfo", "/proc/self/mountinfo")
MAX_TABLE = 4 << 20  # bytes; every container on the node adds lines
MAX_LINKS = 40


def find_origins(host: HostFiles, paths: Iterable[str]) -> Mapping[str, tuple[MountOrigin, ...]]:
    """Return the origins of those host paths that can be resolved: one in each mount table."""
    unique_paths = tuple(dict.fromkeys(paths))
    if not unique_paths:
        return {}
    tables = tuple(_mount_tables(host))
    resolved = {path: real for path in unique_paths if (real := _resolve(host, path)) is not None}
    origins_by_path = {path: _origins_in(tables, real) for path, real in resolved.items()}
    return {path: origins for path, origins in origins_by_path.items() if origins}


def _mount_tables(host: HostFiles) -> Iterator[tuple[ObservedMount, ...]]:
    for table in MOUNT_TABLES:
        try:
            data = host.read(table, MAX_TABLE)
        except HostFileError:
            continue
        if data and len(data) < MAX_TABLE:
            yield parse_mountinfo(data)


def _origins_in(tables: Iterable[tuple[ObservedMount, ...]], path: str) -> tuple[MountOrigin, ...]:
    origins = (_origin_in(mounts, path) for mounts in tables)
    return tuple(dict.fromkeys(origin for origin in origins if origin is not None))


def _origin_in(mounts: Iterable[ObservedMount], path: str) -> MountOrigin | None:
    best: ObservedMount | None = None
    for mount in mounts:
        folder = mount.path.rstrip("/")
        is_inside = path == mount.path or path.startswith(f"{folder}/")
        if is_inside and (best is None or len(mount.path) >= len(best.path)):
            best = mount
    if best is None:
        return None
    rest = path[len(best.path.rstrip("/")) :]
    return MountOrigin(best.origin.device, (best.origin.root.rstrip("/") + rest) or "/")


def _resolve(host: HostFiles, path: str) -> str | None:
    """Resolve the host's links, as the kernel does when it mounts."""
    names, resolved, followed = [name for name in path.split("/") if name], "", 0
    while names:
        name = names.pop(0)
        if name == "..":
            resolved = resolved.rpartition("/")[0]
            continue
        try:
            target = host.link(f"{resolved}/{name}") if name != "." else ""
        except HostFileError:
            return None
        if target is None:
            resolved = f"{resolved}/{name}"
        elif target:
            followed += 1
            if followed > MAX_LINKS:
                return None
            resolved = "" if target.startswith("/") else resolved
            names = [following for following in target.split("/") if following] + names
    return resolved or "/"
