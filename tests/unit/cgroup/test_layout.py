from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroup import layout
from agent.recording.tree import EntryKind, LinkEntry, TreeFiles
from agent.snapshot.pod import KubeQos

ID = "0123456789abcdef" * 4
UID = "8f1c4b1e-0000-4000-8000-00000000000a"
SYSTEMD_UID = UID.replace("-", "_")
SPLIT = """\
tmpfs /sys/fs/cgroup tmpfs rw,mode=755 0 0
cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0
cgroup /sys/fs/cgroup/cpuacct cgroup rw,relatime,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,name=systemd 0 0
"""
JOINED = """\
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""
UNIFIED = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,relatime,nsdelegate 0 0\n"


def host(mounts: str, *directories: str) -> TreeFiles:
    entries: dict[str, bytes | EntryKind] = dict.fromkeys(directories, EntryKind.DIRECTORY)
    return TreeFiles.from_entries({"/proc/mounts": mounts.encode(), **entries})


@pytest.mark.parametrize(
    ("name", "uid"),
    [
        (f"kubepods-burstable-pod{SYSTEMD_UID}.slice", UID),
        (f"kubepods-besteffort-pod{SYSTEMD_UID}.slice", UID),
        (f"kubepods-pod{SYSTEMD_UID}.slice", UID),
        (f"kubelet-kubepods-burstable-pod{SYSTEMD_UID}.slice", UID),
        (f"pod{UID}", UID),
        (f"pod{ID[:32]}", ID[:32]),
        ("kubepods-burstable.slice", None),
        ("burstable", None),
        ("pod", None),
        (f"pod{UID}/x", None),
        ("podx\n", None),
    ],
)
def test_pod_directories_of_both_drivers(name: str, uid: str | None) -> None:
    assert layout.parse_pod_dir(name) == uid


@pytest.mark.parametrize("prefix", ["cri-containerd-", "docker-", "crio-", "pouch-"])
def test_container_scopes_of_all_runtimes(prefix: str) -> None:
    assert layout.parse_container_dir(f"{prefix}{ID}.scope") == ID


@pytest.mark.parametrize(
    "name", [f"crio-conmon-{ID}.scope", "init", "container", f"{ID[:8]}", f"{ID}\n", "memory.stat"]
)
def test_other_directories_are_no_containers(name: str) -> None:
    assert layout.parse_container_dir(name) is None


@pytest.mark.parametrize(
    ("cgroup", "qos"),
    [
        ("/kubepods.slice/kubepods-burstable.slice/x.slice", KubeQos.BURSTABLE),
        (f"/kubepods/besteffort/pod{UID}/{ID}", KubeQos.BEST_EFFORT),
        (f"/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice", KubeQos.GUARANTEED),
        (f"/kubepods/pod{UID}", KubeQos.GUARANTEED),
        (
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/p",
            KubeQos.BURSTABLE,
        ),
    ],
)
def test_qos_is_read_off_the_path(cgroup: str, qos: KubeQos) -> None:
    assert layout.qos_of(cgroup) is qos


@pytest.mark.parametrize(
    ("cgroup", "owner"),
    [
        (f"/kubepods/burstable/pod{UID}/{ID}", (UID, ID)),
        (f"/../../kubepods/pod{UID}/{ID}/container", (UID, ID)),
        (f"/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/crio-{ID}.scope", (UID, ID)),
        (f"/kubepods/pod{UID}", None),
        (f"/system.slice/docker-{ID}.scope", None),
        ("/", None),
        ("", None),
    ],
)
def test_the_owner_of_a_process_is_read_off_its_path(
    cgroup: str, owner: tuple[str, str] | None
) -> None:
    assert layout.parse_owner(cgroup) == owner


U = "7712555c-ce62-454a-9e18-9ff0217b8941"
U_, C = U.replace("-", "_"), "91cf0413ee0e"
STATIC = "0123456789abcdef0123456789abcdef"
SLICE = "/kubepods.slice/kubepods"


@pytest.mark.parametrize(
    ("cgroup", "uid", "container", "qos"),
    [
        pytest.param(
            f"{SLICE}-burstable.slice/kubepods-burstable-pod{U_}.slice/cri-containerd-{C}.scope",
            *(U, C, KubeQos.BURSTABLE),
            id="V1",
        ),
        pytest.param(
            f"{SLICE}-pod{U_}.slice/docker-{C}.scope", *(U, C, KubeQos.GUARANTEED), id="V2"
        ),
        pytest.param(
            f"{SLICE}-besteffort.slice/kubepods-besteffort-pod{U_}.slice/crio-{C}.scope",
            *(U, C, KubeQos.BEST_EFFORT),
            id="V3",
        ),
        pytest.param(f"/kubepods/besteffort/pod{U}/{C}", U, C, KubeQos.BEST_EFFORT, id="V4"),
        pytest.param(f"/kubepods/pod{U}", U, None, KubeQos.GUARANTEED, id="V5"),
        pytest.param(
            f"{SLICE}-pod{STATIC}.slice/pouch-{C}.scope",
            *(STATIC, C, KubeQos.GUARANTEED),
            id="V6",
        ),
        pytest.param(f"/kubepods/pod{U}/rkt-{C}", U, None, KubeQos.GUARANTEED, id="V7"),
    ],
)
def test_the_directories_that_kubelets_and_runtimes_make_are_recognized(
    cgroup: str, uid: str, container: str | None, qos: KubeQos
) -> None:
    parts = [layout.parse_pod_dir(part) for part in cgroup.split("/")]
    assert [part for part in parts if part is not None] == [uid]
    assert layout.parse_owner(cgroup) == (None if container is None else (uid, container))
    assert layout.qos_of(cgroup) is qos


def test_version_1_with_controllers_apart() -> None:
    roots = [f"/sys/fs/cgroup/{c}/kubepods.slice" for c in ("cpu", "cpuacct", "memory")]
    result = layout.detect_layout(host(SPLIT, *roots))
    assert result is not None
    assert (result.version, result.driver, result.root, result.unified) == (
        1,
        "systemd",
        "/kubepods.slice",
        None,
    )
    assert result.directory("cpuacct", "/a") == "/sys/fs/cgroup/cpuacct/a"
    assert result.directory("blkio", "/a") is None


def test_version_1_with_cpu_and_cpuacct_mounted_together_beside_cgroup2() -> None:
    roots = [f"/sys/fs/cgroup/{c}/kubepods" for c in ("cpu,cpuacct", "memory", "unified")]
    result = layout.detect_layout(host(JOINED, *roots))
    assert result is not None
    assert (result.version, result.driver) == (1, "cgroupfs")
    assert result.mount("cpu") == result.mount("cpuacct") == "/sys/fs/cgroup/cpu,cpuacct"
    assert result.unified == "/sys/fs/cgroup/unified"


def test_version_2() -> None:
    result = layout.detect_layout(host(UNIFIED, "/sys/fs/cgroup/kubepods.slice"))
    assert result is not None
    assert (result.version, result.root) == (2, "/kubepods.slice")
    assert result.directory("memory", "/a") == "/sys/fs/cgroup/a"


@pytest.mark.parametrize(
    ("directories", "version", "cpu"),
    [
        (["/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu,cpuacct"], 1, "/sys/fs/cgroup/cpu,cpuacct"),
        (["/sys/fs/cgroup/cgroup.controllers"], 2, "/sys/fs/cgroup"),
    ],
)
def test_without_a_mount_table_the_tree_is_used(
    directories: list[str], version: int, cpu: str
) -> None:
    result = layout.detect_layout(
        TreeFiles.from_entries(dict.fromkeys(directories, EntryKind.DIRECTORY))
    )
    assert result is not None
    assert (result.version, result.mount("cpu"), result.root) == (version, cpu, None)


def test_a_mount_table_of_another_namespace_does_not_mislead() -> None:
    entries: dict[str, bytes | EntryKind] = {
        "/proc/1/mounts": UNIFIED.replace("/sys/fs", "/elsewhere").encode(),
        "/proc/mounts": UNIFIED.encode(),
        "/sys/fs/cgroup/kubepods": EntryKind.DIRECTORY,
    }
    result = layout.detect_layout(TreeFiles.from_entries(entries))
    assert result is not None
    assert result.unified == "/sys/fs/cgroup"


def test_a_host_without_cgroups_has_no_layout() -> None:
    assert layout.detect_layout(host("proc /proc proc rw 0 0\n")) is None


@given(st.text(max_size=200))
def test_no_name_or_table_makes_a_parser_raise(text: str) -> None:
    layout.parse_pod_dir(text)
    layout.parse_container_dir(text)
    layout.parse_qos_dir(text)
    layout.parse_owner(text)
    layout.parse_mounts(text)


def test_a_mount_point_that_cannot_be_listed_is_no_hierarchy() -> None:
    assert (
        layout.detect_layout(TreeFiles.from_entries({"/sys/fs/cgroup": LinkEntry("a" * 5000)}))
        is None
    )
