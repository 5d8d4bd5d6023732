from __future__ import annotations

import pytest

from agent.cgroup.layout import CgroupLayout
from agent.snapshot.slo import CgroupBase, CgroupPath, HostApplication, QosName
from agent.usage.host_applications import application_cgroup, find_separate


def layout(root: str | None = "/kubepods", driver: str = "cgroupfs") -> CgroupLayout:
    return CgroupLayout(version=2, driver=driver, mounts=(), unified="/sys/fs/cgroup", root=root)


CGROUPFS = layout()
SYSTEMD = layout("/kubepods.slice", "systemd")
KIND = layout("/kubelet.slice/kubelet-kubepods.slice", "systemd")
BARE = layout(None, "systemd")


@pytest.mark.parametrize(
    ("qos", "path"),
    [
        ("LSE", "/host-latency-sensitive/a"),
        ("LSR", "/host-latency-sensitive/a"),
        ("LS", "/host-latency-sensitive/a"),
        ("BE", "/host-best-effort/a"),
        ("SYSTEM", "/a"),
        ("", "/a"),
    ],
)
def test_without_a_path_the_class_says_where_an_application_is(qos: QosName, path: str) -> None:
    for one in (CGROUPFS, SYSTEMD, BARE):
        assert application_cgroup(one, HostApplication(name="a", qos=qos)) == path


@pytest.mark.parametrize(
    ("where", "base", "path"),
    [
        (CGROUPFS, "CgroupRoot", "/p/r"),
        (CGROUPFS, "Kubepods", "/kubepods/p/r"),
        (CGROUPFS, "KubepodsBurstable", "/kubepods/burstable/p/r"),
        (CGROUPFS, "KubepodsBesteffort", "/kubepods/besteffort/p/r"),
        (SYSTEMD, "CgroupRoot", "/p/r"),
        (SYSTEMD, "Kubepods", "/kubepods.slice/p/r"),
        (SYSTEMD, "KubepodsBurstable", "/kubepods.slice/kubepods-burstable.slice/p/r"),
        (SYSTEMD, "KubepodsBesteffort", "/kubepods.slice/kubepods-besteffort.slice/p/r"),
        (
            KIND,
            "KubepodsBesteffort",
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/p/r",
        ),
        (BARE, "CgroupRoot", "/p/r"),
        (BARE, "Kubepods", None),
        (BARE, "KubepodsBesteffort", None),
    ],
)
def test_a_path_is_below_its_base(where: CgroupLayout, base: CgroupBase, path: str | None) -> None:
    place = CgroupPath(base=base, parent_dir="p", relative_path="r")
    assert application_cgroup(where, HostApplication(name="a", qos="BE", cgroup_path=place)) == path


@pytest.mark.parametrize(
    ("parent", "relative", "path"),
    [("p/", "r/", "/p/r"), ("", "r", "/r"), ("p//q", "./r", "/p/q/r"), ("p", "", "/p")],
)
def test_blank_parts_of_a_path_are_none(parent: str, relative: str, path: str) -> None:
    place = CgroupPath(parent_dir=parent, relative_path=relative)
    assert application_cgroup(CGROUPFS, HostApplication(name="a", cgroup_path=place)) == path


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        ({}, set()),
        ({"a": "/a", "b": "/b"}, {"a", "b"}),
        ({"a": "/x", "b": "/x"}, {"a"}),
        ({"inner": "/x/y", "outer": "/x", "alike": "/xy"}, {"outer", "alike"}),
        ({"all": "/kubepods"}, set()),
        ({"be": "/kubepods/besteffort"}, set()),
        ({"hadoop": "/kubepods/besteffort/hadoop"}, {"hadoop"}),
        ({"pod": "/kubepods/besteffort/pod12-3"}, set()),
        ({"sidecar": "/kubepods/burstable/pod12-3/x"}, set()),
        ({"pod-like": "/podman"}, {"pod-like"}),
    ],
)
def test_no_use_counts_twice(groups: dict[str, str], names: set[str]) -> None:
    assert find_separate(groups, CGROUPFS) == names


def test_an_application_around_all_pods_leaves_those_within_it_to_count() -> None:
    groups = {"slice": "/kubelet.slice", "inner": "/kubelet.slice/inner"}
    assert find_separate(groups, KIND) == {"inner"}
    assert find_separate(groups, BARE) == {"slice"}
