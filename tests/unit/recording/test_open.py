from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from agent.errors import NotAHost
from agent.host.files import LiveHostFiles
from agent.recording.format import format_recording
from agent.recording.host_source import open_host
from agent.recording.tree import RecordingError, TreeFiles

TEXT = format_recording(
    TreeFiles.from_entries({"/sys/a": b"1\n"}), {"recorded": "2026-11-21T03:56:23Z"}
)


@pytest.fixture(params=["folder", "folder below", "recording", "archive", "archive below"])
def given_host(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    top = tmp_path / "host" / "below" if "below" in request.param else tmp_path / "host"
    (top / "tapes").mkdir(parents=True)
    (top / "tapes/nvidia.jsonl").write_bytes(b"{}\n")
    (top / "tapes/NOT A VENDOR.jsonl").write_bytes(b"{}\n")
    if request.param == "recording":
        (top / "host.txt").write_text(TEXT)
    else:
        (top / "sys").mkdir()
        (top / "sys/a").write_bytes(b"1\n")
    if "archive" not in request.param:
        return tmp_path / "host"
    packed = tmp_path / "host.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(tmp_path / "host", arcname=".")
    return packed


def test_a_host_opens_in_every_form(given_host: Path) -> None:
    opened = open_host(str(given_host))
    assert opened.files.read("/sys/a") == b"1\n"
    assert opened.source in ("host", "below", "host.tar.gz")
    tape = opened.tape("nvidia")
    assert (tape.read_bytes() if isinstance(tape, Path) else tape) == b"{}\n"
    assert opened.tape("rdma") is None
    assert set(opened.tapes) == {"nvidia"}


def test_another_process_opens_the_same_host_by_its_spec(given_host: Path) -> None:
    spec = open_host(str(given_host)).spec
    assert spec is not None
    assert Path(spec).is_absolute()
    assert open_host(spec).files.read("/sys/a") == b"1\n"


@pytest.mark.parametrize("path", [None, "/", "//", "/proc/.."])
def test_this_machine_is_read_live_and_has_no_spec(path: str | None) -> None:
    opened = open_host(path)
    assert isinstance(opened.files, LiveHostFiles)
    assert (opened.source, opened.spec, opened.wall_s) == ("this machine", None, None)


def test_a_recording_knows_when_it_was_made(tmp_path: Path) -> None:
    (tmp_path / "host.txt").write_text(TEXT)
    assert open_host(str(tmp_path)).wall_s == 1795233383.0


@pytest.mark.parametrize("name", ["absent", "empty", "file"])
def test_what_holds_no_machine_is_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no archive")
    with pytest.raises(NotAHost, match=name):
        open_host(str(tmp_path / name))


def test_a_bad_line_of_a_recording_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "host.txt").write_text(TEXT + "bad\n")
    with pytest.raises(RecordingError, match=r"host\.txt: line 6"):
        open_host(str(tmp_path))


def test_two_folders_above_are_one_too_many(tmp_path: Path) -> None:
    (tmp_path / "a/b/sys").mkdir(parents=True)
    assert open_host(str(tmp_path / "a")).files.names("/") == ("sys",)
    with pytest.raises(NotAHost, match="nor in a folder of it"):
        open_host(str(tmp_path))
