"""Parses Node, NodeMetric and NodeSLO objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from agent.errors import ParseError
from agent.snapshot.cluster import Amounts, MetricCollectPolicy, NodeView
from agent.snapshot.device import Pairs

MAX_DURATION_CHARS = 64
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PART = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(ns|us|ms|s|m|h)")
_DURATION = re.compile(rf"([+-]?)((?:{_DURATION_PART.pattern})+)")
_MICRO = ("\N{MICRO SIGN}s", "\N{GREEK SMALL LETTER MU}s")


def parse_duration_s(text: str) -> float | None:
    """Return the seconds of a duration; `None` for an invalid one. `0` needs no unit."""
    if text in ("0", "+0", "-0"):
        return 0.0
    if len(text) > MAX_DURATION_CHARS:
        return None
    for micro in _MICRO:
        text = text.replace(micro, "us")
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    seconds = sum(
        float(number) * _UNITS_S[unit] for number, unit in _DURATION_PART.findall(match[2])
    )
    return -seconds if match[1] == "-" else seconds


MAX_PAIRS_CHARS = 512 * 1024  # Kubernetes' limit of all annotations, twice

_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,127}")


class ObjectMeta(msgspec.Struct, rename="camel", kw_only=True):
    """The fields of `metadata` that are read of a cluster-scoped object."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int | None = None


class LabelledObjectMeta(ObjectMeta, rename="camel", kw_only=True):
    """The same, with labels and annotations."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


def check_uid(uid: str) -> str:
    """Return a uid that is valid in the agent's objects; else raise `ParseError`."""
    if not _UID.fullmatch(uid):
        raise ParseError("uid", uid)
    return uid


def sorted_pairs(name: str, pairs: Mapping[str, str] | None) -> Pairs:
    """Return labels or annotations in order; raise `ParseError` if they are far too large."""
    pairs = pairs or {}
    if sum(map(len, pairs)) + sum(map(len, pairs.values())) > MAX_PAIRS_CHARS:
        raise ParseError(f"{name}: more than {MAX_PAIRS_CHARS} characters", "")
    return tuple(sorted(pairs.items()))


MAX_RESOURCES = 1024
MAX_ADDRESSES = 64
MAX_CONDITIONS = 256
MAX_TEXT = 256  # of an id, a resource's name, a quantity

_Quantities = dict[str, str | int | float]


class _NodeAddress(msgspec.Struct):
    type: str = ""
    address: str = ""


class _DaemonEndpoint(msgspec.Struct):
    port: int = msgspec.field(default=0, name="Port")


class _DaemonEndpoints(msgspec.Struct, rename="camel"):
    kubelet_endpoint: _DaemonEndpoint | None = None


class _NodeInfo(msgspec.Struct):
    machine_id: str = msgspec.field(default="", name="machineID")
    boot_id: str = msgspec.field(default="", name="bootID")


class _NodeStatus(msgspec.Struct, rename="camel"):
    capacity: _Quantities | None = None
    allocatable: _Quantities | None = None
    addresses: list[_NodeAddress] | None = None
    daemon_endpoints: _DaemonEndpoints | None = None
    node_info: _NodeInfo | None = None
    # other programs write them, too: one of another shape must not make the Node unreadable
    conditions: object = None


class NodeObject(msgspec.Struct):
    """The fields of a Node's JSON that are read."""

    metadata: LabelledObjectMeta
    status: _NodeStatus | None = None


def node_facts(node: NodeObject) -> NodeView:
    """Return the facts about a Node; raise `ParseError` if it cannot be used."""
    meta, status = node.metadata, node.status or _NodeStatus()
    info = status.node_info or _NodeInfo()
    addresses = status.addresses or []
    return NodeView(
        name=meta.name,
        uid=check_uid(meta.uid),
        resource_version=meta.resource_version,
        labels=sorted_pairs("labels", meta.labels),
        annotations=sorted_pairs("annotations", meta.annotations),
        capacity=_amounts(status.capacity),
        allocatable=_amounts(status.allocatable),
        addresses=tuple((address.type, address.address) for address in addresses[:MAX_ADDRESSES]),
        kubelet_port=_port(status.daemon_endpoints),
        machine_id=info.machine_id[:MAX_TEXT],
        boot_id=info.boot_id[:MAX_TEXT],
        conditions=_conditions(status.conditions),
    )


def _conditions(value: object) -> tuple[tuple[str, str, str], ...]:
    """Return type, status and reason of each condition; others than objects are left out."""
    conditions = value[:MAX_CONDITIONS] if isinstance(value, list) else []
    return tuple(
        (str(one.get("type")), str(one.get("status")), str(one.get("reason")))
        for one in conditions
        if isinstance(one, dict)
    )


def _amounts(quantities: Mapping[str, str | int | float] | None) -> Amounts:
    if len(quantities or ()) > MAX_RESOURCES:
        raise ParseError(f"amounts: more than {MAX_RESOURCES} resources", "")
    texts = {name: str(value) for name, value in (quantities or {}).items()}
    small = {k: v for k, v in texts.items() if len(k) <= MAX_TEXT and len(v) <= MAX_TEXT}
    return MappingProxyType(small)


def _port(endpoints: _DaemonEndpoints | None) -> int | None:
    """Return the kubelet's port; `None` if it is 0 or invalid."""
    endpoint = endpoints.kubelet_endpoint if endpoints else None
    return endpoint.port if endpoint and 0 < endpoint.port < 65536 else None


MAX_SECONDS = 10 * 365 * 86400
MAX_DURATIONS = 64
MEMORY_POLICIES = ("usageWithoutPageCache", "usageWithHotPageCache", "usageWithPageCache")


class _NodeMetricSpec(msgspec.Struct, rename="camel"):
    metric_collect_policy: dict[str, object] | None = None


class NodeMetricObject(msgspec.Struct):
    """The fields of a NodeMetric's JSON that are read."""

    metadata: ObjectMeta
    spec: _NodeMetricSpec | None = None


def metric_policy(metric: NodeMetricObject) -> MetricCollectPolicy:
    """Return the policy; an implausible value counts as absent."""
    policy = (metric.spec.metric_collect_policy if metric.spec else None) or {}
    memory = policy.get("nodeMemoryCollectPolicy")
    return MetricCollectPolicy(
        aggregate_s=_seconds(policy.get("aggregateDurationSeconds")),
        report_interval_s=_seconds(policy.get("reportIntervalSeconds")),
        durations_s=_durations_s(policy.get("nodeAggregatePolicy")),
        memory=memory if isinstance(memory, str) and memory in MEMORY_POLICIES else None,
    )


def _seconds(value: object) -> float | None:
    # a bool is an int in Python, but no number of seconds
    return float(value) if type(value) is int and 0 < value <= MAX_SECONDS else None


def _durations_s(aggregation: object) -> tuple[int, ...] | None:
    texts = aggregation.get("durations") if isinstance(aggregation, dict) else None
    if not isinstance(texts, list):
        return None
    durations = [parse_duration_s(text) for text in texts[:MAX_DURATIONS] if isinstance(text, str)]
    return tuple(round(s) for s in durations if s is not None and 1 <= s <= MAX_SECONDS)


_ABSENT = msgspec.Raw(b"null")


class NodeSloObject(msgspec.Struct):
    """The fields of a NodeSLO's JSON that are read.

    The values of the spec are checked elsewhere.
    """

    metadata: ObjectMeta
    spec: msgspec.Raw = _ABSENT


def slo_json(slo: NodeSloObject) -> object:
    """Return the members of `metadata` that identify the version, and `spec` as undecoded JSON.

    It is decoded later on another thread, see `agent.slo.status.build_slo_view`.
    """
    meta = slo.metadata
    versions = {"resourceVersion": meta.resource_version, "generation": meta.generation}
    return {"metadata": versions, "spec": slo.spec.copy()}  # the page can be freed
