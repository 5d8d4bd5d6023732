"""The recorded eight-card host with pods added: their cgroups as version 2 prints them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from agent.recording.format import format_recording
from agent.recording.host_source import HOST_FILE, open_host
from agent.recording.tree import TreeBuilder, TreeFiles
from tests.process.agent import EIGHT_CARDS

PODS, CONTAINERS = 60, 3
_CLASSES = ("Guaranteed", "Burstable", "BestEffort")
_ROOT = "/sys/fs/cgroup"
_PRESSURE = "some avg10=1.50 avg60=1.00 avg300=0.50 total=2500000\n"
_FULL = "full avg10=0.25 avg60=0.10 avg300=0.05 total=4000\n"
_FILES = {
    "cpu.stat": "usage_usec 9876543\nuser_usec 1\nsystem_usec 1\nnr_periods 100\n"
    "nr_throttled 25\nthrottled_usec 7\n",
    "memory.stat": "anon 1048576\nfile 4096\ninactive_anon 0\nactive_anon 1048576\n"
    "inactive_file 2048\nactive_file 2048\nunevictable 0\nslab 0\n",
    **{f"{name}.pressure": _PRESSURE + _FULL for name in ("cpu", "memory", "io")},
}


def write_host_with_pods(
    folder: Path, more: Mapping[str, bytes] = MappingProxyType({})
) -> tuple[str, ...]:
    """Write the host into a new folder; return the arguments that an agent gets for it.

    `more` are further files of the host by path.
    """
    shutil.copytree(EIGHT_CARDS, folder)
    source = open_host(str(EIGHT_CARDS))
    assert isinstance(source.files, TreeFiles)
    builder = TreeBuilder()
    for directory, entries in source.files.walk():
        for name, entry in entries.items():
            builder.put(f"{directory}/{name}", entry)
    builder.put("/proc/mounts", f"cgroup2 {_ROOT} cgroup2 rw 0 0\n".encode())
    builder.put(f"{_ROOT}/cgroup.controllers", b"cpu memory io\n")
    for group in _groups():
        for name, text in _FILES.items():
            builder.put(f"{_ROOT}{group}/{name}", text.encode())
    for path, content in more.items():
        builder.put(path, content)
    header = {"recorded": "2026-11-21T03:56:23Z", "kernel": "6.1.0-56-amd64"}
    (folder / HOST_FILE).write_text(format_recording(builder.build(), header))
    pods = folder / "pods.json"
    pods.write_text(json.dumps({"kind": "PodList", "items": [_pod(n) for n in range(PODS)]}))
    return "--host", str(folder), "--pods", str(pods)


def _pod(number: int) -> dict[str, object]:
    statuses = [
        {
            "name": f"worker-{index}",
            "containerID": f"containerd://{number * CONTAINERS + index:064x}",
            "state": {"running": {}},
        }
        for index in range(CONTAINERS)
    ]
    return {
        "metadata": {"name": f"train-{number}", "namespace": "team-a", "uid": _uid(number)},
        "spec": {"containers": [{"name": status["name"]} for status in statuses]},
        "status": {
            "phase": "Running",
            "qosClass": _CLASSES[number % 3],
            "containerStatuses": statuses,
        },
    }


def _uid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def _groups() -> list[str]:
    groups = ["/kubepods", "/kubepods/burstable", "/kubepods/besteffort"]
    for number in range(PODS):
        pod = f"{groups[number % 3]}/pod{_uid(number)}"
        groups.append(pod)
        groups += [f"{pod}/{number * CONTAINERS + index:064x}" for index in range(CONTAINERS)]
    return groups
