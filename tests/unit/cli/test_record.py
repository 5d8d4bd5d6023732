from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from agent.recording.host_source import HostSource, open_host
from agent.recording.tree import ErrorEntry, LinkEntry, RecordingError, TreeEntry, TreeFiles
from agent.recording.writer import save_recording, write_recording

ENTRIES: dict[str, TreeEntry] = {
    "/proc/version": b"Linux version 6.1.0 (who@where) #1\n",
    "/proc/sys/kernel/hostname": b"gpu-node-17\n",
    "/sys/class/net/eth0": LinkEntry("../../devices/net/eth0"),
    "/sys/devices/net/eth0/address": b"0c:42:a1:47:2a:4e\n",
    "/sys/devices/net/eth0/speed": ErrorEntry(22),
}
HOST = HostSource(files=TreeFiles.from_entries(ENTRIES), spec="/somewhere", wall_s=1795233383.0)
TAPES = {"nvidia": b'{"tape": 1, "by": "gpu-node-17", "mac": "0c:42:a1:47:2a:4e"}\n'}


@pytest.mark.parametrize("name", ["host", "host.tar.gz", "deep/er/host.tgz"])
def test_a_recording_opens_as_the_host_it_was_made_of(name: str, tmp_path: Path) -> None:
    out = tmp_path / name
    report = write_recording(str(out), HOST, TAPES, pseudonymise=False, pods=False)
    opened = open_host(str(out))
    assert opened.wall_s == HOST.wall_s
    assert opened.files.read("/sys/class/net/eth0/address") == b"0c:42:a1:47:2a:4e\n"
    tape = opened.tape("nvidia")
    assert (tape.read_bytes() if isinstance(tape, Path) else tape) == TAPES["nvidia"]
    assert (report.files, report.links, report.error_entries) == (3, 1, 1)
    assert (report.tapes, report.is_pseudonymised) == (("nvidia",), False)


@pytest.mark.parametrize("name", ["host", "host.tar.gz"])
def test_pseudonyms_are_others_in_each_recording_and_the_same_inside_one(
    name: str, tmp_path: Path
) -> None:
    observations = set()
    for folder in ("a", "b"):
        out = tmp_path / folder / name
        assert write_recording(
            str(out), HOST, TAPES, pseudonymise=True, pods=False
        ).is_pseudonymised
        opened = open_host(str(out))
        address = opened.files.read("/sys/class/net/eth0/address").strip()
        tape = opened.tape("nvidia")
        data = tape.read_bytes() if isinstance(tape, Path) else tape
        assert address in (data or b"")
        assert b"gpu-node-17" not in (data or b"")
        observations.add(address)
    assert len(observations) == 2
    assert b"0c:42:a1:47:2a:4e" not in observations


def test_equal_hosts_give_equal_archives(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_recording(
            str(tmp_path / folder / "host.tar.gz"), HOST, TAPES, pseudonymise=False, pods=False
        )
    first, second = (tmp_path / folder / "host.tar.gz" for folder in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        assert archive.getnames() == ["host/README.md", "host/host.txt", "host/tapes/nvidia.jsonl"]


def test_a_recording_says_how_it_was_made(tmp_path: Path) -> None:
    write_recording(str(tmp_path / "out"), HOST, {}, pseudonymise=True, pods=False)
    assert "were replaced" in (tmp_path / "out/README.md").read_text()
    head = (tmp_path / "out/host.txt").read_text().split("\n\n")[0].splitlines()
    assert head[1:] == ["kernel: 6.1.0", "pseudonymised: yes", "recorded: 2026-11-21T03:56:23Z"]


def test_this_machine_is_recorded_now_and_an_undated_host_stays_undated(tmp_path: Path) -> None:
    live = HostSource(files=HOST.files)
    undated = HostSource(files=HOST.files, spec="/somewhere")
    write_recording(str(tmp_path / "live"), live, {}, pseudonymise=False, pods=False)
    write_recording(str(tmp_path / "undated"), undated, {}, pseudonymise=False, pods=False)
    assert open_host(str(tmp_path / "live")).wall_s is not None
    assert open_host(str(tmp_path / "undated")).wall_s is None


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_nothing_is_overwritten(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if kind == "folder":
        out.mkdir()
    elif kind == "file":
        out.write_text("mine")
    else:
        out.symlink_to("nowhere")
    with pytest.raises(RecordingError, match="exists already"):
        write_recording(str(out), HOST, {}, pseudonymise=False, pods=False)
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("name", ["out", "out.tar.gz"])
def test_nothing_half_written_stays(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.rename", full_disk)
    with pytest.raises(RecordingError, match="No space left"):
        save_recording(tmp_path / name, {"a": b"1", "b/c": b"2"})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match="cannot be written"):
        save_recording(tmp_path / "file" / "out", {"a": b"1"})
