"""Where things are in HAMi-core's shared region; the library's builds know three layouts."""

from __future__ import annotations

import struct

import msgspec

from agent.errors import ParseError

MAGIC = 19920718
MAX_CARDS = 16
MAX_SLOTS = 1024
UUID_BYTES = 96
HEAD_BYTES = 12  # magic and version


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets in bytes from the start of the file, and for a process from that of its slot."""

    name: str
    file_bytes: int  # of the structure and the one byte behind it
    versions: tuple[tuple[int, int], ...] = ()  # at 4 and 8; empty: the layout has none there
    count: int  # of cards, u64
    uuids: int
    memory_limits: int
    core_limits: int
    slots: int
    slot_bytes: int
    slots_used: int
    last_kernel: int | None
    lock: int | None  # of a slot, u64: odd while it is written
    memory: int  # of a slot: context, module, buffer, offset, total for each card
    memory_bytes: int
    use: int  # of a slot: decoder, encoder, SM for each card
    use_bytes: int
    status: int  # of a slot


A = Layout(
    name="A",
    file_bytes=2_008_953,
    versions=((1, 1), (1, 2)),
    count=56,
    uuids=64,
    memory_limits=1600,
    core_limits=1728,
    slots=1856,
    slot_bytes=1960,
    slots_used=2_008_896,
    last_kernel=2_008_912,
    lock=1936,  # since version 1.2
    memory=8,
    memory_bytes=64,
    use=1160,
    use_bytes=48,
    status=1928,
)
# of one release only, which counts itself as 1.1 as well: the size alone tells them apart
B = Layout(
    name="B",
    file_bytes=2_008_985,
    versions=((1, 1),),
    count=88,
    uuids=96,
    memory_limits=1632,
    core_limits=1760,
    slots=1888,
    slot_bytes=1960,
    slots_used=2_008_928,
    last_kernel=2_008_944,
    lock=8,
    memory=16,
    memory_bytes=64,
    use=1168,
    use_bytes=48,
    status=1936,
)
# before August 2024
O = Layout(  # noqa: E741 - as people call it
    name="O",
    file_bytes=1_197_897,
    count=48,
    uuids=56,
    memory_limits=1592,
    core_limits=1720,
    slots=1848,
    slot_bytes=1168,
    slots_used=1_197_880,
    last_kernel=None,
    lock=None,
    memory=8,
    memory_bytes=40,
    use=776,
    use_bytes=24,
    status=1160,
)
BY_SIZE = {layout.file_bytes: layout for layout in (A, B, O)}


def layout_of(file_bytes: int, head: bytes) -> Layout:
    """Return the layout of a file by its size and its first bytes; `ParseError` if none fits."""
    layout = BY_SIZE.get(file_bytes)
    if layout is None:
        raise ParseError("HAMi-core region", f"{file_bytes} bytes")
    magic, major, minor = struct.unpack("<iII", head)
    if magic != MAGIC:
        raise ParseError("HAMi-core region: magic", str(magic))
    if layout.versions and (major, minor) not in layout.versions:
        raise ParseError("HAMi-core region: version", f"{major}.{minor}")
    if layout is A and (major, minor) == (1, 1):
        return msgspec.structs.replace(layout, lock=None)
    return layout
