"""What containers ask of device plug-ins: extended resources in their limits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from agent.model.pod import ResourceAsk

MAX_ASKS = 64  # of one pod
MAX_NAME = 316  # characters of a resource with its domain
_COUNT = re.compile(r"[1-9][0-9]{0,5}")
_NOT_OF_PLUGINS = ("kubernetes.io", "koordinator.sh")  # ends of domains


class _Limits(msgspec.Struct, gc=False):
    limits: dict[str, str | int | float] | None = None


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


def _limits(data: bytes) -> Iterator[tuple[str, int]]:
    try:
        found = _LIMITS.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return
    for name, value in ((found and found.limits) or {}).items():
        domain, slash, _ = name.partition("/")
        if not slash or len(name) > MAX_NAME or domain.endswith(_NOT_OF_PLUGINS):
            continue
        if _COUNT.fullmatch(str(value)):
            yield name, int(value)
