"""A small machine as files: four CPUs in two cores, one package, two memory nodes."""

from __future__ import annotations

from collections.abc import Mapping

from agent.recording.tree import TreeEntry, TreeFiles

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"

Changes = Mapping[str, str | TreeEntry | None]


def _files() -> dict[str, str]:
    files = {f"{CPU}/online": "0-3", f"{NODE}/online": "0-1"}
    for n in range(4):
        files[f"{CPU}/cpu{n}/topology/core_cpus"] = "3" if n < 2 else "c"
        files[f"{CPU}/cpu{n}/topology/package_cpus"] = "f"
        files[f"{CPU}/cpu{n}/topology/physical_package_id"] = "0"
    for n, mask, row in ((0, "3", "10 21"), (1, "c", "21 10")):
        files[f"{NODE}/node{n}/cpumap"] = mask
        files[f"{NODE}/node{n}/meminfo"] = f"Node {n} MemTotal: 1024 kB\n"
        files[f"{NODE}/node{n}/distance"] = row
    return files


def small_host(changes: Changes) -> TreeFiles:
    """Return the machine with some files changed; `None` removes a path and what is below."""
    entries: dict[str, TreeEntry] = {path: text.encode() for path, text in _files().items()}
    for path, change in changes.items():
        for name in [name for name in entries if f"{name}/".startswith(f"{path}/")]:
            del entries[name]
        if change is not None:
            entries[path] = change.encode() if isinstance(change, str) else change
    return TreeFiles.from_entries(entries)
