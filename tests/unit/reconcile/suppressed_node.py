"""A node with best-effort pods in real groups, whose CPU a NodeSLO suppresses."""

from __future__ import annotations

import os
import uuid
from typing import Protocol

import msgspec

from agent.cgroup.ledger import ChangeLedger
from agent.config.containers import CpuSuppressionSettings
from agent.qos.cpu_budget import BEST_EFFORT_BASE
from agent.qos.cpu_suppression import CpuSuppression
from agent.reconcile.reports import CycleReport
from agent.snapshot.cluster import ClusterView, NodeView
from agent.snapshot.cpu import Cpu, CpuTopology
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ContainerResources, ContainerView, KubeQos, PodView
from agent.snapshot.slo import NodeSlo, NodeSloView, ResourceThresholds
from agent.snapshot.usage import CgroupUsage, NodeUsage, PressureWatch, UsageSample
from agent.usage.host_applications import base_cgroup
from agent.wire_formats.annotations import QOS_LABEL
from agent.wire_formats.resource_status import RESOURCE_STATUS
from tests.realgroups import PodGroups
from tests.unit.reconcile.scene import Scene

ENABLED = ResourceThresholds(enable=True)
QUOTA_POLICY = ResourceThresholds(enable=True, cpu_suppress_policy="cfsQuota")
NO_OPTIONS = CpuSuppressionSettings()
PROTECTED = "kube-system"  # a namespace whose pods no strategy writes


class Groups(PodGroups, Protocol):
    """Real groups that tests add to."""

    def make(self, cgroup: str) -> str:
        """Make a group."""
        ...


class SuppressedNode:
    """One latency-sensitive pod and best-effort pods; `cycle` runs the agent's cycle once."""

    def __init__(
        self,
        groups: Groups,
        settings: CpuSuppressionSettings = NO_OPTIONS,
        ledger: ChangeLedger | None = None,
    ) -> None:
        self.groups = groups
        self.cpu_count = os.cpu_count() or 1
        self.scene = Scene(
            groups,
            strategies=(CpuSuppression(settings),),
            ledger=ledger,
            protected_namespaces=(PROTECTED,),
        )
        best_effort = base_cgroup(groups.layout, BEST_EFFORT_BASE)
        assert best_effort is not None
        self.best_effort = groups.make(best_effort)
        self.thresholds = ENABLED
        self.protected_cores = 0.0
        self.pressure = PressureWatch()
        self.views: tuple[PodView, ...] = (self._sensitive(""),)

    def add_pod(self, namespace: str = "default") -> PodView:
        """Make a best-effort pod with one container, as a runtime does it."""
        uid = str(uuid.uuid4())
        cgroup = self.groups.make(self.pod_cgroup(uid))
        container = self.groups.container(cgroup, 7)
        view = PodView(
            uid=uid,
            qos=KubeQos.BEST_EFFORT,
            name=f"be-{uid[:4]}",
            namespace=namespace,
            cgroup=cgroup,
            labels=((QOS_LABEL, "BE"),),
            phase="Running",
            containers=(ContainerView(id=f"{7:064x}", name="app", cgroup=container),),
            resources=(ContainerResources(name="app"),),
        )
        self.views = (*self.views, view)
        return view

    def pod_cgroup(self, uid: str) -> str:
        """Return the path of a best-effort pod."""
        name = self.groups.pod_path(uid).rpartition("/")[2]
        if name.endswith(".slice"):  # slices repeat the names of those above
            name = name.replace("kubepods-", "kubepods-besteffort-")
        return f"{self.best_effort}/{name}"

    def reserve(self, cpus: str) -> None:
        """Give the latency-sensitive pod CPUs of its own, which nobody else may use."""
        self.views = (self._sensitive(cpus), *self.views[1:])

    def cycle(self, seconds: float = 1.0) -> CycleReport:
        """Measure the usage, then run once."""
        scene = self.scene
        now_s = scene.clock.monotonic() + seconds
        usage = UsageSample(
            node=NodeUsage(cpu_cores=self.protected_cores),
            pods={self.views[0].uid: CgroupUsage(cpu_cores=self.protected_cores)},
        )
        cpus = tuple(Cpu(id=n, core=n, socket=0, node=0, l3=0) for n in range(self.cpu_count))
        capacity = {"cpu": str(self.cpu_count)}
        scene.snapshot = msgspec.structs.replace(
            scene.snapshot,
            pods=SnapshotPart(self.views, now_s),
            usage=SnapshotPart(usage, now_s),
            pressure=SnapshotPart(self.pressure, now_s),
            cpus=SnapshotPart(CpuTopology(cpus=cpus, usable=frozenset(range(len(cpus)))), 1.0),
            cluster=ClusterView(
                node=SnapshotPart(
                    NodeView(name="node", uid="u", capacity=capacity, allocatable=capacity), now_s
                ),
                slo=SnapshotPart(NodeSloView(slo=NodeSlo(thresholds=self.thresholds)), now_s),
            ),
        )
        return scene.cycle(seconds)

    def switch_off(self) -> None:
        """Let the NodeSLO ask for nothing, and run once."""
        self.thresholds = ResourceThresholds()
        self.cycle()

    def values(self, name: str, *views: PodView) -> list[str]:
        """Return a file of the best-effort class, then of these pods and their containers."""
        cgroups = [self.best_effort]
        for view in views:
            cgroups += [view.cgroup, view.containers[0].cgroup]
        return [self.groups.get(cgroup, name) for cgroup in cgroups]

    def _sensitive(self, cpus: str) -> PodView:
        annotations = ((RESOURCE_STATUS, f'{{"cpuset":"{cpus}"}}'),) if cpus else ()
        return self.scene.view(labels=((QOS_LABEL, "LSE"),), annotations=annotations)
