"""A pod as the scheduler reads it, from the JSON of the API server or of kube-scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from agent.errors import ParseError
from agent.wire_formats.json_values import JSON_ERRORS
from agent.wire_formats.quantities import MAX_VALUE, parse_amount
from plugins.scheduler.devices.device_table import NO_LABELS, Amounts, Labels
from plugins.scheduler.devices.requests import (
    RESOURCE_KINDS,
    ContainerAmounts,
    DeviceRequest,
    InvalidRequest,
    device_request,
    pod_amounts,
)

MAX_CONTAINERS = 512  # of one pod
MAX_MALFORMED = 4  # that one message names
ENDED_PHASES = ("Succeeded", "Failed")
CPU, MEMORY = "cpu", "memory"
# kube-scheduler counts these for a container that requests none: milli-cores and bytes
NONZERO_REQUESTS: Amounts = {CPU: 100, MEMORY: 200 << 20}


class PodKey(msgspec.Struct, frozen=True):
    """A pod as events and API calls name it.

    Its uid differs from that of a later one of that name.
    """

    uid: str
    namespace: str
    name: str


class Toleration(msgspec.Struct, frozen=True, rename="camel"):
    """One toleration; without a key it tolerates everything, without an effect every effect."""

    key: str = ""
    operator: Literal["Equal", "Exists", ""] = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, key: str, value: str, effect: str) -> bool:
        """Return whether a taint is tolerated."""
        if self.effect and self.effect != effect:
            return False
        if self.key and self.key != key:
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == value)


class SchedulerPod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod. CPU is in milli-cores, everything else in base units."""

    key: PodKey
    labels: Labels = NO_LABELS
    annotations: Labels = NO_LABELS
    resource_version: str = ""
    amounts: Amounts = {}
    malformed: tuple[str, ...] = ()  # device resources with amounts that are none
    node: str = ""  # empty: not bound
    has_ended: bool = False
    is_terminating: bool = False
    priority: int = 0
    priority_class: str = ""  # by name
    node_selector: Labels = NO_LABELS
    tolerations: tuple[Toleration, ...] = ()

    def device_request(self) -> DeviceRequest | None:
        """Return the normal form of its request for devices; raise `InvalidRequest`."""
        if self.malformed:
            raise InvalidRequest(f"invalid resource unit {', '.join(self.malformed)}")
        return device_request(self.amounts, self.annotations, self.labels)


class _Resources(msgspec.Struct):
    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class _Container(msgspec.Struct, rename="camel"):
    resources: _Resources | None = None
    restart_policy: str | None = None


class SchedulerPodMetadata(msgspec.Struct, rename="camel"):
    """The fields of a pod's metadata that are read."""

    name: str = ""
    namespace: str = "default"
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _SchedulerPodSpec(msgspec.Struct, rename="camel"):
    node_name: str | None = None
    priority: int | None = None
    priority_class_name: str | None = None
    overhead: dict[str, str | int | float] | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    node_selector: dict[str, str] | None = None
    tolerations: list[Toleration] | None = None


class SchedulerPodStatus(msgspec.Struct):
    """The fields of a pod's status that are read."""

    phase: str = ""


class SchedulerPodObject(msgspec.Struct):
    """The fields of a pod's JSON that are read; `scheduler_pod` makes a pod of it."""

    metadata: SchedulerPodMetadata
    spec: _SchedulerPodSpec | None = None
    status: SchedulerPodStatus | None = None


_DECODER = msgspec.json.Decoder(SchedulerPodObject)


def decode_scheduler_pod(data: bytes | msgspec.Raw) -> SchedulerPod:
    """Return a pod from its JSON; raises `ParseError` if it is invalid."""
    try:
        pod = _DECODER.decode(data)
    except JSON_ERRORS as error:
        raise ParseError(f"pod: {type(error).__name__}: {str(error)[:120]}", "") from error
    return scheduler_pod(pod)


def scheduler_pod(pod: SchedulerPodObject) -> SchedulerPod:
    """Return the pod of an object."""
    meta, spec, status = (
        pod.metadata,
        pod.spec or _SchedulerPodSpec(),
        pod.status or SchedulerPodStatus(),
    )
    return SchedulerPod(
        key=PodKey(meta.uid or f"{meta.namespace}/{meta.name}", meta.namespace, meta.name),
        labels=meta.labels or NO_LABELS,
        annotations=meta.annotations or NO_LABELS,
        resource_version=meta.resource_version,
        amounts=pod_amounts(_containers(spec), _amounts(spec.overhead or {})),
        malformed=_malformed(spec),
        node=spec.node_name or "",
        has_ended=status.phase in ENDED_PHASES,
        is_terminating=meta.deletion_timestamp is not None,
        priority=spec.priority or 0,
        priority_class=spec.priority_class_name or "",
        node_selector=spec.node_selector or NO_LABELS,
        tolerations=tuple(spec.tolerations or ()),
    )


def _malformed(spec: _SchedulerPodSpec) -> tuple[str, ...]:
    """Return the requests for devices that are negative or no quantity: those are not 0."""
    return tuple(
        f"{name}: {text}"
        for one in (*(spec.init_containers or ()), *(spec.containers or ()))[:MAX_CONTAINERS]
        if one.resources is not None
        for part in (one.resources.limits, one.resources.requests)
        for name, text in (part or {}).items()
        if name in RESOURCE_KINDS and ((amount := parse_amount(str(text))) is None or amount < 0)
    )[:MAX_MALFORMED]


def pod_limits(pod: SchedulerPodObject) -> Amounts:
    """Return the limits of the whole pod; a container without a limit adds nothing."""
    spec = pod.spec or _SchedulerPodSpec()
    return pod_amounts(_containers(spec, _limits), _amounts(spec.overhead or {}))


def nonzero_requests(pod: SchedulerPodObject) -> Amounts:
    """Return CPU and memory as kube-scheduler scores them: no container requests nothing."""
    spec = pod.spec or _SchedulerPodSpec()
    return pod_amounts(_containers(spec, _nonzero), _amounts(spec.overhead or {}))


def _containers(
    spec: _SchedulerPodSpec, read: Callable[[_Container], Amounts] | None = None
) -> list[ContainerAmounts]:
    read = read or _requested
    init = [
        ContainerAmounts(
            read(init_container), is_init=True, is_sidecar=init_container.restart_policy == "Always"
        )
        for init_container in (spec.init_containers or ())[:MAX_CONTAINERS]
    ]
    return init + [
        ContainerAmounts(read(container)) for container in (spec.containers or ())[:MAX_CONTAINERS]
    ]


def _requested(container: _Container) -> Amounts:
    resources = container.resources or _Resources()
    return _amounts({**(resources.limits or {}), **(resources.requests or {})})


def _limits(container: _Container) -> Amounts:
    return _amounts((container.resources or _Resources()).limits or {})


def _nonzero(container: _Container) -> Amounts:
    requested = _requested(container)
    return {name: requested.get(name, default) for name, default in NONZERO_REQUESTS.items()}


def _amounts(quantities: Mapping[str, str | int | float]) -> Amounts:
    return parse_amounts({name: str(value) for name, value in quantities.items()})


def parse_amounts(quantities: Mapping[str, str]) -> Amounts:
    """Return amounts by resource, CPU in milli-cores, rounded up; malformed ones are left out.

    Amounts of more than 63 bits count as the largest one, as in Kubernetes.
    """
    amounts: dict[str, int] = {}
    for name, text in quantities.items():
        amount = parse_amount(text)
        if amount is not None and amount >= 0:
            amount = amount * 1000 if name == CPU else amount
            amounts[name] = MAX_VALUE if amount > MAX_VALUE else math.ceil(amount)
    return amounts
