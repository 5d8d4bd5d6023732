from __future__ import annotations

from pathlib import Path

import pytest

from agent.errors import HostFileError
from agent.host.files import CachedHostFiles, LiveHostFiles


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys/a").write_text("first")
    return tmp_path


def test_a_file_that_was_read_and_a_folder_that_was_listed_are_not_read_again(root: Path) -> None:
    files = CachedHostFiles(LiveHostFiles(str(root)))
    observations = files.read("/sys/a"), files.read("/sys/a", 3), files.names("/sys")
    (root / "sys/a").write_text("second")
    (root / "sys/b").write_text("")
    assert observations == (b"first", b"fir", ("a",))
    assert (files.read("/sys/a"), files.read("/sys/a", 3), files.names("/sys")) == observations
    assert CachedHostFiles(LiveHostFiles(str(root))).read("/sys/a") == b"second"


def test_an_error_is_not_remembered(root: Path) -> None:
    files = CachedHostFiles(LiveHostFiles(str(root)))
    with pytest.raises(HostFileError):
        files.read("/sys/b")
    (root / "sys/b").write_text("came")
    assert files.read("/sys/b") == b"came"
