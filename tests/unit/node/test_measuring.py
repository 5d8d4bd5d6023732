"""What settings make of measuring, seen in the snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.clock import ManualClock
from agent.config.decode import settings_from
from agent.model.snapshot import NodeIdentity, NodeSnapshot
from agent.node.measuring import Measuring
from agent.node.store import SnapshotStore
from agent.recording.open import OpenedHost
from tests.cgroups import CgroupHost

PRESSURE = "some avg10=1.50 avg60=0.00 avg300=0.00 total={total}\n"


def host_with_a_pod(folder: Path) -> CgroupHost:
    host = CgroupHost(folder)
    host.group("/poda", cpu_ns=10**9, anon=3)
    for resource in ("cpu", "memory", "io"):
        host.write(f"/proc/pressure/{resource}", PRESSURE.format(total=0))
    return host


def measured(host: CgroupHost, collect: dict[str, object], cycles: int = 1) -> NodeSnapshot:
    """Return the snapshot after some cycles, before each of which the pressure has risen."""
    store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))
    clock = ManualClock()
    settings = settings_from({"collect": collect})
    measuring = Measuring(OpenedHost(files=host.files), settings, store, clock)
    for cycle in range(cycles):
        host.write("/proc/pressure/cpu", PRESSURE.format(total=cycle))
        measuring.cycle()
        clock.advance(settings.collect.interval_s)
    measuring.close()
    return store.current


@pytest.mark.parametrize("wanted", [True, False])
def test_pods_are_measured_unless_a_setting_says_no(tmp_path: Path, wanted: bool) -> None:
    snapshot = measured(host_with_a_pod(tmp_path), {"pods": wanted})
    assert [pod.uid for pod in snapshot.pods.value] == (["a"] if wanted else [])
    assert list(snapshot.usage.value.pods) == (["a"] if wanted else [])


@pytest.mark.parametrize("wanted", [True, False])
def test_pressure_is_read_unless_a_setting_says_no(tmp_path: Path, wanted: bool) -> None:
    snapshot = measured(host_with_a_pod(tmp_path), {"pressure": wanted})
    assert (snapshot.usage.value.node.pressure is not None) is wanted


@pytest.mark.parametrize(
    ("interval_s", "pressure_interval_s", "last_read"),
    [(1, 1, 5), (1, 2, 4), (1, 10, 0), (2, 4, 4)],
)
def test_pressure_has_the_pace_of_its_setting(
    tmp_path: Path, interval_s: float, pressure_interval_s: float, last_read: int
) -> None:
    collect: dict[str, object] = {
        "interval_s": interval_s,
        "pressure_interval_s": pressure_interval_s,
    }
    pressure = measured(host_with_a_pod(tmp_path), collect, cycles=6).usage.value.node.pressure
    assert pressure is not None
    assert pressure["cpu"].some_total_us == last_read
