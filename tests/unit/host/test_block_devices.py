from __future__ import annotations

from pathlib import Path

import pytest

from agent.errors import ParseError
from agent.host.block_devices import (
    block_device_names,
    parse_disk_stat,
    read_block_device,
    read_mounts,
    split_lvm_name,
    volume_groups,
)
from agent.host.files import LiveHostFiles
from agent.snapshot.usage import BlockDevice, DiskCounters, Mount

STAT = "5 0 16 9 7 0 32 9 0 1500 18"
COUNTERS = DiskCounters(reads=5, read_bytes=8192, writes=7, written_bytes=16384, busy_ms=1500)


class BlockTree:
    """A sysfs with block devices in a directory of a test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = LiveHostFiles(str(root))

    def add(self, name: str, number: str, below: str = "pci0000:00", **files: str) -> None:
        """Add a device; `files` are by name, with `__` for a folder."""
        folder = f"sys/devices/{below}/{name}"
        self.write(f"{folder}/dev", f"{number}\n")
        self.write(f"{folder}/size", "4\n")
        self.write(f"{folder}/stat", f"{STAT}\n")
        for file, text in files.items():
            self.write(f"{folder}/{file.replace('__', '/')}", text)
        link = self.root / "sys/class/block" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../../{folder}")

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def slaves(self, name: str, *below: str) -> None:
        for one in below:
            self.write(f"sys/class/block/{name}/slaves/{one}", "")

    def read(self) -> dict[str, BlockDevice]:
        devices = (read_block_device(self.files, name) for name in block_device_names(self.files))
        return {device.name: device for device in devices if device is not None}


@pytest.fixture
def tree(tmp_path: Path) -> BlockTree:
    tree = BlockTree(tmp_path)
    tree.add("sda", "8:0")
    tree.add("sda1", "8:1", "pci0000:00/sda", partition="1\n")
    tree.add("sdb", "8:16")
    lvm = {"dm__uuid": "LVM-0123\n"}
    tree.add("dm-0", "253:0", "virtual", dm__name="my--vg-data\n", **lvm)
    tree.add("dm-1", "253:1", "virtual", dm__name="my--vg-pool_tmeta\n", **lvm)
    tree.slaves("dm-0", "dm-1", "sda1")
    tree.slaves("dm-1", "sdb")
    return tree


@pytest.mark.parametrize("extra", ["", " 0 0 0 0", " 0 0 0 0 3 1"])
def test_sectors_of_stat_have_512_bytes_on_every_kernel(extra: str) -> None:
    assert parse_disk_stat(f"   {STAT}{extra}\n") == COUNTERS


@pytest.mark.parametrize(
    "text",
    ["", "1 2 3", STAT[:-3], f"{STAT} 1", STAT.replace("1500", "-1"), f"{STAT[:-2]}{1 << 64}"],
)
def test_a_broken_stat_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_disk_stat(text)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vg-data", ("vg", "data")),
        ("my--vg-my--data", ("my-vg", "my-data")),
        ("vg-pool-tpool", ("vg", "pool")),
        ("vg", None),
        ("my--vg", None),
        ("", None),
        ("-data", None),
    ],
)
def test_a_hyphen_in_the_name_of_a_volume_is_doubled(
    name: str, expected: tuple[str, str] | None
) -> None:
    assert split_lvm_name(name) == expected


def test_partitions_volumes_and_disks_with_what_they_are_built_on(tree: BlockTree) -> None:
    devices = tree.read()
    assert [
        (device.name, device.number, device.kind, device.parents) for device in devices.values()
    ] == [
        ("dm-0", "253:0", "lvm", ("dm-1", "sda1")),
        ("dm-1", "253:1", "lvm", ("sdb",)),
        ("sda", "8:0", "disk", ()),
        ("sda1", "8:1", "part", ("sda",)),
        ("sdb", "8:16", "disk", ()),
    ]
    assert (devices["dm-0"].volume_group, devices["dm-0"].logical_volume) == ("my-vg", "data")
    assert (devices["sda"].size_bytes, devices["sda"].counters) == (2048, COUNTERS)


def test_a_volume_group_lies_on_the_devices_below_its_inner_volumes(tree: BlockTree) -> None:
    assert volume_groups(tuple(tree.read().values())) == {"my-vg": ("sda1", "sdb")}


def test_a_circle_of_devices_ends() -> None:
    def device(name: str, parent: str) -> BlockDevice:
        return BlockDevice(
            name=name, number=name, kind="lvm", size_bytes=1, parents=(parent,), volume_group="v"
        )

    assert volume_groups((device("a", "b"), device("b", "a"))) == {"v": ()}


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"dm__uuid": "CRYPT-LUKS2-1\n"}, "crypt"),
        ({"dm__uuid": "mpath-36\n"}, "mpath"),
        ({"dm__uuid": "part1-mpath-36\n"}, "part"),
        ({"dm__name": "x\n"}, "dm"),
        ({"md__level": "raid1\n"}, "raid1"),
    ],
)
def test_kinds_are_those_of_lsblk(tmp_path: Path, files: dict[str, str], kind: str) -> None:
    tree = BlockTree(tmp_path)
    tree.add("x", "1:1", "virtual", **files)
    assert tree.read()["x"].kind == kind


def test_loop_devices_and_optical_drives_are_known_by_name(tmp_path: Path) -> None:
    tree = BlockTree(tmp_path)
    tree.add("loop3", "7:3")
    tree.add("sr0", "11:0")
    assert [one.kind for one in tree.read().values()] == ["loop", "rom"]


@pytest.mark.parametrize(
    "files",
    [
        {"size": "0\n"},
        {"size": "-1\n"},
        {"size": ""},
        {"dev": "x\n"},
        {"dev": ""},
        {"hidden": "1\n"},
    ],
)
def test_devices_without_size_or_number_and_hidden_paths_are_left_out(
    tmp_path: Path, files: dict[str, str]
) -> None:
    tree = BlockTree(tmp_path)
    tree.add("nvme0c0n1", "259:0", **files)
    assert tree.read() == {}


def test_a_device_with_a_broken_stat_has_no_counters(tmp_path: Path) -> None:
    tree = BlockTree(tmp_path)
    tree.add("sda", "8:0", stat="1 2\n")
    assert tree.read()["sda"].counters is None


MOUNTS = """\
20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
21 20 0:5 / /proc rw - proc proc rw
22 20 0:44 /@home /home rw - btrfs /dev/sdb rw
23 20 253:0 / /my\\040data rw master:2 - xfs /dev/mapper/my--vg-data rw
24 20 8:1 /etc/hosts /run/hosts rw - ext4 /dev/sda1 rw
25 20 0:60 / /other rw - btrfs /dev/mapper/my--vg-data rw
26 20 0:61 / /unknown rw - btrfs /dev/sdz rw
"""


def test_mounts_are_joined_by_number_or_by_source(tree: BlockTree) -> None:
    tree.write("proc/1/mountinfo", MOUNTS)
    assert read_mounts(tree.files, tuple(tree.read().values())) == (
        Mount(path="/", device="sda1", filesystem="ext4"),
        Mount(path="/home", device="sdb", filesystem="btrfs", is_whole=False),
        Mount(path="/my data", device="dm-0", filesystem="xfs"),
        Mount(path="/other", device="dm-0", filesystem="btrfs"),
        Mount(path="/run/hosts", device="sda1", filesystem="ext4", is_whole=False),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "20 1 8:1 / / rw\n",
        "20 1 8:1 / / rw - ext4\n",
        "20 1 8:1 / / rw shared:1 ext4 /dev/sda1 rw\n",
        "20 1 8:1 / / rw - ext4 /dev/sda1 rw",  # cut
    ],
)
def test_lines_that_are_no_mounts_are_left_out(tree: BlockTree, text: str) -> None:
    tree.write("proc/1/mountinfo", text)
    assert read_mounts(tree.files, tuple(tree.read().values())) == ()


def test_of_two_mounts_at_one_place_the_last_one_is_in_use(tree: BlockTree) -> None:
    tree.write("proc/1/mountinfo", MOUNTS + "30 20 8:16 / / rw - xfs /dev/sdb rw\n")
    mounts = read_mounts(tree.files, tuple(tree.read().values()))
    assert mounts[0] == Mount(path="/", device="sdb", filesystem="xfs")


def test_a_host_without_a_mount_table_has_no_mounts(tree: BlockTree) -> None:
    assert read_mounts(tree.files, ()) == ()


def test_this_machine_is_read_without_an_error() -> None:
    files = LiveHostFiles()
    devices = [read_block_device(files, name) for name in block_device_names(files)]
    with_size = tuple(device for device in devices if device is not None)
    assert all(device.size_bytes > 0 for device in with_size)
    read_mounts(files, with_size)
