"""What a strategy is: a pure function of the node's state and of its own earlier state."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import msgspec

from agent.cgroup.enforcement import MemoryReclaim
from agent.cgroup.keys import CgroupKey, CgroupValue
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.write_plan import DesiredValue
from agent.qos.eviction.history import EvictionHistory
from agent.snapshot.cluster import ClusterView
from agent.snapshot.cpu import CpuSet, CpuTopology
from agent.snapshot.pod import ContainerResources, EvictionRequest, PodView
from agent.snapshot.self_check import StrategyState
from agent.snapshot.slo import NodeSlo
from agent.snapshot.usage import PressureWatch, UsageSample


class CurrentValues(Protocol):
    """Reads files that are in force now. Nothing is raised: a value may be absent."""

    def value(self, cgroup: str, key: CgroupKey) -> CgroupValue | None:
        """Return the value of a cgroup file; `None`: there is no such file, or no number in it."""
        ...

    def original(self, cgroup: str, key: CgroupKey) -> CgroupValue | None:
        """Return the value before the agent's first write; `None`: the agent never wrote it."""
        ...

    def effective_cpus(self, cgroup: str) -> CpuSet | None:
        """Return the CPUs that a cgroup may really use; `None`: there is no such file."""
        ...


class QosContainer(msgspec.Struct, frozen=True, kw_only=True):
    """One running container that the pod's spec names."""

    id: str
    cgroup: str
    resources: ContainerResources

    @property
    def name(self) -> str:
        """Return the name in the pod's spec."""
        return self.resources.name


class QosPod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of the cluster with its cgroup."""

    view: PodView
    label: str  # Koordinator's QoS class by its label; empty without one
    qos_class: str  # LSE, LSR, LS, BE, SYSTEM: of the label, else by Kubernetes' class
    priority_class: str  # koord-prod, koord-mid, koord-batch, koord-free
    is_active: bool  # its phase is Pending or Running
    containers: tuple[QosContainer, ...] = ()  # those that run, in the order of the spec

    @property
    def cgroup(self) -> str:
        """Return the path of the pod's cgroup; empty while it has none."""
        return self.view.cgroup

    @property
    def uid(self) -> str:
        """Return the pod's uid."""
        return self.view.uid


class NodeCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """What the Node has, and what of it pods may request; `None` is not known.

    `allocatable` has all resources in base units: CPU in milli-cores, batch and mid CPU in their
    own milli units, memory in bytes.
    """

    cpu_milli: int | None = None
    memory_bytes: int | None = None
    allocatable: tuple[tuple[str, int], ...] = ()

    def allocatable_of(self, resource: str) -> int | None:
        """Return the allocatable amount; `None` if the Node does not list the resource."""
        return next((amount for name, amount in self.allocatable if name == resource), None)


class QosInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What all strategies of one cycle get."""

    now_s: float  # monotonic
    interval_s: float = 1.0  # between two cycles
    slo: NodeSlo
    usage: UsageSample | None = None  # None: there is no sample of the last two intervals
    usage_taken_s: float | None = None  # monotonic, when the sample was taken
    node: NodeCapacity = NodeCapacity()
    pods: tuple[QosPod, ...] = ()  # those that the cluster or the kubelet lists
    has_pods: bool = False  # the list of pods was read
    pod_views: tuple[PodView, ...] = ()  # also of pods that are known by their cgroup alone
    pressure: PressureWatch = PressureWatch()
    cpus: CpuTopology = CpuTopology()
    cluster: ClusterView = ClusterView()
    layout: CgroupLayout
    current: CurrentValues
    evictions: EvictionHistory = EvictionHistory()  # of all strategies, those of this cycle too
    metric_published_s: float | None = None  # monotonic, the last NodeMetric; None: none yet


class StrategyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a strategy wants now.

    `values` are all that it wants, not only changes: what it wanted before and does not list any
    more is restored. A strategy that lacks an input returns the values that it returned last, with
    the state WAITING.
    """

    values: tuple[DesiredValue, ...] = ()
    evictions: tuple[EvictionRequest, ...] = ()  # requested in this cycle
    reclaims: tuple[MemoryReclaim, ...] = ()  # requested in this cycle
    state: StrategyState = StrategyState.ACTIVE
    message: str = ""
    figures: tuple[tuple[str, float], ...] = ()


NOT_REQUESTED = StrategyPlan(state=StrategyState.IDLE)

StateT = TypeVar("StateT")


class Strategy(Protocol[StateT]):
    """One strategy. `plan` is pure: all that it remembers is in the state that it returns."""

    name: str  # as in `enforce.strategies`

    def start(self) -> StateT:
        """Return the state before the first cycle."""
        ...

    def plan(self, inputs: QosInputs, state: StateT) -> tuple[StrategyPlan, StateT]:
        """Return what is desired now, and the state for the next cycle."""
        ...


AnyStrategy = Strategy[Any]
