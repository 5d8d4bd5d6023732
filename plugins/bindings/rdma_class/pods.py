"""What pods use of RDMA devices, and may use: the kernel's RDMA cgroup controller.

Read only. A pod has a line for each device of this network namespace; lines of devices that it
does not use may be missing or zero, and are then left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from agent.host.files import HostFiles, text
from agent.model.inventory import MetricFamily, Reading
from plugins.bindings.rdma_class.classes import entries
from plugins.bindings.rdma_class.text import is_name, parse_limits

MAX_PODS = 1024
MAX_BYTES = 16 * 1024  # of one file; a line has less than 100
PREFIX = "xpu_rdma_cgroup_"

_TOPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/rdma", "/sys/fs/cgroup/unified")
_GROUPS = ("kubepods.slice", "kubepods", "kubelet.slice/kubelet-kubepods.slice", "kubelet/kubepods")
_CLASS = re.compile(r"(?:.*-)?(?:burstable|besteffort)(?:\.slice)?")
_POD = re.compile(r"(?:.*-)?pod([0-9a-fA-F_-]{8,64})(?:\.slice)?")
_LABELS = ("rdma", "pod_uid")

FAMILIES: tuple[MetricFamily, ...] = tuple(
    MetricFamily(name=f"{PREFIX}{name}", type="gauge", help=words, labels=_LABELS)
    for name, words in (
        ("handles", "Device contexts that a pod has opened."),
        ("handles_limit", "Device contexts that a pod may open; absent without a limit."),
        ("objects", "Queues, memory regions and other objects of a pod."),
        ("objects_limit", "Objects that a pod may have; absent without a limit."),
    )
)


def kubepods(host: HostFiles) -> str | None:
    """Return the group of all pods where the controller is on; `None` if it is nowhere."""
    places = (f"{top}/{group}" for top in _TOPS for group in _GROUPS)
    return next((place for place in places if host.exists(f"{place}/rdma.max")), None)


def pod_limits(host: HostFiles) -> Mapping[str, str]:
    """Return what all pods together may have, by device, where that is limited."""
    place = kubepods(host)
    content = (text(host, f"{place}/rdma.max", MAX_BYTES) or "") if place else ""
    return {
        name: f"handles={_limit(handles)} objects={_limit(objects)}"
        for name, (handles, objects) in parse_limits(content).items()
        if handles is not None or objects is not None
    }


def _limit(value: int | None) -> str:
    return "max" if value is None else str(value)


def pod_readings(host: HostFiles) -> dict[str, tuple[Reading, ...]]:
    """Return what each pod has and may have, by RDMA name; at most `MAX_PODS` pods are read."""
    found: dict[str, list[Reading]] = {}
    for at, (uid, group) in enumerate(_pods(host)):
        if at == MAX_PODS:
            break
        used = parse_limits(text(host, f"{group}/rdma.current", MAX_BYTES) or "")
        limits = parse_limits(text(host, f"{group}/rdma.max", MAX_BYTES) or "")
        for name in sorted({*used, *limits}):
            if is_name(name):
                found.setdefault(name, []).extend(_readings(name, uid, used, limits))
    return {name: tuple(readings) for name, readings in found.items()}


def _readings(
    name: str,
    uid: str,
    used: Mapping[str, tuple[int | None, int | None]],
    limits: Mapping[str, tuple[int | None, int | None]],
) -> Iterator[Reading]:
    nothing = (None, None)
    handles, objects = used.get(name, nothing)
    most_handles, most_objects = limits.get(name, nothing)
    if not handles and not objects and most_handles is None and most_objects is None:
        return
    values = {
        "handles": handles,
        "handles_limit": most_handles,
        "objects": objects,
        "objects_limit": most_objects,
    }
    for what, value in values.items():
        if value is not None:
            yield Reading(family=PREFIX + what, value=value, labels=(name, uid))


def _pods(host: HostFiles) -> Iterator[tuple[str, str]]:
    """Yield uid and group of each pod, as either cgroup driver names them."""
    top = kubepods(host)
    if top is None:
        return
    for name in entries(host, top):
        if pod := _POD.fullmatch(name):
            yield _uid(pod[1]), f"{top}/{name}"
        elif _CLASS.fullmatch(name):
            for inner in entries(host, f"{top}/{name}"):
                if pod := _POD.fullmatch(inner):
                    yield _uid(pod[1]), f"{top}/{name}/{inner}"


def _uid(text_: str) -> str:
    return text_.replace("_", "-")  # systemd keeps `-` for levels of its own
