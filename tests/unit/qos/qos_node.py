"""A node for tests of strategies: pods, usage, and files that are a dictionary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import BURST, CPUS, QUOTA, CgroupKey, CgroupValue
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.write_plan import DesiredValue
from agent.qos.inputs import qos_pods
from agent.qos.strategy import NodeCapacity, QosInputs, StrategyPlan
from agent.snapshot.cluster import ClusterView, KubeletView, NodeView
from agent.snapshot.cpu import Cpu, CpuSet, CpuTopology
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import (
    ComputeRequest,
    ContainerResources,
    ContainerView,
    KubeQos,
    PodView,
)
from agent.snapshot.slo import NodeSlo
from agent.snapshot.usage import CgroupUsage, NodeUsage, PressureWatch, UsageSample
from agent.wire_formats.annotations import QOS_LABEL

ROOT = "/kubepods"
V2 = CgroupLayout(version=2, driver="cgroupfs", mounts=(), unified="/sys/fs/cgroup", root=ROOT)
V1 = CgroupLayout(
    version=1,
    driver="cgroupfs",
    mounts=(("cpu", "/sys/fs/cgroup/cpu"), ("memory", "/sys/fs/cgroup/memory")),
    unified=None,
    root=ROOT,
)


@dataclass
class DictFiles:
    """`CurrentValues` of a dictionary; `write` does what the reconciler does with a plan."""

    values: dict[tuple[str, str], CgroupValue] = field(default_factory=dict)
    originals: dict[tuple[str, str], CgroupValue] = field(default_factory=dict)
    reads: int = 0

    def value(self, cgroup: str, key: CgroupKey) -> CgroupValue | None:
        self.reads += 1
        return self.values.get((cgroup, key.name))

    def original(self, cgroup: str, key: CgroupKey) -> CgroupValue | None:
        return self.originals.get((cgroup, key.name))

    def effective_cpus(self, cgroup: str) -> CpuSet | None:
        """Return the list of the group, or of the nearest one above that has a list."""
        cpus = self.values.get((cgroup, CPUS.name))
        if isinstance(cpus, frozenset) and cpus:
            return cpus
        above = cgroup.rpartition("/")[0]
        return self.effective_cpus(above) if above else None

    def put(self, cgroup: str, key: CgroupKey, value: CgroupValue) -> None:
        self.values[cgroup, key.name] = value

    def apply(self, desired: Iterable[DesiredValue]) -> None:
        """Write the values, and restore what is not desired any more."""
        wanted = {one.target: one.value for one in desired}
        for target, value in wanted.items():
            if target in self.values and self.values[target] != value:
                self.originals.setdefault(target, self.values[target])
                self.values[target] = value
        for target in [target for target in self.originals if target not in wanted]:
            self.values[target] = self.originals.pop(target)

    def quota(self, cgroup: str) -> int:
        value = self.values[cgroup, QUOTA.name]
        assert isinstance(value, Bandwidth)
        return value.quota_us


def limited(name: str, cpu_milli: int | None, **more: object) -> ContainerResources:
    """A container with a CPU limit."""
    return msgspec.convert({"name": name, "cpu_limit_milli": cpu_milli, **more}, ContainerResources)


def container_id(uid: str, name: str) -> str:
    return (uid + name).encode().hex().ljust(64, "0")[:64]


def pod(
    uid: str,
    *containers: ContainerResources,
    label: str = "LS",
    qos: KubeQos = KubeQos.BURSTABLE,
    annotations: Mapping[str, str] | None = None,
    phase: str = "Running",
    request_cores: float = 0.0,
    request_bytes: float = 0.0,
) -> PodView:
    """A pod, all of whose containers run."""
    folder = {KubeQos.BURSTABLE: "/burstable", KubeQos.BEST_EFFORT: "/besteffort"}.get(qos, "")
    cgroup = f"{ROOT}{folder}/pod{uid}"
    return PodView(
        uid=uid,
        qos=qos,
        name=f"pod-{uid}",
        namespace="default",
        cgroup=cgroup,
        labels=((QOS_LABEL, label),) if label else (),
        annotations=tuple((annotations or {}).items()),
        phase=phase,
        containers=tuple(
            ContainerView(
                id=container_id(uid, container.name),
                name=container.name,
                cgroup=f"{cgroup}/{container_id(uid, container.name)}",
            )
            for container in containers
        ),
        compute_request=ComputeRequest(cpu_cores=request_cores, memory_bytes=request_bytes),
        resources=containers,
    )


def cgroup_of(view: PodView, name: str) -> str:
    return next(container.cgroup for container in view.containers if container.name == name)


@dataclass
class QosNode:
    """Makes the inputs of one cycle after another."""

    slo: NodeSlo
    files: DictFiles = field(default_factory=DictFiles)
    layout: CgroupLayout = V2
    cpus: int = 16
    now_s: float = 1000.0
    node_cores: float | None = 0.0
    throttled: dict[str, float] = field(default_factory=dict)  # by container id
    container_cores: dict[str, float] = field(default_factory=dict)
    pod_cores: dict[str, float] = field(default_factory=dict)
    allocatable_memory: int | None = 64 << 30
    annotations: Mapping[str, str] = field(default_factory=dict)
    has_sample: bool = True
    has_pods: bool = True
    views: tuple[PodView, ...] = ()
    topology: tuple[Cpu, ...] | None = None  # None: `cpus` cores of one socket
    isolated: CpuSet = frozenset()
    kubelet: SnapshotPart[KubeletView | None] = SnapshotPart(None)
    is_clustered: bool = False
    pressure: PressureWatch = PressureWatch()

    def __post_init__(self) -> None:
        self.files.put(ROOT, BURST, 0)
        self._pods = qos_pods(self.views)

    def add(self, *views: PodView, quotas: bool = True) -> None:
        """Add pods with the quotas that a kubelet sets."""
        self.views = (*self.views, *views)
        self._pods = qos_pods(self.views)
        for view in views if quotas else ():
            limits = [resource.cpu_limit_milli for resource in view.resources or ()]
            for resource in view.resources or ():
                quota_us = (
                    -1 if resource.cpu_limit_milli is None else resource.cpu_limit_milli * 100
                )
                self.files.put(cgroup_of(view, resource.name), QUOTA, Bandwidth(quota_us))
            is_unlimited = None in limits
            total = -1 if is_unlimited else sum((limit or 0) * 100 for limit in limits)
            self.files.put(view.cgroup, QUOTA, Bandwidth(total))

    def replace(self, *views: PodView) -> None:
        self.views = views
        self._pods = qos_pods(views)

    def inputs(self, seconds: float = 1.0) -> QosInputs:
        """Return the inputs a while later."""
        self.now_s += seconds
        ids = {*self.throttled, *self.container_cores}
        usage = UsageSample(
            node=NodeUsage(cpu_cores=self.node_cores),
            pods={uid: CgroupUsage(cpu_cores=cores) for uid, cores in self.pod_cores.items()},
            containers={
                one: CgroupUsage(
                    cpu_cores=self.container_cores.get(one), throttled_ratio=self.throttled.get(one)
                )
                for one in ids
            },
        )
        allocatable = (
            () if self.allocatable_memory is None else (("memory", self.allocatable_memory),)
        )
        node = NodeView(name="node", uid="node", annotations=tuple(self.annotations.items()))
        return QosInputs(
            now_s=self.now_s,
            slo=self.slo,
            usage=usage if self.has_sample else None,
            usage_taken_s=self.now_s if self.has_sample else None,
            node=NodeCapacity(cpu_milli=self.cpus * 1000, allocatable=allocatable),
            pods=self._pods,
            has_pods=self.has_pods,
            pod_views=self.views,
            pressure=self.pressure,
            cpus=self._topology(),
            cluster=ClusterView(
                is_clustered=self.is_clustered, node=SnapshotPart(node, 1.0), kubelet=self.kubelet
            ),
            layout=self.layout,
            current=self.files,
        )

    def _topology(self) -> CpuTopology:
        cpus = self.topology
        if cpus is None:
            cpus = tuple(Cpu(id=one, core=one, socket=0, node=0, l3=0) for one in range(self.cpus))
        usable = frozenset(cpu.id for cpu in cpus)
        return CpuTopology(cpus=cpus, usable=usable, isolated=self.isolated)


def by_target(plan: StrategyPlan) -> dict[tuple[str, str], CgroupValue]:
    """Return the desired values by cgroup and file."""
    assert len({value.target for value in plan.values}) == len(plan.values)
    return {value.target: value.value for value in plan.values}
