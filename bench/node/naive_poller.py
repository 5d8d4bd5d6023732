"""Peer of `fault_to_cr`: asks every card each INTERVAL_S, writes what it found: `... INTERVAL OUT`.

As a daemon does that takes no events: one pass over all cards, then sleep. It sees a card's
recovery action, which the driver sets with a fault; it does none of what an agent does besides.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pynvml

RECOVERY_ACTION = 230


def lines() -> str:
    """Return one line a card: its uuid, and whether its driver asks for recovery."""
    result = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        card = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid, memory = pynvml.nvmlDeviceGetUUID(card), pynvml.nvmlDeviceGetMemoryInfo(card)
        (action,) = pynvml.nvmlDeviceGetFieldValues(card, [RECOVERY_ACTION])
        well = action.nvmlReturn != 0 or action.value.uiVal == 0
        result.append(f"- id: {uuid}\n  memory: {memory.total}\n  health: {str(well).lower()}\n")
    return "".join(result)


def main() -> None:
    """Poll until killed."""
    interval_s, out = float(sys.argv[1]), Path(sys.argv[2])
    pynvml.nvmlInit()
    fresh = out.with_name(f"{out.name}.new")
    while True:
        began_s = time.monotonic()
        fresh.write_text(lines())
        os.replace(fresh, out)
        time.sleep(max(0.0, interval_s - (time.monotonic() - began_s)))


if __name__ == "__main__":
    main()
