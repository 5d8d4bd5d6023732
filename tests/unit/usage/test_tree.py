from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.cgroup.layout import detect_layout
from agent.host.files import LiveHostFiles
from agent.recording.tree import EntryKind, TreeFiles
from agent.snapshot.pod import KubeQos
from agent.usage.cgroup_usage import PodCgroupTree
from agent.usage.file_reader import DescriptorCache
from tests.cgroups import CgroupHost, container_id

A, B = container_id(10), container_id(11)


@pytest.fixture
def host(tmp_path: Path) -> CgroupHost:
    return CgroupHost(tmp_path)


def tree(host: CgroupHost, limit: int | None = None) -> PodCgroupTree:
    layout = detect_layout(host.files)
    assert layout is not None
    return PodCgroupTree(host.files, DescriptorCache(host.files, limit=limit), layout)


def shape(tree: PodCgroupTree) -> dict[str, list[str]]:
    return {pod.uid: [container.id for container in pod.containers] for pod in tree.pods}


def test_pods_of_all_classes_are_found_with_their_containers(host: CgroupHost) -> None:
    host.group(f"/podg/{A}")
    host.group(f"/burstable/podbu/{B}")
    host.group("/besteffort/podbe")
    result = tree(host)
    assert result.refresh()
    assert [(pod.uid, pod.qos, pod.cgroup) for pod in result.pods] == [
        ("be", KubeQos.BEST_EFFORT, "/kubepods/besteffort/podbe"),
        ("bu", KubeQos.BURSTABLE, "/kubepods/burstable/podbu"),
        ("g", KubeQos.GUARANTEED, "/kubepods/podg"),
    ]
    assert result.pods[2].containers[0].cgroup == f"/kubepods/podg/{A}"


def test_an_idle_tree_is_not_listed_again(host: CgroupHost) -> None:
    host.group(f"/podg/{A}")
    result = tree(host)
    result.refresh()
    pods = result.pods
    assert not result.refresh()
    assert result.pods is pods


def test_new_pods_and_containers_are_noticed_by_the_next_refresh(host: CgroupHost) -> None:
    host.group("/podg")
    result = tree(host)
    result.refresh()
    host.group(f"/podg/{A}")
    assert result.refresh()
    host.group(f"/burstable/podn/{B}")
    assert result.refresh()
    assert shape(result) == {"g": [A], "n": [B]}


def test_removed_pods_and_containers_are_noticed_by_the_next_refresh(host: CgroupHost) -> None:
    for cgroup in (f"/poda/{A}", f"/podb/{B}"):
        host.group(cgroup)
    result = tree(host)
    result.refresh()
    host.remove("/poda")
    host.remove(f"/podb/{B}")
    assert result.refresh()
    assert shape(result) == {"b": []}


def test_one_that_replaces_another_is_noticed_after_a_forced_rescan(host: CgroupHost) -> None:
    host.group(f"/poda/{A}")
    result = tree(host)
    result.refresh()
    host.remove(f"/poda/{A}")
    host.group(f"/poda/{B}")
    result.must_rescan = True
    assert result.refresh()
    assert shape(result) == {"a": [B]}


def test_a_pod_that_replaces_one_with_containers_is_noticed_by_the_same_refresh(
    host: CgroupHost,
) -> None:
    host.group(f"/burstable/poda/{A}")
    result = tree(host)
    result.refresh()
    host.remove("/burstable/poda")
    host.group(f"/burstable/podb/{B}")
    assert result.refresh()
    assert shape(result) == {"b": [B]}
    assert not result.refresh()


def test_only_directories_that_changed_are_listed(
    host: CgroupHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cgroup in (f"/burstable/poda/{A}", f"/podb/{B}"):
        host.group(cgroup)
    result = tree(host)
    result.refresh()
    listed: list[str] = []
    names = LiveHostFiles.names

    def listing(files: LiveHostFiles, path: str) -> tuple[str, ...]:
        listed.append(path)
        return names(files, path)

    monkeypatch.setattr(LiveHostFiles, "names", listing)
    host.remove(f"/podb/{B}")
    assert result.refresh()
    assert {path.rpartition("/kubepods")[2] for path in listed} == {"/podb", ""}


def test_other_directories_are_ignored(host: CgroupHost) -> None:
    for cgroup in ("/system", f"/poda/crio-conmon-{A}.scope", "/poda/init", f"/poda/{A}/podz"):
        host.group(cgroup)
    result = tree(host)
    result.refresh()
    assert shape(result) == {"a": [A]}


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_without_descriptors_to_spare_the_tree_is_still_followed(
    host: CgroupHost, limit: int
) -> None:
    host.group(f"/poda/{A}")
    result = tree(host, limit)
    result.refresh()
    host.group(f"/podb/{B}")
    assert result.refresh()
    assert not result.refresh()
    assert shape(result) == {"a": [A], "b": [B]}


def test_a_recorded_tree_is_read() -> None:
    entries: dict[str, bytes | EntryKind] = {
        "/sys/fs/cgroup/cgroup.controllers": b"cpu memory\n",
        f"/sys/fs/cgroup/kubepods.slice/kubepods-pod1_2.slice/crio-{A}.scope": EntryKind.DIRECTORY,
    }
    host = TreeFiles.from_entries(entries)
    layout = detect_layout(host)
    assert layout is not None
    cgroup_tree = PodCgroupTree(host, DescriptorCache(host), layout)
    assert cgroup_tree.refresh()
    assert shape(cgroup_tree) == {"1-2": [A]}
    assert not cgroup_tree.refresh()


def test_all_descriptors_are_closed(host: CgroupHost) -> None:
    before = len(os.listdir("/proc/self/fd"))
    host.group(f"/poda/{A}")
    result = tree(host)
    result.refresh()
    result.close()
    assert len(os.listdir("/proc/self/fd")) == before
