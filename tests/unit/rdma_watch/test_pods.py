"""What the RDMA cgroup controller says of pods, under both cgroup drivers and versions."""

from __future__ import annotations

import pytest

from agent.snapshot.vendor import SessionContext
from plugins.vendors.rdma.metrics import POD_FAMILIES
from plugins.vendors.rdma.session import RdmaSession
from plugins.vendors.rdma.settings import RdmaSettings
from plugins.vendors.rdma.sysfs.pod_cgroups import MAX_PODS, pod_limits, pod_readings
from tests.unit.rdma import made
from tests.unit.rdma_watch.node import PF

UID = "6f6f0000-0000-4000-8000-000000000001"
SYSTEMD = (
    f"/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/"
    f"kubepods-burstable-pod{UID.replace('-', '_')}.slice"
)


def pod(group: str, current: str, limit: str = "") -> made.Entries:
    top = group[: group.index("kubepods") + len("kubepods")]
    top += ".slice" if ".slice" in group else ""
    return {
        f"{top}/rdma.max": b"",
        f"{group}/rdma.current": current.encode(),
        f"{group}/rdma.max": limit.encode(),
    }


def values(entries: made.Entries) -> dict[tuple[str, ...], float]:
    return {
        (reading.family.removeprefix("xpu_rdma_cgroup_"), *reading.labels): reading.value
        for readings in pod_readings(made.tree(entries)).values()
        for reading in readings
    }


@pytest.mark.parametrize(
    "group",
    [
        SYSTEMD,
        f"/sys/fs/cgroup/kubepods/burstable/pod{UID}",
        f"/sys/fs/cgroup/kubepods/pod{UID}",
        f"/sys/fs/cgroup/rdma/kubepods/besteffort/pod{UID}",
        f"/sys/fs/cgroup/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice",
    ],
)
def test_a_pods_objects_are_counted_wherever_its_group_is(group: str) -> None:
    entries = pod(group, "mlx5_0 hca_handle=2 hca_object=2000 \nmlx5_1 hca_handle=0 hca_object=0\n")
    assert values(entries) == {
        ("handles", "mlx5_0", UID): 2,
        ("objects", "mlx5_0", UID): 2000,
    }


def test_limits_are_reported_and_no_limit_is_not_a_large_one() -> None:
    limits = "mlx5_0 hca_handle=2 hca_object=max\nmlx5_1 hca_handle=max hca_object=max\n"
    assert values(pod(SYSTEMD, "mlx5_0 hca_handle=1 hca_object=3\n", limits)) == {
        ("handles", "mlx5_0", UID): 1,
        ("handles_limit", "mlx5_0", UID): 2,
        ("objects", "mlx5_0", UID): 3,
    }


@pytest.mark.parametrize("text", ["", "x", "mlx5_0", "../a hca_handle=1 hca_object=1", "\0" * 99])
def test_lines_that_are_none_are_left_out(text: str) -> None:
    assert values(pod(SYSTEMD, text)) == {}


def test_without_the_controller_nothing_is_read() -> None:
    assert pod_readings(made.tree({"/sys/fs/cgroup/kubepods.slice/cpu.stat": b""})) == {}
    assert pod_limits(made.tree({})) == {}


def test_there_is_an_end_to_the_pods_that_are_read() -> None:
    entries: made.Entries = {}
    for number in range(MAX_PODS + 3):
        group = f"/sys/fs/cgroup/kubepods/pod6f6f0000-0000-4000-8000-{number:012d}"
        entries |= pod(group, "mlx5_0 hca_handle=1 hca_object=0\n")
    assert len(pod_readings(made.tree(entries))["mlx5_0"]) == 2 * MAX_PODS


def test_they_are_readings_of_the_device_and_of_declared_families() -> None:
    entries = made.nic(PF, "mlx5_0") | pod(SYSTEMD, "mlx5_0 hca_handle=2 hca_object=7\n")
    session = RdmaSession(made.tree(entries), RdmaSettings(), SessionContext(is_replay=True))
    session.discover()
    (sample,) = session.sample()
    names = {family.name for family in POD_FAMILIES}
    result = {r.family: r.value for r in sample.readings if r.family in names}
    assert result == {"xpu_rdma_cgroup_handles": 2, "xpu_rdma_cgroup_objects": 7}
