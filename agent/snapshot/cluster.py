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
    """The Node object as far as we read it."""

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
    """The kubelet's settings (`/configz`) and what it has given away of CPUs.

    `None` is what it was not asked for, or did not say.
    """

    cpu_manager_policy: str | None = None
    cpu_manager_options: Pairs = ()
    reserved_cpus: frozenset[int] | None = None  # of static policy: set, or the kubelet's choice
    topology_policy: str | None = None
    topology_scope: str | None = None
    cgroup_driver: str | None = None
    cgroup_root: str | None = None  # `--cgroup-root`: its cgroups are below
    # pod uid -> CPUs that the static policy gave its containers, from the kubelet's checkpoint
    pod_cpus: tuple[tuple[str, frozenset[int]], ...] = ()


NO_VOLUMES: Mapping[str, str] = MappingProxyType({})


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that came from the API server and the kubelet, each with its age.

    A part's `taken_s` moves whenever the source confirmed it, also when nothing changed.
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
    """How the API server has answered so far; replaced whole, so any thread may read it.

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
    retries: int = 0  # second tries: after a 401, or on a connection that had been closed
    token_read_errors: int = 0
    ca_read_errors: int = 0
    # by how much the server's clock is ahead of ours, as far as its Date header shows; 0: within
    # what a time in whole seconds and the way there and back leave open
    clock_skew_s: float | None = None


class WatchPhase(enum.Enum):
    """Where following one kind of object stands."""

    LISTING = "listing"
    WATCHING = "watching"
    WAITING = "waiting"  # until the next try
    ABSENT = "absent"  # the server does not know this kind; tried again slowly
    FORBIDDEN = "forbidden"  # the role does not allow it; tried again slowly


class WatchStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How following one kind of object does; counters since the start."""

    resource: str  # plural
    phase: WatchPhase = WatchPhase.WAITING
    synced: bool = False  # a list was complete once
    objects: int = 0
    lists: int = 0  # complete ones
    relists: int = 0  # of these, those after the first
    watches: int = 0  # streams opened
    events: int = 0
    bookmarks: int = 0
    malformed: int = 0  # objects that could not be read, each time that they came
    errors: int = 0
    last_error: str = ""  # empty again when the server has spoken since, or accepted a stream
    streaming: bool = False  # a stream is open: what the server changes arrives
    # monotonic: a page, an event or a bookmark came, or a stream was accepted or ended in order
    last_contact_s: float | None = None
    absent_s: float | None = None  # monotonic: it said that it does not know the kind, and no more

    def contact_s(self, now_s: float) -> float | None:
        """Return when the view was last confirmed; an open stream confirms it at every moment.

        A quiet stream is healthy: without bookmarks a server sends nothing where nothing changes.
        """
        return now_s if self.streaming else self.last_contact_s


KUBELET_STARTING = "starting"  # nothing was asked yet
KUBELET_OK = "ok"
KUBELET_EMPTY = "empty"  # it answers, and lists no pods: it has not read them itself yet
KUBELET_ABSENT = "absent"  # no process listens, or it cannot be reached
KUBELET_HANGING = "hanging"  # a connection, and no answer within the deadline
KUBELET_UNAUTHORISED = "unauthorised"
KUBELET_FORBIDDEN = "forbidden"
KUBELET_FAILING = "failing"  # an answer that is none: 5xx, not JSON, too large


class KubeletStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the kubelet does, for metrics and people. Counts are since the agent's start."""

    pods: str = KUBELET_STARTING  # one of the states above
    config: str = KUBELET_STARTING  # the same, of `/configz`; absent too on a port that has none
    detail: str = ""  # the last error of either; empty while both are well
    since_s: float | None = None  # monotonic, of the last change of `pods`
    failures: int = 0  # in a row
    polls: Counts = ()  # by state
    early_polls: int = 0
    restarts: int = 0  # times that it came back after having been out of reach
    malformed: int = 0  # malformed pods of the last list
    duration_s: float | None = None  # the last look


class PodResourcesProxyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the proxy does, for metrics and people; counts are since the agent's start."""

    is_serving: bool = False
    error: str = ""  # why not
    calls: Counts = ()  # by method and gRPC status: `List OK`


class EventCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Events since the start by result, and the number of series that wait."""

    created: int = 0
    repeated: int = 0  # writes of a higher count
    limited: int = 0  # merged: too many of one subject and reason
    dropped: int = 0  # lost: too many waited
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
