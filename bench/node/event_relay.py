"""Limit of `fault_to_cr`: waits for NVML events, and writes a byte to its output for each."""

from __future__ import annotations

import os

import pynvml

XID = 8
WAIT_MS = 1000


def main() -> None:
    """Relay until killed."""
    pynvml.nvmlInit()
    events = pynvml.nvmlEventSetCreate()
    for index in range(pynvml.nvmlDeviceGetCount()):
        pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(index), XID, events)
    os.write(1, b".")  # ready
    while True:
        try:
            pynvml.nvmlEventSetWait_v2(events, WAIT_MS)
        except pynvml.NVMLError_Timeout:
            continue
        os.write(1, b"!")


if __name__ == "__main__":
    main()
