"""Calls that fill structures of the binding's which do not know their own version."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Iterable

from plugins.bindings.nvml.library import SUCCESS, TIMEOUT, Nvml, NvmlFault, code_of

_SRAM_VERSION = 0x01000068
_GPM_VERSION = 1
_METRIC = struct.Struct("=Iid24x")  # number, code, value
_FIRST_METRIC = 24  # where they begin in a request
BOUND, UNBOUND = 0x2, 0x1  # bits of a system event
_MOST_EVENTS = 16
_CREATE = _FREE = 0x01000010
_REGISTER = 0x01000018
_WAIT = 0x01000020


def sram_exceeded(nvml: Nvml, handle: object) -> int:
    """Return 1 if the card counts more uncorrectable errors of its SRAM than it may, else 0."""
    status = nvml.room("c_nvmlEccSramErrorStatus_v1_t", 1)[0]
    setattr(status, "version", _SRAM_VERSION)  # noqa: B010 - a ctypes structure
    nvml.call("nvmlDeviceGetSramEccErrorStatus", handle, ctypes.byref(status))
    return int(getattr(status, "bThresholdExceeded", 0))


def gpm_supported(nvml: Nvml, handle: object) -> bool:
    """Say whether the card has the counters of GPU performance monitoring: Hopper and later."""
    found = nvml.call("nvmlGpmQueryDeviceSupport", handle)
    return bool(getattr(found, "isSupportedDevice", 0))


class GpmMeter:
    """Performance counters of a card, or of one GPU instance, between two looks at them.

    Its buffers belong to the library and stay until the process ends, as does their number: one
    meter for each card and instance.
    """

    def __init__(self, nvml: Nvml, metrics: Iterable[int]) -> None:
        self._nvml = nvml
        self._metrics = tuple(metrics)
        self._old, self._new = (nvml.call("nvmlGpmSampleAlloc") for _ in range(2))
        self._filled = False
        self._request = nvml.room("c_nvmlGpmMetricsGet_t", 1)[0]
        room = getattr(self._request, "metrics")  # noqa: B009 - a ctypes structure
        for place, number in enumerate(self._metrics):
            room[place].metricId = number
        for name, value in (("version", _GPM_VERSION), ("numMetrics", len(self._metrics))):
            setattr(self._request, name, value)

    def take(self, handle: object, instance: int | None = None) -> dict[int, float]:
        """Return each metric since the last call, in its unit; nothing at the first one.

        Calls that are less than 100 ms apart are refused by the driver.
        """
        if instance is None:
            self._nvml.call("nvmlGpmSampleGet", handle, self._new)
        else:
            self._nvml.call("nvmlGpmMigSampleGet", handle, instance, self._new)
        values = self._between(handle) if self._filled else {}
        self._old, self._new, self._filled = self._new, self._old, True
        return values

    def _between(self, handle: object) -> dict[int, float]:
        request = self._request
        for name, value in (("sample1", self._old), ("sample2", self._new)):
            setattr(request, name, value)
        self._nvml.call("nvmlGpmMetricsGet", request, of=handle)
        first = _FIRST_METRIC
        filled = memoryview(request).cast("B")[first : first + len(self._metrics) * _METRIC.size]
        return {
            number: value
            for number, code, value in _METRIC.iter_unpack(filled)
            if code == SUCCESS and math.isfinite(value)
        }


class SystemEvents:
    """Cards that are bound to the driver or taken from it, as the library hears of them."""

    def __init__(self, nvml: Nvml) -> None:
        """Open a set; raises `NotSupported` with drivers that have none."""
        self._nvml = nvml
        self._set = nvml.call("nvmlSystemEventSetCreate", _CREATE)
        nvml.call("nvmlSystemRegisterEvents", _REGISTER, BOUND | UNBOUND, self._set)
        self._room = nvml.room("c_nvmlSystemEventData_v1_t", _MOST_EVENTS)

    def take(self) -> tuple[int, ...]:
        """Return the kinds of what happened since the last call, without waiting."""
        try:
            found = self._nvml.call(
                "nvmlSystemEventSetWait", _WAIT, self._set, 0, self._room, _MOST_EVENTS
            )
        except NvmlFault as error:
            if code_of(error) != TIMEOUT:
                raise
            return ()
        return tuple(int(e["eventType"]) for e in found) if isinstance(found, list) else ()

    def close(self) -> None:
        """Free the set."""
        self._nvml.call("nvmlSystemEventSetFree", _FREE, self._set)
