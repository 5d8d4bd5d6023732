"""What a real koordlet wrote to the cgroup files of 15 pods, for seven NodeSLOs."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping

import msgspec

from agent.snapshot.pod import KubeQos, PodView
from agent.wire_formats.pod import decode_pod_list
from tests.captures import SHARED

RECORD = SHARED / "oracle" / "koordlet-cgroup-files.json"
FOLDERS = {
    KubeQos.GUARANTEED: "",
    KubeQos.BURSTABLE: "burstable/",
    KubeQos.BEST_EFFORT: "besteffort/",
}
RUNS = (
    "defaults",
    "suppress by cpuset",
    "suppress by quota",
    "suppress by quota, low threshold",
    "burst auto",
    "burst only, 100",
    "qos classes",
)


class Run(msgspec.Struct):
    """One NodeSLO, and the files that koordlet changed: before and after, by cgroup and file."""

    name: str
    nodeslo: dict[str, object]
    changed: dict[str, dict[str, tuple[str, str]]]

    def after(self, group: str, file: str) -> str:
        """Return what koordlet left in a file."""
        before = initial()[group][file]
        return self.changed.get(group, {}).get(file, (before, before))[1]


@functools.cache
def record() -> Mapping[str, object]:
    """Return the whole record."""
    loaded = json.loads(RECORD.read_text())
    assert isinstance(loaded, dict)
    return loaded


@functools.cache
def initial() -> Mapping[str, Mapping[str, str]]:
    """Return the files as the kubelet left them, by cgroup: `ls-burst/a`, `besteffort`."""
    return msgspec.convert(record()["initial"], dict[str, dict[str, str]])


def run_of(name: str) -> Run:
    """Return one run."""
    return next(run for run in msgspec.convert(record()["runs"], list[Run]) if run.name == name)


def recorded_pods() -> tuple[PodView, ...]:
    """Return the pods, without cgroups."""
    raw = {"kind": "PodList", "items": record()["pods"]}
    views, bad = decode_pod_list(json.dumps(raw).encode())
    assert not bad
    return views
