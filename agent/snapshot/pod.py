"""Pods and containers of this node, from cgroups and the kubelet's list, and their evictions."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping

import msgspec

from agent.snapshot.device import Pairs
from agent.snapshot.part import Counts

# static pods: the kubelet's cgroup is named by the hash of the file, the API's pod is a mirror
STATIC_UID_KEYS = ("kubernetes.io/config.mirror", "kubernetes.io/config.hash")
_STATIC_KEYS = frozenset(STATIC_UID_KEYS)
CONFIG_SOURCE = "kubernetes.io/config.source"  # the kubelet's annotation: "file" of static pods
_STATIC_UID = re.compile(r"[0-9a-f]{32}")


RequestedAmounts = tuple[tuple[str, int], ...]  # amounts by resource, in base units


class PodRef(msgspec.Struct, frozen=True, kw_only=True):
    """The pod that an event is about."""

    namespace: str
    name: str
    uid: str = ""  # empty: only its name is known


class KubeQos(enum.Enum):
    """QoS classes of Kubernetes; the value is the kubelet's spelling."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class ContainerView(msgspec.Struct, frozen=True, kw_only=True):
    """One container. Its cgroup alone gives only its id."""

    id: str  # without the runtime's scheme
    runtime: str = ""  # that scheme, "containerd"; empty: not reported
    name: str = ""  # empty: only its cgroup is known
    cgroup: str = ""  # path below the hierarchy, "/kubepods/…"; empty: not running
    image: str = ""


class ResourceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How many devices of a device plug-in's resource one container requests."""

    container: str
    resource: str  # nvidia.com/gpu
    count: int
    init: bool = False  # an init container: its devices are free again for later containers


class ComputeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """CPU and memory that the scheduler reserves for a pod.

    During a resize in place they follow from `ContainerResources`.
    """

    cpu_cores: float = 0.0
    memory_bytes: float = 0.0


class ContainerResources(msgspec.Struct, frozen=True, kw_only=True):
    """Requests and limits of one container of a pod's spec; `None`: not set.

    While the pod is resized in place, CPU and memory are the smaller ones of the spec and of what
    the kubelet reports; of a resize that the kubelet has not accepted they are what it reports.

    Batch and mid resources are Koordinator's: CPU in milli-cores, memory in bytes. A limit may be
    larger than the request; without a request, the limit is requested.
    """

    name: str
    is_init: bool = False
    is_sidecar: bool = False  # an init container that continues to run
    cpu_request_milli: int | None = None
    cpu_limit_milli: int | None = None
    memory_request_bytes: int | None = None
    memory_limit_bytes: int | None = None
    batch_cpu_milli: int | None = None
    batch_memory_bytes: int | None = None
    mid_cpu_milli: int | None = None
    mid_memory_bytes: int | None = None
    batch_cpu_limit_milli: int | None = None
    batch_memory_limit_bytes: int | None = None
    mid_cpu_limit_milli: int | None = None
    mid_memory_limit_bytes: int | None = None

    @property
    def runs_beside_others(self) -> bool:
        """Return whether the container runs as long as the pod."""
        return self.is_sidecar or not self.is_init


class PodVolume(msgspec.Struct, frozen=True, kw_only=True):
    """A volume of a pod that a storage driver provides."""

    name: str  # in the pod's spec
    claim: str = ""  # PersistentVolumeClaim in the pod's namespace; empty: a volume without one


class PodView(msgspec.Struct, frozen=True, kw_only=True):
    """One pod; name and namespace are empty while only its cgroup is known."""

    uid: str
    qos: KubeQos
    name: str = ""
    namespace: str = ""
    cgroup: str = ""
    labels: Pairs = ()
    annotations: Pairs = ()
    priority: int | None = None
    containers: tuple[ContainerView, ...] = ()  # by id
    phase: str = ""  # Pending, Running, Succeeded, Failed, Unknown; empty: not reported
    terminating: bool = False  # its deletion was requested
    is_of_daemon_set: bool = False  # its controller would start it again on this node
    grace_s: int = 30  # `terminationGracePeriodSeconds`
    host_network: bool = False
    node_name: str = ""  # empty: not bound, or not reported
    asks: tuple[ResourceRequest, ...] = ()  # init containers first, each in the order written
    wants: RequestedAmounts | None = (
        None  # of devices that schedulers grant; None: the spec is unknown
    )
    batch_cpu_milli: int | None = 0  # requested kubernetes.io/batch-cpu; None: malformed
    compute_request: ComputeRequest | None = None  # None: the spec is unknown
    resources: tuple[ContainerResources, ...] | None = None  # in the spec's order, init first
    # only of pods with an annotation that names them: koordinator.sh/blkioQOS
    volumes: tuple[PodVolume, ...] = ()
    created: str = ""  # as the API server wrote the time: compared as text; empty: not reported
    resource_version: str = ""  # of the API's object; compare for equality only

    def label(self, key: str) -> str | None:
        """Return a label's value."""
        for name, value in self.labels:  # a generator would cost more than the search
            if name == key:
                return value
        return None

    def annotation(self, key: str) -> str | None:
        """Return an annotation's value."""
        for name, value in self.annotations:  # as in `label`
            if name == key:
                return value
        return None


def static_uid(pod: PodView) -> str | None:
    """Return the hash that names a static pod's cgroup; `None` for other pods.

    Users may write these annotations too: a value in the form of another pod's uid is refused.
    """
    for uid in _static_uids(pod):
        if _STATIC_UID.fullmatch(uid):
            return uid
    return None


def mirrored_uid(pod: PodView) -> str | None:
    """Return the uid of the static pod that a pod mirrors by its annotations, in any form.

    A static pod whose manifest has a uid has no hash. Users may write these annotations too.
    """
    uids = _static_uids(pod)
    return uids[0] if uids else None


def _static_uids(pod: PodView) -> list[str]:
    uids: dict[str, str] = {}
    for name, value in pod.annotations:  # written out: asked of every pod when one changes
        if name in _STATIC_KEYS and value:
            uids[name] = value
    return [uids[key] for key in STATIC_UID_KEYS if key in uids] if uids else []


ENDED_PHASES = ("Succeeded", "Failed")  # phases that no pod leaves


EVICTION_MESSAGE = "trigger by koordlet feature {feature}, kill pod: {name}"  # Koordinator's text


class EvictionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One pod to evict.

    With container ids the runtime stops them instead, without disruption budgets.
    """

    pod: PodRef
    feature: str  # Koordinator's name of the rule: "BEMemoryEvict"
    is_planned: bool = False  # record the event only
    container_ids: tuple[str, ...] = ()
    grace_s: int = 0  # grace period of the containers' stop

    @property
    def message(self) -> str:
        """Return why the pod is evicted, in Koordinator's words."""
        return EVICTION_MESSAGE.format(feature=self.feature, name=self.pod.name)


class EvictionOutcome(enum.Enum):
    """The outcome of a request."""

    EVICTED = "evicted"  # the API server deletes the pod
    KILLED = "killed"  # the runtime stopped its containers
    PLANNED = "planned"  # plan mode: nothing was requested
    BLOCKED = "blocked"  # a PodDisruptionBudget forbids it now
    GONE = "gone"  # the pod has ended, or another one has its name
    REFUSED = "refused"  # no permission, or an answer that a repeat does not change
    THROTTLED = "throttled"  # the API server accepts no requests now
    UNKNOWN = "unknown"  # no answer: the pod may be evicted or not


class EvictionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one request, with its pod."""

    request: EvictionRequest
    outcome: EvictionOutcome
    message: str = ""  # why it failed
    retry_after_s: float | None = None  # until the next request of this pod, or of any

    @property
    def holds_up_others(self) -> bool:
        """Return whether requests for other pods would fail as well."""
        if self.outcome is EvictionOutcome.REFUSED:
            return self.retry_after_s is not None
        return self.outcome is EvictionOutcome.THROTTLED


class EvictionFeedback(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the cluster that strategies need before the next evictions."""

    results: tuple[EvictionResult, ...] = ()  # since the last cycle
    metric_published_s: float | None = None  # monotonic, the last NodeMetric; None: none yet


class EvictionRuleView(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule of evictions does now, and whether it may take one pod."""

    rule: str  # Koordinator's name: "BEMemoryEvict"
    mode: str  # of its strategy: off, plan, on
    state: str  # off, not configured, unmeasured, calm, waiting, evicting, no victim
    reason: str = ""  # of the state, and why no pod is evicted now
    release: RequestedAmounts = ()  # what has to be released now
    exclusion: str = ""  # why the pod is no candidate; empty: it is one
    place: int = 0  # in the order of the candidates, from 1; 0: it is none
    candidates: int = 0


class PodEvictionView(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one pod may be evicted, and what decides that."""

    protection: str = ""  # why no rule may evict it
    eviction_priority: int  # what decides the order, the most important first
    priority: int
    label_priority: int
    used: RequestedAmounts = ()  # measured: CPU in milli-cores, memory in bytes
    requested: RequestedAmounts = ()  # of the extended resources that rules release
    recently: str = ""  # what evictions did with it in the last minutes
    rules: tuple[EvictionRuleView, ...] = ()


PodEvictions = Mapping[tuple[str, str, str], int]  # by namespace, name and feature


def _no_pods() -> PodEvictions:
    return {}


class EvictionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Evictions since the agent started, and the reasons why others wait."""

    outcomes: tuple[tuple[str, Counts], ...] = ()  # by feature, then outcome
    pods: PodEvictions = msgspec.field(default_factory=_no_pods)  # the last ones, bounded
    blocked: tuple[str, ...] = ()  # pods that a budget protects now: namespace/name
    problem: str = ""  # of the last request that failed for another reason
