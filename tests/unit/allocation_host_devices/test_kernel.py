"""What a kernel has for hooks, of both versions of cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.allocation.host_devices import KernelFeatureReader
from agent.host.files import LiveHostFiles
from agent.recording.tree import EntryKind, TreeFiles
from agent.snapshot.host_devices import KernelFeatures

V1 = """\
cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0
cgroup /sys/fs/cgroup/cpuset cgroup rw,relatime,cpuset 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
"""
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,relatime 0 0\n"
SYSTEMD = "kubepods.slice/kubepods-besteffort.slice"
IDENTITY = "/proc/sys/kernel/sched_group_identity_enabled"


def host(mounts: str, **files: bytes) -> TreeFiles:
    below: dict[str, bytes | EntryKind] = {
        f"/sys/fs/cgroup/{name}/{folder}": EntryKind.DIRECTORY
        for name in ("cpu", "cpuset", "memory")
        for folder in ("kubepods", "kubepods/besteffort")
        if mounts == V1
    }
    return TreeFiles.from_entries({"/proc/mounts": mounts.encode(), **below, **files})


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        (b"0-1\n", frozenset({0, 1})),
        (b"\n", None),
        (b"nonsense\n", None),
    ],
)
def test_the_squeezed_directory_of_version_1(text: bytes, cpus: frozenset[int] | None) -> None:
    path = "/sys/fs/cgroup/cpuset/kubepods/besteffort/cpuset.cpus"
    features = KernelFeatureReader(host(V1, **{path: text})).read(0.0)
    assert features == KernelFeatures(cgroup_version=1, besteffort_cpus=cpus)


def test_version_2_needs_no_look() -> None:
    path = f"/sys/fs/cgroup/{SYSTEMD}/cpuset.cpus"
    features = KernelFeatureReader(host(V2, **{path: b"0-1\n"})).read(0.0)
    assert features == KernelFeatures(cgroup_version=2)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"/sys/fs/cgroup/cpu/kubepods/cpu.bvt_warp_ns": b"0\n"},
            KernelFeatures(cgroup_version=1, bvt_file=True),
        ),
        (
            {IDENTITY: b"1\n", "/proc/sys/kernel/sched_core": b"0\n"},
            KernelFeatures(
                cgroup_version=1,
                identity_switch=1,
                identity_switch_present=True,
                core_scheduling=True,
                core_switch=0,
            ),
        ),
        ({IDENTITY: b"x\n"}, KernelFeatures(cgroup_version=1, identity_switch_present=True)),
    ],
)
def test_files_that_only_some_kernels_have(
    files: dict[str, bytes], expected: KernelFeatures
) -> None:
    assert KernelFeatureReader(host(V1, **files)).read(0.0) == expected


def test_a_host_without_cgroups_has_no_facts() -> None:
    assert (
        KernelFeatureReader(TreeFiles.from_entries({"/proc/mounts": b""})).read(0.0)
        == KernelFeatures()
    )


@pytest.mark.parametrize("answer", [True, False])
def test_a_kernel_without_a_switch_is_tested_for_cookies(tmp_path: Path, answer: bool) -> None:
    reader = KernelFeatureReader(LiveHostFiles(str(tmp_path)), has_cookies=lambda: answer)
    assert reader.read(0.0).core_scheduling is answer


def test_the_kernel_of_this_machine_is_not_that_of_a_recorded_host() -> None:
    reader = KernelFeatureReader(host(V2), has_cookies=lambda: True)
    assert not reader.read(0.0).core_scheduling
