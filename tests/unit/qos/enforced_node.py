"""A node on a kernel in memory, whose files the agent's own strategies write: version 2."""

from __future__ import annotations

import itertools

from msgspec.structs import replace

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import QUOTA
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import ChangeLedger
from agent.cgroup.restore import restore_entries
from agent.cgroup.values import CgroupValues
from agent.cgroup.write_plan import DesiredValue
from agent.cgroup.writer import CgroupWriter
from agent.clock import ManualClock
from agent.config.containers import CpuSuppressionSettings, EnforceSettings
from agent.qos.engine import QosEngine
from agent.qos.inputs import LiveValues
from agent.qos.strategies import strategies
from agent.snapshot.cluster import ClusterView, NodeView
from agent.snapshot.cpu import Cpu, CpuTopology
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import (
    EvictionFeedback,
    EvictionOutcome,
    EvictionRequest,
    EvictionResult,
    KubeQos,
    PodView,
)
from agent.snapshot.self_check import StrategyStatus
from agent.snapshot.slo import NodeSloView
from agent.snapshot.usage import (
    BestEffortUsage,
    BlockDevice,
    CgroupUsage,
    NodeUsage,
    StorageUsage,
    UsageSample,
)
from tests.cgroup_v2.disks import WHOLE_DISKS
from tests.cgroup_v2.fake import MOUNT, FakeKernel
from tests.cgroup_v2.session import CPUS
from tests.cgroup_v2.settings import FakeSettings
from tests.unit.qos.qos_node import container_id, limited
from tests.unit.qos.qos_node import pod as make_pod
from tests.unit.reconcile.test_any_sequence import Files

LAYOUT = CgroupLayout(version=2, driver="cgroupfs", mounts=(), unified=MOUNT, root="/kubepods")
GIB = 1 << 30
STALE_S = 1800.0
DISK = "vda"
STORAGE = StorageUsage(
    devices=(BlockDevice(name=DISK, number=WHOLE_DISKS[0], kind="disk", size_bytes=1),)
)
TOPOLOGY = CpuTopology(
    cpus=tuple(Cpu(id=one, core=one, socket=0, node=0, l3=0) for one in range(CPUS)),
    usable=frozenset(range(CPUS)),
)


class EnforcedNode:
    """One node. What a test changes is in force at the next `cycle`."""

    def __init__(self) -> None:
        self.kernel = FakeKernel("/kubepods")
        for group in ("/kubepods/burstable", "/kubepods/besteffort"):
            self.kernel.make(group)
        self.kernel.write("/io.cost.qos", f"{WHOLE_DISKS[0]} enable=0")
        self.settings = FakeSettings(min_free_kbytes=67584, watermark_scale_factor=10)
        self.files = Files(self.kernel, self.settings)
        self.values = CgroupValues(self.files, LAYOUT)
        self.clock = ManualClock()
        self.ledger = ChangeLedger(None, "")
        self.writer = CgroupWriter(self.values, self.ledger, self.clock)
        options = CpuSuppressionSettings(idle="class", pressure=True)
        every = strategies(EnforceSettings(cpu_suppression=options), "")
        self.names = tuple(one.name for one in every)
        modes = dict.fromkeys(self.names, "on")
        self.engine = QosEngine(every, modes, 1.0, STALE_S)
        self.slo = NodeSloView()
        self.pods: dict[str, PodView] = {}
        self.cores, self.memory = 2.0, 90 * GIB
        self.usage_age_s = self.slo_age_s = 0.0
        self.results: list[EvictionResult] = []
        self.requests: tuple[EvictionRequest, ...] = ()
        self.statuses: tuple[StrategyStatus, ...] = ()
        self.desired: tuple[DesiredValue, ...] = ()
        self._uids = (f"pod{number}" for number in itertools.count())
        for label, qos in (
            ("LS", KubeQos.BURSTABLE),
            ("BE", KubeQos.BEST_EFFORT),
            ("BE", KubeQos.BEST_EFFORT),
        ):
            self.add_pod(label, qos)

    def add_pod(self, label: str, qos: KubeQos) -> None:
        """Start a pod with one container, with the quota that the kubelet sets."""
        uid = next(self._uids)
        resources = limited(
            "main",
            1000 if label == "LS" else None,
            memory_request_bytes=GIB,
            memory_limit_bytes=2 * GIB,
            batch_cpu_milli=500,
            batch_memory_bytes=GIB,
        )
        pod = make_pod(uid, resources, label=label, qos=qos, request_bytes=GIB, request_cores=1.0)
        self.pods[uid] = pod
        for group in (pod.cgroup, pod.containers[0].cgroup):
            self.kernel.make(group)
            if label == "LS":
                self.kernel.write(f"{group}/cpu.max", "100000 100000")
        self.kernel.group(pod.containers[0].cgroup).processes = 1

    def cycle(self, seconds: float = 1.0) -> None:
        """Decide, write and restore once."""
        self.clock.advance(seconds)
        now_s = self.clock.monotonic()
        results, self.results = self.results, []
        current = LiveValues(self.values, self.ledger)
        feedback = EvictionFeedback(results=tuple(results))
        plan = self.engine.plan(self._snapshot(now_s), LAYOUT, current, now_s, feedback)
        self.statuses, self.requests = plan.view.strategies, plan.evictions
        self.results = [
            EvictionResult(request=eviction, outcome=EvictionOutcome.EVICTED)
            for eviction in plan.evictions
        ]
        self.desired = tuple(value for one in plan.enforced for value in one.values)
        prepared = [self.writer.prepare(one.values, now_s, one.owner) for one in plan.enforced]
        for one in prepared:
            self.writer.record_in_ledger(one)
        refused = 0
        for one in prepared:
            refused += sum(bool(audit.errno) for audit in self.writer.apply(one, now_s).audits)
        self.engine.record_refusals(refused, now_s)
        targets = {one.target for one in self.desired}
        undesired = tuple(
            entry
            for entry in self.ledger.entries.values()
            if entry.owner in plan.decided and (entry.path, entry.key) not in targets
        )
        restore_entries(self.ledger, self.values, undesired, monotonic=lambda: 0.0)

    def quota(self, cgroup: str) -> Bandwidth:
        """Return the quota of a group."""
        value = self.values.read_value(cgroup, QUOTA)
        assert isinstance(value, Bandwidth)
        return value

    def _snapshot(self, now_s: float) -> NodeSnapshot:
        pods = tuple(self.pods.values())
        ids = {pod.uid: container_id(pod.uid, "main") for pod in pods}
        share = CgroupUsage(cpu_cores=self.cores / 8, memory_bytes=GIB, throttled_ratio=0.5)
        usage = UsageSample(
            node=NodeUsage(cpu_cores=self.cores, memory_bytes=self.memory),
            pods=dict.fromkeys(ids, share),
            containers=dict.fromkeys(ids.values(), share),
            storage=STORAGE,
            best_effort=BestEffortUsage(
                use=replace(share, memory_with_cache_bytes=GIB), request_milli=9000, limit_milli=500
            ),
        )
        amounts = {"cpu": str(CPUS), "memory": "100Gi", "kubernetes.io/batch-cpu": "1000"}
        node = NodeView(name="n", uid="u", capacity=amounts, allocatable=amounts)
        return NodeSnapshot(
            node=NodeIdentity(name="n"),
            pods=SnapshotPart(pods, now_s),
            cpus=SnapshotPart(TOPOLOGY, now_s),
            usage=SnapshotPart(usage, now_s - self.usage_age_s),
            cluster=ClusterView(
                has_pod_list=True,
                node=SnapshotPart(node, now_s),
                slo=SnapshotPart(self.slo, now_s - self.slo_age_s),
            ),
        )
