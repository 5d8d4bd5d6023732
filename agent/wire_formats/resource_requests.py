"""Extended resources that containers request of device plug-ins and schedulers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from itertools import chain

import msgspec

from agent.snapshot.pod import (
    ComputeRequest,
    ContainerResources,
    RequestedAmounts,
    ResourceRequest,
)
from agent.wire_formats.extended_resource_spec import BATCH_CPU
from agent.wire_formats.json_values import JSON_ERRORS
from agent.wire_formats.quantities import MAX_VALUE, parse_amount, parse_quantity

MAX_REQUESTS = 64  # of one pod
MAX_NAME = 316  # characters of a resource with its domain
_COUNT = re.compile(r"[1-9][0-9]{0,5}")
_BATCH_CPU_MARK = b"batch-cpu"
_NOT_OF_PLUGINS = ("kubernetes.io", "koordinator.sh")  # ends of domains


WHOLE_GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu")  # counted in cards

# resources for which a scheduler allocates devices, by type of the device
SCHEDULED_RESOURCES: Mapping[str, tuple[str, ...]] = {
    "gpu": (
        *WHOLE_GPU_RESOURCES,
        *("koordinator.sh/gpu", "koordinator.sh/gpu.shared", "koordinator.sh/gpu-core"),
        *("koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio"),
        *("huawei.com/npu-core", "huawei.com/npu-cpu", "huawei.com/npu-dvpp"),
    ),
    "rdma": ("koordinator.sh/rdma",),
    "fpga": ("koordinator.sh/fpga",),
}
_MARKS = (b"gpu", b"npu", b"rdma", b"fpga")  # one of them is in each of those names
_SCHEDULED = frozenset(chain.from_iterable(SCHEDULED_RESOURCES.values()))


class _QuantitiesByName(msgspec.Struct, gc=False):
    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


_DECODER = msgspec.json.Decoder(_QuantitiesByName | None)

_RESIZABLE = ("cpu", "memory")  # in a running container


class ContainerStep(msgspec.Struct, frozen=True):
    """A container's resources in JSON, and the phase in which it runs."""

    name: str
    resources: bytes
    is_init: bool
    is_sidecar: bool = False  # an init container that continues to run: `restartPolicy: Always`


class PodResources(msgspec.Struct, frozen=True, kw_only=True):
    """The results from the resources of a pod's containers; fields are those of `PodView`."""

    asks: tuple[ResourceRequest, ...]
    wants: RequestedAmounts
    batch_cpu_milli: int | None
    compute_request: ComputeRequest
    resources: tuple[ContainerResources, ...]


def are_requests(resources: bytes, allocated: bytes) -> bool:
    """Return whether a container's resources request the CPU and memory that the kubelet keeps.

    `allocated` is its `allocatedResources`, both are JSON; what is not readable is no other amount.
    """
    decoded, kept = _decode(resources), _decode(b'{"requests":%b}' % (allocated or b"null"))
    requests = (decoded and decoded.requests) or {}
    return (
        kept is None
        or kept.requests is None
        or all(_number(requests, name) == _number(kept.requests, name) for name in _RESIZABLE)
    )


@lru_cache(maxsize=256)
def resources_in_force(desired: bytes, reported: bytes, *, is_accepted: bool) -> bytes:
    """Return the resources of a container that is being resized, all in JSON.

    CPU and memory are those that the kubelet reports if it has not accepted the resize. While it
    makes the resize, each is the smaller one of both: nobody counts with more than the container
    has, and nothing is in the way of the kubelet, such as a CPU burst above the new quota. All
    other resources are the desired ones.
    """
    wanted, actual = _decode(desired), _decode(reported)
    if wanted is None or actual is None:
        return desired
    limits, requests = wanted.limits or {}, wanted.requests or {}
    actual_limits, actual_requests = actual.limits or {}, actual.requests or {}
    if is_accepted:
        actual_limits = _smaller(limits, actual_limits)  # without a limit there is all
        absent = dict.fromkeys(_RESIZABLE, 0)
        actual_requests = _smaller({**absent, **requests}, {**absent, **actual_requests})
    merged = _QuantitiesByName(
        limits=_with_resizable(limits, actual_limits),
        requests=_with_resizable(requests, actual_requests),
    )
    return msgspec.json.encode(merged)


_Quantities = Mapping[str, str | int | float]


def _number(quantities: _Quantities, name: str) -> Decimal | None:
    """Return an amount of CPU or memory, 0 if it is absent; `None` if it is no quantity."""
    return parse_amount(str(quantities.get(name, 0)))


def _smaller(one: _Quantities, other: _Quantities) -> dict[str, str | int | float]:
    """Return the smaller quantities of CPU and memory, or those that only one of both has."""
    smaller = {**one, **other}
    for name in one.keys() & other.keys():
        first, second = _number(one, name), _number(other, name)
        if first is not None and second is not None and first < second:
            smaller[name] = one[name]
    return smaller


def _with_resizable(quantities: _Quantities, resized: _Quantities) -> dict[str, str | int | float]:
    """Return the quantities with other ones of CPU and memory, unless those are no quantities."""
    merged = {name: value for name, value in quantities.items() if name not in _RESIZABLE}
    for name in _RESIZABLE:
        source = resized if _number(resized, name) is not None else quantities
        if name in source and _number(source, name) != 0:
            merged[name] = source[name]
    return merged


@lru_cache(maxsize=1024)  # each change of a pod repeats its spec, and replicas have equal ones
def pod_resources(
    containers: tuple[ContainerStep, ...], overhead: tuple[tuple[str, str | int | float], ...]
) -> PodResources:
    """Return the requests of a pod whose containers are these, init containers first."""
    return PodResources(
        asks=_resource_requests(containers),
        wants=_requested_amounts(containers),
        batch_cpu_milli=_batch_cpu_milli(containers),
        compute_request=_compute_request(containers, dict(overhead)),
        resources=tuple(map(_container_resources, containers)),
    )


def _resource_requests(containers: Iterable[ContainerStep]) -> tuple[ResourceRequest, ...]:
    """Return what containers request of device plug-ins.

    Resources that no device plug-in has are left out, and so are those of malformed JSON: the
    kubelet would not run such a pod. Nearly all pods request none, and nothing of them is decoded.
    """
    requests: list[ResourceRequest] = []
    for container in containers:
        if b"/" in container.resources:
            requests += (
                ResourceRequest(
                    container=container.name, resource=resource, count=count, init=container.is_init
                )
                for resource, count in _plugin_limits(container.resources)
            )
    return tuple(requests[:MAX_REQUESTS])


def _requested_amounts(containers: Iterable[ContainerStep]) -> RequestedAmounts:
    """Return all containers' requests by resource, of resources for which devices are allocated.

    This is the most that can have been allocated: init containers are included.
    """
    amounts: dict[str, int] = {}
    for container in containers:
        data = container.resources
        decoded = _decode(data) if any(mark in data for mark in _MARKS) else None
        if decoded is None:
            continue
        for name, value in {**(decoded.requests or {}), **(decoded.limits or {})}.items():
            quantity = parse_quantity(str(value)) if name in _SCHEDULED else None
            if quantity is not None and quantity.value:
                amounts[name] = amounts.get(name, 0) + quantity.value
    return tuple(sorted(amounts.items()))


def _batch_cpu_milli(containers: Iterable[ContainerStep]) -> int | None:
    """Return the batch CPU that the containers of a pod request, without init containers.

    The resource counts milli-cores. `None` for an invalid quantity.
    """
    total = 0
    for container in containers:
        if container.is_init or _BATCH_CPU_MARK not in container.resources:
            continue
        decoded = _decode(container.resources)
        if decoded is None:
            return None
        value = {**(decoded.limits or {}), **(decoded.requests or {})}.get(BATCH_CPU)
        quantity = None if value is None else parse_quantity(str(value))
        if quantity is None and value is not None:
            return None
        total += quantity.value if quantity is not None else 0
    return total


def _compute_request(
    containers: Iterable[ContainerStep], overhead: Mapping[str, str | int | float]
) -> ComputeRequest:
    """Return a pod's request as the scheduler computes it; malformed quantities count as 0.

    It is the larger one of two: the total of all containers that stay, and the highest total of an
    init container and the sidecars that start before it.
    """
    total = sidecars = peak = (0.0, 0.0)
    for container in containers:
        decoded = _decode(container.resources) if b"requests" in container.resources else None
        request = _compute_amounts((decoded and decoded.requests) or {})
        if not container.is_init or container.is_sidecar:
            total = _add(total, request)
        if container.is_sidecar:
            sidecars = _add(sidecars, request)
        if container.is_init:
            step = sidecars if container.is_sidecar else _add(sidecars, request)
            peak = _larger(peak, step)
    cpu_cores, memory_bytes = _add(_larger(total, peak), _compute_amounts(overhead))
    return ComputeRequest(cpu_cores=cpu_cores, memory_bytes=memory_bytes)


_EXTENDED_FIELDS = (  # of the request and of the limit
    (BATCH_CPU, "batch_cpu_milli", "batch_cpu_limit_milli"),
    ("kubernetes.io/batch-memory", "batch_memory_bytes", "batch_memory_limit_bytes"),
    ("kubernetes.io/mid-cpu", "mid_cpu_milli", "mid_cpu_limit_milli"),
    ("kubernetes.io/mid-memory", "mid_memory_bytes", "mid_memory_limit_bytes"),
)


def _container_resources(container: ContainerStep) -> ContainerResources:
    return ContainerResources(
        name=container.name,
        is_init=container.is_init,
        is_sidecar=container.is_sidecar,
        **_resource_fields(container.resources),
    )


def _resource_fields(data: bytes) -> Mapping[str, int | None]:
    decoded = _decode(data) if b":" in data else None
    if decoded is None:
        return {}
    requests, limits = decoded.requests or {}, decoded.limits or {}
    fields = {
        "cpu_request_milli": _milli(requests.get("cpu")),
        "cpu_limit_milli": _milli(limits.get("cpu")),
        "memory_request_bytes": _whole(requests.get("memory")),
        "memory_limit_bytes": _whole(limits.get("memory")),
    }
    if b"/" in data:
        for name, request, limit in _EXTENDED_FIELDS:
            fields[request] = _whole(requests.get(name, limits.get(name)))
            fields[limit] = _whole(limits.get(name))
    return fields


def _milli(value: str | int | float | None) -> int | None:
    """Return milli-cores, rounded up as Kubernetes does."""
    amount = None if value is None else parse_amount(str(value))
    return (
        None if amount is None or amount < 0 else math.ceil(min(amount, Decimal(MAX_VALUE)) * 1000)
    )


def _whole(value: str | int | float | None) -> int | None:
    quantity = None if value is None else parse_quantity(str(value))
    return None if quantity is None else quantity.value


def _compute_amounts(amounts: Mapping[str, str | int | float]) -> tuple[float, float]:
    return _amount(str(amounts.get("cpu", ""))), _amount(str(amounts.get("memory", "")))


@lru_cache(maxsize=1024)  # the pods of a node repeat few texts
def _amount(text: str) -> float:
    amount = parse_amount(text) if text else None
    return min(max(float(amount), 0.0), float(MAX_VALUE)) if amount is not None else 0.0


def _add(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return one[0] + other[0], one[1] + other[1]


def _larger(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return max(one[0], other[0]), max(one[1], other[1])


def _decode(data: bytes) -> _QuantitiesByName | None:
    try:
        decoded: _QuantitiesByName | None = _DECODER.decode(data)
    except JSON_ERRORS:
        return None
    return decoded


def _plugin_limits(data: bytes) -> Iterator[tuple[str, int]]:
    decoded = _decode(data)
    for name, value in ((decoded and decoded.limits) or {}).items():
        domain, slash, _ = name.partition("/")
        if not slash or len(name) > MAX_NAME or domain.endswith(_NOT_OF_PLUGINS):
            continue
        if _COUNT.fullmatch(str(value)):
            yield name, int(value)
