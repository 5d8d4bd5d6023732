"""The scheduler's annotation `device-allocated`. Users can write it too: its text is untrusted."""

from __future__ import annotations

import json
import re

import msgspec

from agent.errors import ParseError
from agent.snapshot.allocation import AllocatedDevice
from agent.wire_formats.quantities import parse_quantity

ANNOTATION = "scheduling.koordinator.sh/device-allocated"
MAX_BYTES = 64 * 1024
MAX_DEVICES = 512
MAX_VFS = 64  # of one entry
MAX_MINOR = 1 << 20

_ID = re.compile(r"[A-Za-z0-9][!-~]{0,127}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9./_-]{0,252}")


class _VirtualFunctionId(msgspec.Struct):
    bus_id: str = msgspec.field(name="busID", default="")


class _AllocationExtension(msgspec.Struct):
    vfs: list[_VirtualFunctionId] | None = None
    template: str = msgspec.field(name="gpuSharedResourceTemplate", default="")


class _AllocationEntry(msgspec.Struct):
    minor: int | None = None
    id: str = ""
    resources: dict[str, str | int] | None = None
    extension: _AllocationExtension | None = None


_ALLOCATED = msgspec.json.Decoder(dict[str, list[_AllocationEntry] | None])


def decode_allocated(text: str) -> tuple[AllocatedDevice, ...]:
    """Return the allocation in the order of the annotation; raises `ParseError` for all of it.

    Amounts are in base units, rounded up. The error repeats nothing of the text. A member that
    occurs twice is refused, and so are members that Go takes for the same: the agent must not read
    another allocation than the scheduler that counts the devices.
    """
    if len(text) > MAX_BYTES:
        raise _error(f"more than {MAX_BYTES} bytes")
    try:
        data = text.encode()
        decoded = _ALLOCATED.decode(data)
        json.loads(text, object_pairs_hook=_reject_duplicates)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _error(type(error).__name__) from error
    if len(data) > MAX_BYTES:
        raise _error(f"more than {MAX_BYTES} bytes")
    if sum(len(entries or ()) for entries in decoded.values()) > MAX_DEVICES:
        raise _error(f"more than {MAX_DEVICES} devices")
    return tuple(
        _allocated_device(kind, entry)
        for kind, entries in decoded.items()
        for entry in entries or ()
    )


def _reject_duplicates(pairs: list[tuple[str, object]]) -> None:
    names = {name.casefold() for name, _ in pairs}
    if len(names) < len(pairs):
        raise ValueError("a member twice")


def _allocated_device(kind: str, entry: _AllocationEntry) -> AllocatedDevice:
    extension = entry.extension or _AllocationExtension()
    vfs = tuple(vf.bus_id for vf in extension.vfs or ())
    template = (extension.template,) if extension.template else ()
    names = (kind, *(entry.resources or ()), *template)
    if not all(map(_NAME.fullmatch, names)):
        raise _error("a name")
    if len(vfs) > MAX_VFS or not all(
        map(_ID.fullmatch, (*vfs, *((entry.id,) if entry.id else ())))
    ):
        raise _error("a device's id")
    if entry.minor is not None and not 0 <= entry.minor < MAX_MINOR:
        raise _error("a minor")
    resources = tuple((name, _amount(value)) for name, value in (entry.resources or {}).items())
    return AllocatedDevice(
        type=kind,
        id=entry.id,
        minor=entry.minor,
        resources=resources,
        vfs=vfs,
        template=extension.template,
    )


def _amount(value: str | int) -> int:
    quantity = parse_quantity(str(value))
    if quantity is None:
        raise _error("an amount")
    return quantity.value


def _error(description: str) -> ParseError:
    return ParseError(f"annotation {ANNOTATION}", description)
