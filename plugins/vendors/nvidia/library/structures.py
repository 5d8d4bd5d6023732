"""NVML calls that fill lists and structures, with one call each and no object per member.

The binding first queries the size, which doubles the cost of expensive calls, and creates an
object for every member. Some structures of the binding lack their version number.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable, Iterable

from plugins.vendors.nvidia.library.codes import (
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    NOT_FOUND,
    SUCCESS,
    TIMEOUT,
    NvmlFault,
    code_of,
)
from plugins.vendors.nvidia.library.nvml import Nvml

_FIELD = struct.Struct("=II16xIi8s")  # number, scope, kind of value, code, value
_SAMPLE = struct.Struct("=Q8s")  # time stamp, value
_UTILIZATION = struct.Struct("=I4xQI12x")  # pid, time stamp, percent of the multiprocessors
_PROCESS = struct.Struct("=I4xQII")  # pid, bytes, GPU instance, compute instance
_OLD_PROCESS = struct.Struct("=I4xQ")

_VALUES = {
    kind: struct.Struct(layout)
    for kind, layout in enumerate(("=d", "=I4x", "=Q", "=Q", "=q", "=i4x", "=H6x"))
}

_UNSIGNED_LONG_LONG = _VALUES[3]
_SAMPLES = 128  # a ring holds about a hundred
_PROCESSES = 64
_MAX_ENTRIES = 65536
_TRIES = 3  # the list may grow between two tries
NOT_AVAILABLE = (1 << 64) - 1
NO_INSTANCE = 0xFFFFFFFF  # an instance's number where there is none

Ids = tuple[tuple[int, int], ...]

Fill = Callable[[ctypes.c_uint, "ctypes.Array[ctypes.c_char]"], object]


@functools.lru_cache(maxsize=64)
def _request(ids: Ids) -> bytes:
    return b"".join(_FIELD.pack(number, scope, 0, 0, bytes(8)) for number, scope in ids)


def read_fields(nvml: Nvml, handle: object, ids: Ids) -> list[tuple[float | None, int]]:
    """Read (field, scope) pairs with one call; return (value, code) of each.

    The call may succeed although fields fail; the value of a failed field is `None`.
    """
    request = _request(ids)
    buffer = ctypes.create_string_buffer(request, len(request))
    nvml.call_symbol("nvmlDeviceGetFieldValues", handle, len(ids), buffer)
    return [
        (None, code) if code else _finite(_VALUES.get(kind, _UNSIGNED_LONG_LONG).unpack(raw)[0])
        for _, _, kind, code, raw in _FIELD.iter_unpack(buffer)
    ]


def _finite(value: float) -> tuple[float | None, int]:
    # a card that falls off its bus may return NaN, which counts as no value
    return (value, SUCCESS) if math.isfinite(value) else (None, NOT_FOUND)


def read_samples(
    nvml: Nvml, handle: object, kind: int, after_us: int
) -> tuple[tuple[int, float], ...]:
    """Return (time stamp, value) of a ring buffer's entries newer than `after_us`."""
    layout, count = ctypes.c_uint(), ctypes.c_uint(_SAMPLES)
    buffer = ctypes.create_string_buffer(_SAMPLES * _SAMPLE.size)
    outputs = (ctypes.byref(layout), ctypes.byref(count), buffer)
    try:
        nvml.call_symbol(
            "nvmlDeviceGetSamples", handle, kind, ctypes.c_ulonglong(after_us), *outputs
        )
    except NvmlFault as error:
        if error.code == INVALID_ARGUMENT:  # the ring is empty
            return ()
        raise
    value = _VALUES.get(layout.value, _UNSIGNED_LONG_LONG)
    filled = memoryview(buffer)[: min(count.value, _SAMPLES) * _SAMPLE.size]
    return tuple((stamp, value.unpack(raw)[0]) for stamp, raw in _SAMPLE.iter_unpack(filled))


def read_process_utilization(
    nvml: Nvml, handle: object, after_us: int
) -> tuple[tuple[int, int, int], ...]:
    """Return (pid, time stamp, percent of the multiprocessors) newer than `after_us`."""
    after = ctypes.c_ulonglong(after_us)

    def fill(count: ctypes.c_uint, buffer: ctypes.Array[ctypes.c_char]) -> object:
        name = "nvmlDeviceGetProcessUtilization"
        return nvml.call_symbol(name, handle, buffer, ctypes.byref(count), after)

    return tuple(_UTILIZATION.iter_unpack(_fill_buffer(_UTILIZATION.size, fill)))


def read_processes(
    nvml: Nvml, symbol: str, handle: object
) -> list[tuple[int, int | None, int, int]]:
    """List (pid, bytes, GPU instance, compute instance) of one kind of process.

    Bytes are `None` if the driver does not report them, instances `NO_INSTANCE` if there are
    none. Symbols without a version belong to drivers before 460, which report fewer values.
    """

    def fill(count: ctypes.c_uint, buffer: ctypes.Array[ctypes.c_char]) -> object:
        return nvml.call_symbol(symbol, handle, ctypes.byref(count), buffer)

    if symbol.endswith(("_v3", "_v2")):
        entries = _PROCESS.iter_unpack(_fill_buffer(_PROCESS.size, fill))
        return [
            (pid, None if size == NOT_AVAILABLE else size, gi, ci) for pid, size, gi, ci in entries
        ]
    old = _OLD_PROCESS.iter_unpack(_fill_buffer(_OLD_PROCESS.size, fill))
    return [
        (pid, None if size == NOT_AVAILABLE else size, NO_INSTANCE, NO_INSTANCE)
        for pid, size in old
    ]


def _fill_buffer(size: int, fill: Fill) -> memoryview:
    """Call with a buffer that grows until the list fits; return the filled part."""
    entries = _PROCESSES
    for attempts_left in reversed(range(_TRIES)):
        count = ctypes.c_uint(entries)
        buffer = ctypes.create_string_buffer(entries * size)
        try:
            fill(count, buffer)
        except NvmlFault as error:
            if error.code != INSUFFICIENT_SIZE or not attempts_left:
                raise
            entries = min(max(count.value, entries) * 2 + 5, _MAX_ENTRIES)
        else:
            return memoryview(buffer)[: min(count.value, entries) * size]
    raise AssertionError("the last try returns or raises")


_SRAM_VERSION = 0x01000068
_GPM_VERSION = 1
_METRIC = struct.Struct("=Iid24x")  # number, code, value
_FIRST_METRIC = 24  # offset of the metrics in a request
BOUND, UNBOUND = 0x2, 0x1  # bits of a system event
_MAX_EVENTS = 16
_CREATE = _FREE_SET = 0x01000010
_REGISTER = 0x01000018
_WAIT = 0x01000020


def sram_exceeded(nvml: Nvml, handle: object) -> int:
    """Return 1 if the card's uncorrectable SRAM errors exceed the threshold, else 0."""
    status = nvml.allocate("c_nvmlEccSramErrorStatus_v1_t", 1)[0]
    setattr(status, "version", _SRAM_VERSION)  # noqa: B010 - a ctypes structure
    nvml.call("nvmlDeviceGetSramEccErrorStatus", handle, ctypes.byref(status))
    return int(getattr(status, "bThresholdExceeded", 0))


def read_license(nvml: Nvml, handle: object) -> tuple[int, int, tuple[int, ...]]:
    """Return whether the card needs a licence, the number of features, and their states.

    The state of a feature is 1 if a licence for it is there.
    """
    answer = nvml.call("nvmlDeviceGetGridLicensableFeatures_v4", handle)
    count = int(getattr(answer, "licensableFeaturesCount", 0))
    features = getattr(answer, "gridLicensableFeatures", ())
    states = tuple(int(feature.featureState) for feature in features[:count])
    return int(getattr(answer, "isGridLicenseSupported", 0)), count, states


def gpm_supported(nvml: Nvml, handle: object) -> bool:
    """Return whether the card has GPU performance monitoring (Hopper and later)."""
    support = nvml.call("nvmlGpmQueryDeviceSupport", handle)
    return bool(getattr(support, "isSupportedDevice", 0))


class GpmMeter:
    """Performance counters of a card, or of one GPU instance, between two samples.

    NVML owns the two buffers, and they stay until the process ends. There is one meter for each
    card and instance, so their number is bounded.
    """

    def __init__(self, nvml: Nvml, metrics: Iterable[int]) -> None:
        self._nvml = nvml
        self._metrics = tuple(metrics)
        self._old, self._new = (nvml.call("nvmlGpmSampleAlloc") for _ in range(2))
        self._filled = False
        self._request = nvml.allocate("c_nvmlGpmMetricsGet_t", 1)[0]
        request_metrics = getattr(self._request, "metrics")  # noqa: B009 - a ctypes structure
        for place, number in enumerate(self._metrics):
            request_metrics[place].metricId = number
        for name, value in (("version", _GPM_VERSION), ("numMetrics", len(self._metrics))):
            setattr(self._request, name, value)

    def read(self, handle: object, instance: int | None = None) -> dict[int, float]:
        """Return each metric since the last call, in its unit; nothing at the first call.

        The driver refuses calls that are less than 100 ms apart.
        """
        if instance is None:
            self._nvml.call("nvmlGpmSampleGet", handle, self._new)
        else:
            self._nvml.call("nvmlGpmMigSampleGet", handle, instance, self._new)
        values = self._metrics_between_samples(handle) if self._filled else {}
        self._old, self._new, self._filled = self._new, self._old, True
        return values

    def _metrics_between_samples(self, handle: object) -> dict[int, float]:
        request = self._request
        for name, value in (("sample1", self._old), ("sample2", self._new)):
            setattr(request, name, value)
        self._nvml.call("nvmlGpmMetricsGet", request, owner=handle)
        first = _FIRST_METRIC
        filled = memoryview(request).cast("B")[first : first + len(self._metrics) * _METRIC.size]
        return {
            number: value
            for number, code, value in _METRIC.iter_unpack(filled)
            if code == SUCCESS and math.isfinite(value)
        }


class SystemEvents:
    """NVML's events of cards that are bound to the driver or unbound from it."""

    def __init__(self, nvml: Nvml) -> None:
        """Create an event set; raises `NotSupported` if the driver has no system events."""
        self._nvml = nvml
        self._set = nvml.call("nvmlSystemEventSetCreate", _CREATE)
        nvml.call("nvmlSystemRegisterEvents", _REGISTER, BOUND | UNBOUND, self._set)
        self._room = nvml.allocate("c_nvmlSystemEventData_v1_t", _MAX_EVENTS)

    def read(self) -> tuple[int, ...]:
        """Return the kinds of the events since the last call, without waiting."""
        try:
            events = self._nvml.call(
                "nvmlSystemEventSetWait", _WAIT, self._set, 0, self._room, _MAX_EVENTS
            )
        except NvmlFault as error:
            if code_of(error) != TIMEOUT:
                raise
            return ()
        return tuple(int(e["eventType"]) for e in events) if isinstance(events, list) else ()

    def close(self) -> None:
        """Free the set."""
        self._nvml.call("nvmlSystemEventSetFree", _FREE_SET, self._set)
