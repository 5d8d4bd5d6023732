"""Parses HAMi-core's shared regions of all containers, in three layouts.

A container may write any content while the agent reads: nothing in a region is trusted.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec

from agent.errors import AgentError, HostFileError, ParseError
from agent.snapshot.inventory import Problem
from agent.snapshot.pod import PodView
from agent.snapshot.usage import SharedCard, SharedProcess, SharedRegion

MAGIC = 19920718
MAX_CARDS = 16
MAX_SLOTS = 1024
UUID_BYTES = 96
HEAD_BYTES = 12  # magic and version


class RegionLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets in bytes from the start of the file, or for a process from the start of its slot."""

    name: str
    file_bytes: int  # of the structure and one more byte
    versions: tuple[tuple[int, int], ...] = ()  # at 4 and 8; empty: the layout has none
    count: int  # of cards, u64
    uuids: int
    memory_limits: int
    core_limits: int
    slots: int
    slot_bytes: int
    slot_count: int
    last_kernel: int | None
    lock: int | None  # of a slot, u64: odd while it is being written
    memory: int  # of a slot: context, module, buffer, offset, total for each card
    memory_bytes: int
    use: int  # of a slot: decoder, encoder, SM for each card
    use_bytes: int
    status: int  # of a slot


LAYOUT_A = RegionLayout(
    name="A",
    file_bytes=2_008_953,
    versions=((1, 1), (1, 2)),
    count=56,
    uuids=64,
    memory_limits=1600,
    core_limits=1728,
    slots=1856,
    slot_bytes=1960,
    slot_count=2_008_896,
    last_kernel=2_008_912,
    lock=1936,  # since version 1.2
    memory=8,
    memory_bytes=64,
    use=1160,
    use_bytes=48,
    status=1928,
)

# one release only, with the version 1.1 as well: only the size differs
LAYOUT_B = RegionLayout(
    name="B",
    file_bytes=2_008_985,
    versions=((1, 1),),
    count=88,
    uuids=96,
    memory_limits=1632,
    core_limits=1760,
    slots=1888,
    slot_bytes=1960,
    slot_count=2_008_928,
    last_kernel=2_008_944,
    lock=8,
    memory=16,
    memory_bytes=64,
    use=1168,
    use_bytes=48,
    status=1936,
)

# before August 2024
LAYOUT_O = RegionLayout(
    name="O",
    file_bytes=1_197_897,
    count=48,
    uuids=56,
    memory_limits=1592,
    core_limits=1720,
    slots=1848,
    slot_bytes=1168,
    slot_count=1_197_880,
    last_kernel=None,
    lock=None,
    memory=8,
    memory_bytes=40,
    use=776,
    use_bytes=24,
    status=1160,
)

LAYOUT_BY_SIZE = {layout.file_bytes: layout for layout in (LAYOUT_A, LAYOUT_B, LAYOUT_O)}


def layout_of(file_bytes: int, head: bytes) -> RegionLayout:
    """Return the layout of a file by its size and its first bytes; `ParseError` if none fits."""
    layout = LAYOUT_BY_SIZE.get(file_bytes)
    if layout is None:
        raise ParseError("HAMi-core region", f"{file_bytes} bytes")
    magic, major, minor = struct.unpack("<iII", head)
    if magic != MAGIC:
        raise ParseError("HAMi-core region: magic", str(magic))
    if layout.versions and (major, minor) not in layout.versions:
        raise ParseError("HAMi-core region: version", f"{major}.{minor}")
    if layout is LAYOUT_A and (major, minor) == (1, 1):
        return msgspec.structs.replace(layout, lock=None)
    return layout


ReadAt = Callable[[int, int], bytes]  # bytes of the file: how many, from which offset

MAX_SLOT_READS = 3  # attempts to read a slot that is being written
MAX_MEMORY_BYTES = 1 << 50  # larger than any card's memory
MAX_TIME_S = 1 << 40
_MEMORY_FIELDS = ("context_bytes", "module_bytes", "buffer_bytes", "offset_bytes", "used_bytes")


class TooManyProcesses(AgentError):
    """A region claims more processes than the limit."""


class RegionContent(msgspec.Struct, frozen=True):
    """The contents of a region."""

    layout: str
    cards: tuple[SharedCard, ...]
    last_kernel_s: int | None


class _ProcessSlot(msgspec.Struct, frozen=True):
    """One process."""

    host_pid: int
    data: bytes


def read_region(read: ReadAt, file_bytes: int, most: int = MAX_SLOTS) -> RegionContent:
    """Return the sums over a region's processes, by card.

    Cards without a plain name and impossible numbers are left out. Raises `ParseError` if the file
    is not a region of a known layout, or too short, and `TooManyProcesses` if it claims more than
    `most` processes.
    """
    layout = layout_of(file_bytes, _read_exactly(read, HEAD_BYTES, 0))
    count = _read_slot_count(read, layout)
    if count > most:
        raise TooManyProcesses(f"{count} processes are claimed")
    head = _read_exactly(read, layout.slots, 0)
    slots = list(_read_slots(read, layout, count))
    card_count = min(struct.unpack_from("<Q", head, layout.count)[0], MAX_CARDS)
    cards = (_read_card(layout, head, slots, index) for index in range(card_count))
    return RegionContent(
        layout=layout.name,
        cards=tuple(card for card in cards if card is not None),
        last_kernel_s=_read_last_kernel(read, layout),
    )


def _read_exactly(read: ReadAt, size: int, offset: int) -> bytes:
    data = read(size, offset)
    if len(data) != size:
        raise ParseError("HAMi-core region", "shorter than it was")
    return data


def _read_last_kernel(read: ReadAt, layout: RegionLayout) -> int | None:
    if layout.last_kernel is None:
        return None
    (at_s,) = struct.unpack("<q", _read_exactly(read, 8, layout.last_kernel))
    return int(at_s) if 0 < at_s < MAX_TIME_S else None


def _read_slot_count(read: ReadAt, layout: RegionLayout) -> int:
    (slot_count,) = struct.unpack("<i", _read_exactly(read, 4, layout.slot_count))
    return max(0, min(int(slot_count), MAX_SLOTS))


def _read_slots(read: ReadAt, layout: RegionLayout, count: int) -> Iterator[_ProcessSlot]:
    """Yield the slots of live processes."""
    block = _read_exactly(read, count * layout.slot_bytes, layout.slots) if count else b""
    for index in range(count):
        start = index * layout.slot_bytes
        data = block[start : start + layout.slot_bytes]
        pid, host_pid = struct.unpack_from("<ii", data)
        (status,) = struct.unpack_from("<i", data, layout.status)
        if pid and status:
            slot_data = _read_consistent_slot(read, layout, layout.slots + start, data)
            yield _ProcessSlot(max(0, host_pid), slot_data)


def _read_consistent_slot(read: ReadAt, layout: RegionLayout, offset: int, data: bytes) -> bytes:
    """Read a slot again while it is being written; after some attempts use it as it is."""
    if layout.lock is None:
        return data
    for _ in range(MAX_SLOT_READS - 1):
        lock_before = struct.unpack_from("<Q", data, layout.lock)[0]
        lock_after = struct.unpack("<Q", _read_exactly(read, 8, offset + layout.lock))[0]
        if lock_before == lock_after and lock_before % 2 == 0:
            break
        data = _read_exactly(read, layout.slot_bytes, offset)
    return data


def _read_card(
    layout: RegionLayout, head: bytes, slots: list[_ProcessSlot], index: int
) -> SharedCard | None:
    start = layout.uuids + index * UUID_BYTES
    name = head[start : start + UUID_BYTES].partition(b"\0")[0]
    if not name or not all(0x20 < byte < 0x7F for byte in name):
        return None
    sums = dict.fromkeys(_MEMORY_FIELDS, 0)
    core, processes = 0, []
    for slot in slots:
        memory = struct.unpack_from("<5Q", slot.data, layout.memory + index * layout.memory_bytes)
        if max(memory) > MAX_MEMORY_BYTES:
            continue
        for key, value in zip(_MEMORY_FIELDS, memory, strict=True):
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
        limit_bytes=limit if 0 < limit <= MAX_MEMORY_BYTES else None,
        core_limit_percent=core_limit if 0 < core_limit < 100 else None,
        processes=tuple(processes),
        **sums,
    )


MAX_FOLDERS = 1024  # containers on one node
MAX_FILES = 256  # entries read in one container's folder
MAX_PROBLEMS = 16
SMALL_REGION_PROCESSES = 64  # processes; regions with more are read after all others
MAX_LARGE_REGIONS = 8  # such regions in one scan: a full one takes some hundredths of a second
REGION_SUFFIX = ".cache"

_CONTAINER_FOLDER = re.compile(
    r"([0-9A-Za-z][0-9A-Za-z-]{0,127})_([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)"
)

_FILE_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

_FOLDER_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY


def read_regions(
    root: str, pods: Iterable[PodView]
) -> tuple[tuple[SharedRegion, ...], tuple[Problem, ...]]:
    """Return the regions of containers on the node, and why others are missing.

    Nothing is written and no link below `root` is followed. Files are read, not mapped: a container
    that truncates its file would kill a process that has it mapped. An absent folder has no
    regions.
    """
    try:
        folder = os.open(root, _FOLDER_FLAGS)
    except FileNotFoundError:
        return (), ()
    except OSError as error:
        return (), (_region_problem(root, HostFileError(root, error.errno or 0)),)
    scan = _RegionScan(root, folder)
    try:
        folders = list(_container_folders(folder, {pod.uid: pod for pod in pods}))
        crowded = [
            container
            for container in folders
            if not scan.read(*container, most=SMALL_REGION_PROCESSES)
        ]
        for container in crowded[:MAX_LARGE_REGIONS]:
            scan.read(*container, most=MAX_SLOTS)
    finally:
        os.close(folder)
    for name, _, _ in crowded[MAX_LARGE_REGIONS:]:
        scan.problems.append(
            _region_problem(
                f"{root}/{name}", TooManyProcesses(f"more than {SMALL_REGION_PROCESSES} processes")
            )
        )
    regions = sorted(scan.regions, key=lambda region: (region.pod_uid, region.container))
    return tuple(regions), tuple(scan.problems[:MAX_PROBLEMS])


class _RegionScan:
    """The results of one scan."""

    def __init__(self, root: str, folder: int) -> None:
        self._root = root
        self._folder = folder
        self.regions: list[SharedRegion] = []
        self.problems: list[Problem] = []

    def read(self, name: str, pod_uid: str, container: str, *, most: int) -> bool:
        """Read one container's region; return `False` if it has too many processes."""
        path = f"{self._root}/{name}"
        try:
            content = _read_folder(self._folder, name, most)
        except TooManyProcesses:
            return False
        except FileNotFoundError:
            return True  # removed with its container meanwhile
        except OSError as error:
            self.problems.append(_region_problem(path, HostFileError(path, error.errno or 0)))
        except ParseError as error:
            self.problems.append(_region_problem(path, error))
        else:
            if content is not None:
                self.regions.append(_shared_region(pod_uid, container, content))
        return True


def _region_problem(path: str, error: AgentError) -> Problem:
    text = str(error)
    message = text if text.startswith(path) else f"{path}: {text}"
    return Problem(reason="RegionUnreadable", message=message)


def _shared_region(pod_uid: str, container: str, content: RegionContent) -> SharedRegion:
    return SharedRegion(
        pod_uid=pod_uid,
        container=container,
        layout=content.layout,
        cards=content.cards,
        last_kernel_s=content.last_kernel_s,
    )


def _container_folders(folder: int, pods: dict[str, PodView]) -> Iterator[tuple[str, str, str]]:
    """Yield folders of containers of known pods, in order of their names."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in islice(entries, MAX_FOLDERS))
    for name in names:
        match = _CONTAINER_FOLDER.fullmatch(name)
        pod = pods.get(match[1]) if match else None
        if match is None or pod is None:
            continue
        containers = {container.name for container in pod.containers if container.name}
        if not containers or match[2] in containers:
            yield name, match[1], match[2]


def _read_folder(parent: int, name: str, most: int) -> RegionContent | None:
    """Read the newest region of one folder; `None` if there is none yet."""
    folder = os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=parent)
    try:
        newest = _newest_region(folder)
        if newest is None:
            return None
        file = os.open(newest, _FILE_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
        try:
            return _read_file(file, most)
        finally:
            os.close(file)
    finally:
        os.close(folder)


def _newest_region(folder: int) -> str | None:
    """Return the regular `.cache` file that was written last; of equal ones the last by name."""
    regions: list[tuple[int, str]] = []
    with os.scandir(folder) as entries:
        for entry in islice(entries, MAX_FILES):
            if entry.name.endswith(REGION_SUFFIX) and entry.is_file(follow_symlinks=False):
                regions.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
    return max(regions)[1] if regions else None


def _read_file(file: int, most: int) -> RegionContent:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_size not in LAYOUT_BY_SIZE:
        raise ParseError("HAMi-core region", f"{status.st_size} bytes")
    return read_region(lambda size, offset: os.pread(file, size, offset), status.st_size, most)
