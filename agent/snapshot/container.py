"""Pods and containers of the runtime, requests to hooks and their adjustments, NRI statistics."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from agent.snapshot.device import DeviceNode, Pairs
from agent.snapshot.device_plugin import ResourceStatistics
from agent.snapshot.edits import NO_EDITS, ContainerEdits
from agent.snapshot.inventory import Problem
from agent.snapshot.part import Counts, Histogram
from agent.snapshot.pod import EvictionStatus, PodView
from agent.snapshot.self_check import EnforcementCounters


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A container before it is created. All of its text was written by users."""

    name: str = ""
    pod_uid: str = ""
    env: Pairs = ()  # variables of image and spec together, in the order of the runtime
    mounts: tuple[str, ...] = ()  # destinations
    # character devices that it has already, by their paths in the container
    nodes: tuple[DeviceNode, ...] = ()
    runtime_handler: str = ""  # handler of the pod's runtime class; empty: the runtime's default
    user: int | None = None  # user id of the first process; None: unknown
    privileged: bool = False
    protected: bool = False  # in a protected namespace, or the agent's own
    given_elsewhere: bool = False  # another device plug-in gave it devices
    # what becomes of its request for devices without an allocation: off, warn or void
    unallocated_policy: str = "warn"
    host_network: bool = False
    labels: Pairs = ()  # labels of the pod
    annotations: Pairs = ()  # annotations of the pod

    def env_value(self, variable: str) -> str | None:
        """Return a variable's last value; `None` if it is not set."""
        for name, value in reversed(self.env):
            if name == variable:
                return value
        return None

    def label(self, key: str) -> str | None:
        """Return a label of the pod."""
        for name, value in self.labels:
            if name == key:
                return value
        return None

    def annotation(self, key: str) -> str | None:
        """Return an annotation of the pod."""
        for name, value in self.annotations:
            if name == key:
                return value
        return None


UNLIMITED = -1  # value of an unlimited quota or memory limit


class LinuxResources(msgspec.Struct, frozen=True, kw_only=True):
    """CPU and memory of a container or pod; `None`: not requested, or not changed."""

    shares: int | None = None
    quota_us: int | None = None  # -1: unlimited
    period_us: int | None = None
    cpus: str | None = None  # list format; "": the set is emptied
    memory_bytes: int | None = None  # limit; -1: unlimited


NO_RESOURCES = LinuxResources()


class CoreSchedulingGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The group whose processes may share a core with a container's.

    An empty `id` is a group, too.
    """

    enabled: bool = False  # False: the processes get the kernel's default cookie
    id: str = ""


class Adjustment(msgspec.Struct, frozen=True, kw_only=True):
    """All changes of one stage. `failed` is why the container must not start, else empty."""

    edits: ContainerEdits = NO_EDITS
    resources: LinuxResources = NO_RESOURCES
    rdt_class: str | None = None
    oom_score_adj: int | None = None
    bvt_warp_ns: int | None = None  # group identity of a pod
    # core scheduling group of the container's processes, once it runs
    core_group: CoreSchedulingGroup | None = None
    failed: str = ""  # reason and message, for the runtime
    reason: str = ""  # CamelCase, of `failed`


NO_ADJUSTMENT = Adjustment()


class ContainerState(enum.Enum):
    """State of a container, as the runtime reports it."""

    UNKNOWN = "unknown"
    CREATED = "created"
    PAUSED = "paused"
    RUNNING = "running"
    STOPPED = "stopped"


class PodSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's sandbox. Labels and annotations are those at its creation, without later changes."""

    id: str
    uid: str = ""  # uid of the pod
    name: str = ""
    namespace: str = ""
    labels: Pairs = ()
    annotations: Pairs = ()
    cgroup_parent: str = ""  # in the runtime's form; empty: the runtime did not report it
    runtime_handler: str = ""
    host_network: bool = False
    # the runtime reported its end: it may be listed for a while, and has no devices
    stopped: bool = False

    def label(self, key: str) -> str | None:
        """Return a label's value."""
        for name, value in self.labels:
            if name == key:
                return value
        return None

    def annotation(self, key: str) -> str | None:
        """Return an annotation's value."""
        for name, value in self.annotations:
            if name == key:
                return value
        return None


def sandbox_from_pod(pod: PodView) -> PodSandbox:
    """Return a sandbox for a pod that is in a list of pods, but not in the runtime's."""
    return PodSandbox(
        id="",
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        labels=pod.labels,
        annotations=pod.annotations,
        host_network=pod.host_network,
    )


class RuntimeContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A container of the runtime; a change is reported again."""

    id: str
    sandbox_id: str
    name: str = ""
    state: ContainerState = ContainerState.UNKNOWN
    pid: int | None = None  # pid of its first process; None: not started, or not reported


def _no_sandboxes() -> Mapping[str, PodSandbox]:
    return MappingProxyType({})


def _no_containers() -> Mapping[str, RuntimeContainer]:
    return MappingProxyType({})


def _no_missed() -> Mapping[str, str]:
    return MappingProxyType({})


SYNCHRONIZED = "synchronized"  # the state in which the runtime's requests are answered


class RuntimeView(msgspec.Struct, frozen=True, kw_only=True):
    """State of the connection to the container runtime, and its pods and containers.

    `state`: off (by a setting, or on a recorded host), waiting (no socket), refused, registered,
    synchronized. Sandboxes and containers are by id; those of a closed connection are kept, because
    their pods still run. `missed` are the sandboxes and containers that started without the answers
    of their hooks.
    """

    state: str = "off"
    reason: str = ""  # CamelCase reason why it is not synchronized
    message: str = ""
    runtime: str = ""  # containerd, cri-o
    version: str = ""
    nri_version: tuple[int, int, int] | None = None  # None: never connected
    takes_cdi: bool = False  # the runtime resolves CDI names in adjustments
    sandboxes: Mapping[str, PodSandbox] = msgspec.field(default_factory=_no_sandboxes)
    containers: Mapping[str, RuntimeContainer] = msgspec.field(default_factory=_no_containers)
    missed: Mapping[str, str] = msgspec.field(default_factory=_no_missed)  # id: CamelCase reason

    # wall clock: when the connection last became or ceased to be synchronized
    turned_s: float | None = None
    lost: int = 0  # how often a synchronized connection ended

    @property
    def is_synchronized(self) -> bool:
        """Return whether new containers get the adjustments of their hooks."""
        return self.state == SYNCHRONIZED


class HookStage(enum.Enum):
    """When a hook is called; the values are Koordinator's names."""

    RUN_POD = "PreRunPodSandbox"
    CREATE = "PreCreateContainer"
    UPDATE = "PreUpdateContainerResources"
    REMOVE_POD = "PreRemoveRunPodSandbox"
    RECONCILE = "Reconcile"


class HookRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the hooks. `container` is `None` if the request is about the pod itself.

    A container without a name is the pod's sandbox, which has CPUs and a cookie as the others do.
    `resources` are the requested ones: for a new container those of its spec, for an update those
    of the update, at `RECONCILE` those of the pod's object, as far as they are known. They are
    never the values in force: a hook that scales values would scale them again each time.
    """

    stage: HookStage
    pod: PodSandbox
    container: ContainerSpec | None = None
    resources: LinuxResources = NO_RESOURCES


class MethodStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one NRI method; counters since the agent's start."""

    method: str
    results: Counts = ()  # ok, late, failed, broken, malformed
    latency: Histogram = Histogram()  # time from the arrival of a frame until its answer is written


class NriStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """State of the NRI plug-in; counters since the agent's start."""

    methods: tuple[MethodStatistics, ...] = ()  # by name
    connections: int = 0  # opened connections
    registrations: int = 0  # connections that reached a first Synchronize
    ends: Counts = ()  # ended connections and attempts, by reason
    late: int = 0  # answers that came after the budget, which keeps the connection open
    adjustments: int = 0  # new containers that were changed
    updates: int = 0  # running containers that were changed
    unknown_methods: int = 0
    oversized: int = 0  # messages above what ttrpc carries
    dropped: int = 0  # pods and containers that could not be read, or were too many
    in_flight: int = 0  # requests that wait for their hooks now
    since_s: float | None = None  # monotonic start of the present connection; None: there is none


class HookMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one hook since the agent's start."""

    hook: str
    calls: int = 0
    spent_s: float = 0.0
    failures: int = 0
    planned: int = 0


class ContainerServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of every part of the agent that changes containers, at one moment."""

    nri: NriStatistics | None = None  # None: the agent does not connect to the runtime
    hooks: tuple[HookMetrics, ...] = ()  # by name
    refusals: Counts = ()  # by reason
    plugin: tuple[ResourceStatistics, ...] = ()
    offer_problems: tuple[tuple[str, Problem], ...] = ()  # (vendor, problem) of the device plug-in
    files_written: int = 0
    files_left: int | None = None  # None: no cycle yet
    file_problems: tuple[str, ...] | None = None  # None: the agent writes no files of pods
    cdi_problem: str | None = None  # None: the agent writes no CDI files
    enforcement: EnforcementCounters | None = None  # None: the agent writes no files of pods
    reclaimed: int = 0
    evictions: EvictionStatus = EvictionStatus()
