"""`xpu-agent cgroup dump` on a recorded host of version 2, and on this machine's version 1."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.cgroup import dump as dumping
from agent.cgroup.layout import detect_layout
from agent.cli.main import main
from agent.recording.directory import DirectoryFiles
from tests.realgroups import RealGroups, needs_v1, real_groups

MOUNT = "sys/fs/cgroup"
POD = "kubepods.slice/kubepods-podx.slice"
HEAD = ["GROUP", "PROCESSES", "CPUS", "WEIGHT", "QUOTA", "MEMORY", "MEMORY", "LIMIT"]
SCOPE = f"{POD}/cri-containerd-c1.scope"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder with the groups of one pod of the systemd driver."""
    (tmp_path / "proc").mkdir()
    files = {
        "": {"cgroup.controllers": "cpu memory"},
        "kubepods.slice": {"cpu.weight": "79"},
        POD: {"cpu.max": "50000 100000", "memory.max": "999997440"},
        SCOPE: {"cpuset.cpus": "2-3", "cpu.max": "max 100000", "memory.current": "4096"},
        "system.slice": {},
    }
    for group, texts in files.items():
        folder = tmp_path / MOUNT / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in {"cgroup.procs": "", **texts}.items():
            (folder / name).write_text(f"{text}\n")
    (tmp_path / MOUNT / SCOPE / "cgroup.procs").write_text("71\n72\n")
    return tmp_path


def groups_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main(["cgroup", "dump", *words, "-o", "json"]) == 0
    return list(json.loads(capsys.readouterr().out)["groups"])


def test_the_groups_of_the_kubelet_are_printed_with_what_their_files_hold(
    host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    top, pod, scope = groups_of(capsys, "--host", str(host))
    assert [top["path"], pod["path"], scope["path"]] == ["/kubepods.slice", f"/{POD}", f"/{SCOPE}"]
    assert [top["processes"], scope["processes"]] == [0, 2]
    assert pod["files"] == {"cpu.max": "50000 100000", "memory.max": "999997440"}
    assert scope["files"]["cpuset.cpus"] == "2-3"


def test_the_kubelets_own_cgroup_root_is_taken_from_its_process(
    host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(host / MOUNT / "kubepods.slice")
    (host / MOUNT / "pool/gpu/kubepods").mkdir(parents=True)
    (host / MOUNT / "pool/gpu/kubepods/cgroup.procs").touch()
    (host / "proc/812").mkdir()
    (host / "proc/812/comm").write_text("kubelet\n")
    (host / "proc/812/cmdline").write_text("kubelet\0--cgroup-root=/pool/gpu\0")
    (top,) = groups_of(capsys, "--host", str(host))
    assert top["path"] == "/pool/gpu/kubepods"


def test_the_root_of_the_settings_comes_first(
    host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(host / MOUNT / "kubepods.slice")
    for pool in ("a", "b/c"):
        (host / MOUNT / pool / "kubepods").mkdir(parents=True)
        (host / MOUNT / pool / "kubepods/cgroup.procs").touch()
    config = host / "config.yaml"
    config.write_text("kubelet: {cgroup_root: /b/c}\n")
    (top,) = groups_of(capsys, "--host", str(host), "--config", str(config))
    assert top["path"] == "/b/c/kubepods"


@pytest.mark.parametrize("path", [f"/{SCOPE}", f"/{MOUNT}/{SCOPE}", f"/{SCOPE}/"])
def test_a_path_is_that_of_a_group_or_of_its_directory(
    host: Path, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    (scope,) = groups_of(capsys, path, "--host", str(host))
    assert scope["path"] == f"/{SCOPE}"


def test_a_slash_is_all_groups(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [group["path"] for group in groups_of(capsys, "/", "--host", str(host))]
    assert paths == ["/", "/kubepods.slice", f"/{POD}", f"/{SCOPE}", "/system.slice"]


def test_the_table_shows_the_tree(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cgroup", "dump", "--host", str(host)]) == 0
    head, top, pod, scope = capsys.readouterr().out.splitlines()
    assert head.split() == HEAD
    assert top.split() == ["/kubepods.slice", "0", "-", "79", "-", "-", "-"]
    assert pod.startswith("  kubepods-podx.slice ")
    assert scope.startswith("    cri-containerd-c1.scope ")


def test_more_groups_than_are_printed_are_bad_news(
    host: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = DirectoryFiles(host)
    layout = detect_layout(files)
    assert layout is not None
    for module in ("agent.cgroup.dump", "agent.cli.cgroup"):
        monkeypatch.setattr(f"{module}.MAX_GROUPS", 2)
    assert len(list(dumping.dump_cgroups(files, layout, "/"))) == 3  # one more: there are others
    assert main(["cgroup", "dump", "--host", str(host), "-o", "json"]) == 1
    output = capsys.readouterr()
    data = json.loads(output.out)
    assert (len(data["groups"]), data["complete"]) == (2, False)
    assert "name a PATH" in output.err


@pytest.mark.parametrize("path", ["kubepods", "/kubepods/../x", "/a\0b"])
def test_what_is_no_path_is_wrong_use(
    host: Path, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    assert main(["cgroup", "dump", path, "--host", str(host)]) == 2
    assert "not the path of a group" in capsys.readouterr().err


def test_a_group_that_is_not_there_cannot_be_printed(
    host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cgroup", "dump", "/nothing", "--host", str(host)]) == 3
    assert "/nothing: no such group" in capsys.readouterr().err


@pytest.mark.timeout(20)
def test_a_fifo_in_the_place_of_a_file_holds_nobody_up(
    host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (host / MOUNT / SCOPE / "cpu.max").unlink()
    os.mkfifo(host / MOUNT / SCOPE / "cpu.max")
    (scope,) = groups_of(capsys, f"/{SCOPE}", "--host", str(host))
    assert "cpu.max" not in scope["files"]


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    with real_groups() as created:
        yield created


@needs_v1
@pytest.mark.root
def test_version_1_shows_the_files_of_all_controllers(
    groups: RealGroups, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cgroupspy", reason="needs the extra v1-tools")
    pod = groups.pod()
    child = groups.container(pod, 1)
    groups.put(pod, "cpu.cfs_quota_us", "50000")
    groups.put(child, "cpuset.cpus", "1")
    pid = groups.sleeper(child)
    before = sorted(path.name for path in groups.path("cpu", pod).iterdir())
    top, inner = groups_of(capsys, pod)
    assert (top["path"], inner["path"]) == (pod, child)
    assert top["files"]["cpu.cfs_quota_us"] == groups.get(pod, "cpu.cfs_quota_us") == "50000"
    assert inner["files"]["cpuset.cpus"] == "1"
    assert inner["files"]["memory.limit_in_bytes"] == groups.get(child, "memory.limit_in_bytes")
    assert (inner["processes"], pid > 0) == (1, True)
    assert sorted(path.name for path in groups.path("cpu", pod).iterdir()) == before
    assert groups_of(capsys, f"/sys/fs/cgroup/cpu{child}")[0]["path"] == child
    assert main(["cgroup", "dump", child]) == 0
    assert capsys.readouterr().out.split()[-1] == "max"  # the memory limit


@needs_v1
def test_version_1_without_the_extra_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("cgroupspy")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cgroupspy", None)  # as if it were not installed
    assert main(["cgroup", "dump", "/"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'xpu-node-agent[v1-tools]'" in line


def test_a_recording_of_version_1_says_where_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "proc").mkdir()
    for controller in ("cpu", "memory"):
        (tmp_path / MOUNT / controller / "kubepods").mkdir(parents=True)
    assert main(["cgroup", "dump", "--host", str(tmp_path)]) == 3
    assert "on the machine itself only" in capsys.readouterr().err


def test_the_extra_is_the_one_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    extra = project["project"]["optional-dependencies"][dumping.EXTRA]
    assert any(one.startswith("cgroupspy") for one in extra)
