"""RDMA usage and limits of pods, from the kernel's RDMA cgroup controller.

This module only reads. A pod has a line for each device of this network namespace; lines of unused
devices may be missing or zero, and are then left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from agent.host.files import read_text
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import MetricValue
from plugins.vendors.rdma.metrics import POD_PREFIX
from plugins.vendors.rdma.sysfs.classes import list_entries
from plugins.vendors.rdma.sysfs.values import is_name, parse_limits

MAX_PODS = 1024

MAX_BYTES = 16 * 1024  # of one file; a line has less than 100

_TOPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/rdma", "/sys/fs/cgroup/unified")

_GROUPS = ("kubepods.slice", "kubepods", "kubelet.slice/kubelet-kubepods.slice", "kubelet/kubepods")

_CLASS = re.compile(r"(?:.*-)?(?:burstable|besteffort)(?:\.slice)?")

_POD = re.compile(r"(?:.*-)?pod([0-9a-fA-F_-]{8,64})(?:\.slice)?")


def kubepods(host: HostFiles) -> str | None:
    """Return the group of all pods in a hierarchy with the controller; `None` if there is none."""
    groups = (f"{top}/{group}" for top in _TOPS for group in _GROUPS)
    return next((path for path in groups if host.exists(f"{path}/rdma.max")), None)


def pod_limits(host: HostFiles) -> Mapping[str, str]:
    """Return the limits of all pods together, by device; unlimited devices are left out."""
    group = kubepods(host)
    content = (read_text(host, f"{group}/rdma.max", MAX_BYTES) or "") if group else ""
    return {
        name: f"handles={_limit(handles)} objects={_limit(objects)}"
        for name, (handles, objects) in parse_limits(content).items()
        if handles is not None or objects is not None
    }


def _limit(value: int | None) -> str:
    return "max" if value is None else str(value)


def pod_readings(host: HostFiles) -> dict[str, tuple[MetricValue, ...]]:
    """Return usage and limits of each pod, by RDMA name; at most `MAX_PODS` pods are read."""
    by_name: dict[str, list[MetricValue]] = {}
    for index, (uid, group) in enumerate(_pods(host)):
        if index == MAX_PODS:
            break
        usage = parse_limits(read_text(host, f"{group}/rdma.current", MAX_BYTES) or "")
        limits = parse_limits(read_text(host, f"{group}/rdma.max", MAX_BYTES) or "")
        for name in sorted({*usage, *limits}):
            if is_name(name):
                by_name.setdefault(name, []).extend(_readings(name, uid, usage, limits))
    return {name: tuple(readings) for name, readings in by_name.items()}


def _readings(
    name: str,
    uid: str,
    usage: Mapping[str, tuple[int | None, int | None]],
    limits: Mapping[str, tuple[int | None, int | None]],
) -> Iterator[MetricValue]:
    unknown = (None, None)
    handles, objects = usage.get(name, unknown)
    max_handles, max_objects = limits.get(name, unknown)
    if not handles and not objects and max_handles is None and max_objects is None:
        return
    values = {
        "handles": handles,
        "handles_limit": max_handles,
        "objects": objects,
        "objects_limit": max_objects,
    }
    for kind, value in values.items():
        if value is not None:
            yield MetricValue(family=POD_PREFIX + kind, value=value, labels=(name, uid))


def _pods(host: HostFiles) -> Iterator[tuple[str, str]]:
    """Yield uid and group of each pod, as both cgroup drivers name them."""
    top = kubepods(host)
    if top is None:
        return
    for name in list_entries(host, top):
        if pod := _POD.fullmatch(name):
            yield _uid(pod[1]), f"{top}/{name}"
        elif _CLASS.fullmatch(name):
            for inner in list_entries(host, f"{top}/{name}"):
                if pod := _POD.fullmatch(inner):
                    yield _uid(pod[1]), f"{top}/{name}/{inner}"


def _uid(name: str) -> str:
    return name.replace("_", "-")  # systemd keeps `-` for levels of its own
