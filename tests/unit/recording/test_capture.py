from __future__ import annotations

import errno
import functools
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given

from agent.cgroup.layout import detect_layout
from agent.errors import HostFileError
from agent.host.cpu import read_cpu_numa
from agent.host.kernel import read_identity
from agent.host.pci import read_pci
from agent.recording.archive import read_archive
from agent.recording.capture import MAX_EMPTY_GIDS
from agent.recording.capture import capture_host as take
from agent.recording.directory import DirectoryFiles
from agent.recording.format import format_recording, parse_recording
from agent.recording.tree import (
    DeviceNodeEntry,
    EntryKind,
    ErrorEntry,
    LinkEntry,
    TreeEntry,
    TreeFiles,
)
from agent.snapshot.host_files import HostFiles
from plugins.vendors.nvidia.discovery.sysfs import find_hardware
from plugins.vendors.rdma.sysfs.functions import DRIVERS
from plugins.vendors.rdma.vendor import RdmaVendor
from tests.captures import SHARED, capture, needs_shared
from tests.unit.recording.trees import trees
from tests.vendors import open_session

CAPTURES = (
    "16amd64", "16em64t", "2pa", "32amd64", "32intel64", "40intel64", "96em64t", "nri-",
    "nvidiagpu", "qemu", "procfs-mlx4", "procfs-pci",
)  # fmt: skip
READERS: dict[str, Callable[[HostFiles], object]] = {
    "identity": lambda host: read_identity(host, "node", "test"),
    "cpus and memory nodes": read_cpu_numa,
    "pci": read_pci,
    "cgroups": detect_layout,
    "nvidia": find_hardware,
    "rdma": lambda host: open_session(RdmaVendor(), host, {}).discover(),
}
PORT = "/sys/class/infiniband/mlx5_0/ports/1"
GID = b"fe80:0000:0000:0000:0c42:a103:0047:2a4e\n"
EMPTY = b"0000:0000:0000:0000:0000:0000:0000:0000\n"


@functools.lru_cache(maxsize=len(CAPTURES))
def recorded(name: str) -> TreeFiles:
    return take(capture(name), pods=True)


class RecordingHost:
    """Passes questions on and remembers what was answered."""

    def __init__(self, host: HostFiles) -> None:
        self._host = host
        self.answers: dict[tuple[str, str], object] = {}

    def read(self, path: str, limit: int = 65536) -> bytes:
        try:
            data = self._host.read(path, limit)
        except HostFileError as error:
            self.answers["read", path] = error.errno
            raise
        self.answers["read", path] = data
        return data

    def names(self, path: str) -> tuple[str, ...]:
        return self._host.names(path)

    def link(self, path: str) -> str | None:
        self.answers["link", path] = text = self._host.link(path)
        return text

    def exists(self, path: str) -> bool:
        self.answers["exists", path] = there = self._host.exists(path)
        return there

    def device_number(self, path: str) -> tuple[int, int] | None:
        self.answers["device_number", path] = number = self._host.device_number(path)
        return number


def answer(host: HostFiles, ask: str, path: str) -> object:
    try:
        data: object = getattr(host, ask)(path)
    except HostFileError as error:
        return error.errno
    return data


@needs_shared
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", CAPTURES)
def test_every_reader_finds_in_a_recording_what_it_finds_on_the_host(
    name: str, reader: str
) -> None:
    reports = RecordingHost(capture(name))
    recording = recorded(name)
    assert READERS[reader](recording) == READERS[reader](reports)
    for (ask, path), expected in reports.answers.items():
        given_back = answer(recording, ask, path)
        if isinstance(expected, bytes) and isinstance(given_back, bytes):
            given_back = given_back[: len(expected)]
        # an empty slot of a GID table is as good as an absent one
        empty_slot = expected == EMPTY and given_back == errno.ENOENT
        assert given_back == expected or empty_slot, (ask, path)


@needs_shared
@pytest.mark.parametrize("name", ["qemu", "nvidiagpu"])
def test_recording_archive_and_folder_answer_alike(name: str, tmp_path: Path) -> None:
    (path,) = (
        item
        for item in sorted((SHARED / "captures").glob("*/*.tar.*"))
        if item.name.startswith(name) or item.parent.name == name
    )
    with tarfile.open(path) as archive:
        # as an attribute: Debian 12's Python 3.11.2 knows no filters, and takes all as they are
        archive.extraction_filter = lambda entry, _path: entry
        archive.extractall(tmp_path)
    builder = read_archive(path)
    top = "" if "/sys" in builder.directories else f"/{next(iter(builder.directories['']))}"
    hosts = (builder.build(top), DirectoryFiles(Path(f"{tmp_path}{top}")))
    recording = parse_recording(format_recording(take(hosts[0], pods=True), {}).encode()).files
    assert list(take(hosts[1], pods=True).walk()) == list(recording.walk())
    for directory, entries in recording.walk():
        for entry in entries:
            file = f"{directory}/{entry}"
            for ask in ("read", "link", "exists", "device_number"):
                answers = {str(answer(host, ask, file)) for host in (recording, *hosts)}
                assert len(answers) == 1, (ask, file)


@pytest.mark.parametrize("gap", [0, 1, MAX_EMPTY_GIDS - 1, MAX_EMPTY_GIDS])
def test_gids_are_taken_until_sixteen_empty_slots(gap: int) -> None:
    table = [GID, *[EMPTY] * gap, GID, *[EMPTY] * 100, GID]
    host = TreeFiles.from_entries(
        {f"{PORT}/gids/{index}": text for index, text in enumerate(table)}
        | {f"{PORT}/gid_attrs/types/{index}": b"RoCE v2\n" for index in range(len(table))}
        | {f"{PORT}/gid_attrs/ndevs/{index}": ErrorEntry(errno.EINVAL) for index in (0, 1)}
    )
    recording = take(host, pods=False)
    chosen = ("0",) if gap == MAX_EMPTY_GIDS else tuple(sorted(("0", str(gap + 1))))
    assert recording.names(f"{PORT}/gids") == chosen
    assert recording.names(f"{PORT}/gid_attrs/types") == chosen
    with pytest.raises(HostFileError, match="EINVAL"):
        recording.read(f"{PORT}/gid_attrs/ndevs/0")


def test_errnos_devices_links_and_empty_directories_are_taken_as_they_are() -> None:
    function = "/sys/bus/pci/devices/0000:3b:00.0"
    entries: dict[str, TreeEntry] = {
        function: LinkEntry("../../../devices/pci0000:3a/0000:3b:00.0"),
        "/sys/devices/pci0000:3a/0000:3b:00.0/config": ErrorEntry(errno.EACCES),
        "/sys/devices/pci0000:3a/0000:3b:00.0/driver": LinkEntry("../../../bus/pci/drivers/nvidia"),
        "/sys/bus/pci/drivers/nvidia": EntryKind.DIRECTORY,
        "/sys/class/infiniband": EntryKind.DIRECTORY,
        "/dev/nvidia0": DeviceNodeEntry(195, 0),
    }
    recording = take(TreeFiles.from_entries(entries), pods=False)
    assert recording.link(function) == "../../../devices/pci0000:3a/0000:3b:00.0"
    with pytest.raises(HostFileError, match="EACCES"):
        recording.read(f"{function}/config")
    assert recording.exists(f"{function}/driver")
    assert recording.exists("/sys/class/infiniband")
    assert recording.device_number("/dev/nvidia0") == (195, 0)


POD = "/sys/fs/cgroup/kubepods.slice/kubepods-pod1.slice"
NODE: dict[str, TreeEntry] = {
    "/proc/mounts": LinkEntry("self/mounts"),
    "/proc/self": LinkEntry("42"),
    "/proc/42/mounts": b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\ncgroup /odd cgroup rw,cpu 0 0\n",
    "/proc/42/cgroup": b"0::/\n",
    "/proc/77/cgroup": b"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-ab.scope\n",
    "/sys/fs/cgroup/cgroup.controllers": b"cpu memory\n",
    "/odd/cpu.shares": b"1024\n",
    f"{POD}/cri-containerd-ab.scope/cgroup.procs": b"77\n",
    f"{POD}/cri-containerd-ab.scope/memory.stat": b"anon 1\n",
    f"{POD}/cri-containerd-ab.scope/cgroup.kill": ErrorEntry(errno.EINVAL),
}


def test_mounts_are_recorded_under_the_name_and_no_process_is() -> None:
    recording = take(TreeFiles.from_entries(NODE), pods=False)
    assert recording.read("/proc/mounts") == NODE["/proc/42/mounts"]
    assert recording.link("/proc/mounts") is None
    assert not recording.exists("/proc/42")
    assert recording.read("/odd/cpu.shares") == b"1024\n"


def test_thousands_of_processes_do_not_hide_the_files_beside_them() -> None:
    busy: dict[str, TreeEntry] = {f"/proc/{pid}/comm": b"x\n" for pid in range(1, 8300)}
    recording = take(TreeFiles.from_entries({**busy, "/proc/stat": b"btime 1\n"}), pods=False)
    assert recording.read("/proc/stat") == b"btime 1\n"
    assert recording.names("/proc") == ("1", "stat")


@pytest.mark.parametrize("pods", [True, False])
def test_pods_and_the_owners_of_their_processes_are_taken_on_request(*, pods: bool) -> None:
    recording = take(TreeFiles.from_entries(NODE), pods=pods)
    assert recording.read("/sys/fs/cgroup/cgroup.controllers") == b"cpu memory\n"
    assert recording.exists(f"{POD}/cri-containerd-ab.scope/memory.stat") == pods
    assert recording.exists("/proc/77/cgroup") == pods
    assert not recording.exists(f"{POD}/cri-containerd-ab.scope/cgroup.kill")


@given(trees)
def test_any_host_can_be_recorded_and_read_back(tree: TreeFiles) -> None:
    recording = take(tree, pods=True)
    assert list(parse_recording(format_recording(recording, {}).encode()).files.walk()) == list(
        recording.walk()
    )


@pytest.mark.parametrize("module", sorted({driver.module for driver in DRIVERS.values()}))
def test_the_module_of_every_rdma_driver_is_recorded(module: str) -> None:
    host = TreeFiles.from_entries({f"/sys/module/{module}/initstate": b"live\n"})
    assert take(host, pods=False).exists(f"/sys/module/{module}")
