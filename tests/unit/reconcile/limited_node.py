"""A node with one pod that has CPU and memory limits, under the strategies that act on them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from agent.cgroup.ledger import ChangeLedger
from agent.qos.cpu_burst import CpuBurstStrategy
from agent.qos.memory_qos import MemoryQosStrategy
from agent.reconcile.reports import CycleReport
from agent.slo.overlay import overlay_spec
from agent.snapshot.cluster import ClusterView, NodeView
from agent.snapshot.cpu import CpuTopology
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ComputeRequest, ContainerResources
from agent.snapshot.slo import NodeSloView
from agent.snapshot.usage import CgroupUsage, NodeUsage, UsageSample
from tests.clustered import machine
from tests.realgroups import PodGroups
from tests.unit.reconcile.scene import ONE, Scene

CPUS = 4
LIMIT_MILLI = 1000
MIB = 1 << 20
BURST = {"cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": 200}}
QUOTA_FILES = {1: "cpu.cfs_quota_us", 2: "cpu.max"}
BURST_FILES = {1: "cpu.cfs_burst_us", 2: "cpu.max.burst"}


def memory_spec(**percents: int) -> dict[str, object]:
    """Return a NodeSLO that asks for memory QoS of pods with CPUs of their own class."""
    return {"resourceQOSStrategy": {"lsrClass": {"memoryQOS": {"enable": True, **percents}}}}


class LimitedNode:
    """The pod, and the agent's strategies of CPU burst and memory QoS."""

    def __init__(
        self,
        groups: PodGroups,
        ledger: ChangeLedger | None = None,
        request_bytes: int = 64 * MIB,
        limit_bytes: int = 256 * MIB,
    ) -> None:
        """Make the groups, with the quotas that a kubelet sets."""
        self.groups = groups
        strategies = (CpuBurstStrategy(seed=1), MemoryQosStrategy())
        self.scene = Scene(groups, ledger=ledger, strategies=strategies)
        self.is_throttled = False
        self.node_cores = 0.0
        self.spec: Mapping[str, object] = {}
        text = "100000" if groups.layout.version == 1 else "100000 100000"
        for cgroup in (self.scene.pod, self.scene.container):
            groups.put(cgroup, QUOTA_FILES[groups.layout.version], text)
        resources = ContainerResources(
            name="app",
            cpu_limit_milli=LIMIT_MILLI,
            memory_request_bytes=request_bytes,
            memory_limit_bytes=limit_bytes,
        )
        request = ComputeRequest(cpu_cores=1.0, memory_bytes=float(request_bytes))
        view = self.scene.view(resources=(resources,), compute_request=request)
        cpus: CpuTopology = machine(sockets=1, cores=CPUS, threads=1)
        self.scene.snapshot = replace(
            self.scene.snapshot,
            pods=SnapshotPart((view,), 1.0),
            cpus=SnapshotPart(cpus, 1.0),
        )

    def cycle(self, seconds: float = 1.0) -> CycleReport:
        """Let time pass, take a usage sample, and run once."""
        scene = self.scene
        now_s = scene.clock.monotonic() + seconds
        amounts = {"cpu": str(CPUS), "memory": "1Gi"}
        owner = NodeView(name="node", uid="node", capacity=amounts, allocatable=amounts)
        slo = NodeSloView(found=True, slo=overlay_spec(self.spec).slo)
        ratio = 0.5 if self.is_throttled else 0.0
        usage = UsageSample(
            node=NodeUsage(cpu_cores=self.node_cores),
            containers={ONE: CgroupUsage(cpu_cores=1.0, throttled_ratio=ratio)},
        )
        scene.snapshot = replace(
            scene.snapshot,
            cluster=ClusterView(slo=SnapshotPart(slo, now_s), node=SnapshotPart(owner, now_s)),
            usage=SnapshotPart(usage, now_s),
        )
        return scene.cycle(seconds)

    def resize(self, limit_milli: int) -> None:
        """Write another CPU limit to the groups, as the kubelet does when it resizes a pod."""
        version, cgroups = self.groups.layout.version, [self.scene.pod, self.scene.container]
        quota_us = limit_milli * 100
        if quota_us < self.quotas()[1]:
            cgroups.reverse()
        for cgroup in cgroups:
            text = str(quota_us) if version == 1 else f"{quota_us} 100000"
            self.groups.put(cgroup, QUOTA_FILES[version], text)

    def report_limit(self, limit_milli: int) -> None:
        """Let the pod's object have another CPU limit."""
        (view,) = self.scene.snapshot.pods.value
        resources = tuple(replace(one, cpu_limit_milli=limit_milli) for one in view.resources or ())
        resized = replace(view, resources=resources)
        self.scene.snapshot = replace(self.scene.snapshot, pods=SnapshotPart((resized,), 1.0))

    def values(self, file: str) -> list[str]:
        """Return a file of the root, of the pod and of its container; empty where there is none."""
        groups = (self.groups.root, self.scene.pod, self.scene.container)
        return [self._value(group, file) for group in groups]

    def quotas(self) -> list[int]:
        """Return the quotas of the pod and of its container."""
        file = QUOTA_FILES[self.groups.layout.version]
        texts = [self.groups.get(one, file) for one in (self.scene.pod, self.scene.container)]
        return [int(text.split()[0]) for text in texts]

    def bursts(self) -> list[int]:
        """Return the bursts of the pod and of its container."""
        file = BURST_FILES[self.groups.layout.version]
        return [int(self.groups.get(one, file)) for one in (self.scene.pod, self.scene.container)]

    def _value(self, cgroup: str, file: str) -> str:
        try:
            return self.groups.get(cgroup, file)
        except OSError:
            return ""
