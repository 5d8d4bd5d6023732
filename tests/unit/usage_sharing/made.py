"""Regions written byte by byte, as HAMi-core would."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from agent.usage.hami_regions import MAGIC, RegionContent, RegionLayout, read_region

GIB = 1 << 30
UUID = "GPU-00000000-0000-4000-8000-000000000000"


class Region:
    """A region of zeros that is filled member by member."""

    def __init__(
        self,
        layout: RegionLayout,
        version: tuple[int, int] = (1, 1),
        cards: Sequence[str] = (UUID,),
    ) -> None:
        self.layout = layout
        self.data = bytearray(layout.file_bytes)
        self.put("<i", 0, MAGIC)
        if layout.versions:
            self.put("<II", 4, *version)
        self.put("<Q", layout.count, len(cards))
        for index, card in enumerate(cards):
            start, name = layout.uuids + index * 96, card.encode()
            self.data[start : start + len(name)] = name

    def put(self, form: str, offset: int, *values: int) -> None:
        struct.pack_into(form, self.data, offset, *values)

    def slots(self, used: int) -> Region:
        self.put("<i", self.layout.slot_count, used)
        return self

    def limit(self, card: int, memory: int = 0, core: int = 0) -> Region:
        self.put("<Q", self.layout.memory_limits + card * 8, memory)
        self.put("<Q", self.layout.core_limits + card * 8, core)
        return self

    def process(
        self,
        slot: int,
        memory: tuple[int, int, int, int, int],  # context, module, buffer, offset, total
        sm: int = 0,
        *,
        card: int = 0,
        status: int = 1,
        pid: int = 1,
        host_pid: int = 0,
    ) -> Region:
        layout = self.layout
        start = layout.slots + slot * layout.slot_bytes
        self.put("<ii", start, pid, host_pid)
        self.put("<i", start + layout.status, status)
        self.put("<5Q", start + layout.memory + card * layout.memory_bytes, *memory)
        self.put("<Q", start + layout.use + card * layout.use_bytes + 16, sm)
        return self

    def read(self) -> RegionContent:
        return read_region(self.at, len(self.data))

    def at(self, size: int, offset: int) -> bytes:
        return bytes(self.data[offset : offset + size])
