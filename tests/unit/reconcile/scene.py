"""A node in miniature: real groups, pods that are known, and hooks that say what a test wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from agent.cgroup.ledger import ChangeLedger
from agent.clock import ManualClock
from agent.containers.hooks import Hook
from agent.host.files import LiveHostFiles
from agent.qos.engine import QosEngine
from agent.qos.inputs import LiveValues
from agent.qos.strategy import AnyStrategy
from agent.reconcile.reconciler import Reconciler
from agent.reconcile.reports import CycleReport
from agent.snapshot.cluster import SLO_STALE_S
from agent.snapshot.container import NO_ADJUSTMENT, Adjustment, HookRequest, HookStage
from agent.snapshot.host_devices import HostDevicesView, KernelFeatures
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ContainerView, KubeQos, PodView
from tests.realgroups import UID, PodGroups

Answer = Callable[[HookRequest], Adjustment]
ONE, SANDBOX = f"{1:064x}", f"{2:064x}"


class CannedHook:
    """Says what is in `answers`: by container name, `""` for the sandbox, `None` for the pod."""

    stages = frozenset(HookStage)
    required = False

    def __init__(self, name: str = "cpuset") -> None:
        self.name = name
        self.answers: dict[str | None, Adjustment] = {}
        self.requests: list[HookRequest] = []

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:  # noqa: ARG002 - as its Protocol
        self.requests.append(request)
        name = None if request.container is None else request.container.name
        return self.answers.get(name, NO_ADJUSTMENT)


class Scene:
    """One pod with one container and a sandbox, on real groups."""

    def __init__(
        self,
        groups: PodGroups,
        *hooks: Hook,
        modes: Mapping[str, str] | None = None,
        ledger: ChangeLedger | None = None,
        strategies: tuple[AnyStrategy, ...] = (),
        protected_namespaces: tuple[str, ...] = (),
    ) -> None:
        self.groups = groups
        self.clock = ManualClock()
        self.hooks = hooks
        self.ledger = ledger or ChangeLedger(None, "")
        self.pod = groups.pod_path(UID)
        self.container = groups.container_path(self.pod, 1)
        self.sandbox = groups.container_path(self.pod, 2)
        if not groups.path("cpu", self.pod).exists():
            groups.pod()
            groups.container(self.pod, 1)
            groups.container(self.pod, 2)
        self.strategies = strategies
        self.protected_namespaces = protected_namespaces
        names = [*(hook.name for hook in hooks), *(strategy.name for strategy in strategies)]
        self.modes = dict.fromkeys(names, "on") | dict(modes or {})
        self.reconciler = self.again()
        self.renewed = 0
        self.snapshot = NodeSnapshot(
            node=NodeIdentity(name="node"), pods=SnapshotPart((self.view(),), 1.0)
        )

    def view(self, **changes: object) -> PodView:
        """Return the pod as cluster and cgroups show it."""
        view = PodView(
            uid=UID,
            qos=KubeQos.GUARANTEED,
            name="pod",
            namespace="default",
            cgroup=self.pod,
            phase="Running",
            containers=(
                ContainerView(id=ONE, name="app", cgroup=self.container),
                ContainerView(id=SANDBOX, cgroup=self.sandbox),
            ),
        )
        return msgspec.structs.replace(view, **changes)

    def again(self) -> Reconciler:
        """Begin anew, as after a restart of the agent."""
        self.reconciler = Reconciler(
            root=LiveHostFiles(),
            ledger=self.ledger,
            hooks=tuple(self.hooks),
            modes=self.modes,
            clock=self.clock,
        )
        self.engine = QosEngine(
            self.strategies,
            self.modes,
            1.0,
            SLO_STALE_S,
            protected_namespaces=self.protected_namespaces,
        )
        return self.reconciler

    def cycle(self, seconds: float = 1.0) -> CycleReport:
        """Let time pass and run once."""
        self.clock.advance(seconds)
        layout, now_s = self.groups.layout, self.clock.monotonic()
        values = LiveValues(self.reconciler.current_values(layout), self.ledger)
        plan = self.engine.plan(self.snapshot, layout, values, now_s)
        self.view_of_strategies = plan.view
        return self.reconciler.cycle(self.snapshot, layout, plan)

    def renew(self, **changes: object) -> None:
        """Change the snapshot, so that hooks are asked again about all pods."""
        self.renewed += 1
        host_devices = HostDevicesView(kernel=KernelFeatures(core_switch=self.renewed))
        changes = {"host_devices": SnapshotPart(host_devices, 1.0), **changes}
        self.snapshot = msgspec.structs.replace(self.snapshot, **changes)
