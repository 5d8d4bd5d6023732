"""What a container would get: the OCI spec as far as plug-ins change it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from proto.gen import nri_container_pb2 as pb
from proto.gen import nri_linux_pb2 as linux
from tests.runtime.versions import Version

PROPAGATION = ("rshared", "rslave", "rprivate", "shared", "slave", "private")


class Refused(Exception):
    """The runtime cannot apply an adjustment: the creation fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A device node in the container, and what its cgroup allows."""

    kind: str
    major: int
    minor: int
    mode: int | None
    access: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A mount."""

    source: str
    type: str
    options: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Spec:
    """A container's spec. `ignored` are fields that this runtime takes and does not look at."""

    env: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, Bind] = field(default_factory=dict)  # by destination
    nodes: dict[str, Node] = field(default_factory=dict)  # by path
    annotations: dict[str, str] = field(default_factory=dict)
    rlimits: dict[str, tuple[int, int]] = field(default_factory=dict)  # soft, hard
    cdi: list[str] = field(default_factory=list)
    args: list[str] = field(default_factory=list)
    cpu: dict[str, int | str] = field(default_factory=dict)
    memory_bytes: int | None = None
    swap_bytes: int | None = None
    unified: dict[str, str] = field(default_factory=dict)
    rdt_class: str | None = None
    oom_score_adj: int | None = None
    ignored: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, container: pb.Container) -> Spec:
        """Return what a container has before plug-ins are asked."""
        spec = cls(
            env=dict(_pair(entry) for entry in container.env),
            annotations=dict(container.annotations),
            args=list(container.args),
        )
        for mount in container.mounts:
            spec.mounts[mount.destination] = _bind(mount)
        for device in container.linux.devices:
            spec.nodes[device.path] = _node(device)
        spec.limit(container.linux.resources)
        return spec

    def apply(
        self, adjust: pb.ContainerAdjustment, version: Version, cdi_names: Iterable[str]
    ) -> None:
        """Change the spec in the runtime's order. `Refused` where it would fail."""
        self._annotations(adjust)
        self._env(adjust)
        if adjust.args:
            self.args = list(adjust.args[1:] if not adjust.args[0] else adjust.args)
        self._cdi(adjust, version, frozenset(cdi_names))
        self._devices(adjust)
        if adjust.linux.HasField("oom_score_adj"):
            self._oom(adjust.linux.oom_score_adj.value, version)
        self.limit(adjust.linux.resources)
        self._mounts(adjust)
        for rlimit in adjust.rlimits:
            if rlimit.soft > rlimit.hard or not rlimit.type.startswith("RLIMIT_"):
                raise Refused(f"rlimit {rlimit.type} {rlimit.soft}:{rlimit.hard}")
            self.rlimits[rlimit.type] = rlimit.soft, rlimit.hard

    def limit(self, resources: linux.LinuxResources) -> None:
        """Lay limits over those that are there; what is absent stays."""
        for name in ("shares", "quota", "period"):
            if resources.cpu.HasField(name):
                self.cpu[name] = getattr(resources.cpu, name).value
        for name in ("cpus", "mems"):
            if value := getattr(resources.cpu, name):
                self.cpu[name] = value
        if resources.memory.HasField("limit") and resources.memory.limit.value != 0:
            self.memory_bytes = self.swap_bytes = resources.memory.limit.value
        self.unified.update(resources.unified)
        if resources.HasField("rdt_class"):
            self.rdt_class = resources.rdt_class.value or None

    def _annotations(self, adjust: pb.ContainerAdjustment) -> None:
        for key, value in adjust.annotations.items():
            if key.startswith("-"):
                self.annotations.pop(key[1:], None)
            else:
                self.annotations[key] = value

    def _env(self, adjust: pb.ContainerAdjustment) -> None:
        for entry in adjust.env:
            if entry.key.startswith("-"):
                self.env.pop(entry.key[1:], None)
            elif not entry.key or "=" in entry.key or "\0" in entry.key + entry.value:
                raise Refused(f"variable {entry.key!r}")
            else:
                self.env[entry.key] = entry.value

    def _cdi(
        self, adjust: pb.ContainerAdjustment, version: Version, entries: frozenset[str]
    ) -> None:
        names = [device.name for device in adjust.CDI_devices]
        if names and not version.cdi:
            self.ignored.append("CDI_devices")
            return
        if missing := [name for name in names if name not in entries]:
            raise Refused(f"unresolvable CDI devices {', '.join(missing)}")
        self.cdi += names

    def _devices(self, adjust: pb.ContainerAdjustment) -> None:
        for device in adjust.linux.devices:
            if device.path.startswith("-"):
                self.nodes.pop(device.path[1:], None)
            elif not device.path.startswith("/") or device.type not in ("c", "b", "u", "p"):
                raise Refused(f"device {device.path!r} of type {device.type!r}")
            elif device.type != "p" and device.major <= 0:
                raise Refused(f"device {device.path} without numbers")
            else:
                self.nodes[device.path] = _node(device)

    def _mounts(self, adjust: pb.ContainerAdjustment) -> None:
        for mount in adjust.mounts:
            if mount.destination.startswith("-"):
                self.mounts.pop(mount.destination[1:], None)
            elif not mount.destination.startswith("/") or not mount.source.startswith("/"):
                raise Refused(f"mount of {mount.source!r} on {mount.destination!r}")
            elif ".." in mount.destination.split("/"):
                raise Refused(f"mount on {mount.destination!r}")
            else:
                self.mounts[mount.destination] = _bind(mount)
        order = sorted(self.mounts, key=lambda path: path.rstrip("/").count("/"))
        self.mounts = {path: self.mounts[path] for path in order}

    def _oom(self, value: int, version: Version) -> None:
        if version.nri < (0, 7, 0):
            self.ignored.append("oom_score_adj")
        elif not -1000 <= value <= 1000:
            raise Refused(f"oom_score_adj {value}")
        else:
            self.oom_score_adj = value


def _pair(entry: str) -> tuple[str, str]:
    name, _, value = entry.partition("=")
    return name, value


def _bind(mount: pb.Mount) -> Bind:
    return Bind(source=mount.source, type=mount.type, options=tuple(mount.options))


def _node(device: linux.LinuxDevice) -> Node:
    return Node(
        kind=device.type,
        major=device.major,
        minor=device.minor,
        mode=device.file_mode.value if device.HasField("file_mode") else None,
        access="rwm" if device.type == "b" else "rw",
    )
