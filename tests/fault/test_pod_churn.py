"""Ten thousand pods that come and go: each has its values, and nothing of them stays behind."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import ChangeLedger
from agent.clock import ManualClock
from agent.config.containers import EnforceSettings
from agent.host.files import LiveHostFiles
from agent.qos.engine import QosEngine
from agent.qos.inputs import LiveValues
from agent.qos.strategies import strategies
from agent.reconcile.reconciler import MAX_PODS_PER_CYCLE, Reconciler
from agent.snapshot.cluster import SLO_STALE_S, ClusterView
from agent.snapshot.container import Adjustment, LinuxResources
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from agent.snapshot.slo import CpuBurst, NodeSlo, NodeSloView
from agent.snapshot.usage import CgroupUsage, NodeUsage, UsageSample
from tests.unit.qos.qos_node import container_id, limited
from tests.unit.qos.qos_node import pod as make_pod
from tests.unit.reconcile.scene import CannedHook

PODS, AT_A_TIME = 10_000, 50
ROUNDS = PODS // AT_A_TIME
CYCLE_S = 10.0  # removed groups are searched for in every third cycle
MEASURED_EACH = 21  # cycles; always as long after such a search
BURST_US = 50_000
LAYOUT = CgroupLayout(
    version=2, driver="cgroupfs", mounts=(), unified="/sys/fs/cgroup", root="/kubepods"
)
SLO = NodeSlo(cpu_burst=CpuBurst(policy="auto", cpu_burst_percent=50))
# of the program, and shared by all: what they refer to is no state of the agent
PROGRAM = (type, types.ModuleType, types.FunctionType, types.CodeType, types.BuiltinMethodType)


class Node:
    """Pods with one container each, whose groups are folders."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        self.hook = CannedHook("batch_resources")
        self.hook.answers = {None: Adjustment(resources=LinuxResources(shares=512))}
        every = strategies(EnforceSettings(), "")
        modes = {one.name: "on" for one in every}
        self.engine = QosEngine(every, modes, 1.0, SLO_STALE_S)
        self.ledger = ChangeLedger(None, "")
        self.reconciler = Reconciler(
            root=LiveHostFiles(str(root)),
            ledger=self.ledger,
            hooks=(self.hook,),
            modes={**modes, self.hook.name: "on"},
            clock=self.clock,
        )
        for group in ("/kubepods", "/kubepods/burstable"):
            self._make(group)
        self.pods: tuple[PodView, ...] = ()
        self.conditions: set[str] = set()

    def _make(self, group: str) -> None:
        folder = Path(f"{self.root}/sys/fs/cgroup{group}")
        folder.mkdir(parents=True)
        for name, text in (("cpu.max", "100000 100000"), ("cpu.max.burst", "0")):
            (folder / name).write_text(f"{text}\n")
        (folder / "cpu.weight").write_text("100\n")

    def replace_pods(self, first: int, count: int) -> None:
        """End all pods, and start others."""
        for pod in self.pods:
            shutil.rmtree(f"{self.root}/sys/fs/cgroup{pod.cgroup}")
        numbers = range(first, first + count)
        uids = [f"7712555c-ce62-454a-9e18-{number:012x}" for number in numbers]
        self.pods = tuple(make_pod(uid, limited("main", 1000)) for uid in uids)
        for pod in self.pods:
            self._make(pod.cgroup)
            self._make(pod.containers[0].cgroup)

    def cycle(self) -> None:
        """Decide and write once."""
        self.clock.advance(CYCLE_S)
        now_s = self.clock.monotonic()
        use = CgroupUsage(cpu_cores=0.5, throttled_ratio=0.0)
        usage = UsageSample(
            node=NodeUsage(cpu_cores=1.0),
            pods={pod.uid: use for pod in self.pods},
            containers={container_id(pod.uid, "main"): use for pod in self.pods},
        )
        snapshot = NodeSnapshot(
            node=NodeIdentity(name="node"),
            pods=SnapshotPart(self.pods, now_s),
            usage=SnapshotPart(usage, now_s),
            cluster=ClusterView(has_pod_list=True, slo=SnapshotPart(NodeSloView(slo=SLO), now_s)),
        )
        current = LiveValues(self.reconciler.current_values(LAYOUT), self.ledger)
        plan = self.engine.plan(snapshot, LAYOUT, current, now_s)
        report = self.reconciler.cycle(snapshot, LAYOUT, plan)
        self.conditions |= {condition.reason for condition in report.conditions}

    def values(self) -> set[tuple[str, ...]]:
        """Return burst and weight of all pods."""
        return {
            tuple(
                Path(f"{self.root}/sys/fs/cgroup{pod.cgroup}/{name}").read_text().strip()
                for name in ("cpu.max.burst", "cpu.weight")
            )
            for pod in self.pods
        }

    def held_objects(self) -> int:
        """Return the number of objects that reconciler, engine and ledger refer to."""
        held, queue = set[int](), [self.reconciler, self.engine, self.ledger]
        while queue:
            for referent in gc.get_referents(queue.pop()):
                if id(referent) not in held and not isinstance(referent, PROGRAM):
                    held.add(id(referent))
                    queue.append(referent)
        return len(held)


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        made = Node(Path(folder))
        yield made
        made.reconciler.close()


def test_each_of_ten_thousand_pods_has_its_values_and_nothing_is_held_of_those_that_ended(
    node: Node,
) -> None:
    assert AT_A_TIME < MAX_PODS_PER_CYCLE
    sizes: list[tuple[int, int, int]] = []
    for number in range(ROUNDS):
        node.replace_pods(number * AT_A_TIME, AT_A_TIME)
        node.cycle()
        node.hook.requests.clear()
        assert node.values() == {(str(BURST_US), "20")}
        if number % MEASURED_EACH == 0 and number:
            descriptors = len(os.listdir("/proc/self/fd"))
            sizes.append((len(node.ledger.entries), descriptors, node.held_objects()))
    assert node.conditions == set()
    for first, *later in zip(*sizes, strict=True):
        assert max(later) <= first * 1.1, sizes
    node.replace_pods(0, 0)
    for _ in range(10):
        node.cycle()
    assert node.ledger.entries == {}
