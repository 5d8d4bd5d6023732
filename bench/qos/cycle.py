"""One whole cycle of hooks, strategies and writer at 250 pods and 500 containers.

All hooks and strategies are on, and a NodeSLO asks for suppression, burst and memory QoS of every
class. Files are those of version 2, in memory; on this machine's version 1 groups the kernel's own
part is in the figure, and the files of memory QoS do not exist.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import ChangeLedger
from agent.clock import ManualClock
from agent.config.containers import EnforceSettings
from agent.containers.dispatch import ON
from agent.containers.hooks import node_hooks
from agent.host.files import LiveHostFiles
from agent.qos.engine import QosEngine
from agent.qos.inputs import LiveValues
from agent.qos.strategies import strategies
from agent.reconcile.reconciler import Reconciler
from agent.slo.overlay import overlay_spec
from agent.snapshot.cluster import SLO_STALE_S
from agent.snapshot.host_devices import HostDevicesView, KernelFeatures
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import (
    ComputeRequest,
    ContainerResources,
    ContainerView,
    KubeQos,
    PodView,
)
from agent.snapshot.slo import NodeSloView
from agent.snapshot.usage import BestEffortUsage, CgroupUsage, NodeUsage, UsageSample
from agent.wire_formats.annotations import QOS_LABEL
from agent.wire_formats.extended_resource_spec import EXTENDED_SPEC
from bench.counters import cpu_ms
from bench.harness import Row, compare
from bench.usage.cgroup_trees import (
    PODS,
    cgroups,
    container_ids,
    pod_cgroups,
    pod_uid,
    version_1,
    version_2,
)
from tests.clustered import GIB, machine, node, snapshot

CPUS = 64
LIMIT_MILLI = 1000
SETTLE = 30  # cycles before the first figure: nothing changes any more
CYCLES = 20
GATE = "subject<=5"
CLASSES = ((KubeQos.GUARANTEED, ""), (KubeQos.BURSTABLE, "LS"), (KubeQos.BEST_EFFORT, "BE"))
MEMORY_QOS = {
    "memoryQOS": {
        "enable": True,
        "minLimitPercent": 50,
        "lowLimitPercent": 60,
        "throttlingPercent": 80,
        "oomKillGroup": 1,
    }
}
SPEC = {
    "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cpuset"},
    "cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": 100},
    "resourceQOSStrategy": {"lsrClass": MEMORY_QOS, "lsClass": MEMORY_QOS, "beClass": MEMORY_QOS},
}
V2_FILES = {
    "cpu.max.burst": "0",
    "cpu.weight": "39",
    "cpu.idle": "0",
    "cpuset.cpus": "",
    "cpuset.cpus.effective": f"0-{CPUS - 1}",
    "cgroup.events": "populated 1",
    "memory.max": "max",
    "memory.high": "max",
    "memory.min": "0",
    "memory.low": "0",
    "memory.oom.group": "0",
    "memory.current": str(64 << 20),
}


class Cycle:
    """The collector thread's part of enforcement on a node that runs for a while."""

    def __init__(self, layout: CgroupLayout) -> None:
        self._layout = layout
        self._clock = ManualClock()
        self._ledger = ChangeLedger(None, "")
        hooks = node_hooks(reads_kubelet=True)
        all_strategies = strategies(EnforceSettings(), "", scales_quota=True)
        names = [*(hook.name for hook in hooks), *(strategy.name for strategy in all_strategies)]
        modes = dict.fromkeys(names, ON)
        self._engine = QosEngine(all_strategies, modes, 1.0, SLO_STALE_S)
        self._reconciler = Reconciler(
            root=LiveHostFiles(),
            ledger=self._ledger,
            hooks=hooks,
            modes=modes,
            clock=self._clock,
            slo_stale_s=SLO_STALE_S,
        )
        self._slo = NodeSloView(found=True, slo=overlay_spec(SPEC).slo)
        self._pods = tuple(_pod(layout, index) for index in range(PODS))
        self._snapshot = _node(self._pods, self._slo, layout.version)
        self._usage = _usage(self._pods)
        self.written = 0
        self.values = 0

    def run(self) -> None:
        """Run one second; the usage is a new sample with the same figures."""
        self._clock.advance(1.0)
        now_s = self._clock.monotonic()
        entries = self._snapshot
        cluster = replace(entries.cluster, slo=SnapshotPart(self._slo, now_s))
        entries = replace(entries, cluster=cluster, usage=SnapshotPart(self._usage, now_s))
        self._snapshot = entries
        values = LiveValues(self._reconciler.current_values(self._layout), self._ledger)
        plan = self._engine.plan(entries, self._layout, values, now_s)
        report = self._reconciler.cycle(entries, self._layout, plan)
        self.written += report.written
        self.values = report.files


def _pod(layout: CgroupLayout, index: int) -> PodView:
    qos, label = CLASSES[index % 3]
    pod, *containers = (f"{layout.root}{below}" for below in pod_cgroups(index))
    is_batch = label == "BE"
    names = [f"c{number}" for number in range(len(containers))]
    amounts = '{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"256Mi"}'
    entries = ",".join(f'"{name}":{{"requests":{amounts},"limits":{amounts}}}' for name in names)
    annotations = ((EXTENDED_SPEC, f'{{"containers":{{{entries}}}}}'),) if is_batch else ()
    return PodView(
        uid=pod_uid(index),
        qos=qos,
        name=f"pod-{index}",
        namespace="bench",
        cgroup=pod,
        labels=((QOS_LABEL, label),) if label else (),
        annotations=annotations,
        phase="Running",
        containers=tuple(
            ContainerView(id=one, name=name, cgroup=cgroup)
            for one, name, cgroup in zip(container_ids(index), names, containers, strict=True)
        ),
        compute_request=ComputeRequest(cpu_cores=0.2, memory_bytes=float(GIB)),
        resources=tuple(
            ContainerResources(
                name=name,
                cpu_limit_milli=None if is_batch else LIMIT_MILLI,
                memory_request_bytes=None if is_batch else GIB // 2,
                memory_limit_bytes=None if is_batch else GIB,
                batch_cpu_milli=500 if is_batch else None,
                batch_memory_bytes=GIB // 4 if is_batch else None,
            )
            for name in names
        ),
    )


def _node(pods: tuple[PodView, ...], slo: NodeSloView, version: int) -> NodeSnapshot:
    amounts = {"cpu": str(CPUS), "memory": "256Gi"}
    owner = node(capacity=amounts, allocatable=amounts)
    entries = snapshot(machine(sockets=2, cores=CPUS // 4, threads=2), owner=owner, pods=pods)
    kernel = HostDevicesView(kernel=KernelFeatures(cgroup_version=version))
    return replace(
        entries,
        cluster=replace(entries.cluster, slo=SnapshotPart(slo, 1.0), pods=pods),
        host_devices=SnapshotPart(kernel, 1.0),
    )


def _usage(pods: tuple[PodView, ...]) -> UsageSample:
    calm = CgroupUsage(cpu_cores=0.05, memory_bytes=GIB // 8, throttled_ratio=0.0)
    return UsageSample(
        node=NodeUsage(
            cpu_cores=12.0,
            system_cpu_cores=1.0,
            memory_bytes=64 * GIB,
            memory_total_bytes=256 * GIB,
        ),
        pods={view.uid: calm for view in pods},
        containers={container.id: calm for view in pods for container in view.containers},
        best_effort=BestEffortUsage(use=calm),
    )


def _set_limits(layout: CgroupLayout) -> None:
    """Write the quotas that a kubelet sets, parents first."""
    for index in range(PODS):
        pod, *containers = pod_cgroups(index)
        is_batch = CLASSES[index % 3][1] == "BE"
        for below, count in ((pod, len(containers)), *((container, 1) for container in containers)):
            quota = Bandwidth(-1 if is_batch else count * LIMIT_MILLI * 100)
            directory = Path(f"{layout.directory('cpu', layout.root or '')}{below}")
            if layout.version == 1:
                (directory / "cpu.cfs_quota_us").write_text(str(quota.quota_us))
            else:
                text = "max" if quota.quota_us < 0 else str(quota.quota_us)
                (directory / "cpu.max").write_text(f"{text} {quota.period_us}\n")


def _fill(layout: CgroupLayout) -> None:
    """Write the other files of version 2, as a new group has them."""
    for below in ("", "/burstable", "/besteffort", *(path for part in cgroups() for path in part)):
        for name, text in V2_FILES.items():
            Path(f"{layout.unified}{layout.root}{below}/{name}").write_text(f"{text}\n")
    for below in ("", "/burstable", "/besteffort"):
        Path(f"{layout.unified}{layout.root}{below}/cpu.max").write_text("max 100000\n")


def _run_cycles(cycle: Cycle) -> None:
    for _ in range(CYCLES):
        cycle.run()


def _figure(cycle: Cycle) -> Callable[[], float]:
    for _ in range(SETTLE):
        cycle.run()

    def figure() -> float:
        written = cycle.written
        spent_ms = cpu_ms(lambda: _run_cycles(cycle)) / CYCLES
        if cycle.written != written:
            raise RuntimeError(f"{cycle.written - written} files were written on a quiet node")
        return spent_ms

    return figure


def rows() -> Iterator[Row]:
    """Yield the cycle on files of version 2, and on real groups of version 1."""
    with version_2() as layout:
        _fill(layout)
        _set_limits(layout)
        cycle = Cycle(layout)
        row = compare("qos_cycle_v2", "cpu_ms", _figure(cycle), gate=GATE)
        print(f"qos.cycle: {cycle.values} files are compared", file=sys.stderr)
        yield row
    with version_1() as v1:
        if v1 is None:
            return
        _set_limits(v1)
        yield compare("qos_cycle_v1", "cpu_ms", _figure(Cycle(v1)), gate=GATE)
