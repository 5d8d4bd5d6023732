"""Devices that HAMi's own scheduler allocated to a pod: they are only read, so that they count.

The format is that of HAMi's `pkg/device`: for each device `UUID,TYPE,MIB,CORE:`, after each
container `;`. Users can write annotations too: the text is untrusted.
"""

from __future__ import annotations

import re

from agent.errors import ParseError
from agent.snapshot.allocation import AllocatedDevice
from plugins.scheduler.devices.device_table import GPU, GPU_CORE, GPU_MEMORY, Labels

MAX_CHARS = 64 << 10
MAX_DEVICES = 512
MIB = 1 << 20
# `vgpu` for NVIDIA, else words such as `cambricon-mlu`, `dcu` and `Ascend910B3`
_KEY = re.compile(r"hami\.io/[A-Za-z0-9-]{1,64}-devices-allocated")
_ENTRY = re.compile(r"([A-Za-z0-9][^,\s]{0,127}),[^,]{0,64},(\d{1,9}),(\d{1,4})(?:,.*)?")


def hami_annotations(annotations: Labels) -> dict[str, str]:
    """Return those annotations that name allocated devices."""
    return {
        key: text
        for key, text in annotations.items()
        if key.startswith("hami.io/") and _KEY.fullmatch(key)
    }


def decode_hami_allocation(annotations: Labels) -> tuple[AllocatedDevice, ...]:
    """Return the devices of all containers; raises `ParseError` if any part is invalid."""
    devices: list[AllocatedDevice] = []
    for key, text in sorted(hami_annotations(annotations).items()):
        if len(text) > MAX_CHARS:
            raise ParseError(f"{key}: more than {MAX_CHARS} characters", "")
        entries = (entry for container in text.split(";") for entry in container.split(":"))
        devices += (_device(key, entry) for entry in entries if entry)
    if len(devices) > MAX_DEVICES:
        raise ParseError(f"HAMi's annotations: more than {MAX_DEVICES} devices", "")
    return tuple(devices)


def _device(key: str, entry: str) -> AllocatedDevice:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise ParseError(f"{key}: an entry is not UUID,TYPE,MIB,CORE", "")
    return AllocatedDevice(
        type=GPU,
        id=match[1].partition("[")[0],  # of a MIG instance: the card
        resources=((GPU_CORE, int(match[3])), (GPU_MEMORY, int(match[2]) * MIB)),
    )
