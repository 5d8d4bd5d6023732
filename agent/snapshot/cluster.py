"""The cluster's part of the snapshot: Node, pods, NodeSLO, API session, kubelet."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from agent.snapshot.device import Pairs
from agent.snapshot.part import Counts, SnapshotPart
from agent.snapshot.pod import PodView
from agent.snapshot.publications import WriterState
from agent.snapshot.slo import NodeSloView

Amounts = Mapping[str, str]  # resource name -> quantity as on the wire


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of the Node object that the agent reads."""

    name: str
    uid: str
    resource_version: str = ""
    labels: Pairs = ()
    annotations: Pairs = ()
    capacity: Amounts = {}
    allocatable: Amounts = {}
    addresses: tuple[tuple[str, str], ...] = ()  # (type, address): InternalIP, Hostname, …
    kubelet_port: int | None = None
    machine_id: str = ""
    boot_id: str = ""
    conditions: tuple[tuple[str, str, str], ...] = ()  # (type, status, reason), in their order

    def label(self, key: str) -> str | None:
        """Return a label's value."""
        return next((v for k, v in self.labels if k == key), None)

    def annotation(self, key: str) -> str | None:
        """Return an annotation's value."""
        return next((v for k, v in self.annotations if k == key), None)


class MetricCollectPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`spec.metricCollectPolicy` of NodeMetric; `None`: the object does not say."""

    aggregate_s: float | None = None
    report_interval_s: float | None = None
    durations_s: tuple[int, ...] | None = None
    memory: str | None = None  # usageWithoutPageCache, usageWithHotPageCache, usageWithPageCache


class KubeletView(msgspec.Struct, frozen=True, kw_only=True):
    """The kubelet's settings (`/configz`) and the CPUs that it allocated.

    `None`: the agent did not ask for the value, or the kubelet did not report it.
    """

    cpu_manager_policy: str | None = None
    cpu_manager_options: Pairs = ()
    reserved_cpus: frozenset[int] | None = None  # of static policy: set, or the kubelet's choice
    topology_policy: str | None = None
    topology_scope: str | None = None
    cgroup_driver: str | None = None
    cgroup_root: str | None = None  # `--cgroup-root`: the parent of the kubelet's cgroups
    # pod uid -> CPUs that the static policy gave its containers, from the kubelet's checkpoint
    pod_cpus: tuple[tuple[str, frozenset[int]], ...] = ()


NO_VOLUMES: Mapping[str, str] = MappingProxyType({})


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """All data from the API server and the kubelet, each part with its age.

    The `taken_s` of a part is the time of its last confirmation, also when nothing changed.
    """

    is_clustered: bool = (
        False  # what is published goes to an API server: it names the Node as owner
    )
    node: SnapshotPart[NodeView | None] = SnapshotPart(None)
    slo: SnapshotPart[NodeSloView] = SnapshotPart(NodeSloView())
    metric_policy: SnapshotPart[MetricCollectPolicy | None] = SnapshotPart(
        None
    )  # None: no NodeMetric object
    kubelet: SnapshotPart[KubeletView | None] = SnapshotPart(None)
    # of NodeResourceTopology that the server has; None: it has not told yet
    topology_versions: SnapshotPart[tuple[str, ...] | None] = SnapshotPart(None)
    pods: tuple[PodView, ...] = ()  # of this node, as API server and kubelet know them together
    has_pod_list: bool = False  # the API server has listed them: who is not among them is gone
    # uids of pods whose object the API server deleted: their devices are free, whatever runs yet
    deleted_pods: frozenset[str] = frozenset()
    # PersistentVolume by "namespace/claim", of claims whose disks a pod on this node limits
    volume_names: Mapping[str, str] = NO_VOLUMES


class ApiSessionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of the session with the API server; replaced whole, so any thread may read it.

    Times are monotonic seconds.
    """

    # what was asked last got an answer, and be it a refusal (403); None: nobody asked yet
    reachable: bool | None = None
    last_answer_s: float | None = None  # an answer of any status
    last_ok_s: float | None = None  # a 2xx
    last_error: str = ""
    requests: Mapping[tuple[str, str], int] = {}  # (GET, 200), (WATCH, 410), (PATCH, none)
    in_flight: int = 0
    streams: int = 0
    opened_connections: int = 0
    retries: int = 0  # requests sent again: after a 401, or because the connection was closed
    token_read_errors: int = 0
    ca_read_errors: int = 0
    # by how much the server's clock is ahead of ours, as far as its Date header shows; 0: within
    # what a time in whole seconds and the way there and back leave open
    clock_skew_s: float | None = None


class WatchPhase(enum.Enum):
    """The phase of a watch of one kind of object."""

    LISTING = "listing"
    WATCHING = "watching"
    WAITING = "waiting"  # waits until the next attempt
    ABSENT = "absent"  # the server does not have this kind; rare attempts
    FORBIDDEN = "forbidden"  # the role does not allow it; rare attempts


class WatchStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of the watch of one kind of object; counters since the start."""

    resource: str  # plural name of the resource
    phase: WatchPhase = WatchPhase.WAITING
    synced: bool = False  # a list was complete once
    objects: int = 0
    lists: int = 0  # complete lists
    relists: int = 0  # complete lists after the first one
    watches: int = 0  # streams opened
    events: int = 0
    bookmarks: int = 0
    malformed: int = 0  # unreadable objects, counted each time the server sent them
    errors: int = 0
    last_error: str = ""  # empty after the next answer or accepted stream
    streaming: bool = False  # a stream is open: changes at the server arrive
    # monotonic: a page, an event or a bookmark came, or a stream was accepted or ended in order
    last_contact_s: float | None = None
    # monotonic: when the server last answered that it does not have the kind
    absent_s: float | None = None

    def contact_s(self, now_s: float) -> float | None:
        """Return when the view was last confirmed; an open stream confirms it all the time.

        A quiet stream is healthy: a server that sends no bookmarks sends nothing while nothing
        changes.
        """
        return now_s if self.streaming else self.last_contact_s


KUBELET_STARTING = "starting"  # the kubelet was not asked yet
KUBELET_OK = "ok"
KUBELET_EMPTY = "empty"  # it answers with no pods: it has not read them yet
KUBELET_ABSENT = "absent"  # no process listens, or it cannot be reached
KUBELET_HANGING = "hanging"  # it accepts connections and does not answer within the deadline
KUBELET_UNAUTHORISED = "unauthorised"
KUBELET_FORBIDDEN = "forbidden"
KUBELET_FAILING = "failing"  # its answer is not usable: 5xx, not JSON, too large


class KubeletStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of the kubelet, for metrics and people. Counts are since the agent's start."""

    pods: str = KUBELET_STARTING  # state of the pod list: one of the states above
    # state of `/configz`; also `absent` on a port that does not serve it
    config: str = KUBELET_STARTING
    detail: str = ""  # the last error of either; empty while both work
    since_s: float | None = None  # monotonic time of the last change of `pods`
    failures: int = 0  # failed polls in a row
    polls: Counts = ()  # by state
    early_polls: int = 0
    restarts: int = 0  # how often the kubelet became reachable again
    malformed: int = 0  # malformed pods of the last list
    duration_s: float | None = None  # duration of the last poll


class PodResourcesProxyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of the pod-resources proxy, for metrics and people.

    Counts are since the agent's start.
    """

    is_serving: bool = False
    error: str = ""  # why the proxy does not serve
    calls: Counts = ()  # by method and gRPC status: `List OK`


class EventCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Events since the start by result, and the number of series that wait."""

    created: int = 0
    repeated: int = 0  # updates with a higher count
    limited: int = 0  # merged: too many events of one subject and reason
    dropped: int = 0  # lost: too many events waited
    refused: int = 0  # lost: the API server rejects the event
    waiting: int = 0


class EventSinkState(msgspec.Struct, frozen=True):
    """State of the writer of Kubernetes events; `error` is empty after a successful write."""

    counts: EventCounts = EventCounts()
    error: str = ""
    is_forbidden: bool = False  # the role lacks the right to create events


ANOTHER_MACHINE = "NodeOfAnotherMachine"  # reason of a `WritePermission`


class WritePermission(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the agent may write for the Node now, and why not; for checks and people."""

    is_allowed: bool
    reason: str = ""  # CamelCase; empty: an id proves that the Node is this machine's
    message: str = ""


SLO_STALE_S = 1800.0


class ClusterServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of every part of the agent that talks to the cluster, at one moment."""

    session: ApiSessionStatus
    watches: tuple[WatchStatus, ...]
    writers: tuple[WriterState, ...]
    events: EventSinkState | None  # None: switched off
    kubelet: KubeletStatus | None
    proxy: PodResourcesProxyStatus | None = None  # None: switched off
    write_permission: WritePermission = WritePermission(is_allowed=True)
    slo_stale_s: float = SLO_STALE_S  # a NodeSLO that was not confirmed for so long is frozen
