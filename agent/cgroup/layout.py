"""Finds cgroup hierarchies and the kubelet's cgroup; parses names of pod cgroups."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

import msgspec
import yaml

from agent.errors import HostFileError
from agent.host.files import list_entries, read_text
from agent.snapshot.host_files import HostFiles
from agent.snapshot.pod import KubeQos

DEFAULT_MOUNT = "/sys/fs/cgroup"

# the node's own mounts first: in a container the other tables have the container's mounts
MOUNT_TABLES = ("/proc/1/mounts", "/proc/mounts", "/proc/self/mounts")
HOST = "host"  # in place of a controller: the path is that of any directory, not of a cgroup
CONTROLLERS = ("cpu", "cpuacct", "memory", "cpuset", "blkio", "pids", "devices", "freezer")
KUBEPODS, SLICE = "kubepods", ".slice"

# without --cgroup-root, and as kind sets it
KUBEPODS_ROOTS = (
    f"/{KUBEPODS}{SLICE}",
    f"/{KUBEPODS}",
    f"/kubelet{SLICE}/kubelet-{KUBEPODS}{SLICE}",
    f"/kubelet/{KUBEPODS}",
)

MAX_TOP_GROUPS = 4096  # that are searched for a kubelet with --cgroup-root
MAX_MOUNTS_READ = 1 << 20  # bytes; every container on the node adds lines
_NAME = r"[A-Za-z0-9_.:@-]{1,255}"
_PART = re.compile(rf"(?!\.{{1,2}}$){_NAME}")  # component of a path from a setting or the kubelet
_POD = re.compile(rf"(?:{_NAME}-)?pod([0-9A-Za-z_]{{1,128}})\.slice|pod([0-9A-Za-z-]{{1,128}})")
_CONTAINER = re.compile(r"(?:(?:cri-containerd|docker|crio|pouch)-)?([0-9a-f]{12,128})(?:\.scope)?")
_QOS = {"burstable": KubeQos.BURSTABLE, "besteffort": KubeQos.BEST_EFFORT}


class CgroupLayout(msgspec.Struct, frozen=True, kw_only=True):
    """One host's cgroup file systems. `version` is that of the controllers: 1 on hybrid hosts."""

    version: int
    driver: str  # systemd, cgroupfs
    mounts: tuple[tuple[str, str], ...]  # controller and mount point; empty on version 2
    unified: str | None  # where cgroup2 is mounted
    root: str | None = None  # "/kubepods.slice"; None: the kubelet has created none (yet)

    def mount(self, controller: str) -> str | None:
        """Return the mount point of a controller; `None` if it is not mounted."""
        if self.version == 2:
            return self.unified
        return next((point for name, point in self.mounts if name == controller), None)

    def directory(self, controller: str, cgroup: str) -> str | None:
        """Return the directory of a cgroup ("/kubepods/…", "/") in its controller's hierarchy."""
        point = "" if controller == HOST else self.mount(controller)
        return None if point is None else point + cgroup.rstrip("/")


def parse_pod_dir(name: str) -> str | None:
    """Return the pod's uid in a directory name of either driver; `None`: not a pod's."""
    match = _POD.fullmatch(name)
    if match is None:
        return None
    return match[2] or match[1].replace("_", "-")


def parse_container_dir(name: str) -> str | None:
    """Return the container's id; `None` for other directories, such as crio-conmon-….scope."""
    match = _CONTAINER.fullmatch(name)
    return match[1] if match else None


def parse_qos_dir(name: str) -> KubeQos | None:
    """Return the class of `kubepods-burstable.slice`, `besteffort`; `None` for other names."""
    return _QOS.get(name.removesuffix(".slice").rpartition("-")[2])


def qos_of(cgroup: str) -> KubeQos:
    """Return the class of a pod's or container's path.

    Guaranteed pods are directly below the root.
    """
    classes = (parse_qos_dir(part) for part in cgroup.split("/") if parse_pod_dir(part) is None)
    return next((qos for qos in classes if qos is not None), KubeQos.GUARANTEED)


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

    Of several mounts of one hierarchy the first one is used: the kernel lists the oldest first.
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


def configured_roots(kubelet_root: str) -> tuple[str, ...]:
    """Return the paths of the kubepods group for this `--cgroup-root`, one for each driver.

    The path of the kubepods group itself is returned unchanged. An invalid path gives nothing.
    """
    parts = [part for part in kubelet_root.split("/") if part]
    if not kubelet_root.startswith("/") or not all(_PART.fullmatch(part) for part in parts):
        return ()
    if parts and parts[-1].removesuffix(SLICE).rpartition("-")[2] == KUBEPODS:
        return (f"/{'/'.join(parts)}",)
    # each `-` in a slice's name is a level of the tree: the kubelet writes `_` within a part
    names = [*(part.replace("-", "_") for part in parts), KUBEPODS]
    slices = [f"{'-'.join(names[: level + 1])}{SLICE}" for level in range(len(names))]
    return f"/{'/'.join(slices)}", f"/{'/'.join([*parts, KUBEPODS])}"


def _search_roots(host: HostFiles, point: str) -> Iterator[str]:
    """Yield groups one level below the top that have all groups that a kubelet creates."""
    for name in list_entries(host, point)[:MAX_TOP_GROUPS]:
        stem = f"{name.removesuffix(SLICE)}-{KUBEPODS}"
        if name.endswith(SLICE):
            group, prefix, suffix = f"/{name}/{stem}{SLICE}", f"{stem}-", SLICE
        else:
            group, prefix, suffix = f"/{name}/{KUBEPODS}", "", ""
        classes = (f"{point}{group}/{prefix}{qos}{suffix}" for qos in _QOS)
        if all(host.exists(path) for path in classes):
            yield group


def detect_layout(host: HostFiles, kubelet_root: str = "") -> CgroupLayout | None:
    """Return the host's layout; `None` without cgroups of the CPU and memory controllers.

    `kubelet_root` is the kubelet's `--cgroup-root`, empty if unknown.
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
    roots = (*configured_roots(kubelet_root), *KUBEPODS_ROOTS)
    root = next((path for path in roots if host.exists(point + path)), None)
    root = root or next(_search_roots(host, point), None)
    # without a root the driver is unknown; kubeadm, RKE2 and cloud providers use systemd
    driver = "systemd" if root is None or root.endswith(".slice") else "cgroupfs"
    return CgroupLayout(version=version, driver=driver, mounts=mounts, unified=unified, root=root)


def _from_mounts(host: HostFiles) -> tuple[tuple[tuple[str, str], ...], str | None]:
    for table in MOUNT_TABLES:
        try:
            text = host.read(table, MAX_MOUNTS_READ).decode("utf-8", "replace")
        except HostFileError:
            continue
        mounts, unified = parse_mounts(text)
        # a mount point that does not exist belongs to another mount namespace
        mounts = tuple((name, point) for name, point in mounts if host.exists(point))
        if unified is not None and not host.exists(unified):
            unified = None
        if mounts or unified is not None:
            return mounts, unified
    return (), None


def _from_tree(host: HostFiles) -> tuple[tuple[tuple[str, str], ...], str | None]:
    """Derive the layout from the directories: recordings seldom have a usable mount table."""
    if host.exists(f"{DEFAULT_MOUNT}/cgroup.controllers"):
        return (), DEFAULT_MOUNT
    first: dict[str, str] = {}
    for name in list_entries(host, DEFAULT_MOUNT):
        for controller in name.split(","):
            if controller in CONTROLLERS:
                first.setdefault(controller, f"{DEFAULT_MOUNT}/{name}")
    unified = f"{DEFAULT_MOUNT}/unified"
    return tuple(sorted(first.items())), unified if first and host.exists(unified) else None


KUBELET_COMMAND = "kubelet"
ROOT_FLAG, CONFIG_FLAG, CONFIG_KEY = "--cgroup-root", "--config", "cgroupRoot"
MAX_PROCESSES = 65536
MAX_COMMAND_LINE, MAX_CONFIG = 64 * 1024, 256 * 1024  # bytes
PROCESS_S = 30.0  # between two scans of all processes

# returns the setting, or the root in the kubelet's `/configz`; empty: neither
KubeletRoot = Callable[[], str]


class KubeletProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The kubelet's process on this host; `cgroup_root` is empty if it sets none."""

    pid: int
    cgroup_root: str = ""


def no_kubelet_root() -> str:
    """Return an empty root: neither a setting nor the kubelet has one."""
    return ""


def kubelet_process(host: HostFiles) -> KubeletProcess | None:
    """Return the kubelet that runs on the host, with the root of its flags or configuration."""
    for name in list_entries(host, "/proc")[:MAX_PROCESSES]:
        if name.isdecimal() and read_text(host, f"/proc/{name}/comm") == KUBELET_COMMAND:
            flags = _flags(host, f"/proc/{name}/cmdline")
            root = flags.get(ROOT_FLAG) or _configured_root(host, flags.get(CONFIG_FLAG, ""))
            return KubeletProcess(pid=int(name), cgroup_root=root)
    return None


class LayoutLocator:
    """Finds the layout and caches it once the kubelet's cgroup exists. Belongs to one thread.

    It detects the layout again when `kubelet_root` returns another root, for example after the
    first answer of the kubelet. A root from a search is replaced by a configured or a default one.
    """

    def __init__(self, host: HostFiles, kubelet_root: KubeletRoot = no_kubelet_root) -> None:
        self._host = host
        self._kubelet_root = kubelet_root
        self._layout: CgroupLayout | None = None
        self._last_kubelet_root = ""
        self._process_root = ""
        # for the next scan of processes, while the root is uncertain
        self._next_scan_s = float("-inf")

    def layout(self, now_s: float) -> CgroupLayout | None:
        """Return the host's layout; `None` without cgroups, `root` unset without a kubelet.

        `now_s` is monotonic.
        """
        layout = self._layout
        if layout is None or layout.root is None or self._kubelet_root() != self._last_kubelet_root:
            return self.refresh(now_s)
        is_due = now_s >= self._next_scan_s
        return self.refresh(now_s) if is_due and not self._is_certain(layout) else layout

    def refresh(self, now_s: float) -> CgroupLayout | None:
        """Detect and return the layout again, even if the kubelet's cgroup existed before."""
        self._last_kubelet_root = self._kubelet_root()
        self._layout = self._detect(self._last_kubelet_root, now_s)
        return self._layout

    def _detect(self, kubelet_root: str, now_s: float) -> CgroupLayout | None:
        layout = detect_layout(self._host, kubelet_root or self._process_root)
        if layout is None or self._is_certain(layout) or now_s < self._next_scan_s:
            return layout
        self._next_scan_s = now_s + PROCESS_S
        if kubelet_root:
            return layout
        process = kubelet_process(self._host)
        self._process_root = process.cgroup_root if process is not None else ""
        return detect_layout(self._host, self._process_root) if self._process_root else layout

    def _is_certain(self, layout: CgroupLayout) -> bool:
        """Return whether the root is the configured one, or a default one of kubelets."""
        roots = configured_roots(self._last_kubelet_root or self._process_root)
        return layout.root in (*roots, *KUBEPODS_ROOTS)


def _flags(host: HostFiles, path: str) -> Mapping[str, str]:
    """Return the flags of a command line, both `--name=value` and `--name value`."""
    try:
        words = host.read(path, MAX_COMMAND_LINE).decode("utf-8", "replace").split("\0")
    except HostFileError:
        return {}
    flags: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in (ROOT_FLAG, CONFIG_FLAG):
            flags[name] = value if equals else following
    return flags


def _configured_root(host: HostFiles, path: str) -> str:
    """Return `cgroupRoot` of the kubelet's configuration file; empty if it is not set."""
    if not path.startswith("/"):
        return ""

    try:
        document = yaml.safe_load(host.read(path, MAX_CONFIG).decode("utf-8", "replace"))
    except (HostFileError, yaml.YAMLError, RecursionError, ValueError):
        return ""
    root = document.get(CONFIG_KEY) if isinstance(document, dict) else None
    return root if isinstance(root, str) else ""
