from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.snapshot.pod import ContainerView, KubeQos, PodView
from agent.snapshot.usage import SharedRegion
from agent.usage.hami_regions import LAYOUT_A, LAYOUT_B, MAX_FILES, MAX_LARGE_REGIONS, read_regions
from tests.unit.usage_sharing.made import Region

UID = "6f6f0000-0000-4000-8000-000000000001"
POD = PodView(
    uid=UID,
    qos=KubeQos.BURSTABLE,
    name="train",
    namespace="team-a",
    containers=(ContainerView(id="1", name="worker"), ContainerView(id="2", name="side")),
)


def region(root: Path, container: str = "worker", name: str = "a.cache", used: int = 5) -> Path:
    folder = root / f"{UID}_{container}"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(Region(LAYOUT_A).slots(1).process(0, (0, 0, 0, 0, used)).data)
    return path


def read(root: Path, *pods: PodView) -> tuple[list[SharedRegion], list[str]]:
    regions, problems = read_regions(str(root), pods or (POD,))
    assert all(problem.reason == "RegionUnreadable" for problem in problems)
    return list(regions), [problem.message for problem in problems]


def used(root: Path) -> list[tuple[str, str, int]]:
    regions, problems = read(root)
    assert not problems
    return [(r.pod_uid, r.container, r.cards[0].used_bytes) for r in regions]


def test_each_container_has_its_region(tmp_path: Path) -> None:
    region(tmp_path, "worker", used=5)
    region(tmp_path, "side", used=7)
    assert used(tmp_path) == [(UID, "side", 7), (UID, "worker", 5)]


def test_of_several_files_the_newest_counts(tmp_path: Path) -> None:
    for name, used_bytes, at_s in (("a.cache", 1, 100), ("b.cache", 2, 300), ("c.cache", 3, 200)):
        os.utime(region(tmp_path, name=name, used=used_bytes), (at_s, at_s))
    (tmp_path / f"{UID}_worker" / "other.txt").write_text("newest")
    assert used(tmp_path) == [(UID, "worker", 2)]


def test_a_folder_that_goes_while_another_is_read_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region(tmp_path, "side", used=7)
    going = region(tmp_path, "worker").parent
    really = os.open

    def opened(path: str, flags: int, **more: int) -> int:
        if path == f"{UID}_side":
            shutil.rmtree(going)
        return really(path, flags, **more)

    monkeypatch.setattr(os, "open", opened)
    assert used(tmp_path) == [(UID, "side", 7)]


def test_folders_of_others_are_passed_over(tmp_path: Path) -> None:
    for name in ("plain", f"{UID}_gone", "0000_worker", f"{UID}_Bad Name", f"{UID}_", "_worker"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.cache").write_bytes(Region(LAYOUT_A).data)
    assert read(tmp_path) == ([], [])


def test_where_nobody_lists_names_a_known_pod_is_enough(tmp_path: Path) -> None:
    region(tmp_path)
    bare = PodView(uid=UID, qos=KubeQos.BURSTABLE, containers=(ContainerView(id="1"),))
    assert len(read(tmp_path, bare)[0]) == 1


def test_a_container_without_a_region_yet_and_an_absent_folder_are_no_problem(
    tmp_path: Path,
) -> None:
    (tmp_path / f"{UID}_worker").mkdir()
    assert read(tmp_path) == ([], [])
    assert read(tmp_path / "absent") == ([], [])


@pytest.mark.parametrize("size", [0, 804_681, 2_008_952, 1 << 22])
def test_a_file_of_another_size_is_reported_and_hides_no_other(tmp_path: Path, size: int) -> None:
    region(tmp_path, "side", used=7)
    os.truncate(region(tmp_path), size)
    regions, problems = read(tmp_path)
    assert [r.container for r in regions] == ["side"]
    assert len(problems) == 1
    assert f"{UID}_worker" in problems[0]


def test_links_lead_nowhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(Region(LAYOUT_B).data)
    root = tmp_path / "containers"
    (root / f"{UID}_worker").mkdir(parents=True)
    (root / f"{UID}_worker" / "a.cache").symlink_to(secret)
    (root / f"{UID}_side").symlink_to(tmp_path)
    regions, problems = read(root)
    assert regions == []
    assert [f"{UID}_side" in problem for problem in problems] == [True]


def test_pipes_and_folders_that_are_called_regions_do_not_stop_us(tmp_path: Path) -> None:
    folder = tmp_path / f"{UID}_worker"
    (folder / "d.cache").mkdir(parents=True)
    os.mkfifo(folder / "p.cache")
    assert read(tmp_path) == ([], [])


def test_a_container_that_fills_its_folder_costs_a_bounded_look(tmp_path: Path) -> None:
    folder = tmp_path / f"{UID}_worker"
    folder.mkdir()
    for number in range(MAX_FILES * 2):
        (folder / f"{number}.cache").touch()
    regions, problems = read(tmp_path)
    assert regions == []
    assert len(problems) == 1


def test_containers_that_claim_many_processes_wait_and_are_few(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(MAX_LARGE_REGIONS + 2)]
    containers = tuple(ContainerView(id=name, name=name) for name in (*names, "worker"))
    for name in names:
        region(tmp_path, name).write_bytes(Region(LAYOUT_A).slots(5000).data)
    region(tmp_path, "worker", used=5)
    regions, problems = read(tmp_path, replace(POD, containers=containers))
    assert [r.container for r in regions] == [*names[:MAX_LARGE_REGIONS], "worker"]
    assert ["more than 64 processes" in problem for problem in problems] == [True, True]


def test_a_root_that_is_no_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    _, problems = read(tmp_path / "file")
    assert problems == [f"{tmp_path}/file: ENOTDIR"]
