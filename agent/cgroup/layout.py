"""Where this host keeps its cgroups, and what the names of pods' and containers' cgroups say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from agent.errors import HostFileError
from agent.host.attributes import entries
from agent.host.files import HostFiles
from agent.model.pod import KubeQos

DEFAULT_MOUNT = "/sys/fs/cgroup"
# those read: a node's own mounts first, for an agent in a container sees its own in the others
MOUNT_TABLES = ("/proc/1/mounts", "/proc/mounts", "/proc/self/mounts")
CONTROLLERS = ("cpu", "cpuacct", "memory", "cpuset", "blkio", "pids", "devices", "freezer")
KUBEPODS, SLICE = "kubepods", ".slice"
# without --cgroup-root, and with that of kind
KUBEPODS_ROOTS = (
    f"/{KUBEPODS}{SLICE}",
    f"/{KUBEPODS}",
    f"/kubelet{SLICE}/kubelet-{KUBEPODS}{SLICE}",
    f"/kubelet/{KUBEPODS}",
)
MAX_TOP_GROUPS = 4096  # that are searched for those of a kubelet with --cgroup-root
MAX_MOUNTS_READ = 1 << 20  # bytes; every container on the node adds lines

_NAME = r"[A-Za-z0-9_.:@-]{1,255}"
_PART = re.compile(rf"(?!\.{{1,2}}$){_NAME}")  # of a path that a setting or the kubelet names
_POD = re.compile(rf"(?:{_NAME}-)?pod([0-9A-Za-z_]{{1,128}})\.slice|pod([0-9A-Za-z-]{{1,128}})")
_CONTAINER = re.compile(r"(?:(?:cri-containerd|docker|crio|pouch)-)?([0-9a-f]{12,128})(?:\.scope)?")
_QOS = {"burstable": KubeQos.BURSTABLE, "besteffort": KubeQos.BEST_EFFORT}


class CgroupLayout(msgspec.Struct, frozen=True, kw_only=True):
    """One host's cgroup file systems. `version` is that of the controllers: 1 on hybrid hosts."""

    version: int
    driver: str  # systemd, cgroupfs
    mounts: tuple[tuple[str, str], ...]  # controller and mount point; empty on version 2
    unified: str | None  # where cgroup2 is mounted
    root: str | None = None  # "/kubepods.slice"; None: the kubelet has made none (yet)

    @property
    def hybrid(self) -> bool:
        """Say whether cgroup2 is mounted beside version 1 controllers."""
        return self.version == 1 and self.unified is not None

    def mount(self, controller: str) -> str | None:
        """Return the mount point of a controller; `None` if it is not mounted."""
        if self.version == 2:
            return self.unified
        return next((point for name, point in self.mounts if name == controller), None)

    def directory(self, controller: str, cgroup: str) -> str | None:
        """Return the directory of a cgroup ("/kubepods/…") in its controller's hierarchy."""
        point = self.mount(controller)
        return None if point is None else point + cgroup


def parse_pod_dir(name: str) -> str | None:
    """Return the pod's uid of a directory name of either driver; `None`: not a pod's."""
    match = _POD.fullmatch(name)
    if match is None:
        return None
    return match[2] or match[1].replace("_", "-")


def parse_container_dir(name: str) -> str | None:
    """Return the container's id; `None` for other directories, as crio-conmon-….scope."""
    match = _CONTAINER.fullmatch(name)
    return match[1] if match else None


def parse_qos_dir(name: str) -> KubeQos | None:
    """Return the class of `kubepods-burstable.slice`, `besteffort`; `None` for other names."""
    return _QOS.get(name.removesuffix(".slice").rpartition("-")[2])


def qos_of(cgroup: str) -> KubeQos:
    """Return the class of a pod's or container's path: guaranteed pods sit below the root."""
    found = (parse_qos_dir(part) for part in cgroup.split("/") if parse_pod_dir(part) is None)
    return next((qos for qos in found if qos is not None), KubeQos.GUARANTEED)


def parse_owner(cgroup: str) -> tuple[str, str] | None:
    """Return (pod uid, container id) of any path at or below a container; else `None`."""
    parts = cgroup.split("/")
    for above, name in pairwise(parts):
        uid, container = parse_pod_dir(above), parse_container_dir(name)
        if uid is not None and container is not None:
            return uid, container
    return None


def parse_mounts(text: str) -> tuple[tuple[tuple[str, str], ...], str | None]:
    """Return version 1 mounts by controller, and cgroup2's mount point, from a mount table.

    Of several mounts of one hierarchy the first is taken, as the kernel lists the oldest first.
    """
    first: dict[str, str] = {}
    unified: str | None = None
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) < 4:
            continue
        point = fields[1].replace("\\040", " ").rstrip("/")
        if fields[2] == "cgroup2":
            unified = unified or point
        elif fields[2] == "cgroup":
            for option in fields[3].split(","):
                if option in CONTROLLERS:
                    first.setdefault(option, point)
    return tuple(sorted(first.items())), unified


def named_roots(kubelet_root: str) -> tuple[str, ...]:
    """Return where a kubelet with this `--cgroup-root` has its groups, for either driver.

    The path of the `kubepods` group itself is taken as it is. Of what is no path of a cgroup
    nothing is returned.
    """
    parts = [part for part in kubelet_root.split("/") if part]
    if not kubelet_root.startswith("/") or not all(_PART.fullmatch(part) for part in parts):
        return ()
    if parts and parts[-1].removesuffix(SLICE).rpartition("-")[2] == KUBEPODS:
        return (f"/{'/'.join(parts)}",)
    # each `-` in a slice's name is a level of the tree: the kubelet writes `_` for one in a part
    names = [*(part.replace("-", "_") for part in parts), KUBEPODS]
    slices = [f"{'-'.join(names[: level + 1])}{SLICE}" for level in range(len(names))]
    return f"/{'/'.join(slices)}", f"/{'/'.join([*parts, KUBEPODS])}"


def _searched(host: HostFiles, point: str) -> Iterator[str]:
    """Yield groups one level below the top that have all groups that a kubelet creates."""
    for name in entries(host, point)[:MAX_TOP_GROUPS]:
        stem = f"{name.removesuffix(SLICE)}-{KUBEPODS}"
        if name.endswith(SLICE):
            group, prefix, suffix = f"/{name}/{stem}{SLICE}", f"{stem}-", SLICE
        else:
            group, prefix, suffix = f"/{name}/{KUBEPODS}", "", ""
        classes = (f"{point}{group}/{prefix}{one}{suffix}" for one in _QOS)
        if all(host.exists(path) for path in classes):
            yield group


def detect(host: HostFiles, kubelet_root: str = "") -> CgroupLayout | None:
    """Return the host's layout; `None` if it has no cgroups that tell CPU and memory.

    `kubelet_root` is the kubelet's `--cgroup-root`, empty if it is not known.
    """
    mounts, unified = _from_mounts(host)
    if not mounts and unified is None:
        mounts, unified = _from_tree(host)
    if mounts:
        version, point = 1, dict(mounts).get("memory") or mounts[0][1]
    elif unified is not None:
        version, point = 2, unified
    else:
        return None
    roots = (*named_roots(kubelet_root), *KUBEPODS_ROOTS)
    root = next((path for path in roots if host.exists(point + path)), None)
    root = root or next(_searched(host, point), None)
    # without a root nothing tells; systemd is what kubeadm, RKE2 and the clouds set
    driver = "systemd" if root is None or root.endswith(".slice") else "cgroupfs"
    return CgroupLayout(version=version, driver=driver, mounts=mounts, unified=unified, root=root)


def _from_mounts(host: HostFiles) -> tuple[tuple[tuple[str, str], ...], str | None]:
    for table in MOUNT_TABLES:
        try:
            text = host.read(table, MAX_MOUNTS_READ).decode("utf-8", "replace")
        except HostFileError:
            continue
        mounts, unified = parse_mounts(text)
        # a mount point that is not there is another mount namespace's
        mounts = tuple((name, point) for name, point in mounts if host.exists(point))
        if unified is not None and not host.exists(unified):
            unified = None
        if mounts or unified is not None:
            return mounts, unified
    return (), None


def _from_tree(host: HostFiles) -> tuple[tuple[tuple[str, str], ...], str | None]:
    """Read the layout off the directories: recordings seldom hold a usable mount table."""
    if host.exists(f"{DEFAULT_MOUNT}/cgroup.controllers"):
        return (), DEFAULT_MOUNT
    first: dict[str, str] = {}
    for name in entries(host, DEFAULT_MOUNT):
        for controller in name.split(","):
            if controller in CONTROLLERS:
                first.setdefault(controller, f"{DEFAULT_MOUNT}/{name}")
    unified = f"{DEFAULT_MOUNT}/unified"
    return tuple(sorted(first.items())), unified if first and host.exists(unified) else None
