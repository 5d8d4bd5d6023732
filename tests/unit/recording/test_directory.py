from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings

from agent.errors import HostFileError
from agent.host.files import LiveHostFiles
from agent.recording.directory import DirectoryFiles
from agent.recording.tree import TreeFiles
from tests.unit.recording.trees import disk_paths, disk_trees, lay_out

OPENAT2 = 437
RESOLVE_IN_ROOT = 0x10


def kernel_finds(folder: Path, path: str) -> bytes | int:
    """Ask the kernel what a path below a root leads to: the contents, or an errno."""
    how = (ctypes.c_uint64 * 3)(os.O_RDONLY | os.O_CLOEXEC, 0, RESOLVE_IN_ROOT)
    libc = ctypes.CDLL(None, use_errno=True)
    root = os.open(folder, os.O_PATH)
    try:
        fd = libc.syscall(OPENAT2, root, path.encode(), ctypes.byref(how), ctypes.sizeof(how))
    finally:
        os.close(root)
    if fd < 0:
        return ctypes.get_errno()
    try:
        return os.read(fd, 1 << 16)
    except OSError as error:
        return error.errno or 0
    finally:
        os.close(fd)


def content_or_errno(host: DirectoryFiles | TreeFiles, path: str) -> bytes | int:
    try:
        return host.read(path)
    except HostFileError as error:
        return error.errno


@settings(max_examples=60)
@given(disk_trees, disk_paths)
def test_a_folder_a_tree_and_the_kernel_find_the_same(tree: TreeFiles, path: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay_out(tree, folder)
        host = DirectoryFiles(folder)
        assert content_or_errno(host, path) == content_or_errno(tree, path)
        assert host.exists(path) == tree.exists(path)
        if host.exists(path):
            assert host.names(path) == tree.names(path)
            assert host.link(path) == tree.link(path)
        requests = kernel_finds(folder, path)
        if requests != errno.ENOSYS:
            assert content_or_errno(host, path) == requests


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "host"
    (root / "sys").mkdir(parents=True)
    (root / "sys/real").write_bytes(b"inside\n")
    (tmp_path / "secret").write_bytes(b"outside\n")
    return root


@pytest.mark.parametrize("target", ["../../secret", "../../../../../../secret", "SECRET"])
def test_nothing_outside_of_the_folder_is_read(folder: Path, target: str) -> None:
    secret = folder.parent / "secret"
    os.symlink(target.replace("SECRET", str(secret)), folder / "sys/link")
    os.symlink("/", folder / "sys/root")
    host = DirectoryFiles(folder)
    with pytest.raises(HostFileError, match="ENOENT"):
        host.read("/sys/link")
    assert not host.exists("/sys/link")
    assert host.names("/sys/root") == ("sys",)
    assert host.read("/sys/root/sys/root/sys/real") == b"inside\n"


def test_fifos_are_never_opened(folder: Path) -> None:
    os.mkfifo(folder / "sys/fifo")
    host = DirectoryFiles(folder)
    with pytest.raises(HostFileError, match="ENXIO"):
        host.read("/sys/fifo")
    assert host.exists("/sys/fifo")
    assert host.device_number("/sys/fifo") is None


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")
@pytest.mark.parametrize("number", [(195, 7), (511, 3), (231, 300)])  # beyond a byte each
def test_device_nodes_have_numbers_and_are_never_opened(
    folder: Path, number: tuple[int, int]
) -> None:
    try:
        os.mknod(folder / "sys/node", 0o020600, os.makedev(*number))
    except PermissionError:
        pytest.skip("this container may not make device nodes")
    host = DirectoryFiles(folder)
    assert host.device_number("/sys/node") == LiveHostFiles(str(folder)).device_number("/sys/node")
    assert host.device_number("/sys/node") == number
    with pytest.raises(HostFileError, match="ENXIO"):
        host.read("/sys/node")


def test_added_and_removed_entries_are_noticed(folder: Path) -> None:
    host = DirectoryFiles(folder)
    assert not host.exists("/sys/class/net/eth0")
    (folder / "sys/class/net/eth0").mkdir(parents=True)
    assert host.exists("/sys/class/net/eth0")
    (folder / "sys/class/net/eth0").rmdir()
    assert host.names("/sys/class/net") == ()


def test_a_folder_reads_as_the_live_root_does(folder: Path) -> None:
    os.symlink("real", folder / "sys/link")
    live, host = LiveHostFiles(str(folder)), DirectoryFiles(folder)
    for path in ("/sys/link", "/sys/real"):
        assert host.read(path) == live.read(path)
        assert host.link(path) == live.link(path)
    assert host.names("/sys") == live.names("/sys") == ("link", "real")
    assert host.names("/absent") == live.names("/absent") == ()
    assert host.link("/absent") == live.link("/absent") is None
    with pytest.raises(HostFileError, match="EISDIR"):
        host.read("/sys")


def test_a_long_name_is_an_error_and_no_crash(folder: Path) -> None:
    host = DirectoryFiles(folder)
    with pytest.raises(HostFileError, match="ENAMETOOLONG"):
        host.read("/sys/" + "x" * 300)
    assert not host.exists("/sys/" + "x" * 300)
