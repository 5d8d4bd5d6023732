"""Block devices, volume groups and mounts of a host, from sysfs and the mount table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from agent.errors import HostFileError, ParseError
from agent.host.files import list_entries, read_text, read_value
from agent.snapshot.host_files import HostFiles
from agent.snapshot.usage import BlockDevice, DiskCounters, Mount
from agent.wire_formats.kernel_text import parse_dev_number, parse_digits, parse_int

BLOCK_DEVICES = "/sys/class/block"
MOUNT_INFO = "/proc/1/mountinfo"  # of the node, not of the agent's container
SECTOR_BYTES = 512  # of `size` and `stat`, whatever the device's own block size is
MAX_BLOCK_DEVICES = 1024
MAX_MOUNTS = 4096
MAX_MOUNT_BYTES = 4 << 20
MAX_COUNTER = 1 << 64

MAX_DIGITS = 20  # of a counter
STAT_FIELDS = (11, 15, 17)  # before 4.18, with discards, with flushes (5.5)
_KIND_OF_UUID = (("LVM-", "lvm"), ("CRYPT-", "crypt"), ("mpath-", "mpath"), ("part", "part"))
_KIND_OF_NAME = ((re.compile(r"loop[0-9]+"), "loop"), (re.compile(r"sr[0-9]+"), "rom"))
_ESCAPED = re.compile(r"\\([0-7]{3})")
_NAME_SEPARATOR = re.compile(r"(?<!-)-(?!-)")  # a hyphen within a name is doubled


def parse_disk_stat(text: str) -> DiskCounters:
    """Parse `stat` of a block device: sums since the start, in sectors and milliseconds."""
    fields = [parse_digits(field, MAX_DIGITS) for field in text.split()]
    numbers = [number for number in fields if number is not None and number < MAX_COUNTER]
    if len(fields) not in STAT_FIELDS or len(numbers) != len(fields):
        raise ParseError("block device stat", text)
    return DiskCounters(
        reads=numbers[0],
        read_bytes=numbers[2] * SECTOR_BYTES,
        writes=numbers[4],
        written_bytes=numbers[6] * SECTOR_BYTES,
        busy_ms=numbers[9],
    )


def split_lvm_name(name: str) -> tuple[str, str] | None:
    """Return volume group and logical volume of a device-mapper name: `my--vg-data`."""
    parts = _NAME_SEPARATOR.split(name)
    if len(parts) < 2 or not all(parts):
        return None
    return parts[0].replace("--", "-"), parts[1].replace("--", "-")


def block_device_names(host: HostFiles) -> tuple[str, ...]:
    """Return the names of disks, partitions and what is built on them."""
    return list_entries(host, BLOCK_DEVICES)[:MAX_BLOCK_DEVICES]


def read_block_device(host: HostFiles, name: str) -> BlockDevice | None:
    """Return one device; `None` for one without a size, and for a hidden path of another."""
    folder = f"{BLOCK_DEVICES}/{name}"
    number = read_value(host, f"{folder}/dev", parse_dev_number)
    sectors = read_value(host, f"{folder}/size", lambda text: parse_int(text, 1, MAX_COUNTER - 1))
    if number is None or sectors is None or read_text(host, f"{folder}/hidden") == "1":
        return None  # an unused loop device has size 0
    mapper_name = read_text(host, f"{folder}/dm/name") or ""
    kind = _kind(host, folder, name)
    volume = split_lvm_name(mapper_name) if kind == "lvm" else None
    return BlockDevice(
        name=name,
        number=f"{number[0]}:{number[1]}",
        kind=kind,
        size_bytes=sectors * SECTOR_BYTES,
        mapper_name=mapper_name,
        parents=_parents(host, folder, name),
        volume_group=volume[0] if volume else "",
        logical_volume=volume[1] if volume else "",
        counters=read_value(host, f"{folder}/stat", parse_disk_stat),
    )


def _kind(host: HostFiles, folder: str, name: str) -> str:
    """Return what `lsblk` calls the type of a device."""
    if host.exists(f"{folder}/partition"):
        return "part"
    uuid = read_text(host, f"{folder}/dm/uuid") or ""
    if host.exists(f"{folder}/dm"):
        return next((kind for prefix, kind in _KIND_OF_UUID if uuid.startswith(prefix)), "dm")
    level = read_text(host, f"{folder}/md/level")
    if level is not None:
        return level
    return next((kind for pattern, kind in _KIND_OF_NAME if pattern.fullmatch(name)), "disk")


def _parents(host: HostFiles, folder: str, name: str) -> tuple[str, ...]:
    """Return the names of the devices below: of a partition its disk, else the `slaves`."""
    if not host.exists(f"{folder}/partition"):
        return list_entries(host, f"{folder}/slaves")
    try:
        target = host.link(folder) or ""
    except HostFileError:
        return ()
    above, _, own = target.rstrip("/").rpartition("/")
    disk = above.rpartition("/")[2]
    return (disk,) if own == name and disk else ()


def read_mounts(host: HostFiles, devices: tuple[BlockDevice, ...]) -> tuple[Mount, ...]:
    """Return where block devices are mounted, by mount point."""
    try:
        text = host.read(MOUNT_INFO, MAX_MOUNT_BYTES).decode("utf-8", "replace")
    except HostFileError:
        return ()
    by_number = {device.number: device.name for device in devices}
    by_source = {f"/dev/{device.name}": device.name for device in devices}
    by_source |= {
        f"/dev/mapper/{device.mapper_name}": device.name for device in devices if device.mapper_name
    }
    mounts = {mount.path: mount for mount in _mounts(text, by_number, by_source)}
    return tuple(mounts[path] for path in sorted(mounts)[:MAX_MOUNTS])


def _mounts(
    text: str, by_number: Mapping[str, str], by_source: Mapping[str, str]
) -> Iterator[Mount]:
    """Yield mounts in the table's order: of two at one place the last one is in use."""
    lines = text.split("\n")[:-1]  # what follows the last newline is a cut line
    for line in lines:
        fields, separator, rest = line.partition(" - ")
        mount_fields, source_fields = fields.split(" "), rest.split(" ")
        if not separator or len(mount_fields) < 6 or len(source_fields) < 2:
            continue
        # btrfs has a number of its own for each subvolume: its source names the device
        device = by_number.get(mount_fields[2]) or by_source.get(_unescape(source_fields[1]))
        if device is not None:
            yield Mount(
                path=_unescape(mount_fields[4]),
                device=device,
                filesystem=source_fields[0],
                is_whole=mount_fields[3] == "/",
            )


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def volume_groups(devices: tuple[BlockDevice, ...]) -> Mapping[str, tuple[str, ...]]:
    """Return the devices that each volume group lies on, by group.

    sysfs shows logical volumes, not groups: a group without a volume in use is not known.
    """
    by_name = {device.name: device for device in devices}
    groups: dict[str, set[str]] = {}
    for device in devices:
        if device.volume_group:
            groups.setdefault(device.volume_group, set()).update(
                _physical_volumes(device, device.volume_group, by_name, set())
            )
    return {group: tuple(sorted(names)) for group, names in sorted(groups.items())}


def _physical_volumes(
    device: BlockDevice, group: str, by_name: Mapping[str, BlockDevice], visited: set[str]
) -> Iterator[str]:
    """Yield the first devices below that are not volumes of the same group themselves."""
    for name in device.parents:
        parent = by_name.get(name)
        if parent is None or name in visited:
            continue
        visited.add(name)
        if parent.volume_group == group:
            yield from _physical_volumes(parent, group, by_name, visited)
        else:
            yield name
