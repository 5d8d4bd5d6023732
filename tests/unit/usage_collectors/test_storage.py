from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.cgroup.layout import CgroupLayout, detect_layout
from agent.clock import ManualClock
from agent.errors import HostFileError, ParseError
from agent.host.files import LiveHostFiles
from agent.snapshot.host_files import MAX_READ
from agent.snapshot.pod import ContainerView, KubeQos, PodView
from agent.snapshot.usage import DeviceIo, StorageUsage
from agent.usage.collector import CollectorInput
from agent.usage.storage import StorageCollector, parse_io_stat, parse_throttle_counts
from tests.cgroups import CgroupHost, container_id

A = container_id(1)
POD = PodView(
    uid="a",
    qos=KubeQos.BURSTABLE,
    cgroup="/kubepods/poda",
    containers=(ContainerView(id=A, cgroup=f"/kubepods/poda/{A}"),),
)
SDA = DeviceIo(read_bytes=10, written_bytes=20, reads=1, writes=2)
LINE = "8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n"


def throttle(read: object, write: object, device: str = "8:0") -> str:
    return (
        f"{device} Read {read}\n{device} Write {write}\n{device} Sync 0\n{device} Async 0\n"
        f"{device} Discard 0\n{device} Total 30\nTotal 30\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        LINE,
        "8:16\n" + LINE,  # kernels print devices without figures
        "8:16 \n" + LINE,
        "8:16 8:32 " + LINE,  # kernels 5.14 to 5.16 end no line of such a device
        LINE + "8:16 ",
        LINE + "8:16 8:32 ",
        "(unknown) rbytes=9 wbytes=9 rios=9 wios=9 dbytes=0 dios=0\n" * 2 + LINE,
        "(unknown) " + LINE + "(unknown) ",
        LINE.replace("\n", " cost.usage=5 cost.wait=max\n"),
        "8:0 wios=2 rios=1 wbytes=20 rbytes=10\n",
    ],
)
def test_io_of_version_2(text: str) -> None:
    assert parse_io_stat(text.encode()) == {"8:0": SDA}


@pytest.mark.parametrize("text", ["", "8:0 ", "8:0 8:16 ", "8:0 \n", "(unknown) \n"])
def test_a_group_without_io_has_no_devices(text: str) -> None:
    assert parse_io_stat(text.encode()) == {}


@pytest.mark.parametrize(
    "text",
    [
        "\n",
        LINE[:-1],
        LINE + LINE,
        LINE.replace("wbytes=20 ", ""),
        LINE.replace("=20", "=max"),
        LINE.replace("=20", "=-20"),
        LINE.replace("=20", "="),
        LINE.replace("=20", f"={1 << 64}"),
        LINE.replace("8:0", "sda"),
        "x" + LINE,
        LINE.replace(" rios", " 8:16 rios"),
        LINE + "8:16",
        LINE + "8:16 rbytes=1 ",
        "(other) " + LINE,
    ],
)
def test_broken_io_of_version_2_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_io_stat(text.encode())


def test_io_of_version_1() -> None:
    assert parse_throttle_counts(throttle(10, 20).encode()) == {"8:0": (10, 20)}
    # paths of a disk with several, and volumes that are no disks, have no number
    nameless = throttle(7, 7, "(unknown)").rpartition("Total")[0]
    both = f"{nameless}{nameless}{throttle(10, 20)}"
    assert parse_throttle_counts(both.encode()) == {"8:0": (10, 20)}
    assert parse_throttle_counts(b"Total 0\n") == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        throttle(10, 20)[:-1],
        throttle(10, 20)[:20],
        throttle(10, 20)[: -len("Total 30\n")],
        throttle(10, 20).replace("8:0 Write 20\n", ""),
        throttle(10, -20),
        throttle(10, "max"),
        throttle(10, 1 << 64),
        throttle(10, 20).replace("Write", "Read"),
    ],
)
def test_broken_io_of_version_1_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_throttle_counts(text.encode())


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> CgroupHost:
    host = CgroupHost(tmp_path, version=request.param)
    if host.version == 1:
        with host.path("/proc/mounts").open("a") as mounts:
            mounts.write("cgroup /sys/fs/cgroup/blkio cgroup rw,blkio 0 0\n")
    device = "/sys/devices/pci0000:00/block/sda"
    host.write(f"{device}/dev", "8:0\n")
    host.write(f"{device}/size", "2048\n")
    host.path("/sys/class/block").mkdir(parents=True)
    host.path("/sys/class/block/sda").symlink_to("../../devices/pci0000:00/block/sda")
    put(host, LINE, throttle(10, 20), throttle(1, 2))
    return host


def put(
    host: CgroupHost, v2: str, sizes: str, operations: str, cgroup: str = "/kubepods/poda"
) -> None:
    if host.version == 2:
        host.write(f"/sys/fs/cgroup{cgroup}/io.stat", v2)
        return
    folder = f"/sys/fs/cgroup/blkio{cgroup}/blkio.throttle"
    host.write(f"{folder}.io_service_bytes_recursive", sizes)
    host.write(f"{folder}.io_serviced_recursive", operations)
    host.write(f"{folder}.io_service_bytes", "Total 0\n")  # of the group itself


def collect(host: CgroupHost, files: LiveHostFiles | None = None) -> StorageUsage:
    collector = StorageCollector(files or host.files, ManualClock())
    layout = detect_layout(host.files)
    for second in range(9):
        cycle = CollectorInput(now_s=float(second), layout=layout, pods=(POD,))
        value = collector.collect(cycle)
        if value is not None:
            return value
    raise AssertionError("no round was completed")


def reasons(value: StorageUsage) -> list[str]:
    return [problem.reason for problem in value.problems]


def test_devices_and_block_io_of_pods_are_read_with_the_groups_below(host: CgroupHost) -> None:
    value = collect(host)
    assert [(device.name, device.number, device.size_bytes) for device in value.devices] == [
        ("sda", "8:0", 1 << 20)
    ]
    assert value.pods == {"a": {"8:0": SDA}}
    assert value.problems == ()


def test_a_container_has_its_own_block_io(host: CgroupHost) -> None:
    own = LINE.replace("=10", "=7").replace("=20", "=8")
    put(host, own, throttle(7, 8), throttle(1, 2), POD.containers[0].cgroup)
    value = collect(host)
    assert value.pods == {"a": {"8:0": SDA}}
    io = DeviceIo(read_bytes=7, written_bytes=8, reads=1, writes=2)
    assert value.containers == {A: {"8:0": io}}


def test_a_container_that_ends_meanwhile_is_absent_without_a_reason(host: CgroupHost) -> None:
    value = collect(host)
    assert (value.containers, value.problems) == ({}, ())


def test_broken_files_of_a_pod_are_absent_with_a_reason(host: CgroupHost) -> None:
    put(host, LINE[:-3], throttle(10, 20)[:-3], throttle(1, 2))
    value = collect(host)
    assert (value.pods, reasons(value), len(value.devices)) == ({}, ["IoFileUnreadable"], 1)


def test_pods_without_a_file_of_block_io_are_a_reason(host: CgroupHost) -> None:
    for path in (*host.root.rglob("io.stat"), *host.root.rglob("blkio.throttle.*")):
        path.unlink()
    value = collect(host)
    assert (value.pods, reasons(value)) == ({}, ["IoControllerMissing"])


class RefusingFiles(LiveHostFiles):
    """A host whose kernel answers EOPNOTSUPP."""

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        if "/kubepods/" in path:
            raise HostFileError(path, 95)
        return super().read(path, limit)


def test_a_refusal_is_a_reason(host: CgroupHost) -> None:
    value = collect(host, RefusingFiles(str(host.root)))
    assert (value.pods, reasons(value)) == ({}, ["IoFileUnreadable"])


def test_a_device_that_only_one_file_of_version_1_names_is_left_out(tmp_path: Path) -> None:
    host = CgroupHost(tmp_path, version=1)
    with host.path("/proc/mounts").open("a") as mounts:
        mounts.write("cgroup /sys/fs/cgroup/blkio cgroup rw,blkio 0 0\n")
    put(host, "", throttle(10, 20), "Total 0\n")
    assert collect(host).pods == {"a": {}}


def _blkio_of(folder: Path) -> tuple[Path, str] | None:
    """Return version 1's mount of blkio and the number of the folder's disk; `None`: no test."""
    mount = Path("/sys/fs/cgroup/blkio")
    status = folder.stat()
    number = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    if not Path(f"/sys/dev/block/{number}/queue").exists() or os.geteuid() != 0:
        return None
    return (mount, number) if os.access(mount / "cgroup.procs", os.W_OK) else None


def test_a_real_kernel_of_version_1_counts_what_a_container_wrote(tmp_path: Path) -> None:
    place = _blkio_of(tmp_path)
    if place is None:
        pytest.skip("needs root, cgroup v1 with blkio, and a temporary folder on a whole disk")
    mount, number = place
    root = f"/storage-{os.getpid()}"
    group = mount / root[1:] / "poda/c"
    group.mkdir(parents=True)
    try:
        # recent kernels count devices that have a limit in some group
        (group / "blkio.throttle.write_bps_device").write_text(f"{number} {1 << 30}\n")
        script = (
            "import mmap, os, sys\n"
            "open(sys.argv[1] + '/cgroup.procs', 'w').write('0')\n"
            "fd = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_DIRECT)\n"
            "os.write(fd, mmap.mmap(-1, 1 << 20))\n"
        )
        target = str(tmp_path / "written")
        subprocess.run([sys.executable, "-c", script, str(group), target], check=True, timeout=30)
        layout = CgroupLayout(
            version=1,
            driver="cgroupfs",
            mounts=(("blkio", str(mount)),),
            unified=None,
            root=root,
        )
        collector = StorageCollector(LiveHostFiles(), ManualClock())
        pod = PodView(uid="a", qos=KubeQos.BURSTABLE, cgroup=f"{root}/poda")
        value = None
        while value is None:
            value = collector.collect(CollectorInput(now_s=1.0, layout=layout, pods=(pod,)))
    finally:
        for folder in (group, group.parent, group.parent.parent):
            folder.rmdir()
    assert value.pods["a"][number].written_bytes >= 1 << 20
    assert value.pods["a"][number].writes >= 1
    assert number in {device.number for device in value.devices}
