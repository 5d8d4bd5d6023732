"""One thing that happened, as the agent tells it and as Kubernetes writes it."""

from __future__ import annotations

import hashlib

import msgspec

from agent.clock import rfc3339
from agent.model.snapshot import NodeSnapshot
from agent.publish.device import API_VERSION, KIND

NORMAL = "Normal"
WARNING = "Warning"
COMPONENT = "xpu-agent"
NAMESPACE = "default"  # events of cluster-wide objects live there

Dict = dict[str, object]


class PodRef(msgspec.Struct, frozen=True, kw_only=True):
    """The pod that an event is about."""

    namespace: str
    name: str
    uid: str = ""  # empty: known by its name only


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to this node's devices, workers or pods, once."""

    type: str  # Normal, Warning
    reason: str  # CamelCase
    message: str
    about: str  # kind of the involved object: Device, Node, Pod
    at_s: float  # wall clock
    pod: PodRef | None = None  # which one, where it is about a pod
    device: str = ""  # key of the device, where it is about one
    kin: str = ""  # what its repeats share where their messages differ; empty: the message

    @property
    def subject(self) -> tuple[str, ...]:
        """Return what it is about: events of different pods, and of different devices, differ."""
        pod = self.pod
        if pod is None:
            return (self.about, self.device)
        return (self.about, pod.namespace, pod.name, pod.uid)

    @property
    def series(self) -> tuple[str, ...]:
        """Return what its repeats have in common."""
        return (*self.subject, self.type, self.reason, self.kin or self.message)

    @property
    def namespace(self) -> str:
        """Return where it is kept: a pod's events beside the pod."""
        return NAMESPACE if self.pod is None else self.pod.namespace


def regarding(event: Event, node_name: str, uid: str = "") -> Dict:
    """Return the reference to what an event is about; `uid` is that of the cluster-wide object."""
    if event.pod is not None:
        pod = event.pod
        found: Dict = {"apiVersion": "v1", "kind": event.about, "name": pod.name}
        found["namespace"] = pod.namespace
        uid = pod.uid
    else:
        version = API_VERSION if event.about == KIND else "v1"
        found = {"apiVersion": version, "kind": event.about, "name": node_name}
    if uid:
        found["uid"] = uid
    return found


def as_object(event: Event, snapshot: NodeSnapshot, count: int, first_s: float) -> Dict:
    """Return the `v1` Event; the repeats of one series have one name, whatever their count."""
    node = snapshot.node
    uid = "" if event.about == KIND else node.uid
    identity = "\0".join((*event.series, rfc3339(first_s)))
    digest = hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{node.name}.{digest}", "namespace": event.namespace},
        "involvedObject": regarding(event, node.name, uid),
        "type": event.type,
        "reason": event.reason,
        "message": event.message,
        "count": count,
        "firstTimestamp": rfc3339(first_s),
        "lastTimestamp": rfc3339(event.at_s),
        "source": {"component": COMPONENT, "host": node.name},
        "reportingComponent": COMPONENT,
        "reportingInstance": node.name,
    }
