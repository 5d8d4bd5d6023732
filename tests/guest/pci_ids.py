"""Gives the emulator's test devices other ids, by editing their configuration space."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_REGION = 200 << 20  # bytes; a larger one is the virtual machine's memory

_TEST_DEVICE = struct.pack("<HH", 0x1B36, 0x0005)
_TEST_CLASS = b"\x00\x00\xff\x00"
_TEST_SUBSYSTEM = struct.pack("<HH", 0x1AF4, 0x1100)
_CLASS_AT, _SUBSYSTEM_AT = 0x08, 0x2C
_REGION = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw.. \S+ \S+ \d+\s*(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PciIds:
    """What a function says that it is; `device_class` in 24 bits."""

    vendor: int
    device: int
    device_class: int
    subsystem_vendor: int
    subsystem: int


H100 = PciIds(
    vendor=0x10DE,
    device=0x2330,
    device_class=0x030200,
    subsystem_vendor=0x10DE,
    subsystem=0x16C1,
)


def set_ids(pid: int, ids: Sequence[PciIds]) -> None:
    """Set the ids of a paused emulator's `pci-testdev` devices, in the command line's order.

    Raises `LookupError` if it has not as many as there are ids.
    """
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        places = sorted(_places(memory.fileno(), pid))
        if len(places) != len(ids):
            raise LookupError(f"{len(places)} test devices in the emulator, not {len(ids)}")
        for place, one in zip(places, ids, strict=True):
            for offset, data in (
                (0, struct.pack("<HH", one.vendor, one.device)),
                (_CLASS_AT + 1, one.device_class.to_bytes(3, "little")),
                (_SUBSYSTEM_AT, struct.pack("<HH", one.subsystem_vendor, one.subsystem)),
            ):
                memory.seek(place + offset)
                memory.write(data)


def _places(memory: int, pid: int) -> Iterator[int]:
    for start, size in _regions(pid):
        try:
            data = os.pread(memory, size, start)
        except OSError:
            continue
        at = data.find(_TEST_DEVICE)
        while at >= 0:
            space = data[at : at + _SUBSYSTEM_AT + 4]
            if space[_CLASS_AT:].startswith(_TEST_CLASS) and space.endswith(_TEST_SUBSYSTEM):
                yield start + at
            at = data.find(_TEST_DEVICE, at + 1)


def _regions(pid: int) -> Iterator[tuple[int, int]]:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        match = _REGION.match(line)
        if match is None or match[3].startswith("[v"):
            continue
        start, end = int(match[1], 16), int(match[2], 16)
        if end - start < MAX_REGION:
            yield start, end - start
