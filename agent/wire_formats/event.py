"""One event, as the agent records it and as Kubernetes stores it."""

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


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event of this node's devices, workers or pods."""

    type: str  # Normal, Warning
    reason: str  # CamelCase
    message: str
    object_kind: str  # kind of the involved object: Device, Node, Pod
    at_s: float  # wall clock
    pod: PodRef | None = None  # the pod that the event is about; None: it is about no pod
    device: str = ""  # key of the device that the event is about; empty: about no device
    repeat_key: str = ""  # what repeats with different messages share; empty: the message

    @property
    def subject(self) -> tuple[str, ...]:
        """Return the subject, which differs between pods and between devices."""
        pod = self.pod
        if pod is None:
            return (self.object_kind, self.device)
        return (self.object_kind, pod.namespace, pod.name, pod.uid)

    @property
    def series(self) -> tuple[str, ...]:
        """Return the key that an event shares with its repeats."""
        return (*self.subject, self.type, self.reason, self.repeat_key or self.message)

    @property
    def namespace(self) -> str:
        """Return the namespace of the Event object: a pod's events are in the pod's namespace."""
        return DEFAULT_NAMESPACE if self.pod is None else self.pod.namespace


def involved_object(event: Event, node_name: str, uid: str = "") -> JsonDict:
    """Return the reference to the event's object; `uid` is that of the cluster-scoped object."""
    if event.pod is not None:
        pod = event.pod
        reference: JsonDict = {"apiVersion": "v1", "kind": event.object_kind, "name": pod.name}
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
