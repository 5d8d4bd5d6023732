"""A node with an emulated resctrl file system, pods with tasks, a NodeSLO and the manager."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from agent.cgroup.ledger import ChangeLedger
from agent.clock import ManualClock
from agent.config.containers import ResctrlSettings
from agent.containers.resctrl import RESCTRL
from agent.resctrl.manager import ResctrlManager
from agent.snapshot.cluster import ClusterView
from agent.snapshot.container import HookRequest, HookStage, PodSandbox
from agent.snapshot.cpu import CpuInfo, CpuTopology
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ContainerView, KubeQos, PodView
from agent.snapshot.self_check import ResctrlView
from agent.snapshot.slo import NodeSlo, NodeSloView, QosClass, ResctrlQos, ResourceQos
from agent.wire_formats.annotations import QOS_LABEL
from tests.resctrl.host import LAYOUT, EmulatedHost
from tests.resctrl.machine import DEFAULT_MACHINE, Machine

SLO_STALE_S = 1800.0
BOOT = "boot"
HALF = '{"llc":{"schemata":{"range":[0,50]}}}'


def uid(number: int) -> str:
    return f"00000000-0000-0000-0000-{number:012d}"


def group(number: int) -> str:
    return f"koordlet-{uid(number)}"


def qos(start: int = 0, end: int = 100, mba: int = 100, *, enable: bool = True) -> ResctrlQos:
    return ResctrlQos(
        enable=enable, cat_range_start_percent=start, cat_range_end_percent=end, mba_percent=mba
    )


class Scene:
    """One node. Everything that a test changes is in force at the next `cycle`."""

    def __init__(
        self,
        machine: Machine = DEFAULT_MACHINE,
        *,
        mode: str = "on",
        options: str = "rw",
        vendor: str = "GenuineIntel",
        ledger_path: Path | None = None,
        protected_namespaces: tuple[str, ...] = (),
        **settings: object,
    ) -> None:
        self.host = EmulatedHost(machine, options)
        self.clock = ManualClock()
        self.mode = mode
        self.protected_namespaces = protected_namespaces
        self.settings = msgspec.convert(settings, ResctrlSettings)
        self._ledger_path = ledger_path
        self.ledger = self._load_ledger()
        self.pods: dict[int, PodView] = {}
        self.classes: dict[str, ResctrlQos] = {}
        self.slo_taken_s: float | None = self.clock.mono_s
        self.is_slo_confirmed = True
        self.sandboxes: dict[str, PodSandbox] = {}
        self.pods_taken_s: float | None = 1.0
        self._vendor = vendor
        self.manager = self._new_manager()
        self._slo = SnapshotPart(NodeSloView())

    def restart(self, mode: str | None = None) -> None:
        """Start a new agent with the ledger that the old one left."""
        self.mode = mode or self.mode
        if self._ledger_path is not None:
            self.ledger = self._load_ledger()
        self.manager = self._new_manager()

    def _load_ledger(self) -> ChangeLedger:
        path = None if self._ledger_path is None else str(self._ledger_path)
        ledger = ChangeLedger(path, BOOT)
        ledger.load()
        return ledger

    def _new_manager(self) -> ResctrlManager:
        return ResctrlManager(
            ledger=self.ledger,
            clock=self.clock,
            mode=self.mode,
            settings=self.settings,
            slo_stale_s=SLO_STALE_S,
            files=self.host,
            mount=self.host.mount,
            protected_namespaces=self.protected_namespaces,
        )

    def set_class(self, name: str, values: ResctrlQos) -> None:
        """Put a class into the NodeSLO."""
        self.classes[name] = values

    def add_pod(
        self, number: int, label: str = "BE", annotation: str | None = None, tasks: int = 2
    ) -> list[int]:
        """Start a pod with one container and some tasks; return them."""
        cgroup = f"/kubepods/pod{uid(number)}/{number:064x}"
        started = [self.host.tasks.add() for _ in range(tasks)]
        self.host.containers[cgroup] = set(started)
        self.pods[number] = PodView(
            uid=uid(number),
            qos=KubeQos.BURSTABLE,
            name=f"pod-{number}",
            namespace="test",
            labels=((QOS_LABEL, label),),
            annotations=((RESCTRL, annotation),) if annotation is not None else (),
            containers=(ContainerView(id=f"{number:064x}", cgroup=cgroup),),
            phase="Running",
            created=f"2026-01-01T00:00:{number:02d}Z",
        )
        return started

    def annotate(self, number: int, annotation: str | None) -> None:
        """Change a pod's annotation."""
        annotations = ((RESCTRL, annotation),) if annotation is not None else ()
        self.pods[number] = msgspec.structs.replace(self.pods[number], annotations=annotations)

    def remove_pod(self, number: int) -> None:
        """End a pod with its tasks."""
        pod = self.pods.pop(number)
        for container in pod.containers:
            for task in self.host.containers.pop(container.cgroup):
                self.host.tasks.parents.pop(task, None)

    def tasks_of(self, number: int) -> set[int]:
        """Return the tasks of a pod."""
        return set(self.host.containers[self.pods[number].containers[0].cgroup])

    @property
    def snapshot(self) -> NodeSnapshot:
        """Return the node as the agent sees it now."""
        classes: Mapping[str, ResctrlQos] = self.classes
        resource_qos = ResourceQos(
            be_class=QosClass(resctrl=classes.get("BE", ResctrlQos())),
            ls_class=QosClass(resctrl=classes.get("LS", ResctrlQos())),
            lsr_class=QosClass(resctrl=classes.get("LSR", ResctrlQos())),
        )
        if self.is_slo_confirmed:
            self.slo_taken_s = self.clock.mono_s
        view = NodeSloView(found=True, slo=NodeSlo(resource_qos=resource_qos))
        snapshot = NodeSnapshot(
            node=NodeIdentity(name="node"),
            pods=SnapshotPart(
                tuple(self.pods[number] for number in sorted(self.pods)), self.pods_taken_s
            ),
            cpus=SnapshotPart(CpuTopology(info=CpuInfo(vendor=self._vendor))),
            cluster=ClusterView(slo=SnapshotPart(view, self.slo_taken_s)),
        )
        runtime = msgspec.structs.replace(snapshot.runtime.value, sandboxes=self.sandboxes)
        return msgspec.structs.replace(snapshot, runtime=SnapshotPart(runtime, 1.0))

    def cycle(self, cycles: int = 1) -> ResctrlView:
        """Run some cycles, a second apart; return the last view."""
        for _ in range(cycles):
            self.clock.advance(1.0)
            view = self.manager.cycle(self.snapshot, LAYOUT).view
        return view

    def start_pod(self, number: int, label: str, annotation: str) -> ResctrlView | None:
        """Let the runtime create a sandbox that is not listed yet."""
        sandbox = PodSandbox(
            id=f"{number:064x}",
            uid=uid(number),
            name=f"pod-{number}",
            namespace="test",
            labels=((QOS_LABEL, label),),
            annotations=((RESCTRL, annotation),),
        )
        request = HookRequest(stage=HookStage.RUN_POD, pod=sandbox)
        report = self.manager.prepare_pod(request, self.snapshot, LAYOUT)
        return None if report is None else report.view

    def schemata(self, name: str) -> dict[str, dict[int, int]]:
        """Return the values that the kernel has for a group."""
        return self.host.resctrl.groups[name].values

    def groups(self) -> set[str]:
        """Return the names of all groups but the root."""
        return {name for name in self.host.resctrl.groups if name}

    def members(self, name: str) -> set[int]:
        """Return the tasks of a group."""
        return set(self.host.resctrl.tasks(name))


def reasons(view: ResctrlView) -> set[str]:
    return {problem.reason for problem in view.problems}
