from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroup import paths
from agent.cgroup.keys import SHARES
from agent.cgroup.layout import CgroupLayout, parse_container_dir, parse_pod_dir
from agent.cgroup.paths import CgroupPathError
from agent.cgroup.values import CgroupValues, KernelFiles
from agent.host.files import LiveHostFiles
from agent.snapshot.pod import KubeQos

U = "7712555c-ce62-454a-9e18-9ff0217b8941"
U_ = U.replace("-", "_")
C = "91cf0413ee0e"
STATIC = "0123456789abcdef0123456789abcdef"
G, BU, BE = KubeQos.GUARANTEED, KubeQos.BURSTABLE, KubeQos.BEST_EFFORT


def layout(driver: str, version: int = 2, root: str | None = "") -> CgroupLayout:
    if root == "":
        root = "/kubepods.slice" if driver == "systemd" else "/kubepods"
    return CgroupLayout(
        version=version,
        driver=driver,
        mounts=(("cpu", "/sys/fs/cgroup/cpu"),) if version == 1 else (),
        unified=None if version == 1 else "/sys/fs/cgroup",
        root=root,
    )


@pytest.mark.parametrize(
    ("version", "file"),
    [
        (1, f"/sys/fs/cgroup/cpu/kubepods/pod{U}/cpu.shares"),
        (2, f"/sys/fs/cgroup/kubepods/pod{U}/cpu.weight"),
    ],
)
def test_a_file_is_below_the_mount_of_its_version(version: int, file: str) -> None:  # V8
    where = layout("cgroupfs", version)
    values = CgroupValues(KernelFiles(LiveHostFiles()), where)
    assert values.paths(f"/kubepods/pod{U}", SHARES) == (file,)


@pytest.mark.parametrize(
    ("name", "uid"), [(f"kubepods-besteffort-pod{U_}.slice", U), ("foo.slice", None)]
)
def test_a_pod_directory_has_the_uid(name: str, uid: str | None) -> None:  # V9
    assert parse_pod_dir(name) == uid


@pytest.mark.parametrize("name", [f"crio-{C}", f"crio-{C}.scope"])
def test_a_container_directory_has_the_id(name: str) -> None:  # V9
    assert parse_container_dir(name) == C


A1, B2 = "a1" * 8, "b2" * 8


def test_the_directory_of_no_known_container_is_the_sandbox() -> None:  # V10
    names = (f"cri-containerd-{A1}.scope", f"cri-containerd-{B2}.scope")
    assert paths.find_sandbox(names, {A1}) == names[1]


def test_of_two_unknown_directories_neither_is_the_sandbox() -> None:  # V10
    with pytest.raises(CgroupPathError):
        paths.find_sandbox((f"cri-containerd-{A1}.scope", f"cri-containerd-{B2}.scope"), set())


def test_scopes_of_crio_are_containers_and_monitors_never_its_sandbox() -> None:
    names = (f"crio-{A1}.scope", f"crio-conmon-{A1}.scope", f"crio-{B2}")
    assert paths.find_sandbox(names, set()) == f"crio-{B2}"
    assert paths.find_sandbox(names[:2], set()) is None


@pytest.mark.parametrize(
    "spelled",
    [
        f"kubepods-burstable-pod{U_}.slice",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{U_}.slice",
    ],
)
def test_a_slice_is_where_its_dashes_say(spelled: str) -> None:
    expected = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{U_}.slice"
    assert paths.from_cgroup_parent(spelled, U) == expected


def test_a_path_of_the_other_driver_stays_as_it_is() -> None:
    assert (
        paths.from_cgroup_parent(f"/kubepods//besteffort/pod{U}", U)
        == f"/kubepods/besteffort/pod{U}"
    )


@pytest.mark.parametrize(
    "spelled",
    [
        "",
        "/",
        "/kubepods",
        "/kubepods/besteffort",
        f"/kubepods/../pod{U}",
        f"/kubepods/pod{STATIC}",
        "kubepods-.slice",
        "kubepods-burstable.slice",
    ],
)
def test_a_parent_that_is_not_this_pods_own_directory_is_refused(spelled: str) -> None:
    with pytest.raises(CgroupPathError):
        paths.from_cgroup_parent(spelled, U)


@pytest.mark.parametrize(
    ("spelled", "path"),
    [
        (
            f"kubepods-pod{U_}.slice:cri-containerd:{C}",
            f"/kubepods.slice/kubepods-pod{U_}.slice/cri-containerd-{C}.scope",
        ),
        (f"/kubepods/pod{U}/{C}", f"/kubepods/pod{U}/{C}"),
    ],
)
def test_the_runtime_spells_a_containers_path_in_two_ways(spelled: str, path: str) -> None:
    assert paths.from_cgroups_path(spelled) == path


@pytest.mark.parametrize(
    "spelled", [f"/kubepods/pod{U}", f"/kubepods/{C}", f"kubepods-pod{U_}.slice:x:", "a:b:c"]
)
def test_what_is_not_a_container_in_a_pod_is_refused(spelled: str) -> None:
    with pytest.raises(CgroupPathError):
        paths.from_cgroups_path(spelled)


@given(st.text(max_size=200), st.text(max_size=100))
def test_no_text_leads_out_of_a_pod(spelled: str, uid: str) -> None:
    result: list[str] = []
    with contextlib.suppress(CgroupPathError):
        result.append(paths.from_cgroup_parent(spelled, uid))
    with contextlib.suppress(CgroupPathError):
        result.append(paths.from_cgroups_path(spelled))
    for path in result:
        assert ".." not in path.split("/")
        assert any(parse_pod_dir(part) for part in path.split("/"))
