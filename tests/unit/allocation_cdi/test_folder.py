from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.allocation.cdi_document import CdiFile, build_document, encode_document
from agent.allocation.cdi_folder import CdiFolder
from agent.errors import PublishError
from agent.snapshot.edits import CdiEdits, DeviceNodeEdit
from tests.unit.allocation_cdi.reader import read

NPU, RDMA = "xpu-agent.io/npu", "xpu-agent.io/rdma"


def file(vendor: str, kind: str, *names: str, major: int = 240) -> CdiFile:
    devices = {
        name: CdiEdits(
            nodes=(
                DeviceNodeEdit(host_path=f"/dev/{name}", path=f"/dev/{name}", major=major, minor=0),
            )
        )
        for name in names
    }
    text = encode_document(build_document(kind, devices, CdiEdits()))
    return CdiFile(name=f"xpu-agent-{vendor}.json", kind=kind, devices=names, text=text)


ONE, TWO = file("ascend", NPU, "a"), file("ascend", NPU, "a", "b")
OTHER = file("rdma", RDMA, "n0")


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def devices(path: Path) -> list[str]:
    return [device.name for device in read(path.read_bytes()).devices]


def test_files_are_written_once_and_readable_by_everybody(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "cdi"
    synchronize = CdiFolder(str(folder)).synchronize
    before_umask = os.umask(0o077)
    try:
        assert synchronize((ONE, OTHER)).written == (ONE.name, OTHER.name)
    finally:
        os.umask(before_umask)
    assert folder.stat().st_mode & 0o777 == 0o755
    assert (folder / ONE.name).stat().st_mode & 0o777 == 0o644
    assert (folder / ONE.name).read_bytes() == ONE.text
    before = (folder / ONE.name).stat().st_ino
    assert synchronize((ONE, OTHER)).written == ()
    assert (folder / ONE.name).stat().st_ino == before
    assert synchronize((TWO, OTHER)).written == (TWO.name,)
    assert (folder / ONE.name).stat().st_ino != before  # never written in place


def test_without_files_no_folder_is_made(tmp_path: Path) -> None:
    assert CdiFolder(str(tmp_path / "cdi")).synchronize(()).written == ()
    assert not (tmp_path / "cdi").exists()


def test_stale_files_of_the_agent_are_removed_and_those_of_others_stay(tmp_path: Path) -> None:
    foreign = {
        "nvidia.yaml": "kind: nvidia.com/gpu",
        "xpu-agent-mine.json": json.dumps({"kind": "example.com/x", "devices": []}),
        "xpu-agent-odd.json": "{",
        "xpu-agent-notes.txt": "",
        "xpu-agent-huge.json": " " * (9 << 20),
    }
    for name, text in foreign.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "xpu-agent-link.json").symlink_to(tmp_path / "nowhere")
    folder = CdiFolder(str(tmp_path))
    folder.synchronize((ONE, OTHER))
    assert folder.synchronize((OTHER,)).removed == (ONE.name,)
    assert folder.remove_all() == (OTHER.name,)
    assert names(tmp_path) == sorted([*foreign, "xpu-agent-link.json"])


def test_a_name_that_a_container_may_be_started_with_again_stays(tmp_path: Path) -> None:
    folder = CdiFolder(str(tmp_path))
    folder.synchronize((TWO,))
    folder.synchronize((ONE,), in_use={NPU})
    assert devices(tmp_path / ONE.name) == ["a", "b"]
    # what is known of a device counts, what is not any more stays as it was
    folder.synchronize((file("ascend", NPU, "a", major=241),), in_use={NPU})
    majors = {
        device.name: device.container_edits.device_nodes[0].major
        for device in read((tmp_path / ONE.name).read_bytes()).devices
    }
    assert majors == {"a": 241, "b": 240}
    assert folder.synchronize((), in_use={NPU}).removed == ()
    folder.synchronize((ONE,))
    assert devices(tmp_path / ONE.name) == ["a"]
    assert folder.synchronize((), in_use={RDMA}).removed == (ONE.name,)


def test_the_version_stays_high_enough_for_what_stays(tmp_path: Path) -> None:
    folder = CdiFolder(str(tmp_path))
    folder.synchronize((file("ascend", NPU, "7"),))
    folder.synchronize((ONE,), in_use={NPU})
    assert read((tmp_path / ONE.name).read_bytes()).cdi_version == "0.5.0"


def test_a_damaged_file_is_written_again(tmp_path: Path) -> None:
    folder = CdiFolder(str(tmp_path))
    for broken in (b"", b"{", b'{"kind": 5}', b'{"kind": "xpu-agent.io/npu", "devices": [5, {}]}'):
        (tmp_path / ONE.name).write_bytes(broken)
        folder.synchronize((ONE,), in_use={NPU})
        assert (tmp_path / ONE.name).read_bytes() == ONE.text


class Killed(BaseException):
    """The process ends here."""


CALLS = ("open", "write", "fsync", "replace", "unlink", "fchmod")


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int | None], None]]:
    """Return what has the process end before its n-th call to the kernel's file functions."""
    remaining: list[int | None] = [None]

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **more: object) -> object:
            if remaining[0] is not None:
                if remaining[0] == 0:
                    raise Killed
                remaining[0] -= 1
            return real(*args, **more)

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, counted(getattr(os, name)))

    def arm(step: int | None) -> None:
        remaining[0] = step

    yield arm
    arm(None)


def test_killed_at_any_step_each_file_is_the_old_one_or_the_new_one(
    tmp_path: Path, kill_at: Callable[[int | None], None]
) -> None:
    allowed = {ONE.text, TWO.text, OTHER.text}
    for step in itertools.count():
        folder = CdiFolder(str(tmp_path / str(step)))
        folder.synchronize((ONE, OTHER))
        kill_at(step)
        try:
            folder.synchronize((TWO,))
            ended = True
        except Killed:
            ended = False
        kill_at(None)
        place = tmp_path / str(step)
        for path in place.glob("*.json"):
            assert path.read_bytes() in allowed
        folder.synchronize((TWO,))
        assert names(place) == [TWO.name]
        if ended:
            break
    assert step > 5


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("no folder")
    with pytest.raises(PublishError, match="cdi: E"):
        CdiFolder(str(tmp_path / "cdi")).synchronize((ONE,))
