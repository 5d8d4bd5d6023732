"""The node on which koordlet was recorded, on this machine's own kernel, under the whole agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from agent.cgroup.ledger import ChangeLedger
from agent.clock import ManualClock
from agent.config.containers import EnforceSettings
from agent.containers.dispatch import ON, adjust
from agent.containers.hooks import node_hooks
from agent.host.files import LiveHostFiles
from agent.qos.engine import QosEngine
from agent.qos.inputs import LiveValues
from agent.qos.strategies import strategies
from agent.reconcile.reconciler import Reconciler
from agent.slo.overlay import overlay_spec
from agent.snapshot.cluster import SLO_STALE_S
from agent.snapshot.container import (
    ContainerSpec,
    HookRequest,
    HookStage,
    LinuxResources,
    PodSandbox,
)
from agent.snapshot.host_devices import HostDevicesView, KernelFeatures
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from agent.snapshot.slo import NodeSloView
from agent.snapshot.usage import CgroupUsage, NodeUsage, UsageSample
from tests.clustered import GIB, machine, node, snapshot
from tests.contract.koordlet_files import FOLDERS, initial, recorded_pods
from tests.realgroups import RealGroups

CPUS = 2
IDLE_CORES = 0.02  # an idle node is never quite idle
FILES = (  # of those recorded; those of block IO were empty before and after
    "cpu.cfs_quota_us",
    "cpu.cfs_period_us",
    "cpu.shares",
    "cpu.cfs_burst_us",
    "cpu.idle",
    "cpuset.cpus",
    "memory.limit_in_bytes",
    "memory.soft_limit_in_bytes",
)
ORDER = (
    "cpu.cfs_period_us",
    "cpu.cfs_quota_us",
    "cpu.shares",
    "cpuset.cpus",
    "memory.limit_in_bytes",
)


class RecordedNode:
    """The recorded pods on real groups, with the values of the kubelet."""

    def __init__(self, groups: RealGroups, annotations: Mapping[str, str] | None = None) -> None:
        """Make all groups; `annotations` are those of the Node."""
        self.groups = groups
        self.annotations = {"a": "b", **(annotations or {})}
        self.pods = tuple(map(self._placed, recorded_pods()))
        self.paths = self._paths()
        for path in self.paths.values():
            if path != groups.root:
                groups.make(path)
        for name, path in self.paths.items():
            for file in ORDER:
                if file != "cpuset.cpus" or path != groups.root:
                    groups.put(path, file, initial()[name][file])
        self.clock = ManualClock()
        self.ledger = ChangeLedger(None, "")
        self.hooks = node_hooks(reads_kubelet=True)
        self.strategies = strategies(EnforceSettings(), "", scales_quota=True)
        names = [
            *(hook.name for hook in self.hooks),
            *(strategy.name for strategy in self.strategies),
        ]
        self.modes = dict.fromkeys(names, ON)
        self.reconciler = Reconciler(
            root=LiveHostFiles(),
            ledger=self.ledger,
            hooks=self.hooks,
            modes=self.modes,
            clock=self.clock,
            slo_stale_s=SLO_STALE_S,
        )
        self.engine = QosEngine(self.strategies, self.modes, 1.0, SLO_STALE_S)

    def create(self, spec: object) -> None:
        """Create pods and containers as a runtime does that asks the agent before."""
        entries = self._snapshot(NodeSloView(found=True, slo=overlay_spec(spec).slo))
        for view in self.pods:
            sandbox = PodSandbox(
                id=f"sandbox-{view.name}",
                uid=view.uid,
                name=view.name,
                namespace=view.namespace,
                labels=view.labels,
                annotations=view.annotations,
                cgroup_parent=view.cgroup,
            )
            request = HookRequest(stage=HookStage.RUN_POD, pod=sandbox)
            self.reconciler.apply_pod(request, entries, self.groups.layout)
            for container in view.containers:
                self._create_container(
                    sandbox, f"{view.name}/{container.name}", container.name, entries
                )

    def _create_container(
        self, sandbox: PodSandbox, group: str, name: str, node_snapshot: NodeSnapshot
    ) -> None:
        """Write what the runtime writes: the kubelet's values, changed by the agent's answer."""
        files = initial()[group]
        requested = LinuxResources(
            shares=int(files["cpu.shares"]),
            quota_us=int(files["cpu.cfs_quota_us"]),
            period_us=int(files["cpu.cfs_period_us"]),
        )
        request = HookRequest(
            stage=HookStage.CREATE,
            pod=sandbox,
            container=ContainerSpec(name=name, pod_uid=sandbox.uid),
            resources=requested,
        )
        result = adjust(self.hooks, request, node_snapshot, self.modes, lambda: 0.0)
        answer = result.adjustment.resources
        changes = {
            "cpu.cfs_quota_us": answer.quota_us,
            "cpu.shares": answer.shares,
            "cpuset.cpus": answer.cpus or None,
            "memory.limit_in_bytes": answer.memory_bytes,
        }
        for file, value in changes.items():
            if value is not None:
                self.groups.put(self.paths[group], file, str(value))
        self.reconciler.record_request(sandbox.uid, name, requested, result.answers)

    def run(self, spec: object, seconds: int) -> None:
        """Let the agent enforce a NodeSLO for a while on the idle node."""
        slo = NodeSloView(found=True, slo=overlay_spec(spec).slo)
        entries = self._snapshot(slo)
        layout = self.groups.layout
        for _ in range(seconds):
            self.clock.advance(1.0)
            now_s = self.clock.monotonic()
            cluster = replace(entries.cluster, slo=SnapshotPart(slo, now_s))
            entries = replace(entries, cluster=cluster, usage=SnapshotPart(self._usage(), now_s))
            values = LiveValues(self.reconciler.current_values(layout), self.ledger)
            plan = self.engine.plan(entries, layout, values, now_s)
            self.reconciler.cycle(entries, layout, plan)

    def read(self, group: str, file: str) -> str:
        """Return a file of a recorded group."""
        return self.groups.get(self.paths[group], file)

    def _placed(self, view: PodView) -> PodView:
        cgroup = f"{self.groups.root}/{FOLDERS[view.qos]}pod{view.uid}"
        containers = (
            replace(container, cgroup=f"{cgroup}/{container.id}") for container in view.containers
        )
        return replace(view, cgroup=cgroup, containers=tuple(containers))

    def _paths(self) -> dict[str, str]:
        """Return the path of each recorded group, parents first."""
        root = self.groups.root
        paths = {
            "kubepods": root,
            "burstable": f"{root}/burstable",
            "besteffort": f"{root}/besteffort",
        }
        for view in self.pods:
            paths[view.name] = view.cgroup
            for container in view.containers:
                paths[f"{view.name}/{container.name}"] = container.cgroup
        return paths

    def _snapshot(self, slo: NodeSloView) -> NodeSnapshot:
        owner = node(
            self.annotations,
            capacity={"cpu": str(CPUS), "memory": "8Gi"},
            allocatable={"cpu": str(CPUS), "memory": "8Gi"},
        )
        entries = snapshot(machine(sockets=1, cores=CPUS, threads=1), owner=owner, pods=self.pods)
        kernel = HostDevicesView(kernel=KernelFeatures(cgroup_version=1))
        return replace(
            entries,
            cluster=replace(entries.cluster, slo=SnapshotPart(slo, 1.0), pods=self.pods),
            host_devices=SnapshotPart(kernel, 1.0),
        )

    def _usage(self) -> UsageSample:
        quiet = CgroupUsage(cpu_cores=0.0, memory_bytes=0, throttled_ratio=0.0)
        return UsageSample(
            node=NodeUsage(
                cpu_cores=IDLE_CORES,
                system_cpu_cores=IDLE_CORES,
                memory_bytes=GIB,
                memory_total_bytes=8 * GIB,
            ),
            pods={view.uid: quiet for view in self.pods},
            containers={container.id: quiet for view in self.pods for container in view.containers},
        )


def best_effort_groups(pods: Iterable[PodView]) -> frozenset[str]:
    """Return the recorded names of the groups below the best-effort directory, and of itself."""
    names = {"besteffort"}
    for view in pods:
        if "/besteffort/" in view.cgroup:
            names |= {
                view.name,
                *(f"{view.name}/{container.name}" for container in view.containers),
            }
    return frozenset(names)
