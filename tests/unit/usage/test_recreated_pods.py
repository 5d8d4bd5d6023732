"""Pods whose directory is removed and made again between two cycles, on this machine's kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from agent.host.files import LiveHostFiles
from agent.usage.cgroup_usage import PodCgroupTree
from agent.usage.file_reader import DescriptorCache
from agent.usage.monitor import UsageCollector
from tests.realgroups import CONTROLLERS, UID, RealGroups, needs_v1, real_groups

pytestmark = needs_v1
OTHER_UID = "0f3b0a51-7d0c-4e5e-8d13-0d6a3f9b6d11"


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    with real_groups() as created:
        yield created


@pytest.fixture
def collector(groups: RealGroups) -> Iterator[UsageCollector]:
    usage_collector = UsageCollector(LiveHostFiles(), layout=groups.layout)
    yield usage_collector
    usage_collector.close()


def remove(groups: RealGroups, cgroup: str) -> None:
    for controller in CONTROLLERS:
        groups.path(controller, cgroup).rmdir()


def containers(collector: UsageCollector) -> dict[str, list[int]]:
    return {
        pod.uid: [int(container.id, 16) for container in pod.containers] for pod in collector.pods
    }


def test_a_container_of_a_recreated_pod_is_noticed(
    groups: RealGroups, collector: UsageCollector
) -> None:
    pod = groups.pod()
    collector.measure(1.0)
    remove(groups, pod)
    groups.pod()
    collector.measure(2.0)
    collector.measure(3.0)
    container = groups.container(pod, 7)
    groups.hog(container)
    sample = collector.measure(4.0)
    assert containers(collector) == {UID: [7]}
    assert (sample.pods[UID].memory_bytes or 0) >= 4 << 20  # the kernel adds up per-CPU counts late
    assert (
        sample.containers[f"{7:064x}"].memory_bytes or 0
    ) >= 4 << 20  # the kernel adds up per-CPU counts late


def test_later_containers_of_a_pod_recreated_with_another_container_are_noticed(
    groups: RealGroups, collector: UsageCollector
) -> None:
    pod = groups.pod()
    first = groups.container(pod, 1)
    collector.measure(1.0)
    remove(groups, first)
    remove(groups, pod)
    groups.pod()
    groups.container(pod, 2)
    collector.measure(2.0)
    collector.measure(3.0)
    assert containers(collector) == {UID: [2]}
    third = groups.container(pod, 3)
    groups.hog(third)
    sample = collector.measure(4.0)
    assert containers(collector) == {UID: [2, 3]}
    assert (
        sample.containers[f"{3:064x}"].memory_bytes or 0
    ) >= 4 << 20  # the kernel adds up per-CPU counts late


def test_all_pods_below_a_root_that_was_made_again_are_followed(
    groups: RealGroups, collector: UsageCollector
) -> None:
    pod = groups.pod()
    groups.container(pod, 1)
    collector.measure(1.0)
    remove(groups, groups.container_path(pod, 1))
    remove(groups, pod)
    remove(groups, groups.root)
    groups.make(groups.root)
    groups.container(groups.pod(), 1)
    collector.measure(2.0)
    collector.measure(3.0)
    other = groups.pod(OTHER_UID)
    groups.container(other, 5)
    collector.measure(4.0)
    assert containers(collector) == {OTHER_UID: [5], UID: [1]}


def test_a_directory_that_no_reader_misses_is_followed_within_a_round(groups: RealGroups) -> None:
    pods = [groups.pod(uid) for uid in (UID, OTHER_UID)]
    descriptors = DescriptorCache(LiveHostFiles(), limit=3)  # for directories, and none for files
    tree = PodCgroupTree(LiveHostFiles(), descriptors, groups.layout)
    tree.refresh()
    remove(groups, pods[0])
    groups.pod()
    for _ in range(3):
        tree.refresh()
    groups.container(pods[0], 7)
    assert tree.refresh()
    assert {pod.uid: len(pod.containers) for pod in tree.pods} == {UID: 1, OTHER_UID: 0}
    tree.close()


def test_no_descriptor_stays_open_for_directories_that_were_made_again(
    groups: RealGroups, collector: UsageCollector
) -> None:
    pod = groups.pod()
    collector.measure(1.0)
    collector.measure(2.0)
    before = len(os.listdir("/proc/self/fd"))
    for cycle in range(3, 9):
        remove(groups, pod)
        groups.pod()
        collector.measure(float(cycle))
    collector.measure(9.0)
    assert len(os.listdir("/proc/self/fd")) == before
