from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroup import paths
from agent.cgroup.layout import CgroupLayout, parse_container_dir, parse_pod_dir
from agent.cgroup.paths import BadCgroupPath
from agent.cgroup.values.keys import SHARES
from agent.cgroup.writing.kernel import KernelFiles
from agent.cgroup.writing.values import CgroupValues
from agent.host.files import LiveRoot
from agent.model.pod import KubeQos

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
    ("driver", "qos", "uid", "container", "path"),
    [
        pytest.param(
            "systemd",
            BU,
            U,
            f"containerd://{C}",
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{U_}.slice"
            f"/cri-containerd-{C}.scope",
            id="V1",
        ),
        pytest.param(
            "systemd",
            G,
            U,
            f"docker://{C}",
            f"/kubepods.slice/kubepods-pod{U_}.slice/docker-{C}.scope",
            id="V2",
        ),
        pytest.param(
            "systemd",
            BE,
            U,
            f"cri-o://{C}",
            f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{U_}.slice"
            f"/crio-{C}.scope",
            id="V3",
        ),
        pytest.param(
            "cgroupfs", BE, U, f"cri-o://{C}", f"/kubepods/besteffort/pod{U}/{C}", id="V4"
        ),
        pytest.param("cgroupfs", G, U, None, f"/kubepods/pod{U}", id="V5"),
        pytest.param(
            "systemd",
            G,
            STATIC,
            f"pouch://{C}",
            f"/kubepods.slice/kubepods-pod{STATIC}.slice/pouch-{C}.scope",
            id="V6",
        ),
    ],
)
def test_a_path_is_built_from_class_uid_and_id(
    driver: str, qos: KubeQos, uid: str, container: str | None, path: str
) -> None:
    where = layout(driver)
    pod = paths.pod(where, qos, uid)
    assert (pod if container is None else paths.container(where, pod, container)) == path


@pytest.mark.parametrize("text", [C, f"rkt://{C}", "", "containerd://", "containerd://../x"])
def test_an_id_that_is_none_is_an_error_and_never_the_parent(text: str) -> None:  # V7
    where = layout("cgroupfs")
    with pytest.raises(BadCgroupPath):
        paths.container(where, paths.pod(where, G, U), text)


@pytest.mark.parametrize("uid", ["", "..", "a" * 31, U[:-1] + "/", "X" * 36])
def test_a_uid_that_is_none_is_an_error(uid: str) -> None:
    with pytest.raises(BadCgroupPath):
        paths.pod(layout("cgroupfs"), G, uid)


def test_before_the_kubelet_made_its_directory_no_path_is_guessed() -> None:
    with pytest.raises(BadCgroupPath):
        paths.pod(layout("systemd", root=None), G, U)


@pytest.mark.parametrize(
    ("version", "file"),
    [
        (1, f"/sys/fs/cgroup/cpu/kubepods/pod{U}/cpu.shares"),
        (2, f"/sys/fs/cgroup/kubepods/pod{U}/cpu.weight"),
    ],
)
def test_a_file_is_below_the_mount_of_its_version(version: int, file: str) -> None:  # V8
    where = layout("cgroupfs", version)
    values = CgroupValues(KernelFiles(LiveRoot()), where)
    assert values.paths(paths.pod(where, G, U), SHARES) == (file,)


@pytest.mark.parametrize(
    ("name", "uid"), [(f"kubepods-besteffort-pod{U_}.slice", U), ("foo.slice", None)]
)
def test_a_pod_directory_tells_the_uid(name: str, uid: str | None) -> None:  # V9
    assert parse_pod_dir(name) == uid


@pytest.mark.parametrize("name", [f"crio-{C}", f"crio-{C}.scope"])
def test_a_container_directory_tells_the_id(name: str) -> None:  # V9
    assert parse_container_dir(name) == C


A1, B2 = "a1" * 8, "b2" * 8


def test_the_directory_of_no_known_container_is_the_sandbox() -> None:  # V10
    names = (f"cri-containerd-{A1}.scope", f"cri-containerd-{B2}.scope")
    found = paths.sandbox(names, {A1})
    assert found is not None
    assert paths.full_id(found) == f"containerd://{B2}"


def test_of_two_unknown_directories_neither_is_the_sandbox() -> None:  # V10
    with pytest.raises(BadCgroupPath):
        paths.sandbox((f"cri-containerd-{A1}.scope", f"cri-containerd-{B2}.scope"), set())


def test_scopes_of_crio_are_containers_and_monitors_never_its_sandbox() -> None:
    names = (f"crio-{A1}.scope", f"crio-conmon-{A1}.scope", f"crio-{B2}")
    assert paths.sandbox(names, set()) == f"crio-{B2}"
    assert paths.sandbox(names[:2], set()) is None


@pytest.mark.parametrize(
    "spelled",
    [
        f"kubepods-burstable-pod{U_}.slice",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{U_}.slice",
    ],
)
def test_a_slice_is_where_its_dashes_say(spelled: str) -> None:
    expected = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{U_}.slice"
    assert paths.of_parent(spelled, U) == expected


def test_a_path_of_the_other_driver_stays_as_it_is() -> None:
    assert paths.of_parent(f"/kubepods//besteffort/pod{U}", U) == f"/kubepods/besteffort/pod{U}"


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
    with pytest.raises(BadCgroupPath):
        paths.of_parent(spelled, U)


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
    assert paths.of_cgroups_path(spelled) == path


@pytest.mark.parametrize(
    "spelled", [f"/kubepods/pod{U}", f"/kubepods/{C}", f"kubepods-pod{U_}.slice:x:", "a:b:c"]
)
def test_what_is_not_a_container_in_a_pod_is_refused(spelled: str) -> None:
    with pytest.raises(BadCgroupPath):
        paths.of_cgroups_path(spelled)


@given(st.text(max_size=200), st.text(max_size=100))
def test_no_text_leads_out_of_a_pod(spelled: str, uid: str) -> None:
    found: list[str] = []
    with contextlib.suppress(BadCgroupPath):
        found.append(paths.of_parent(spelled, uid))
    with contextlib.suppress(BadCgroupPath):
        found.append(paths.of_cgroups_path(spelled))
    for path in found:
        assert ".." not in path.split("/")
        assert any(parse_pod_dir(part) for part in path.split("/"))
