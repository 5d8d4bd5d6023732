from __future__ import annotations

import json
import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agent import durable
from agent.errors import PublishError
from agent.objects import files
from agent.objects.device import DevicePublisher
from agent.objects.files import FileSink, SinkResult
from agent.objects.yaml_text import to_yaml
from agent.snapshot.device import Health, HealthState
from agent.snapshot.publications import DesiredObject
from tests.factory import BOOT_S, gpu, nic, snapshot

json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


def desired(body: dict[str, Any], name: str = "thing.yaml") -> DesiredObject:
    return DesiredObject(file_name=name, api_version="v1", kind="Thing", name="n", body=body)


def device(**changes: Any) -> DesiredObject:
    return DevicePublisher().render(snapshot((gpu(0, **changes), nic(0))), 0.0)[0]


def age(path: Path) -> float:
    return path.stat().st_mtime_ns


@given(json_like)
def test_any_json_comes_back_equal_from_yaml(body: object) -> None:
    assert yaml.safe_load(to_yaml(body)) == body


@pytest.mark.parametrize(
    "text",
    [
        *("0000:18:00.0", "1:30", "190:20:30", "2026-01-02", "2026-01-02T03:04:05Z", "1e3", "0x1f"),
        *("0777", "0o14", "1_000", ".5", "+1", "-", "~", "=", "<<", "", "null", "NULL", "None"),
        *("y", "N", "yes", "Off", "TRUE", ".inf", ".NaN", "100", "1.", "- a", "a: b", "#", "@a"),
    ],
)
def test_a_string_stays_a_string_for_every_reader_of_yaml(text: str) -> None:
    written = to_yaml({"key": text, "list": [text], text: 1})
    assert yaml.safe_load(written) == {"key": text, "list": [text], text: 1}
    sure = text in ("None",)  # a word of no YAML version
    assert (f"key: '{text}'".encode() in written) != sure


def test_a_repeated_value_is_written_out_and_not_referred_to() -> None:
    shared = {"a": [1, 2]}
    assert b"&" not in to_yaml({"x": shared, "y": shared})


def test_the_file_holds_the_object(tmp_path: Path) -> None:
    applier = FileSink(str(tmp_path / "out"))
    item = device()
    assert applier.apply([item]) == SinkResult(written=("device.yaml",))
    path = tmp_path / "out" / "device.yaml"
    assert yaml.safe_load(path.read_bytes()) == json.loads(json.dumps(item.body))
    assert stat.S_IMODE(path.stat().st_mode) == files.MODE & ~_umask()
    assert os.listdir(path.parent) == ["device.yaml"]


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current


def test_an_unchanged_object_is_not_written_again(tmp_path: Path) -> None:
    applier = FileSink(str(tmp_path))
    applier.apply([device()])
    before = age(tmp_path / "device.yaml")
    assert applier.apply([device()]) == SinkResult(unchanged=("device.yaml",))
    later = FileSink(str(tmp_path))  # a new process finds what the old one wrote
    assert later.apply([device()]) == SinkResult(unchanged=("device.yaml",))
    assert age(tmp_path / "device.yaml") == before


def test_a_transition_time_moves_only_with_the_status(tmp_path: Path) -> None:
    def moment() -> str:
        body = yaml.safe_load((tmp_path / "device.yaml").read_bytes())
        return str(body["spec"]["devices"][0]["conditions"][0]["lastTransitionTime"])

    FileSink(str(tmp_path)).apply([device(health=Health(since_s=BOOT_S))])
    restarted = FileSink(str(tmp_path))
    restarted.apply([device(health=Health(since_s=BOOT_S + 60))])
    assert moment() == "2026-01-02T03:04:05Z"
    bad = Health(state=HealthState.FAILED, reason="Xid79", since_s=BOOT_S + 70)
    assert restarted.apply([device(health=bad)]).written == ("device.yaml",)
    assert moment() == "2026-01-02T03:05:15Z"


@pytest.mark.parametrize(
    "meddle",
    [
        Path.unlink,
        lambda path: path.write_text("kind: Other\n"),
        lambda path: path.write_bytes(b"\xff{[: broken"),
        lambda path: path.write_text("!!int ''"),
        lambda path: path.write_text("[1, 2]"),
        lambda path: path.write_text(""),
    ],
    ids=["removed", "edited", "broken", "odd tag", "no object", "emptied"],
)
def test_a_file_that_another_program_changed_is_written_again(
    tmp_path: Path, meddle: Callable[[Path], object]
) -> None:
    applier = FileSink(str(tmp_path))
    applier.apply([device()])
    good = (tmp_path / "device.yaml").read_bytes()
    meddle(tmp_path / "device.yaml")
    assert applier.apply([device()]).written == ("device.yaml",)
    assert (tmp_path / "device.yaml").read_bytes() == good


@given(st.binary(max_size=200))
def test_whatever_bytes_stand_there_the_object_is_written(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("out")
    (folder / "thing.yaml").write_bytes(data)
    FileSink(str(folder)).apply([desired({"kind": "Thing"})])
    assert yaml.safe_load((folder / "thing.yaml").read_bytes()) == {"kind": "Thing"}


class Killed(BaseException):
    """The process ends here: no handler of the code under test runs to its end."""


class DyingSystem:
    """The `os` module of a process that is killed at its n-th call."""

    def __init__(self, calls: int) -> None:
        self.remaining_calls = calls

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if not callable(real):
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self.remaining_calls -= 1
            if (
                self.remaining_calls < 0 and name != "close"
            ):  # the kernel closes what a dead process had
                raise Killed(name)
            return real(*args, **kwargs)

        return call


def test_a_process_killed_at_any_step_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = desired({"a": 1}), desired({"a": 2, "text": "x" * 10_000})
    contents = []
    for calls in range(40):
        FileSink(str(tmp_path)).apply([old])
        dying = DyingSystem(calls)
        for module in (files, durable):
            monkeypatch.setattr(module, "os", dying)
        try:
            FileSink(str(tmp_path)).apply([new])
            contents.append("done")
        except Killed as death:
            contents.append(str(death))
        for module in (files, durable):
            monkeypatch.setattr(module, "os", os)
        assert yaml.safe_load((tmp_path / "thing.yaml").read_bytes()) in (old.body, new.body)
        FileSink(str(tmp_path)).apply([new])
        assert os.listdir(tmp_path) == ["thing.yaml"]
    assert {"open", "write", "fsync", "replace", "done"} <= set(contents)


def test_leftovers_of_a_killed_process_are_removed_even_when_nothing_changes(
    tmp_path: Path,
) -> None:
    FileSink(str(tmp_path)).apply([desired({"a": 1})])
    target = tmp_path / "elsewhere"
    (tmp_path / ".thing.yaml.tmp").symlink_to(target)
    FileSink(str(tmp_path)).apply([desired({"a": 1})])
    assert os.listdir(tmp_path) == ["thing.yaml"]


@contextmanager
def small_files_only(limit_bytes: int) -> Iterator[None]:
    """Let the kernel refuse files beyond a size, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_reported_once_and_the_old_file_stays(tmp_path: Path) -> None:
    applier = FileSink(str(tmp_path))
    applier.apply([desired({"a": 1}, "big.yaml"), desired({"a": 1}, "small.yaml")])
    big, small = desired({"a": "x" * 9000}, "big.yaml"), desired({"a": 2}, "small.yaml")
    with small_files_only(4096), pytest.raises(PublishError) as failure:
        applier.apply([big, small])
    assert str(tmp_path / "big.yaml") in str(failure.value)
    assert list(applier.errors) == ["big.yaml"]
    assert sorted(os.listdir(tmp_path)) == ["big.yaml", "small.yaml"]
    assert yaml.safe_load((tmp_path / "big.yaml").read_bytes()) == {"a": 1}
    assert yaml.safe_load((tmp_path / "small.yaml").read_bytes()) == {"a": 2}
    assert applier.apply([big, small]) == SinkResult(("big.yaml",), ("small.yaml",))
    assert applier.errors == {}


def test_a_folder_that_cannot_be_written_gives_one_error_for_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    applier = FileSink(str(tmp_path / "file"))
    with pytest.raises(PublishError, match="2 objects could not be written"):
        applier.apply([desired({}, "a.yaml"), desired({}, "b.yaml")])
    assert sorted(applier.errors) == ["a.yaml", "b.yaml"]


@pytest.mark.parametrize("name", ["", "../a.yaml", "a/b", ".a", "A b", "a.yaml\n"])
def test_a_name_that_leads_elsewhere_is_a_bug(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="plain file name"):
        FileSink(str(tmp_path)).apply([desired({}, name)])
