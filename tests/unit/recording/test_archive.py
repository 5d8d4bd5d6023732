from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import NotAHost
from agent.recording import archive as archive_module
from agent.recording.archive import read_archive
from agent.recording.tree import DeviceNodeEntry, EntryKind, LinkEntry, RecordingError
from agent.snapshot.host_files import MAX_READ


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture
def tar(tmp_path: Path) -> Callable[[bytes], Path]:
    def make(data: bytes) -> Path:
        path = tmp_path / "host.tar"
        path.write_bytes(data)
        return path

    return make


PLAIN = packed(
    (member("top/sys/class", tarfile.DIRTYPE), b""),
    (member("top/sys/a"), b"1\n"),
    (member("top/sys/link", tarfile.SYMTYPE, linkname="/sys/a"), b""),
    (member("top/sys/same", tarfile.LNKTYPE, linkname="top/sys/a"), b""),
    (member("top/dev/nvidia0", tarfile.CHRTYPE, devmajor=195, devminor=0), b""),
)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_every_compression_gives_the_same_host(
    pack: Callable[[bytes], bytes], tar: Callable[[bytes], Path]
) -> None:
    builder = read_archive(tar(pack(PLAIN)))
    assert builder.get("/top/sys/class") is EntryKind.DIRECTORY
    assert builder.get("/top/sys/a") == builder.get("/top/sys/same") == b"1\n"
    assert builder.get("/top/sys/link") == LinkEntry("/sys/a")
    assert builder.get("/top/dev/nvidia0") == DeviceNodeEntry(195, 0)
    host = builder.build("/top")
    assert host.read("/sys/link") == b"1\n"
    assert host.names("/") == ("dev", "sys")


@pytest.mark.parametrize(
    "name", ["../evil", "sys/../../evil", "..", "sys/..", "sys/link/evil", "sys/file/evil"]
)
def test_a_hostile_name_is_left_out_and_the_rest_stays(
    name: str, tar: Callable[[bytes], Path]
) -> None:
    data = packed(
        (member("sys/link", tarfile.SYMTYPE, linkname="/tmp"), b""),
        (member("sys/file"), b"kept"),
        (member(name), b"evil"),
        (member("/sys/absolute"), b"inside"),
    )
    builder = read_archive(tar(data))
    contents = [entry for inside in builder.directories.values() for entry in inside.values()]
    assert b"evil" not in contents
    assert builder.get("/sys/file") == b"kept"
    assert builder.get("/sys/absolute") == b"inside"


def test_the_last_of_two_files_of_one_name_counts(tar: Callable[[bytes], Path]) -> None:
    builder = read_archive(tar(packed((member("sys/a"), b"1"), (member("./sys//a"), b"2"))))
    assert builder.get("/sys/a") == b"2"


@pytest.mark.parametrize(
    "info",
    [
        member("sys/x", tarfile.FIFOTYPE),
        member("sys/x", tarfile.LNKTYPE, linkname="etc/passwd"),
        member("sys/x", tarfile.CHRTYPE, devmajor=1 << 20, devminor=0),
    ],
)
def test_what_is_no_file_of_a_host_is_left_out(
    info: tarfile.TarInfo, tar: Callable[[bytes], Path]
) -> None:
    assert read_archive(tar(packed((info, b"")))).get("/sys/x") is None


def test_only_the_start_of_a_file_is_read_but_all_of_a_recording(
    tar: Callable[[bytes], Path],
) -> None:
    long = bytes(MAX_READ + 1)
    names = ("sys/long", "top/host.txt", "top/tapes/nvidia.jsonl")
    builder = read_archive(tar(packed(*((member(name), long) for name in names))))
    sizes = [len(entry) for name in names if isinstance(entry := builder.get(f"/{name}"), bytes)]
    assert sizes == [MAX_READ, MAX_READ + 1, MAX_READ + 1]


@pytest.mark.parametrize(
    ("limit", "value"),
    [("MAX_TREE_ENTRIES", 3), ("MAX_UNPACKED_BYTES", 1000), ("_MAX_STEP_BYTES", 100)],
)
def test_an_archive_beyond_a_bound_is_refused(
    limit: str, value: int, tar: Callable[[bytes], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, limit, value)
    many = packed(*((member(f"sys/{number}"), bytes(2000)) for number in range(9)))
    with pytest.raises(RecordingError):
        read_archive(tar(many))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no archive",
        b"\xfd7zXZ\0 no archive",
        b"BZh no archive",
        b"\x1f\x8b no archive",
        lzma.compress(PLAIN)[:-30],
        gzip.compress(PLAIN)[:-30],
        PLAIN[:700] + b"\xff" * 200,
        packed((member("sys/a"), bytes(9000)))[:3000],
    ],
)
def test_a_damaged_archive_is_refused_or_smaller(data: bytes, tar: Callable[[bytes], Path]) -> None:
    path = tar(data)
    try:
        builder = read_archive(path)
    except NotAHost as error:
        assert str(path) in str(error)  # noqa: PT017  # either outcome is right
    else:
        assert builder.get("/sys/a") is None


def test_a_header_of_gigabytes_is_refused_at_once(
    tar: Callable[[bytes], Path],
) -> None:
    forged = member("sys/a", tarfile.XHDTYPE)
    forged.size = 1 << 33
    with pytest.raises(RecordingError, match="8589934592"):
        read_archive(tar(forged.tobuf(tarfile.GNU_FORMAT) + bytes(1024)))


def test_a_long_chain_of_extended_headers_ends_in_an_error(tar: Callable[[bytes], Path]) -> None:
    header = member("x", tarfile.XHDTYPE).tobuf(tarfile.USTAR_FORMAT)
    with pytest.raises(NotAHost):
        read_archive(tar(header * 5000 + bytes(1024)))


@settings(max_examples=50)
@given(st.data())
def test_flipped_bytes_never_crash_the_reader(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    forged = bytearray(PLAIN)
    for _ in range(data.draw(st.integers(1, 8))):
        forged[data.draw(st.integers(0, 5 * 512))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "forged.tar"
    path.write_bytes(forged)
    try:
        read_archive(path)
    except NotAHost as error:
        assert "forged.tar" in str(error)  # noqa: PT017  # either outcome is right
