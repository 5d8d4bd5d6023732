"""Calls that fill lists, each made once with room to spare and read as the driver laid it out.

The binding asks for the size first, which doubles what the dearest calls cost, and makes an
object of every member.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable

from plugins.bindings.nvml.library import (
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    NOT_FOUND,
    SUCCESS,
    Nvml,
    NvmlFault,
)

_FIELD = struct.Struct("=II16xIi8s")  # number, scope, kind of value, code, value
_SAMPLE = struct.Struct("=Q8s")  # time stamp, value
_BUSY = struct.Struct("=I4xQI12x")  # pid, time stamp, percent of the multiprocessors
_PROCESS = struct.Struct("=I4xQII")  # pid, bytes, GPU instance, compute instance
_OLD_PROCESS = struct.Struct("=I4xQ")
_VALUES = {
    kind: struct.Struct(layout)
    for kind, layout in enumerate(("=d", "=I4x", "=Q", "=Q", "=q", "=i4x", "=H6x"))
}
_WHOLE = _VALUES[3]
_SAMPLES = 128  # a ring holds about a hundred
_PROCESSES = 64
_MOST = 65536
_TRIES = 3  # more may be born between two of them
NOT_TOLD = (1 << 64) - 1
NOBODY = 0xFFFFFFFF  # an instance's number where there is none

Ids = tuple[tuple[int, int], ...]
Fill = Callable[[ctypes.c_uint, "ctypes.Array[ctypes.c_char]"], object]


@functools.lru_cache(maxsize=64)
def _request(ids: Ids) -> bytes:
    return b"".join(_FIELD.pack(number, scope, 0, 0, bytes(8)) for number, scope in ids)


def read_fields(nvml: Nvml, handle: object, ids: Ids) -> list[tuple[float | None, int]]:
    """Ask (field, scope) pairs in one call; return (value, code) of each: `None` if refused.

    Success of the whole says nothing of a part.
    """
    request = _request(ids)
    room = ctypes.create_string_buffer(request, len(request))
    nvml.plain("nvmlDeviceGetFieldValues", handle, len(ids), room)
    return [
        (None, code) if code else _finite(_VALUES.get(kind, _WHOLE).unpack(raw)[0])
        for _, _, kind, code, raw in _FIELD.iter_unpack(room)
    ]


def _finite(value: float) -> tuple[float | None, int]:
    # a number that is none, as of a card that falls off its bus, tells nothing
    return (value, SUCCESS) if math.isfinite(value) else (None, NOT_FOUND)


def read_samples(
    nvml: Nvml, handle: object, kind: int, after_us: int
) -> tuple[tuple[int, float], ...]:
    """Return (time stamp, value) of a ring's entries newer than `after_us`."""
    layout, count = ctypes.c_uint(), ctypes.c_uint(_SAMPLES)
    room = ctypes.create_string_buffer(_SAMPLES * _SAMPLE.size)
    where = (ctypes.byref(layout), ctypes.byref(count), room)
    try:
        nvml.plain("nvmlDeviceGetSamples", handle, kind, ctypes.c_ulonglong(after_us), *where)
    except NvmlFault as error:
        if error.code == INVALID_ARGUMENT:  # the ring is empty
            return ()
        raise
    value = _VALUES.get(layout.value, _WHOLE)
    filled = memoryview(room)[: min(count.value, _SAMPLES) * _SAMPLE.size]
    return tuple((stamp, value.unpack(raw)[0]) for stamp, raw in _SAMPLE.iter_unpack(filled))


def read_busy(nvml: Nvml, handle: object, after_us: int) -> tuple[tuple[int, int, int], ...]:
    """Return (pid, time stamp, percent of the multiprocessors) newer than `after_us`."""
    after = ctypes.c_ulonglong(after_us)

    def fill(count: ctypes.c_uint, room: ctypes.Array[ctypes.c_char]) -> object:
        name = "nvmlDeviceGetProcessUtilization"
        return nvml.plain(name, handle, room, ctypes.byref(count), after)

    return tuple(_BUSY.iter_unpack(_filled(_BUSY.size, fill)))


def read_processes(
    nvml: Nvml, symbol: str, handle: object
) -> list[tuple[int, int | None, int, int]]:
    """List (pid, bytes, GPU instance, compute instance) of one kind of process.

    Bytes are `None` if the driver does not tell, instances `NOBODY` if there are none. Symbols
    without a version are those of drivers before 460, which tell less.
    """

    def fill(count: ctypes.c_uint, room: ctypes.Array[ctypes.c_char]) -> object:
        return nvml.plain(symbol, handle, ctypes.byref(count), room)

    if symbol.endswith(("_v3", "_v2")):
        found = _PROCESS.iter_unpack(_filled(_PROCESS.size, fill))
        return [(pid, None if size == NOT_TOLD else size, gi, ci) for pid, size, gi, ci in found]
    old = _OLD_PROCESS.iter_unpack(_filled(_OLD_PROCESS.size, fill))
    return [(pid, None if size == NOT_TOLD else size, NOBODY, NOBODY) for pid, size in old]


def _filled(size: int, fill: Fill) -> memoryview:
    """Call with room for some, then with as much as the driver wants; return what it filled."""
    wanted = _PROCESSES
    for left in reversed(range(_TRIES)):
        count = ctypes.c_uint(wanted)
        room = ctypes.create_string_buffer(wanted * size)
        try:
            fill(count, room)
        except NvmlFault as error:
            if error.code != INSUFFICIENT_SIZE or not left:
                raise
            wanted = min(max(count.value, wanted) * 2 + 5, _MOST)
        else:
            return memoryview(room)[: min(count.value, wanted) * size]
    raise AssertionError("the last try returns or raises")
