"""What would be changed of resctrl groups now: the same as the manager does, and nothing is."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from agent.cgroup.ledger import ChangeLedger
from agent.config.containers import ResctrlSettings
from agent.errors import HostFileError
from agent.host.files import LiveHostFiles
from agent.resctrl.capabilities import INFO_FILES
from agent.resctrl.host_plan import HostResctrlPlan, HostResctrlPlanner, ReadOnlyResctrlFiles
from agent.snapshot.self_check import StrategyState
from tests.resctrl.host import POINT
from tests.resctrl.machine import Machine
from tests.unit.resctrl.scene import HALF, Scene, group, qos


def planned(scene: Scene, mode: str = "on", *, recorded: bool = False) -> HostResctrlPlan:
    files = ReadOnlyResctrlFiles(scene.host) if recorded else scene.host
    ledger = ChangeLedger(None, "") if recorded else scene.ledger
    planner = HostResctrlPlanner(files, ledger, scene.settings, mode, scene.protected_namespaces)
    return planner.plan(scene.snapshot, scene.clock.monotonic())


def rows(plan: HostResctrlPlan) -> list[tuple[str, str, str]]:
    return [
        (change.action.kind.value, change.path, change.action.text.strip())
        for change in plan.changes
    ]


@pytest.mark.parametrize("recorded", [False, True])
def test_groups_of_classes_and_pods_are_planned_with_their_schemata(recorded: bool) -> None:
    scene = Scene()
    scene.set_class("BE", qos(0, 30))
    scene.add_pod(1, annotation=HALF)
    plan = planned(scene, recorded=recorded)
    assert plan.status.state is StrategyState.ACTIVE
    kinds = [(kind, path.removeprefix("/sys/fs/resctrl/")) for kind, path, _ in rows(plan)]
    assert kinds == [
        ("make", "BE"),
        ("write", "BE/schemata"),
        ("make", group(1)),
        ("write", f"{group(1)}/schemata"),
    ]
    assert plan.changes[1].action.reason == "NodeSLO class BE"
    assert scene.groups() == set()


def test_what_the_manager_has_done_is_planned_no_more() -> None:
    scene = Scene()
    scene.set_class("BE", qos(0, 30))
    before = rows(planned(scene))
    scene.cycle()
    assert before
    assert rows(planned(scene)) == []
    scene.set_class("BE", qos(0, 60))
    (change,) = planned(scene).changes
    assert (change.action.kind.value, change.path) == ("write", "/sys/fs/resctrl/BE/schemata")
    assert change.current is not None
    assert change.current != change.action.text.strip()


def test_groups_of_a_strategy_that_is_off_now_are_planned_to_be_removed() -> None:
    scene = Scene()
    scene.set_class("BE", qos(0, 30))
    scene.cycle()
    assert rows(planned(scene, "off")) == [("remove", "/sys/fs/resctrl/BE", "")]
    scene.restart("off")
    scene.cycle()
    assert scene.groups() == set()
    assert rows(planned(scene, "off")) == []


def test_pods_of_protected_namespaces_are_planned_for_as_the_manager_does_it() -> None:
    scene = Scene(protected_namespaces=("test",), monitor_pods=True)
    scene.set_class("BE", qos(0, 30))
    scene.add_pod(1)
    before = rows(planned(scene))
    scene.cycle()
    assert before
    assert rows(planned(scene)) == []


def test_a_part_that_the_hardware_lacks_is_named() -> None:
    scene = Scene(Machine(mb_domains=()))
    scene.set_class("BE", qos(0, 100, 30))
    status = planned(scene).status
    assert status.state is StrategyState.UNSUPPORTED
    assert "memory bandwidth" in status.message


def test_without_a_mount_the_need_for_it_is_reported() -> None:
    scene = Scene()
    scene.host.unmount()
    assert planned(scene).status.state is StrategyState.IDLE
    scene.set_class("BE", qos(0, 30))
    status = planned(scene).status
    assert status.state is StrategyState.UNSUPPORTED
    assert "no resctrl file system is mounted" in status.message
    assert planned(scene, "off").status.state is StrategyState.OFF


def test_a_recording_is_never_changed() -> None:
    files = ReadOnlyResctrlFiles(Scene().host)
    for change in (files.make, files.remove):
        with pytest.raises(HostFileError) as refused:
            change("/sys/fs/resctrl/BE")
        assert refused.value.errno == errno.EROFS
    with pytest.raises(HostFileError):
        files.write("/sys/fs/resctrl/schemata", "L3:0=1")
    with pytest.raises(HostFileError):
        files.inode("/sys/fs/resctrl/none")
    assert files.folders("/sys/fs/resctrl/none") == ()


def test_a_recording_of_a_node_with_resctrl_can_be_planned_for(tmp_path: Path) -> None:
    scene = Scene()
    scene.set_class("BE", qos(0, 30, 30))
    paths = [f"info/{folder}/{name}" for folder, names in INFO_FILES.items() for name in names]
    for path in ("schemata", *paths):
        if scene.host.exists(f"{POINT}/{path}"):
            copy = tmp_path / POINT.strip("/") / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(scene.host.read(f"{POINT}/{path}"))
    files = ReadOnlyResctrlFiles(LiveHostFiles(str(tmp_path)))
    planner = HostResctrlPlanner(files, ChangeLedger(None, ""), ResctrlSettings(), "on")
    plan = planner.plan(scene.snapshot, scene.clock.mono_s)
    assert [(change.path, change.action.text) for change in plan.changes] == [
        (f"{POINT}/BE", ""),
        (f"{POINT}/BE/schemata", "L3:0=f;1=f\nMB:0=30;1=30\n"),
    ]
