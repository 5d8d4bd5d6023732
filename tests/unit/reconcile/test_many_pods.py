from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import ChangeLedger
from agent.clock import ManualClock
from agent.host.files import LiveHostFiles
from agent.reconcile.reconciler import MAX_PODS_PER_CYCLE, Reconciler
from agent.reconcile.reports import CycleReport
from agent.snapshot.cluster import SLO_STALE_S, ClusterView
from agent.snapshot.container import Adjustment, LinuxResources
from agent.snapshot.host_devices import HostDevicesView, KernelFeatures
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import KubeQos, PodView
from agent.snapshot.slo import NodeSloView
from tests.unit.reconcile.scene import CannedHook

LAYOUT = CgroupLayout(
    version=2, driver="cgroupfs", mounts=(), unified="/sys/fs/cgroup", root="/kubepods"
)
PODS = MAX_PODS_PER_CYCLE * 2 + 5


class Node:
    """Many pods on version 2, all of which are to have a limit."""

    def __init__(self, root: Path, pods: int = PODS, slo_stale_s: float = SLO_STALE_S) -> None:
        self.root = root
        self.clock = ManualClock()
        self.hook = CannedHook("batch_resources")
        self.hook.answers = {None: Adjustment(resources=LinuxResources(quota_us=50000))}
        self.ledger = ChangeLedger(None, "")
        self.reconciler = Reconciler(
            root=LiveHostFiles(str(root)),
            ledger=self.ledger,
            hooks=(self.hook,),
            modes={"batch_resources": "on"},
            clock=self.clock,
            slo_stale_s=slo_stale_s,
        )
        views = []
        for number in range(pods):
            uid = f"7712555c-ce62-454a-9e18-{number:012x}"
            file = root / f"sys/fs/cgroup/kubepods/pod{uid}/cpu.max"
            file.parent.mkdir(parents=True)
            file.write_text("max 100000\n")
            views.append(
                PodView(
                    uid=uid, qos=KubeQos.GUARANTEED, name=f"p{number}", cgroup=f"/kubepods/pod{uid}"
                )
            )
        self.snapshot = NodeSnapshot(
            node=NodeIdentity(name="node"), pods=SnapshotPart(tuple(views), 1.0)
        )

    def cycle(self, seconds: float = 1.0) -> CycleReport:
        self.clock.advance(seconds)
        return self.reconciler.cycle(self.snapshot, LAYOUT)

    def limits(self) -> set[str]:
        return {file.read_text().strip() for file in self.root.rglob("cpu.max")}


def test_one_cycle_writes_the_files_of_so_many_pods_and_the_next_goes_on(tmp_path: Path) -> None:
    node = Node(tmp_path)
    reports = [node.cycle() for _ in range(4)]
    assert [report.written for report in reports] == [MAX_PODS_PER_CYCLE, MAX_PODS_PER_CYCLE, 5, 0]
    assert [report.pods_later for report in reports] == [
        PODS - MAX_PODS_PER_CYCLE,
        PODS - MAX_PODS_PER_CYCLE,
        0,
        0,
    ]
    assert node.limits() == {"50000 100000"}
    assert reports[-1].conditions == ()


@pytest.mark.parametrize(
    ("slo_age_s", "stale_s", "frozen"),
    [
        (None, SLO_STALE_S, True),
        (SLO_STALE_S + 1, SLO_STALE_S, True),
        (10.0, SLO_STALE_S, False),
        (121.0, 120.0, True),
        (SLO_STALE_S + 1, 2 * SLO_STALE_S, False),
    ],
)
def test_without_an_answer_of_the_cluster_everything_stays_unchanged(
    tmp_path: Path, slo_age_s: float | None, stale_s: float, frozen: bool
) -> None:
    node = Node(tmp_path, pods=1, slo_stale_s=stale_s)
    node.cycle()
    node.cycle(61.0)
    now_s = node.clock.monotonic()
    slo = SnapshotPart(NodeSloView(), None if slo_age_s is None else now_s - slo_age_s)
    cluster = ClusterView(is_clustered=True, slo=slo, node=SnapshotPart(None, now_s))
    host_devices = SnapshotPart(
        HostDevicesView(kernel=KernelFeatures(core_switch=1)), 1.0
    )  # hooks are asked again
    node.snapshot = replace(node.snapshot, cluster=cluster, host_devices=host_devices)
    node.hook.answers = {}
    for _ in range(15):
        node.cycle()
    assert node.limits() == ({"50000 100000"} if frozen else {"max 100000"})
