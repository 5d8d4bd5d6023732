"""What containers ask of device plug-ins and of schedulers: extended resources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import msgspec

from agent.model.foreign.quantities import parse_quantity
from agent.model.pod import ResourceAsk, Wants

MAX_ASKS = 64  # of one pod
MAX_NAME = 316  # characters of a resource with its domain
_COUNT = re.compile(r"[1-9][0-9]{0,5}")
_NOT_OF_PLUGINS = ("kubernetes.io", "koordinator.sh")  # ends of domains


# what a scheduler grants devices for, by the type that they have in the grant
GRANTED_FOR: Mapping[str, tuple[str, ...]] = {
    "gpu": (
        *("nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu", "koordinator.sh/gpu"),
        *("koordinator.sh/gpu.shared", "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory"),
        "koordinator.sh/gpu-memory-ratio",
        *("huawei.com/npu-core", "huawei.com/npu-cpu", "huawei.com/npu-dvpp"),
    ),
    "rdma": ("koordinator.sh/rdma",),
    "fpga": ("koordinator.sh/fpga",),
}
_MARKS = (b"gpu", b"npu", b"rdma", b"fpga")  # one of them is in each of those names
_GRANTED = frozenset(chain.from_iterable(GRANTED_FOR.values()))


class _Limits(msgspec.Struct, gc=False):
    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


_LIMITS = msgspec.json.Decoder(_Limits | None)


def asks_of(containers: Iterable[tuple[str, msgspec.Raw, bool]]) -> tuple[ResourceAsk, ...]:
    """Return the asks of containers: each with its name, its resources in JSON, and if it is init.

    Resources that no device plug-in has are left out, and so are those of malformed JSON: the
    kubelet would not run such a pod. Nearly all pods ask for none, and nothing of them is decoded.
    """
    found: list[ResourceAsk] = []
    for name, resources, init in containers:
        data = bytes(resources)
        if b"/" in data:
            found += (
                ResourceAsk(container=name, resource=resource, count=count, init=init)
                for resource, count in _limits(data)
            )
    return tuple(found[:MAX_ASKS])


def wants_of(containers: Iterable[tuple[str, msgspec.Raw, bool]]) -> Wants:
    """Return how much all containers together want of what schedulers grant devices for, by name.

    It is the most that they can have been granted: init containers are added, too.
    """
    found: dict[str, int] = {}
    for _, resources, _ in containers:
        data = bytes(resources)
        told = _decoded(data) if any(mark in data for mark in _MARKS) else None
        if told is None:
            continue
        for name, value in {**(told.requests or {}), **(told.limits or {})}.items():
            quantity = parse_quantity(str(value)) if name in _GRANTED else None
            if quantity is not None and quantity.value:
                found[name] = found.get(name, 0) + quantity.value
    return tuple(sorted(found.items()))


def _decoded(data: bytes) -> _Limits | None:
    try:
        found: _Limits | None = _LIMITS.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return found


def _limits(data: bytes) -> Iterator[tuple[str, int]]:
    found = _decoded(data)
    for name, value in ((found and found.limits) or {}).items():
        domain, slash, _ = name.partition("/")
        if not slash or len(name) > MAX_NAME or domain.endswith(_NOT_OF_PLUGINS):
            continue
        if _COUNT.fullmatch(str(value)):
            yield name, int(value)
