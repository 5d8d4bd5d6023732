"""Stalls of latency-sensitive pods: which groups are watched, and how the kernel reports them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from agent.cgroup.layout import CgroupLayout
from agent.clock import SystemClock
from agent.qos.pressure import (
    MAX_GROUPS,
    SAMPLING,
    TRIGGERS,
    UNSUPPORTED,
    PressureMonitor,
    StallDetector,
    watched_cgroups,
)
from agent.snapshot.cluster import ClusterView
from agent.snapshot.node import NodeSnapshot, SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import KubeQos, PodView
from agent.snapshot.slo import NodeSlo, NodeSloView, ResourceThresholds
from agent.snapshot.usage import PressureWatch
from tests import factory
from tests.cgroup_v2.pressure_groups import needs_pressure, pressure_groups
from tests.patience import PATIENCE_S
from tests.unit.qos.qos_node import V2, limited
from tests.unit.qos.qos_node import pod as make_pod


def test_two_samples_in_a_row_with_a_tenth_of_stall_time_are_a_stall() -> None:  # Z4
    detector = StallDetector()
    total_us, stalls = 0, []
    for number, added in enumerate((0, 30_000, 40_000, 10_000)):
        total_us += added
        stalls.append(detector.add(total_us, number * 0.25))
    assert stalls == [False, False, True, False]


def test_a_stall_that_lasts_is_reported_once_in_each_window() -> None:
    detector = StallDetector()
    stalls = [detector.add(number * 200_000, number * 0.25) for number in range(9)]
    assert stalls == [False, False, True] + [False, True] * 3


def test_samples_are_compared_by_the_time_between_them() -> None:
    detector = StallDetector()
    assert [detector.add(number * 30_000, float(number)) for number in range(5)] == [False] * 5
    assert not detector.add(10_000_000, 4.0)  # no time has passed


def sensitive(*views: PodView, enable: bool = True) -> NodeSnapshot:
    slo = NodeSlo(thresholds=ResourceThresholds(enable=enable))
    cluster = ClusterView(slo=SnapshotPart(NodeSloView(slo=slo), 1.0))
    return msgspec.structs.replace(
        factory.snapshot(), pods=SnapshotPart(views, 1.0), cluster=cluster
    )


def test_the_burstable_class_and_each_pod_with_cpus_of_its_own_are_watched() -> None:
    views = (
        make_pod("lsr", limited("c", 1000), label="LSR", qos=KubeQos.GUARANTEED),
        make_pod("lse", limited("c", 1000), label="LSE", qos=KubeQos.GUARANTEED),
        make_pod("ls", limited("c", 1000), label="LS"),
        make_pod("be", limited("c", 1000), label="LSR", qos=KubeQos.BEST_EFFORT),
    )
    assert watched_cgroups(sensitive(*views), V2) == (
        "/kubepods/burstable",
        "/kubepods/podlse",
        "/kubepods/podlsr",
    )


def test_no_group_is_watched_without_a_node_slo_and_never_more_than_the_limit() -> None:
    views = tuple(
        make_pod(f"p{n}", limited("c", 1000), label="LSR", qos=KubeQos.GUARANTEED)
        for n in range(100)
    )
    assert watched_cgroups(sensitive(*views, enable=False), V2) == ()
    assert len(watched_cgroups(sensitive(*views), V2)) == MAX_GROUPS


class Watching:
    """A monitor whose store tests look into."""

    def __init__(self) -> None:
        self.store = SnapshotStore(factory.snapshot())
        self.monitor = PressureMonitor(self.store, SystemClock())

    @property
    def view(self) -> PressureWatch:
        return self.store.current.pressure.value

    def wait_until(self, holds: Callable[[PressureWatch], bool]) -> PressureWatch:
        until_s = time.monotonic() + PATIENCE_S
        while not holds(self.view):
            assert time.monotonic() < until_s, self.view
            time.sleep(0.01)
        return self.view


@contextmanager
def watching() -> Iterator[Watching]:
    watch, before = Watching(), len(os.listdir("/proc/self/fd"))
    try:
        yield watch
    finally:
        watch.monitor.close()
    assert len(os.listdir("/proc/self/fd")) < before  # the monitor's own descriptor is closed, too


@needs_pressure
@pytest.mark.root
def test_processes_that_wait_for_a_cpu_are_reported_and_resting_ones_are_not() -> None:
    with pressure_groups() as groups, watching() as watch:
        burstable = f"{groups.root}/burstable"
        watch.monitor.watch(groups.layout, (burstable,))
        view = watch.wait_until(lambda view: view.groups == 1)
        assert view.method in (TRIGGERS, SAMPLING)
        assert (view.method == TRIGGERS) is (view.reason == "")
        assert view.stalls == 0
        groups.burn(burstable)
        first = watch.wait_until(lambda view: view.stalls >= 1)
        assert first.last_stall_s is not None
        watch.wait_until(lambda view: view.stalls >= 3)
        groups.rest()


@needs_pressure
@pytest.mark.root
def test_a_group_that_is_removed_and_made_again_is_watched_again() -> None:
    with pressure_groups() as groups, watching() as watch:
        burstable, pod = f"{groups.root}/burstable", f"{groups.root}/podown"
        watch.monitor.watch(groups.layout, (burstable, pod))
        watch.wait_until(lambda view: view.groups == 1)
        groups.make(pod)
        watch.wait_until(lambda view: view.groups == 2)
        groups.remove(pod)
        watch.wait_until(lambda view: view.groups == 1)
        watch.monitor.watch(groups.layout, ())
        watch.wait_until(lambda view: (view.method, view.groups) == ("off", 0))


def test_without_a_pressure_file_the_missing_support_is_reported() -> None:
    layout = CgroupLayout(
        version=2, driver="cgroupfs", mounts=(), unified="/nowhere", root="/kubepods"
    )
    with watching() as watch:
        watch.monitor.watch(layout, ("/kubepods/burstable",))
        view = watch.wait_until(lambda view: view.method == UNSUPPORTED)
        assert view.reason == "no group has a file cpu.pressure"
