"""Peer of `nvml.sampling`: one call of the binding for each value, as monitors commonly ask.

Makes one pass over all cards for each line on standard input, and answers it with one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import pynvml

SEEN_US = 1024  # the whole ring of process samples, as koordlet asks for


def value(call: Callable[..., object], *arguments: object) -> object | None:
    """Return an answer, or nothing if there is none."""
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None


def sampled(card: object) -> list[object]:
    """Ask a card for everything that a monitor shows, one value after the other."""
    result = [
        value(pynvml.nvmlDeviceGetUUID, card),
        value(pynvml.nvmlDeviceGetName, card),
        value(pynvml.nvmlDeviceGetMinorNumber, card),
        value(pynvml.nvmlDeviceGetMemoryInfo, card),
        value(pynvml.nvmlDeviceGetUtilizationRates, card),
        value(pynvml.nvmlDeviceGetPowerUsage, card),
        value(pynvml.nvmlDeviceGetTotalEnergyConsumption, card),
        value(pynvml.nvmlDeviceGetTemperature, card, pynvml.NVML_TEMPERATURE_GPU),
        value(pynvml.nvmlDeviceGetEncoderUtilization, card),
        value(pynvml.nvmlDeviceGetDecoderUtilization, card),
        value(pynvml.nvmlDeviceGetPerformanceState, card),
        value(pynvml.nvmlDeviceGetEccMode, card),
        value(pynvml.nvmlDeviceGetCurrPcieLinkWidth, card),
        value(pynvml.nvmlDeviceGetMaxPcieLinkWidth, card),
        value(pynvml.nvmlDeviceGetRemappedRows, card),
        value(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, card),
    ]
    result += [value(pynvml.nvmlDeviceGetClockInfo, card, kind) for kind in (1, 2)]
    result += [value(pynvml.nvmlDeviceGetPcieThroughput, card, way) for way in (0, 1)]
    fields = (186, 82, 197, 198, 230, (138, 0xFFFFFFFF), (139, 0xFFFFFFFF))
    result += [value(pynvml.nvmlDeviceGetFieldValues, card, [number]) for number in fields]
    lists = ("Compute", "Graphics", "MPSCompute")
    names = [f"nvmlDeviceGet{kind}RunningProcesses" for kind in lists]
    result += [value(getattr(pynvml, name), card) for name in names]
    result.append(value(pynvml.nvmlDeviceGetProcessUtilization, card, SEEN_US))
    return result


def main() -> None:
    """Sample on request until the requests end."""
    pynvml.nvmlInit()
    for _ in sys.stdin:
        count = pynvml.nvmlDeviceGetCount()
        reports = sum(len(sampled(pynvml.nvmlDeviceGetHandleByIndex(i))) for i in range(count))
        print(reports, flush=True)


if __name__ == "__main__":
    main()
