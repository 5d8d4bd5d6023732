"""What settings make of measuring, seen in the snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.app.composition import create_inputs
from agent.app.oneshot import build_usage_monitor
from agent.clock import ManualClock
from agent.config.sources import decode_settings
from agent.recording.host_source import HostSource
from agent.snapshot.cluster import ClusterView, KubeletView
from agent.snapshot.inventory import DeviceSample, ProcessSample
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore, VendorState
from agent.snapshot.part import SnapshotPart
from agent.usage.monitor import UsageMonitor
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
    settings = decode_settings({"collect": collect})
    measuring = UsageMonitor(HostSource(files=host.files), settings, store, clock)
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


@pytest.mark.parametrize(
    ("setting", "configz", "uids"),
    [("", None, []), ("", "/a/b", ["a"]), ("/a/b", None, ["a"]), ("/a/b", "/c", ["a"])],
)
def test_pods_below_the_root_that_a_setting_or_the_kubelet_names_are_measured(
    tmp_path: Path, setting: str, configz: str | None, uids: list[str]
) -> None:
    host = host_with_a_pod(tmp_path)
    moved = tmp_path / "sys/fs/cgroup/a/b"
    moved.mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/kubepods").rename(moved / "kubepods")
    settings = decode_settings({"kubelet": {"cgroup_root": setting}})
    inputs = create_inputs(settings, HostSource(files=host.files), ManualClock(), vendors={})
    facts = ClusterView(kubelet=SnapshotPart(KubeletView(cgroup_root=configz)))
    inputs.store.put(cluster=facts)
    measuring = build_usage_monitor(inputs)
    measuring.cycle()
    measuring.close()
    assert [pod.uid for pod in inputs.store.current.pods.value] == uids


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


def on_card(key: str, pid: int) -> DeviceSample:
    return DeviceSample(key=key, processes=(ProcessSample(pid=pid),))


def test_owners_of_processes_on_devices_are_kept_while_they_are_listed(tmp_path: Path) -> None:
    host = host_with_a_pod(tmp_path)
    for pid, uid in ((10, "aaaa"), (11, "bbbb")):
        host.write(f"/proc/{pid}/cgroup", f"0::/kubepods/burstable/pod{uid}/{'c' * 64}\n")
    store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))
    clock = ManualClock()
    settings = decode_settings({})
    measuring = UsageMonitor(HostSource(files=host.files), settings, store, clock)

    def owners(**sampled: tuple[DeviceSample, float]) -> dict[int, str]:
        """Owners after a cycle with these samples of vendors, each with when it was taken."""
        vendors = tuple(
            VendorState(vendor=name, samples=SnapshotPart((one,), taken_s))
            for name, (one, taken_s) in sampled.items()
        )
        store.put(vendors=vendors)
        measuring.cycle()
        clock.advance(1.0)
        return {pid: who[0] for pid, who in store.current.usage.value.owners.items()}

    first, second = on_card("0000:01:00.0", 10), on_card("0000:02:00.0", 11)
    assert owners(a=(first, 1.0)) == {10: "aaaa"}
    # a vendor that is sampled less often keeps its processes' owners meanwhile
    assert owners(a=(first, 1.0), b=(second, 2.0)) == {10: "aaaa", 11: "bbbb"}
    assert owners(a=(first, 1.0), b=(on_card("0000:02:00.0", 12), 3.0)) == {10: "aaaa"}
    measuring.close()
