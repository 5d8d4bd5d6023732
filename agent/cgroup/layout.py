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


def _search_roots(host: HostFiles, point: str) -> Iterator[str]:
    """Yield groups one level below the top that have all groups that a kubelet creates."""
    for name in list_entries(host, point)[:MAX_TOP_GROUPS]:
        stem = f"{name.removesuffix(SLICE)}-{KUBEPODS}"
        if name.endswith(SLICE):
            group, prefix, suffix = f"/{name}/{stem}{SLICE}", f"{stem}-", SLICE
        else:
            group, prefix, suffix = f"/{name}/{KUBEPODS}", "", ""
        classes = (f"{point}{group}/{prefix}{one}{suffix}" for one in _QOS)
        if all(host.exists(path) for path in classes):
            yield group


def detect_layout(host: HostFiles, kubelet_root: str = "") -> CgroupLayout | None:
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
    root = root or next(_search_roots(host, point), None)
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

PROCESS_S = 30.0  # between two looks at all processes

# the setting, or what the kubelet's `/configz` names; empty: neither names one
KubeletRoot = Callable[[], str]


class KubeletProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The kubelet among this host's processes; `cgroup_root` is empty if it names none."""

    pid: int
    cgroup_root: str = ""


def no_kubelet_root() -> str:
    """Return an empty root: neither a setting nor the kubelet names one."""
    return ""


def kubelet_process(host: HostFiles) -> KubeletProcess | None:
    """Return the kubelet that runs on the host, with the root that its flags or file name."""
    for name in list_entries(host, "/proc")[:MAX_PROCESSES]:
        if name.isdecimal() and read_text(host, f"/proc/{name}/comm") == KUBELET_COMMAND:
            flags = _flags(host, f"/proc/{name}/cmdline")
            root = flags.get(ROOT_FLAG) or _configured_root(host, flags.get(CONFIG_FLAG, ""))
            return KubeletProcess(pid=int(name), cgroup_root=root)
    return None


class LayoutLocator:
    """Finds the layout and keeps it once the kubelet's cgroup is there. Belongs to one thread.

    It looks again when `kubelet_root` returns another root, as after the first answer of the
    kubelet. A root that only a search found is replaced by a named or a default one.
    """

    def __init__(self, host: HostFiles, kubelet_root: KubeletRoot = no_kubelet_root) -> None:
        self._host = host
        self._kubelet_root = kubelet_root
        self._layout: CgroupLayout | None = None
        self._named = ""
        self._process_root = ""
        self._next_look_s = float("-inf")  # at the processes, while the root is not certain

    def layout(self, now_s: float) -> CgroupLayout | None:
        """Return the host's layout; `None` if it has no cgroups, `root` unset without a kubelet.

        `now_s` is monotonic.
        """
        layout = self._layout
        if layout is None or layout.root is None or self._kubelet_root() != self._named:
            return self.refresh(now_s)
        due = now_s >= self._next_look_s
        return self.refresh(now_s) if due and not self._is_certain(layout) else layout

    def refresh(self, now_s: float) -> CgroupLayout | None:
        """Look again and return the layout, also if the kubelet's cgroup was there before."""
        self._named = self._kubelet_root()
        self._layout = self._detect(self._named, now_s)
        return self._layout

    def _detect(self, named: str, now_s: float) -> CgroupLayout | None:
        layout = detect_layout(self._host, named or self._process_root)
        if layout is None or self._is_certain(layout) or now_s < self._next_look_s:
            return layout
        self._next_look_s = now_s + PROCESS_S
        if named:
            return layout
        process = kubelet_process(self._host)
        self._process_root = process.cgroup_root if process is not None else ""
        return detect_layout(self._host, self._process_root) if self._process_root else layout

    def _is_certain(self, layout: CgroupLayout) -> bool:
        """Return whether the root is where it is named, or where kubelets have it by default."""
        named = named_roots(self._named or self._process_root)
        return layout.root in (*named, *KUBEPODS_ROOTS)


def _flags(host: HostFiles, path: str) -> Mapping[str, str]:
    """Return the flags of a command line, `--name=value` and `--name value` alike."""
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
