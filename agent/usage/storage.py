"""Block devices, volume groups and mounts of the node, and the block IO of pods and containers."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator

import msgspec

from agent.cgroup.layout import CgroupLayout
from agent.clock import Clock
from agent.errors import HostFileError, ParseError
from agent.host.block_devices import (
    block_device_names,
    read_block_device,
    read_mounts,
    volume_groups,
)
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import Problem
from agent.snapshot.pod import PodView
from agent.snapshot.usage import BlockDevice, DeviceIo, IoByDevice, StorageUsage
from agent.usage.collector import CollectorInput, SpreadRound
from agent.wire_formats.kernel_text import parse_digits

IO_STAT_V2 = "io.stat"

# with the groups below: a pod's own counts lack its containers, where all its processes are.
# A container may have groups below its own, too.
# Old kernels do not have these files.
BYTES_V1 = "blkio.throttle.io_service_bytes_recursive"
OPERATIONS_V1 = "blkio.throttle.io_serviced_recursive"
MAX_IO_BYTES = 256 * 1024
MAX_COUNTER = 1 << 64

MAX_DIGITS = 20  # of a counter
UNREADABLE = "IoFileUnreadable"
NO_CONTROLLER = "IoControllerMissing"

_MESSAGES = {
    UNREADABLE: "a cgroup's file of block IO is unreadable or malformed",
    NO_CONTROLLER: "no pod has a file of block IO: no controller, or an old kernel's",
}

# paths of a disk that has several, and volumes of ZFS, have no number
_NAMELESS = b"(unknown)"
_NAME = rb"(?:[0-9]{1,7}:[0-9]{1,7}|\(unknown\))"
_LINE_V2 = re.compile(rb"(?:%b )*(%b)((?: [a-z0-9_.]+=\S+)*) *" % (_NAME, _NAME))
_NAMES_V2 = re.compile(rb"(?:%b )*" % _NAME)
_LINE_V1 = re.compile(rb"(%b) ([A-Z][a-z]+) ([0-9]{1,20})" % _NAME)
_TOTAL_V1 = re.compile(rb"Total [0-9]{1,20}")


def parse_io_stat(data: bytes) -> IoByDevice:
    """Parse `io.stat`; raises `ParseError` for text that no kernel prints.

    A group without IO has an empty file. Some kernels print devices without any figure: these are
    left out. Unknown keys, such as those of `io.cost`, are skipped.
    """
    devices: dict[str, DeviceIo] = {}
    *lines, rest = data.split(b"\n")
    if not _NAMES_V2.fullmatch(rest):
        raise ParseError(IO_STAT_V2, "the file is cut")
    for line in lines:
        match = _LINE_V2.fullmatch(line)
        if match is None or (number := match[1].decode()) in devices:
            raise ParseError(IO_STAT_V2, line[:80].decode("utf-8", "replace"))
        if match[1] == _NAMELESS:
            continue
        figures = dict(pair.split(b"=", 1) for pair in match[2].split())
        if b"rbytes" in figures:
            values = [
                _counter(figures.get(key)) for key in (b"rbytes", b"wbytes", b"rios", b"wios")
            ]
            devices[number] = DeviceIo(
                read_bytes=values[0], written_bytes=values[1], reads=values[2], writes=values[3]
            )
    return devices


def parse_throttle_counts(data: bytes) -> dict[str, tuple[int, int]]:
    """Return reads and writes by device of a `blkio.throttle` file, which a total ends.

    Devices without a number are left out.
    """
    if not data.endswith(b"\n"):
        raise ParseError(BYTES_V1, "the file is cut")
    lines = data.splitlines()
    if not lines or not _TOTAL_V1.fullmatch(lines[-1]):
        raise ParseError(BYTES_V1, data[-80:].decode("utf-8", "replace"))
    counts: dict[str, dict[bytes, int]] = {}
    for line in lines[:-1]:
        match = _LINE_V1.fullmatch(line)
        if match is not None and match[1] == _NAMELESS:
            continue
        operations = {} if match is None else counts.setdefault(match[1].decode(), {})
        if match is None or match[2] in operations:
            raise ParseError(BYTES_V1, line[:80].decode("utf-8", "replace"))
        operations[match[2]] = _counter(match[3])
    if any(not {b"Read", b"Write"} <= operations.keys() for operations in counts.values()):
        raise ParseError(BYTES_V1, "a device without Read or Write")
    return {number: (one[b"Read"], one[b"Write"]) for number, one in counts.items()}


def _counter(text: bytes | None) -> int:
    number = None if text is None else parse_digits(text, MAX_DIGITS)
    if number is None or number >= MAX_COUNTER:
        raise ParseError("block IO", repr(text)[:80])
    return number


class _Group(msgspec.Struct, frozen=True):
    """The cgroup of one pod or of one container."""

    key: str  # uid or id
    cgroup: str
    is_pod: bool


def _groups(pods: Iterable[PodView]) -> Iterator[_Group]:
    for pod in pods:
        if pod.cgroup:
            yield _Group(pod.uid, pod.cgroup, is_pod=True)
        for container in pod.containers:
            if container.cgroup:
                yield _Group(container.id, container.cgroup, is_pod=False)


class StorageCollector:
    """Reads the storage of the node, then block IO of its groups: a part of both in each call."""

    name = "storage"

    def __init__(self, host: HostFiles, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._cgroups: CgroupLayout | None = None
        self._devices: SpreadRound[str, BlockDevice] | None = None
        self._groups: SpreadRound[_Group, IoByDevice] = SpreadRound(())
        self._failures: set[str] = set()
        self._has_files = False  # some group has a file of block IO

    def collect(self, cycle: CollectorInput) -> StorageUsage | None:
        """Read some of it; return the values once everything is read."""
        if self._devices is None:
            self._failures, self._has_files = set(), False
            self._cgroups = cycle.layout
            self._devices = SpreadRound(block_device_names(self._host))
            self._groups = SpreadRound(_groups(cycle.pods))
        if not self._devices.is_complete:
            self._devices.read_some(self._read_device, self._clock)
            return None
        if not self._groups.read_some(self._read, self._clock):
            return None
        if self._groups.size and not self._has_files and not self._failures:
            self._failures.add(NO_CONTROLLER)
        devices, self._devices = tuple(self._devices.values.values()), None
        values = self._groups.values.items()
        return StorageUsage(
            devices=devices,
            volume_groups=volume_groups(devices),
            mounts=read_mounts(self._host, devices),
            pods={group.key: io for group, io in values if group.is_pod},
            containers={group.key: io for group, io in values if not group.is_pod},
            problems=tuple(
                Problem(reason=reason, message=_MESSAGES[reason])
                for reason in sorted(self._failures)
            ),
        )

    def close(self) -> None:
        """Forget the round: no descriptor stays open."""
        self._devices = None

    def _read_device(self, name: str) -> BlockDevice | None:
        return read_block_device(self._host, name)

    def _read(self, group: _Group) -> IoByDevice | None:
        try:
            return self._read_io(group.cgroup)
        except HostFileError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # else it has ended
                self._failures.add(UNREADABLE)
        except ParseError:
            self._failures.add(UNREADABLE)
        return None

    def _read_io(self, cgroup: str) -> IoByDevice | None:
        layout = self._cgroups
        folder = layout.directory("blkio", cgroup) if layout is not None else None
        if layout is None or folder is None:
            return None
        if layout.version == 2:
            data = self._host.read(f"{folder}/{IO_STAT_V2}", MAX_IO_BYTES)
            self._has_files = True
            return parse_io_stat(data)
        sizes = parse_throttle_counts(self._host.read(f"{folder}/{BYTES_V1}", MAX_IO_BYTES))
        self._has_files = True
        operations = parse_throttle_counts(
            self._host.read(f"{folder}/{OPERATIONS_V1}", MAX_IO_BYTES)
        )
        return {
            number: DeviceIo(
                read_bytes=read,
                written_bytes=written,
                reads=operations[number][0],
                writes=operations[number][1],
            )
            for number, (read, written) in sizes.items()
            if number in operations
        }
