"""Paths of pods' and containers' cgroups, built from validated parts only.

An invalid id is refused. An empty part would give the parent directory, and a write there would
change every pod of the node.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from agent.cgroup.layout import CgroupLayout, parse_container_dir, parse_pod_dir
from agent.errors import AgentError
from agent.snapshot.pod import KubeQos

SLICE, SCOPE = ".slice", ".scope"  # suffixes of the systemd driver's directories

# component of a path from the runtime or the kubelet
_PART = re.compile(r"[A-Za-z0-9_.:@-]{1,255}")
_PARTS = {KubeQos.BURSTABLE: "burstable", KubeQos.BEST_EFFORT: "besteffort"}


class CgroupPathError(AgentError, ValueError):
    """A part of a cgroup's path is invalid; nothing may be written there."""

    def __init__(self, problem: str, text: str) -> None:
        super().__init__(f"{problem}: {text[:80]!r}")


def qos_directory(layout: CgroupLayout, qos: KubeQos) -> str:
    """Return the directory of a Kubernetes QoS class; guaranteed pods are below the root itself."""
    if layout.root is None:
        raise CgroupPathError("the kubelet has made no cgroup yet", "")
    part = _PARTS.get(qos)
    if part is None:
        return layout.root
    if layout.driver == "systemd":  # slices repeat the names of all slices above them
        part = f"{_slice_name(layout.root)}-{part}{SLICE}"
    return f"{layout.root}/{part}"


def from_cgroup_parent(cgroup_parent: str, uid: str = "") -> str:
    """Return the pod's cgroup for a runtime's `cgroup_parent`, in either form.

    With systemd that is the slice alone, or a path that ends with it. With a `uid`, the directory
    must be that of this pod.
    """
    parts = _parts(cgroup_parent)
    pod_uid = parse_pod_dir(parts[-1])
    if pod_uid is None or (uid and pod_uid != uid):
        raise CgroupPathError("not the cgroup of this pod", cgroup_parent)
    return _expand_slice(parts[-1]) if parts[-1].endswith(SLICE) else "/" + "/".join(parts)


def from_cgroups_path(cgroups_path: str) -> str:
    """Return the container's cgroup for a runtime's `cgroups_path`.

    With systemd that is `slice:prefix:id`, else a path.
    """
    slice_name, *fields = cgroups_path.split(":")
    if slice_name.endswith(SLICE) and len(fields) == 2 and "/" not in cgroups_path:
        name = f"{fields[0]}-{fields[1]}{SCOPE}" if fields[0] else f"{fields[1]}{SCOPE}"
        parent = from_cgroup_parent(slice_name)
    else:
        *parent_parts, name = _parts(cgroups_path)
        parent = "/" + "/".join(parent_parts)
        if parse_pod_dir(parent.rpartition("/")[2]) is None:
            raise CgroupPathError("not in the cgroup of a pod", cgroups_path)
    if parse_container_dir(name) is None:
        raise CgroupPathError("not the cgroup of a container", cgroups_path)
    return f"{parent}/{name}"


def find_sandbox(names: Iterable[str], container_ids: Collection[str]) -> str | None:
    """Return the directory of a pod's sandbox: the one that belongs to no known container.

    `container_ids` are the known ones. `None` if there is no such directory; raises
    `CgroupPathError` if there are several. CRI-O's scopes are containers or their monitors; its
    sandbox has no suffix.
    """
    matches = [
        name
        for name in names
        if (container_id := parse_container_dir(name)) is not None
        and container_id not in container_ids
        and not (name.startswith("crio-") and name.endswith(SCOPE))
    ]
    if len(matches) > 1:
        raise CgroupPathError("several directories may be the sandbox", " ".join(sorted(matches)))
    return matches[0] if matches else None


def _slice_name(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(SLICE)


def _parts(path: str) -> list[str]:
    """Return the components of a path; none of them leads up or out."""
    parts = [part for part in path.split("/") if part]
    if not parts or any(part in (".", "..") or not _PART.fullmatch(part) for part in parts):
        raise CgroupPathError("not a path of a cgroup", path)
    return parts


def _expand_slice(name: str) -> str:
    """Return the path of a systemd slice: each dash in its name is a level."""
    words = name.removesuffix(SLICE).split("-")
    if not all(words):
        raise CgroupPathError("not the name of a slice", name)
    levels = ("-".join(words[: end + 1]) + SLICE for end in range(len(words)))
    return "/" + "/".join(levels)
