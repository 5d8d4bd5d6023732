"""The load that a pod adds to its node, from its JSON, and the estimate of its usage."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec

from agent.errors import ParseError
from agent.snapshot.pod import KubeQos, PodView
from agent.wire_formats.annotations import QOS_LABEL, named_priority_class
from agent.wire_formats.json_values import JSON_ERRORS
from plugins.scheduler.devices.device_table import Amounts
from plugins.scheduler.load.load_settings import CpuMemory
from plugins.scheduler.load.reported_usage import parse_time_s
from plugins.scheduler.pod_object import (
    CPU,
    MEMORY,
    SchedulerPodMetadata,
    SchedulerPodObject,
    SchedulerPodStatus,
    nonzero_requests,
    pod_limits,
    scheduler_pod,
)

RESOURCES = (CPU, MEMORY)
PROD, MID, BATCH = "koord-prod", "koord-mid", "koord-batch"
# of a pod that requests nothing: milli-cores and bytes
DEFAULT_ESTIMATES: Amounts = {CPU: 250, MEMORY: 200 << 20}
FACTORS = "scheduling.koordinator.sh/load-estimated-scaling-factors"
SECONDS_AFTER_SCHEDULED = "scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled"
SECONDS_AFTER_INITIALIZED = "scheduling.koordinator.sh/load-estimated-seconds-after-initialized"


class PodLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One pod. CPU is in milli-cores; times are wall-clock seconds, `None` if not reported."""

    uid: str
    name: str  # namespace/name
    node: str = ""
    requests: Amounts = {}  # of all resources
    nonzero: Amounts = {}  # CPU and memory, with a default for containers that request none
    estimate_requests: Amounts = {}  # CPU and memory of its priority class
    estimate_limits: Amounts = {}
    is_prod: bool = True
    is_of_daemon_set: bool = False
    bound_s: float | None = None
    initialized_s: float | None = None
    own_factors: Mapping[str, int] = {}  # that its annotations ask for
    own_s_after_scheduled: int | None = None
    own_s_after_initialized: int | None = None

    def estimate(self, resource: str, factors: CpuMemory, *, allows_own: bool) -> int:
        """Return the estimated usage: a part of the larger of limit and request."""
        request = self.estimate_requests.get(resource, 0)
        limit = self.estimate_limits.get(resource, 0)
        amount = max(request, limit)
        if not amount:
            return DEFAULT_ESTIMATES[resource]
        factor = factors.of(resource)
        if allows_own:
            factor = self.own_factors.get(resource, factor)
        estimate = (amount * factor + 50) // 100
        return min(estimate, limit) if limit else estimate


class _Owner(msgspec.Struct):
    kind: str = ""
    controller: bool = False


class _PodCondition(msgspec.Struct, rename="camel"):
    type: str = ""
    status: str = ""
    last_transition_time: str | None = None


class _LoadPodMetadata(SchedulerPodMetadata, rename="camel"):
    owner_references: list[_Owner] | None = None


class _LoadPodStatus(SchedulerPodStatus):
    conditions: list[_PodCondition] | None = None


class LoadPodObject(SchedulerPodObject):
    """The fields of a pod's JSON that are read; `pod_load` makes a load of it."""

    metadata: _LoadPodMetadata
    status: _LoadPodStatus | None = None


_POD = msgspec.json.Decoder(LoadPodObject)
_FACTORS = msgspec.json.Decoder(dict[str, int])


def decode_pod_load(data: bytes | msgspec.Raw) -> PodLoad:
    """Return a pod from its JSON; raises `ParseError` if it is invalid."""
    try:
        body = _POD.decode(data)
    except JSON_ERRORS as error:
        raise ParseError(f"pod: {type(error).__name__}: {str(error)[:120]}", "") from error
    return pod_load(body)


def pod_load(body: LoadPodObject) -> PodLoad:
    """Return the load of a pod."""
    pod = scheduler_pod(body)
    limits = pod_limits(body)
    priority = _priority_class(body)
    names = _resource_names(priority)
    requests = {name: pod.amounts.get(names[name], 0) for name in RESOURCES}
    times = {
        one.type: parse_time_s(one.last_transition_time)
        for one in (body.status and body.status.conditions) or ()
        if one.status == "True"
    }
    return PodLoad(
        uid=pod.key.uid,
        name=f"{pod.key.namespace}/{pod.key.name}",
        node="" if pod.has_ended else pod.node,
        requests=pod.amounts,
        nonzero=nonzero_requests(body),
        estimate_requests=requests,
        estimate_limits={name: limits.get(names[name], 0) for name in RESOURCES},
        is_prod=priority == PROD,
        is_of_daemon_set=any(
            owner_reference.controller and owner_reference.kind == "DaemonSet"
            for owner_reference in body.metadata.owner_references or ()
        ),
        bound_s=times.get("PodScheduled"),
        initialized_s=times.get("Initialized"),
        own_factors=_factors(pod.annotations.get(FACTORS)),
        own_s_after_scheduled=_seconds(pod.annotations.get(SECONDS_AFTER_SCHEDULED)),
        own_s_after_initialized=_seconds(pod.annotations.get(SECONDS_AFTER_INITIALIZED)),
    )


def _priority_class(body: LoadPodObject) -> str:
    labels = body.metadata.labels or {}
    spec_priority = body.spec.priority if body.spec is not None else None
    view = PodView(
        uid="", qos=KubeQos.BURSTABLE, labels=tuple(labels.items()), priority=spec_priority
    )
    return named_priority_class(view) or (BATCH if labels.get(QOS_LABEL) == "BE" else PROD)


def _resource_names(priority: str) -> Mapping[str, str]:
    """Return under which names a pod of a priority class requests CPU and memory."""
    if priority in (BATCH, MID):
        prefix = f"kubernetes.io/{priority.removeprefix('koord-')}-"
        return {name: prefix + name for name in RESOURCES}
    return {name: name for name in RESOURCES}


def _factors(text: str | None) -> Mapping[str, int]:
    if text is None:
        return {}
    with contextlib.suppress(*JSON_ERRORS):
        return {name: one for name, one in _FACTORS.decode(text).items() if 0 < one <= 100}
    return {}


def _seconds(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else None
