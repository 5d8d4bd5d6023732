"""One region's content. The container may write what it likes into it while it is read."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import msgspec

from agent.errors import AgentError, ParseError
from agent.model.grant.sharing import SharedCard, SharedProcess
from agent.sharing.layouts import HEAD_BYTES, MAX_CARDS, MAX_SLOTS, UUID_BYTES, Layout, layout_of

Read = Callable[[int, int], bytes]  # bytes of the file: how many, from which offset

TRIES = 3  # to read a slot that is being written
MAX_BYTES = 1 << 50  # a larger figure is no card's memory
MAX_TIME_S = 1 << 40
_SUMS = ("context_bytes", "module_bytes", "buffer_bytes", "offset_bytes", "used_bytes")


class Crowded(AgentError):
    """A region claims more processes than were to be read."""


class Content(msgspec.Struct, frozen=True):
    """What a region says, whoever's it is."""

    layout: str
    cards: tuple[SharedCard, ...]
    last_kernel_s: int | None


class _Slot(msgspec.Struct, frozen=True):
    """One process."""

    host_pid: int
    data: bytes


def read_region(read: Read, file_bytes: int, most: int = MAX_SLOTS) -> Content:
    """Return the sums over a region's processes, by card.

    Cards without a plain name are left out, and so are figures that no card can have. `ParseError`
    for what is no region of a known layout, and for a file that ends early; `Crowded` if it claims
    more than `most` processes.
    """
    layout = layout_of(file_bytes, _exactly(read, HEAD_BYTES, 0))
    count = _slots_used(read, layout)
    if count > most:
        raise Crowded(f"{count} processes are claimed")
    head = _exactly(read, layout.slots, 0)
    slots = list(_slots(read, layout, count))
    cards_used = min(struct.unpack_from("<Q", head, layout.count)[0], MAX_CARDS)
    cards = (_card(layout, head, slots, index) for index in range(cards_used))
    return Content(
        layout=layout.name,
        cards=tuple(card for card in cards if card is not None),
        last_kernel_s=_last_kernel(read, layout),
    )


def _exactly(read: Read, size: int, offset: int) -> bytes:
    data = read(size, offset)
    if len(data) != size:
        raise ParseError("HAMi-core region", "shorter than it was")
    return data


def _last_kernel(read: Read, layout: Layout) -> int | None:
    if layout.last_kernel is None:
        return None
    (at_s,) = struct.unpack("<q", _exactly(read, 8, layout.last_kernel))
    return int(at_s) if 0 < at_s < MAX_TIME_S else None


def _slots_used(read: Read, layout: Layout) -> int:
    (used,) = struct.unpack("<i", _exactly(read, 4, layout.slots_used))
    return max(0, min(int(used), MAX_SLOTS))


def _slots(read: Read, layout: Layout, count: int) -> Iterator[_Slot]:
    """Yield the slots of processes that live."""
    block = _exactly(read, count * layout.slot_bytes, layout.slots) if count else b""
    for index in range(count):
        start = index * layout.slot_bytes
        data = block[start : start + layout.slot_bytes]
        pid, host_pid = struct.unpack_from("<ii", data)
        (status,) = struct.unpack_from("<i", data, layout.status)
        if pid and status:
            settled = _settled(read, layout, layout.slots + start, data)
            yield _Slot(max(0, host_pid), settled)


def _settled(read: Read, layout: Layout, offset: int, data: bytes) -> bytes:
    """Read a slot again while its writer is at work; after some tries it is taken as it is."""
    if layout.lock is None:
        return data
    for _ in range(TRIES - 1):
        before = struct.unpack_from("<Q", data, layout.lock)[0]
        now = struct.unpack("<Q", _exactly(read, 8, offset + layout.lock))[0]
        if before == now and before % 2 == 0:
            break
        data = _exactly(read, layout.slot_bytes, offset)
    return data


def _card(layout: Layout, head: bytes, slots: list[_Slot], index: int) -> SharedCard | None:
    start = layout.uuids + index * UUID_BYTES
    name = head[start : start + UUID_BYTES].partition(b"\0")[0]
    if not name or not all(0x20 < byte < 0x7F for byte in name):
        return None
    sums = dict.fromkeys(_SUMS, 0)
    core, processes = 0, []
    for slot in slots:
        memory = struct.unpack_from("<5Q", slot.data, layout.memory + index * layout.memory_bytes)
        if max(memory) > MAX_BYTES:
            continue
        for key, value in zip(_SUMS, memory, strict=True):
            sums[key] += value
        (busy,) = struct.unpack_from("<Q", slot.data, layout.use + index * layout.use_bytes + 16)
        core += busy if busy <= 100 else 0
        processes.append(SharedProcess(host_pid=slot.host_pid, memory_bytes=memory[-1]))
    (limit,) = struct.unpack_from("<Q", head, layout.memory_limits + index * 8)
    (core_limit,) = struct.unpack_from("<Q", head, layout.core_limits + index * 8)
    return SharedCard(
        index=index,
        uuid=name.decode("ascii"),
        core_percent=core,
        limit_bytes=limit if 0 < limit <= MAX_BYTES else None,
        core_limit_percent=core_limit if 0 < core_limit < 100 else None,
        processes=tuple(processes),
        **sums,
    )
