from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agent.containers.folders import MAX_ENTRIES, FolderError, make_folders
from agent.snapshot.edits import FolderEdit


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_is_made_with_its_parents_and_its_very_mode(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    before = os.umask(0o077)
    try:
        make_folders([FolderEdit(host_path=str(path), mode=0o1777)])
    finally:
        os.umask(before)
    assert _mode(path) == 0o1777
    assert _mode(path.parent) == 0o755 & ~0o077


def test_making_it_again_changes_nothing(tmp_path: Path) -> None:
    folder = FolderEdit(host_path=str(tmp_path / "a"), mode=0o1777)
    make_folders([folder])
    (tmp_path / "a" / "lock").write_text("held")
    make_folders([folder])
    assert (tmp_path / "a" / "lock").read_text() == "held"


def test_what_an_earlier_container_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "containers"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("")
    (path / "deep").mkdir(parents=True)
    (path / "deep" / "file").write_text("")
    (path / "x.cache").write_text("")
    (path / "link").symlink_to(elsewhere)
    (path / "deep" / "link").symlink_to(elsewhere)
    make_folders([FolderEdit(host_path=str(path), mode=0o700, emptied=True)])
    assert list(path.iterdir()) == []
    assert (elsewhere / "kept").exists()
    assert _mode(path) == 0o700


@pytest.mark.parametrize("width", [1, 200])
def test_a_tree_that_a_container_left_to_be_waited_for_is_refused(
    width: int, tmp_path: Path
) -> None:
    """Too deep, or with more below it than there may be at its top."""
    path = tmp_path / "containers"
    path.mkdir()
    before = Path.cwd()
    os.chdir(path)
    try:
        for _ in range(20 if width == 1 else 2):
            for index in range(width):
                Path(f"d{index}").mkdir()
            os.chdir("d0")
    finally:
        os.chdir(before)
    with pytest.raises(FolderError, match="no container of ours"):
        make_folders([FolderEdit(host_path=str(path), mode=0o700, emptied=True)])


@pytest.mark.parametrize("emptied", [True, False])
def test_a_link_in_its_place_is_refused(emptied: bool, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (target / "kept").write_text("")
    (tmp_path / "link").symlink_to(target)
    folder = FolderEdit(host_path=str(tmp_path / "link"), mode=0o1777, emptied=emptied)
    with pytest.raises(FolderError, match="link"):
        make_folders([folder])
    assert (target / "kept").exists()
    assert _mode(target) == 0o700


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="file"):
        make_folders([FolderEdit(host_path=str(tmp_path / "file"), mode=0o700)])


@pytest.mark.skipif(os.geteuid() != 0, reason="giving folders away needs root")
def test_a_folder_that_a_user_made_where_users_may_is_neither_emptied_nor_opened(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o1777)
    path = tmp_path / "vgpulock"
    path.mkdir(mode=0o700)
    os.chown(path, 12345, -1)
    (path / "theirs").write_text("")
    for folder in (
        FolderEdit(host_path=str(path), mode=0o1777),
        FolderEdit(host_path=str(path), mode=0o700, emptied=True),
    ):
        with pytest.raises(FolderError, match="12345"):
            make_folders([folder])
    assert (path / "theirs").exists()
    path.chmod(0o1777)
    make_folders([FolderEdit(host_path=str(path), mode=0o1777)])  # as it must be, whoever made it


@pytest.mark.skipif(os.geteuid() != 0, reason="giving folders away needs root")
def test_a_container_s_folder_is_its_user_s_and_the_next_one_s(tmp_path: Path) -> None:
    path = tmp_path / "uid_main"
    for user in (1000, 2000):
        folder = FolderEdit(host_path=str(path), mode=0o700, owner=user, emptied=True)
        make_folders([folder])
        assert path.stat().st_uid == user
        (path / "x.cache").write_text("")


def test_a_folder_with_very_much_in_it_is_left_alone(tmp_path: Path) -> None:
    for number in range(MAX_ENTRIES + 1):
        (tmp_path / str(number)).write_text("")
    with pytest.raises(FolderError, match="entries"):
        make_folders([FolderEdit(host_path=str(tmp_path), mode=0o700, emptied=True)])
