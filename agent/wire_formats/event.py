"""One event, as the agent or the scheduler records it and as Kubernetes stores it."""

from __future__ import annotations

import hashlib

import msgspec

from agent.clock import rfc3339
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import PodRef
from agent.wire_formats.device_object import DEVICE_API_VERSION, DEVICE_KIND
from agent.wire_formats.json_values import JsonDict

NORMAL = "Normal"
WARNING = "Warning"
EVENT_COMPONENT = "xpu-agent"
DEFAULT_NAMESPACE = "default"  # events of cluster-wide objects live there


class EventReporter(msgspec.Struct, frozen=True, kw_only=True):
    """Who reports events: a component, and the name of its node or pod."""

    component: str = EVENT_COMPONENT
    name: str


class EventTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The object that an event is about, if it is neither a pod nor the reporter's own node."""

    api_version: str
    name: str
    namespace: str = ""  # empty: cluster-wide
    uid: str = ""  # by which `kubectl describe` finds the event; empty: it is not known


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event of devices, workers, pods or replicas."""

    type: str  # Normal, Warning
    reason: str  # CamelCase
    message: str
    object_kind: str  # kind of the involved object: Device, Lease, Node, Pod
    at_s: float  # wall clock
    pod: PodRef | None = None  # the pod that the event is about; None: it is about no pod
    target: EventTarget | None = None  # another object that the event is about
    device: str = ""  # key of the device that the event is about; empty: about no device
    repeat_key: str = ""  # what repeats with different messages share; empty: the message

    @property
    def subject(self) -> tuple[str, ...]:
        """Return the subject, which differs between pods, between devices and between objects."""
        pod, target = self.pod, self.target
        if target is not None:
            return (self.object_kind, target.namespace, target.name, self.device)
        if pod is None:
            return (self.object_kind, self.device)
        return (self.object_kind, pod.namespace, pod.name, pod.uid)

    @property
    def series(self) -> tuple[str, ...]:
        """Return the key that an event shares with its repeats."""
        return (*self.subject, self.type, self.reason, self.repeat_key or self.message)

    @property
    def namespace(self) -> str:
        """Return the namespace of the Event object: that of its pod or object."""
        if self.target is not None:
            return self.target.namespace or DEFAULT_NAMESPACE
        return DEFAULT_NAMESPACE if self.pod is None else self.pod.namespace


def involved_object(event: Event, node_name: str, uid: str = "") -> JsonDict:
    """Return the reference to the event's object; `uid` is that of the cluster-scoped object."""
    target = event.target
    if target is not None:
        named = {"apiVersion": target.api_version, "kind": event.object_kind, "name": target.name}
        reference: JsonDict = {**named}
        if target.namespace:
            reference["namespace"] = target.namespace
        uid = target.uid
    elif event.pod is not None:
        pod = event.pod
        reference = {"apiVersion": "v1", "kind": event.object_kind, "name": pod.name}
        reference["namespace"] = pod.namespace
        uid = pod.uid
    else:
        version = DEVICE_API_VERSION if event.object_kind == DEVICE_KIND else "v1"
        reference = {"apiVersion": version, "kind": event.object_kind, "name": node_name}
    if uid:
        reference["uid"] = uid
    return reference


def core_event(event: Event, snapshot: NodeSnapshot, count: int, first_s: float) -> JsonDict:
    """Return the `v1` Event; the repeats of one series have one name, regardless of their count."""
    node = snapshot.node
    uid = "" if event.object_kind == DEVICE_KIND else node.uid
    identity = "\0".join((*event.series, rfc3339(first_s)))
    digest = hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{node.name}.{digest}", "namespace": event.namespace},
        "involvedObject": involved_object(event, node.name, uid),
        "type": event.type,
        "reason": event.reason,
        "message": event.message,
        "count": count,
        "firstTimestamp": rfc3339(first_s),
        "lastTimestamp": rfc3339(event.at_s),
        "source": {"component": EVENT_COMPONENT, "host": node.name},
        "reportingComponent": EVENT_COMPONENT,
        "reportingInstance": node.name,
    }
