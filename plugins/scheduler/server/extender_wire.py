"""Requests and answers of kube-scheduler's HTTP extender, v1: JSON with Go's names of fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from agent.errors import AgentError
from agent.wire_formats.json_values import JSON_ERRORS
from plugins.scheduler.pod_object import SchedulerPod, decode_scheduler_pod

T = TypeVar("T")

MAX_PRIORITY = 10  # of one node; kube-scheduler multiplies it by ten times the extender's weight
MAX_NODES = 100_000


class BadExtenderRequest(AgentError):
    """The body is not a valid request of kube-scheduler."""


_NULL = msgspec.Raw(b"null")


class _ItemMetadata(msgspec.Struct):
    name: str = ""
    labels: dict[str, str] | None = None


class _NodeItem(msgspec.Struct):
    metadata: _ItemMetadata


class _NodeList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _ExtenderArgs(msgspec.Struct, rename="pascal"):
    pod: msgspec.Raw = _NULL
    nodes: _NodeList | None = None
    node_names: list[str] | None = None


class _BindingArgs(msgspec.Struct, rename="pascal"):
    pod_name: str
    pod_namespace: str
    node: str
    pod_uid: str = msgspec.field(name="PodUID", default="")


class _MetaPod(msgspec.Struct):
    uid: str = msgspec.field(name="UID", default="")


class _MetaVictims(msgspec.Struct, rename="pascal"):
    pods: list[_MetaPod] | None = None
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _Victims(msgspec.Struct, rename="pascal"):
    pods: list[msgspec.Raw] | None = None
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _PreemptionArgs(msgspec.Struct, rename="pascal"):
    pod: msgspec.Raw = _NULL
    victims: dict[str, _Victims] | None = msgspec.field(name="NodeNameToVictims", default=None)
    meta_victims: dict[str, _MetaVictims] | None = msgspec.field(
        name="NodeNameToMetaVictims", default=None
    )


class _HostPriority(msgspec.Struct, rename="pascal", gc=False):
    host: str
    score: int


class NodesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A filter or prioritize call; `items` are Node objects by name, if whole ones were sent."""

    pod: SchedulerPod
    names: tuple[str, ...]
    items: Mapping[str, msgspec.Raw] | None = None
    pod_json: msgspec.Raw = _NULL  # what `pod` was read from


class BindRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A bind call."""

    namespace: str
    name: str
    uid: str
    node: str


class NodeVictims(msgspec.Struct, frozen=True):
    """Pods that kube-scheduler would delete on one node."""

    uids: tuple[str, ...]
    budget_violations: int = 0


class PreemptionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A preempt call."""

    pod: SchedulerPod
    victims: Mapping[str, NodeVictims]


_ARGS = msgspec.json.Decoder(_ExtenderArgs)
_NODE = msgspec.json.Decoder(_NodeItem)
_BINDING = msgspec.json.Decoder(_BindingArgs)
_PREEMPTION = msgspec.json.Decoder(_PreemptionArgs)
_ENCODER = msgspec.json.Encoder()


def decode_nodes_request(body: bytes) -> NodesRequest:
    """Return a filter or prioritize call; raise `BadExtenderRequest` or `ParseError`."""
    args = _decode(_ARGS, body)
    names, items = args.node_names, None
    if names is None and args.nodes is not None:
        raw = args.nodes.items or []
        items = {_decode(_NODE, bytes(one)).metadata.name: one for one in raw[:MAX_NODES]}
        names = list(items)
    if names is not None and len(names) > MAX_NODES:
        raise BadExtenderRequest(f"{len(names)} nodes; at most {MAX_NODES} are read")
    return NodesRequest(
        pod=_pod(args.pod), names=tuple(names or ()), items=items, pod_json=args.pod
    )


def decode_bind_request(body: bytes) -> BindRequest:
    """Return a bind call; raise `BadExtenderRequest`."""
    args = _decode(_BINDING, body)
    return BindRequest(
        namespace=args.pod_namespace, name=args.pod_name, uid=args.pod_uid, node=args.node
    )


def decode_preemption_request(body: bytes) -> PreemptionRequest:
    """Return a preempt call in either form; raise `BadExtenderRequest` or `ParseError`."""
    args = _decode(_PREEMPTION, body)
    victims = {
        node: NodeVictims(tuple(pod.uid for pod in one.pods or ()), one.violations)
        for node, one in (args.meta_victims or {}).items()
    }
    for node, whole in (args.victims or {}).items():
        uids = tuple(decode_scheduler_pod(pod).key.uid for pod in whole.pods or ())
        victims.setdefault(node, NodeVictims(uids, whole.violations))
    return PreemptionRequest(pod=_pod(args.pod), victims=victims)


def encode_filter_result(
    request: NodesRequest, kept: Iterable[str], failed: Mapping[str, str], final: Mapping[str, str]
) -> bytes:
    """Return the answer in the form of the request.

    Preemption cannot help against `final` refusals.
    """
    kept = list(kept)
    nodes: object = None
    if request.items is not None:
        nodes = {"metadata": {}, "items": [request.items[name] for name in kept]}
    return _ENCODER.encode(
        {
            "Nodes": nodes,
            "NodeNames": None if request.items is not None else kept,
            "FailedNodes": failed,
            "FailedAndUnresolvableNodes": final,
            "Error": "",
        }
    )


def encode_filter_error(message: str) -> bytes:
    """Return an answer after which kube-scheduler tries the pod again soon, and evicts nobody."""
    empty = dict.fromkeys(("Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes"))
    return _ENCODER.encode({**empty, "Error": message})


def encode_priorities(names: Iterable[str], scores: Iterable[int]) -> bytes:
    """Return the list of priorities for scores from 0 to 100, rounded half up."""
    scores = list(scores)
    priorities = {score: (score * MAX_PRIORITY + 50) // 100 for score in set(scores)}
    of_names = map(priorities.__getitem__, scores)
    return _ENCODER.encode(list(map(_HostPriority, names, of_names)))


def encode_preemption_result(victims: Mapping[str, NodeVictims]) -> bytes:
    """Return the nodes that remain, in the short form, which is the only one that is read."""
    by_node = {
        node: {
            "Pods": [{"UID": uid} for uid in one.uids],
            "NumPDBViolations": one.budget_violations,
        }
        for node, one in victims.items()
    }
    return _ENCODER.encode({"NodeNameToMetaVictims": by_node})


def encode_error(message: str) -> bytes:
    """Return an answer whose `Error` makes kube-scheduler retry the pod.

    An empty one means success.
    """
    return _ENCODER.encode({"Error": message})


def _decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except JSON_ERRORS as error:
        raise BadExtenderRequest(f"{type(error).__name__}: {str(error)[:200]}") from error


def _pod(raw: msgspec.Raw) -> SchedulerPod:
    if bytes(raw) == bytes(_NULL):
        raise BadExtenderRequest("no Pod in the request")
    return decode_scheduler_pod(raw)
