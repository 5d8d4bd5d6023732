"""Finds the kubelet's cgroup: by a setting, `/configz`, the kubelet's process, or a search."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from agent.cgroup.layout import KUBEPODS_ROOTS, CgroupLayout, detect, named_roots
from agent.errors import HostFileError
from agent.host.attributes import entries
from agent.host.files import HostFiles, text

COMMAND = "kubelet"
FLAG, CONFIG_FLAG, KEY = "--cgroup-root", "--config", "cgroupRoot"
MAX_PROCESSES = 65536
MAX_COMMAND_LINE, MAX_CONFIG = 64 * 1024, 256 * 1024  # bytes
PROCESS_S = 30.0  # between two looks at all processes

# the setting, or what the kubelet's `/configz` names; empty: neither names one
KubeletRoot = Callable[[], str]


class KubeletProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The kubelet among this host's processes; `cgroup_root` is empty if it names none."""

    pid: int
    cgroup_root: str = ""


def nowhere() -> str:
    """Return an empty root: neither a setting nor the kubelet names one."""
    return ""


def kubelet_process(host: HostFiles) -> KubeletProcess | None:
    """Return the kubelet that runs on the host, with the root that its flags or file name."""
    for name in entries(host, "/proc")[:MAX_PROCESSES]:
        if name.isdecimal() and text(host, f"/proc/{name}/comm") == COMMAND:
            flags = _flags(host, f"/proc/{name}/cmdline")
            root = flags.get(FLAG) or _configured_root(host, flags.get(CONFIG_FLAG, ""))
            return KubeletProcess(pid=int(name), cgroup_root=root)
    return None


class LayoutLocator:
    """Finds the layout and keeps it once the kubelet's cgroup is there. Belongs to one thread.

    It looks again when `kubelet_root` returns another root, as after the first answer of the
    kubelet. A root that only a search found is replaced by a named or a default one.
    """

    def __init__(self, host: HostFiles, kubelet_root: KubeletRoot = nowhere) -> None:
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
            return self.look(now_s)
        due = now_s >= self._next_look_s
        return self.look(now_s) if due and not self._is_certain(layout) else layout

    def look(self, now_s: float) -> CgroupLayout | None:
        """Look again and return the layout, also if the kubelet's cgroup was there before."""
        self._named = self._kubelet_root()
        self._layout = self._detect(self._named, now_s)
        return self._layout

    def _detect(self, named: str, now_s: float) -> CgroupLayout | None:
        layout = detect(self._host, named or self._process_root)
        if layout is None or self._is_certain(layout) or now_s < self._next_look_s:
            return layout
        self._next_look_s = now_s + PROCESS_S
        if named:
            return layout
        process = kubelet_process(self._host)
        self._process_root = process.cgroup_root if process is not None else ""
        return detect(self._host, self._process_root) if self._process_root else layout

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
    found: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in (FLAG, CONFIG_FLAG):
            found[name] = value if equals else following
    return found


def _configured_root(host: HostFiles, path: str) -> str:
    """Return `cgroupRoot` of the kubelet's configuration file; empty if it is not set."""
    if not path.startswith("/"):
        return ""
    # imported here: few nodes need it, and only once
    import yaml  # noqa: PLC0415 - see above

    try:
        found = yaml.safe_load(host.read(path, MAX_CONFIG).decode("utf-8", "replace"))
    except (HostFileError, yaml.YAMLError, RecursionError, ValueError):
        return ""
    root = found.get(KEY) if isinstance(found, dict) else None
    return root if isinstance(root, str) else ""
