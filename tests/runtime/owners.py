"""Which plug-in set what in a container; two that set one thing is an error of the creation."""

from __future__ import annotations

from collections.abc import Iterator

from proto.gen import nri_container_pb2 as pb
from proto.gen import nri_linux_pb2 as linux

Claim = tuple[str, str]  # field, and its key where it has several
CPU = ("shares", "quota", "period", "realtime_runtime", "realtime_period", "cpus", "mems")
MEMORY = ("limit", "reservation", "swap", "kernel", "kernel_tcp", "swappiness")
LINUX = ("oom_score_adj", "io_priority", "seccomp_policy", "scheduler", "memory_policy")


class Conflict(Exception):
    """Two plug-ins both set a field."""


class Owners:
    """Who set what so far, of one container."""

    def __init__(self) -> None:
        self._owner: dict[Claim, str] = {}

    def claim(self, plugin: str, adjust: pb.ContainerAdjustment) -> None:
        """Note what a plug-in sets. `Conflict` if another did, and this one did not remove it."""
        for claim in removals(adjust):
            self._owner.pop(claim, None)
        for claim in claims(adjust):
            other = self._owner.setdefault(claim, plugin)
            if other != plugin:
                raise Conflict(f'plugins "{other}" and "{plugin}" both tried to set {claim}')


def removals(adjust: pb.ContainerAdjustment) -> Iterator[Claim]:
    """Return what an adjustment takes away, by the marks of its keys."""
    yield from (("env", env.key[1:]) for env in adjust.env if env.key.startswith("-"))
    for mount in adjust.mounts:
        if mount.destination.startswith("-"):
            yield "mounts", mount.destination[1:]
    yield from (("annotations", key[1:]) for key in adjust.annotations if key.startswith("-"))
    for device in adjust.linux.devices:
        if device.path.startswith("-"):
            yield "devices", device.path[1:]


def claims(adjust: pb.ContainerAdjustment) -> Iterator[Claim]:
    """Return what an adjustment sets."""
    yield from (("env", env.key) for env in adjust.env if not env.key.startswith("-"))
    for mount in adjust.mounts:
        if not mount.destination.startswith("-"):
            yield "mounts", mount.destination
    yield from (("annotations", key) for key in adjust.annotations if not key.startswith("-"))
    yield from (("CDI_devices", device.name) for device in adjust.CDI_devices)
    yield from (("rlimits", limit.type) for limit in adjust.rlimits)
    if adjust.args and adjust.args[0]:
        yield "args", ""
    for device in adjust.linux.devices:
        if not device.path.startswith("-"):
            yield "devices", device.path
    yield from ((name, "") for name in LINUX if adjust.linux.HasField(name))
    if adjust.linux.cgroups_path:
        yield "cgroups_path", ""
    yield from resource_claims(adjust.linux.resources)


def resource_claims(resources: linux.LinuxResources) -> Iterator[Claim]:
    """Return the limits that are set."""
    set_cpu = {field.name for field, _ in resources.cpu.ListFields()}
    set_memory = {field.name for field, _ in resources.memory.ListFields()}
    yield from (("cpu", name) for name in CPU if name in set_cpu)
    yield from (("memory", name) for name in MEMORY if name in set_memory)
    yield from (("hugepage_limits", limit.page_size) for limit in resources.hugepage_limits)
    yield from (("unified", key) for key in resources.unified)
    for name in ("blockio_class", "rdt_class", "pids"):
        if name in {field.name for field, _ in resources.ListFields()}:
            yield name, ""
