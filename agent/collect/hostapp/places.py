"""Where host applications have their cgroups, and which of them count apart from all else."""

from __future__ import annotations

from collections.abc import Mapping

from agent.cgroup.layout import CgroupLayout, parse_pod_dir
from agent.model.slo.spec import HostApplication

# below the root, as Koordinator's own way of starting such programs makes them
_BY_QOS = {
    "LSE": "/host-latency-sensitive",
    "LSR": "/host-latency-sensitive",
    "LS": "/host-latency-sensitive",
    "BE": "/host-best-effort",
}
_QOS_PART = {"KubepodsBurstable": "burstable", "KubepodsBesteffort": "besteffort"}


def base(layout: CgroupLayout, name: str) -> str | None:
    """Return the cgroup of `Kubepods` and its kin; `None` while the kubelet has made none."""
    if name == "CgroupRoot":
        return ""
    if layout.root is None or name == "Kubepods":
        return layout.root
    part = _QOS_PART[name]
    if layout.driver == "systemd":  # whose groups repeat the names of all above them
        part = f"{layout.root.rpartition('/')[2].removesuffix('.slice')}-{part}.slice"
    return f"{layout.root}/{part}"


def cgroup(layout: CgroupLayout, application: HostApplication) -> str | None:
    """Return the application's cgroup, "/host-best-effort/spark"; `None` if its base is not there.

    Names and paths have been checked where they came in: none leads up.
    """
    place = application.cgroup_path
    if place is None:
        return f"{_BY_QOS.get(application.qos, '')}/{application.name}"
    below = base(layout, place.base)
    return None if below is None else "/".join((below, *place.parts))


def apart(cgroups: Mapping[str, str], layout: CgroupLayout) -> frozenset[str]:
    """Return the names of those that may be subtracted beside the pods: no use counts twice.

    Left out are groups that hold pods or are within one, and those within another application's.
    """
    found: dict[str, str] = {}
    for name, path in sorted(cgroups.items(), key=lambda item: (item[1].count("/"), item)):
        inside = any(_within(path, other) for other in found.values())
        if not inside and not _overlaps_pods(path, layout):
            found[name] = path
    return frozenset(found)


def _overlaps_pods(path: str, layout: CgroupLayout) -> bool:
    if layout.root is None:
        return False
    holders = [base(layout, name) for name in ("Kubepods", *_QOS_PART)]
    if any(holder is not None and _within(holder, path) for holder in holders):
        return True
    parts = path[len(layout.root) :].split("/") if _within(path, layout.root) else []
    return any(parse_pod_dir(part) is not None for part in parts)


def _within(path: str, above: str) -> bool:
    return path == above or path.startswith(f"{above}/")
