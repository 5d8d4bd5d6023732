"""Pods and containers of this node, from cgroups and the kubelet's list."""

from __future__ import annotations

import enum
import re

import msgspec

from agent.snapshot.device import Pairs

# static pods: the kubelet's cgroup is named by the hash of the file, the API's pod is a mirror
STATIC_UID_KEYS = ("kubernetes.io/config.mirror", "kubernetes.io/config.hash")
_STATIC_KEYS = frozenset(STATIC_UID_KEYS)
_STATIC_UID = re.compile(r"[0-9a-f]{32}")


RequestedAmounts = tuple[tuple[str, int], ...]  # amounts by resource, in base units


class PodRef(msgspec.Struct, frozen=True, kw_only=True):
    """The pod that an event is about."""

    namespace: str
    name: str
    uid: str = ""  # empty: only its name is known


class KubeQos(enum.Enum):
    """Kubernetes' own classes; the value is the kubelet's spelling."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class ContainerView(msgspec.Struct, frozen=True, kw_only=True):
    """One container. A cgroup gives its id only."""

    id: str  # without the runtime's scheme
    runtime: str = ""  # that scheme, "containerd"; empty: not reported
    name: str = ""  # empty: known by its cgroup alone
    cgroup: str = ""  # path below the hierarchy, "/kubepods/…"; empty: not running
    image: str = ""


class ResourceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How many of a device plug-in's resource one container asks for."""

    container: str
    resource: str  # nvidia.com/gpu
    count: int
    init: bool = False  # its devices are free again for those that come after it


class ComputeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """CPU and memory that the scheduler sets aside for a pod."""

    cpu_cores: float = 0.0
    memory_bytes: float = 0.0


class ContainerResources(msgspec.Struct, frozen=True, kw_only=True):
    """What one container of a pod's spec requests and may use; `None` is not set.

    Batch and mid resources are Koordinator's: CPU in milli-cores, memory in bytes. As extended
    resources, their requests and limits are equal.
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
    terminating: bool = False  # somebody asked for its end
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
        return next((v for k, v in self.annotations if k == key), None)


def static_uid(pod: PodView) -> str | None:
    """Return the hash that names a static pod's cgroup; `None` for other pods.

    Users may write these annotations too: a value in the form of another pod's uid is refused.
    """
    hashes: dict[str, str] = {}
    for name, value in pod.annotations:  # written out: asked of every pod when one changes
        if name in _STATIC_KEYS:
            hashes[name] = value
    for key in STATIC_UID_KEYS if hashes else ():
        if key in hashes and _STATIC_UID.fullmatch(hashes[key]):
            return hashes[key]
    return None


ENDED_PHASES = ("Succeeded", "Failed")  # phases that no pod leaves
