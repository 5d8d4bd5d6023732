"""Paths of pods' and containers' cgroups, built from checked parts only.

Whatever does not have the form of an id is refused: an empty part would name the directory above,
and a write there would hit every pod of the node.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from agent.cgroup.layout import CgroupLayout, parse_container_dir, parse_pod_dir
from agent.errors import AgentError
from agent.model.pod import KubeQos

# of container ids, by the scheme that the kubelet puts before them
SCOPES = {
    "containerd": "cri-containerd-",
    "docker": "docker-",
    "cri-o": "crio-",
    "pouch": "pouch-",
}
SLICE, SCOPE = ".slice", ".scope"

_UID = re.compile(r"[0-9a-f-]{36}|[0-9a-f]{32}")
_ID = re.compile(r"[0-9a-f]{12,64}")
_PART = re.compile(r"[A-Za-z0-9_.:@-]{1,255}")  # of a path that the runtime or kubelet spelled
_PARTS = {KubeQos.BURSTABLE: "burstable", KubeQos.BEST_EFFORT: "besteffort"}


class BadCgroupPath(AgentError, ValueError):
    """A part of a cgroup's path is not what it must be; nothing may be written there."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(f"{what}: {text[:80]!r}")


def qos_directory(layout: CgroupLayout, qos: KubeQos) -> str:
    """Return the directory of a Kubernetes class; guaranteed pods have the root itself."""
    if layout.root is None:
        raise BadCgroupPath("the kubelet has made no cgroup yet", "")
    part = _PARTS.get(qos)
    if part is None:
        return layout.root
    if layout.driver == "systemd":  # whose groups repeat the names of all above them
        part = f"{_slice_name(layout.root)}-{part}{SLICE}"
    return f"{layout.root}/{part}"


def pod(layout: CgroupLayout, qos: KubeQos, uid: str) -> str:
    """Return a pod's cgroup. `uid` is the cgroup's: of a static pod the hash of its file."""
    if not _UID.fullmatch(uid):
        raise BadCgroupPath("not the uid of a pod", uid)
    above = qos_directory(layout, qos)
    if layout.driver != "systemd":
        return f"{above}/pod{uid}"
    return f"{above}/{_slice_name(above)}-pod{uid.replace('-', '_')}{SLICE}"


def container(layout: CgroupLayout, pod_cgroup: str, container_id: str) -> str:
    """Return a container's cgroup below its pod's; the id as `containerd://91cf…`."""
    scheme, colon, bare = container_id.partition("://")
    if not colon or scheme not in SCOPES or not _ID.fullmatch(bare):
        raise BadCgroupPath("not the id of a container", container_id)
    if parse_pod_dir(pod_cgroup.rpartition("/")[2]) is None:
        raise BadCgroupPath("not the cgroup of a pod", pod_cgroup)
    if layout.driver != "systemd":
        return f"{pod_cgroup}/{bare}"
    return f"{pod_cgroup}/{SCOPES[scheme]}{bare}{SCOPE}"


def of_parent(cgroup_parent: str, uid: str = "") -> str:
    """Return the pod's cgroup that a runtime calls `cgroup_parent`, in either of its spellings.

    With systemd that is the slice alone, or the path with it at the end. The directory must be
    that of the pod `uid`, where one is given.
    """
    parts = _parts(cgroup_parent)
    found = parse_pod_dir(parts[-1])
    if found is None or (uid and found != uid):
        raise BadCgroupPath("not the cgroup of this pod", cgroup_parent)
    return _expanded(parts[-1]) if parts[-1].endswith(SLICE) else "/" + "/".join(parts)


def of_cgroups_path(cgroups_path: str) -> str:
    """Return the container's cgroup that a runtime calls `cgroups_path`.

    With systemd that is `slice:prefix:id`, else a path.
    """
    slice_name, *rest = cgroups_path.split(":")
    if slice_name.endswith(SLICE) and len(rest) == 2 and "/" not in cgroups_path:
        name = f"{rest[0]}-{rest[1]}{SCOPE}" if rest[0] else f"{rest[1]}{SCOPE}"
        above = of_parent(slice_name)
    else:
        *before, name = _parts(cgroups_path)
        above = "/" + "/".join(before)
        if parse_pod_dir(above.rpartition("/")[2]) is None:
            raise BadCgroupPath("not in the cgroup of a pod", cgroups_path)
    if parse_container_dir(name) is None:
        raise BadCgroupPath("not the cgroup of a container", cgroups_path)
    return f"{above}/{name}"


def sandbox(names: Iterable[str], known: Collection[str]) -> str | None:
    """Return which directory of a pod is its sandbox's: the one of no known container.

    `known` are container ids. `None` if there is none; `BadCgroupPath` if it could be several.
    CRI-O's scopes are containers or their monitors, its sandbox has no suffix.
    """
    found = [
        name
        for name in names
        if (own := parse_container_dir(name)) is not None
        and own not in known
        and not (name.startswith("crio-") and name.endswith(SCOPE))
    ]
    if len(found) > 1:
        raise BadCgroupPath("several directories may be the sandbox", " ".join(sorted(found)))
    return found[0] if found else None


def full_id(name: str) -> str | None:
    """Return `containerd://91cf…` of a systemd directory; `None` where the name does not tell."""
    own = parse_container_dir(name)
    found = (scheme for scheme, prefix in SCOPES.items() if name.startswith(prefix))
    scheme = next(found, None)
    return None if own is None or scheme is None else f"{scheme}://{own}"


def _slice_name(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(SLICE)


def _parts(path: str) -> list[str]:
    """Return the components of a path, of which none leads up or out."""
    parts = [part for part in path.split("/") if part]
    if not parts or any(part in (".", "..") or not _PART.fullmatch(part) for part in parts):
        raise BadCgroupPath("not a path of a cgroup", path)
    return parts


def _expanded(name: str) -> str:
    """Return where systemd has a slice: each dash in its name is a level."""
    words = name.removesuffix(SLICE).split("-")
    if not all(words):
        raise BadCgroupPath("not the name of a slice", name)
    levels = ("-".join(words[: end + 1]) + SLICE for end in range(len(words)))
    return "/" + "/".join(levels)
