"""Whether something was written is told on the machine itself and where a container sees it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.allocation.cdi_spec_reader import CdiSpecReader
from agent.allocation.file_stamp import ABSENT_FILE, read_stamp
from agent.clock import SYSTEM_CLOCK
from agent.host.files import LiveHostFiles
from agent.recording.directory import DirectoryFiles
from agent.snapshot.host_files import HostFiles
from tests.unit.allocation_host_devices.made import recorded

HOSTS: list[Callable[[Path], HostFiles]] = [lambda path: LiveHostFiles(str(path)), DirectoryFiles]


LATER_S = 4_000_000_000.0  # long after anything here was written


@pytest.mark.parametrize("make", HOSTS, ids=["live", "of a container"])
def test_what_stays_is_the_same_and_what_changes_differs(
    make: Callable[[Path], HostFiles], tmp_path: Path
) -> None:
    host, file = make(tmp_path), tmp_path / "a"
    assert read_stamp(host, "/a", LATER_S) == ABSENT_FILE
    stamps = {ABSENT_FILE}
    for written_s in (1000, 2000):
        for text in ("1", "22"):
            file.write_text(text)
            os.utime(file, (0, written_s))
            now = read_stamp(host, "/a", LATER_S)
            assert now not in stamps
            assert read_stamp(host, "/a", LATER_S + 1) == now
            stamps.add(now)
    replaced = tmp_path / "b"
    replaced.write_text("22")
    os.utime(replaced, (0, 2000))
    replaced.rename(file)
    assert read_stamp(host, "/a", LATER_S) not in stamps


@pytest.mark.parametrize("make", HOSTS, ids=["live", "of a container"])
def test_a_recently_changed_file_is_read_again(
    make: Callable[[Path], HostFiles], tmp_path: Path
) -> None:
    """A second change within a tick of the file system's clock leaves the same time."""
    host = make(tmp_path)
    os.utime(tmp_path, (0, 1000))
    looks = [read_stamp(host, "/", wall_s) for wall_s in (999.5, 1000.0, 1000.5, 1001.5, 1003.0)]
    assert len(set(looks)) == 4
    assert looks[3] == looks[4]


@pytest.mark.parametrize("make", HOSTS, ids=["live", "of a container"])
def test_a_link_differs_when_what_it_leads_to_does(
    make: Callable[[Path], HostFiles], tmp_path: Path
) -> None:
    (tmp_path / "run" / "cdi").mkdir(parents=True)
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "run").symlink_to("../run")
    specs = CdiSpecReader(make(tmp_path), SYSTEM_CLOCK)
    assert specs.read() == ((), ())
    file = tmp_path / "run" / "cdi" / "a.yaml"
    for kind in ("a.example/b", "longer.example/b"):
        file.write_text(f"kind: {kind}")
        assert [spec.kind for spec in specs.read()[0]] == [kind]


def test_a_recording_does_not_change() -> None:
    host = recorded({"/etc/a": "1"})
    assert read_stamp(host, "/etc/a", 0.0) == read_stamp(host, "/etc/a", LATER_S) != ABSENT_FILE
    assert read_stamp(host, "/etc/b", 0.0) == ABSENT_FILE
