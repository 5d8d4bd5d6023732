"""Decodes CDI specs, detects stale ones, and finds the CDI name of a card."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from agent.errors import ParseError
from agent.snapshot.host_devices import CdiDevice, CdiSpec

MAX_DEVICES = 1024  # of one spec
MAX_PARTS = 4096  # nodes of a device, mounts of a spec
_KIND = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}/[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,252}")
# the libraries that are always of the driver's own version; others beside them count on their own
_VERSIONED = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.([0-9]+\.[0-9]+(?:\.[0-9]+)?)")


def decode_spec(path: str, plain: object) -> CdiSpec:
    """Return a spec from decoded YAML or JSON; raises `ParseError` for anything else.

    Malformed devices and mounts are left out, because another program wrote the file.
    """
    if not isinstance(plain, Mapping) or not isinstance(kind := plain.get("kind"), str):
        raise ParseError(f"CDI spec {path}", "no kind")
    if not _KIND.fullmatch(kind):
        raise ParseError(f"CDI spec {path}: kind", kind)
    devices = (_device(item) for item in _list(plain.get("devices"), MAX_DEVICES))
    return CdiSpec(
        path=path,
        kind=kind,
        devices=tuple(device for device in devices if device is not None),
        mounts=_texts(_edits(plain).get("mounts"), "hostPath"),
    )


def _device(item: object) -> CdiDevice | None:
    name = item.get("name") if isinstance(item, Mapping) else None
    if not isinstance(item, Mapping) or not isinstance(name, str) or not _NAME.fullmatch(name):
        return None
    return CdiDevice(name=name, nodes=_texts(_edits(item).get("deviceNodes"), "path"))


def _edits(item: Mapping[object, object]) -> Mapping[object, object]:
    edits = item.get("containerEdits")
    return edits if isinstance(edits, Mapping) else {}


def _list(value: object, limit: int) -> list[object]:
    return value[:limit] if isinstance(value, list) else []


def _texts(value: object, member: str) -> tuple[str, ...]:
    items = (item.get(member) for item in _list(value, MAX_PARTS) if isinstance(item, Mapping))
    return tuple(text for text in items if isinstance(text, str))


def stale_reason(spec: CdiSpec, paths: frozenset[str], driver_version: str | None) -> str:
    """Return why a spec is out of date; empty if it is not.

    It is out of date if one of its mounts does not exist on the host any more, or belongs to
    another driver than the loaded one; `paths` are the existing files of all specs.
    """
    for mount in spec.mounts:
        if mount not in paths:
            return f"{spec.path}: {mount} is gone: run nvidia-ctk cdi generate"
        version = _VERSIONED.search(mount)
        if version and driver_version and version[1] != driver_version:
            loaded = f"the loaded driver is {driver_version}"
            return f"{spec.path}: {mount}, but {loaded}: run nvidia-ctk cdi generate"
    return ""


def has_name(name: str) -> Callable[[CdiDevice], bool]:
    """Return a test whether a device has exactly this name."""
    return lambda device: device.name == name


def qualified_names(
    specs: Iterable[CdiSpec], kind: str, tests: Iterable[Callable[[CdiDevice], bool]]
) -> tuple[str, ...] | None:
    """Return one qualified name of this kind for each test; `None` if one device has no name.

    A name that two specs define is not used: it depends on the runtime which of the two applies.
    """
    devices = [device for spec in specs if spec.kind == kind for device in spec.devices]
    times = Counter(device.name for device in devices)
    alone = [device for device in devices if times[device.name] == 1]
    names = [next((d.name for d in alone if fits(d)), None) for fits in tests]
    if not names or None in names:
        return None
    return tuple(f"{kind}={name}" for name in names)
