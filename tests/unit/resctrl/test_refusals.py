"""What the kernel refuses is reported with its reason, and not tried again in vain."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.snapshot.self_check import StrategyState
from tests.resctrl.machine import Machine
from tests.unit.resctrl.scene import HALF, Scene, group, qos, reasons


def refuse(scene: Scene, operation: str, path: str, number: int, status: str = "ok") -> list[str]:
    """Let the kernel refuse an operation on a path; return the list of what it is asked."""
    requests: list[str] = []

    def answer(one: str, where: str) -> None:
        requests.append(f"{one} {where}")
        if (one, where) == (operation, path):
            scene.host.resctrl.status = f"{status}\n"
            raise OSError(number, errno.errorcode[number])

    scene.host.resctrl.before_change = answer
    return requests


def accept(scene: Scene) -> None:
    scene.host.resctrl.before_change = lambda *_: None


def test_more_groups_than_the_hardware_has_are_tried_once_a_minute() -> None:
    scene = Scene(Machine(mb_closids=3))
    scene.set_class("BE", qos(0, 30))
    scene.add_pod(1, "BE", HALF)
    requests = refuse(scene, "make", group(1), errno.ENOSPC, "Out of CLOSIDs")
    view = scene.cycle()
    assert [
        problem.message for problem in view.problems if problem.reason == "ResctrlExhausted"
    ] == [f"annotation of pod test/pod-1: make {group(1)}: ENOSPC: Out of CLOSIDs"]
    requests.clear()
    view = scene.cycle(30)
    assert f"make {group(1)}" not in requests
    assert "ResctrlExhausted" in reasons(view)
    assert scene.tasks_of(1) <= scene.members("BE")
    scene.cycle(40)
    assert requests.count(f"make {group(1)}") == 1
    assert not any(entry.path.endswith(group(1)) for entry in scene.ledger.entries.values())


def test_a_value_that_the_kernel_refuses_is_tried_once_and_reported_with_its_reason() -> None:
    scene = Scene()
    tasks = scene.add_pod(1, "BE")
    scene.host.make("/sys/fs/resctrl/other")
    scene.host.write("/sys/fs/resctrl/other/schemata", "L3:0=1;1=1\n")
    scene.host.write("/sys/fs/resctrl/schemata", "L3:0=7fe;1=7fe\n")
    scene.host.write("/sys/fs/resctrl/other/mode", "exclusive\n")
    scene.set_class("BE", qos(0, 30))
    view = scene.cycle(2)
    assert {problem.message for problem in view.problems if problem.reason == "ResctrlRefused"} == {
        "NodeSLO class BE: the kernel refuses L3:0=f;1=f: Overlaps with exclusive group"
    }
    assert scene.groups() == {"other"}  # a group without its values would be in vain
    assert set(tasks) <= scene.members("")
    requests = refuse(scene, "", "", 0)
    view = scene.cycle(600)
    assert requests == []
    assert reasons(view) == {"ResctrlRefused"}
    scene.host.write("/sys/fs/resctrl/other/mode", "shareable\n")
    scene.host.write("/sys/fs/resctrl/schemata", "L3:0=7ff;1=7ff\n")  # the root group changed
    view = scene.cycle()
    assert scene.groups() == {"other", "BE"}
    assert not view.problems


def test_of_two_lines_the_kernel_keeps_the_one_that_it_accepts() -> None:
    scene = Scene(Machine(mb_min=20))
    real = scene.host.resctrl.write
    tasks = scene.add_pod(1, "BE")
    scene.set_class("BE", qos(0, 30, 30))

    def write(path: str, text: str) -> None:
        if "MB:" in text:
            raise OSError(errno.EINVAL, "EINVAL")
        real(path, text)

    scene.host.resctrl.write = write  # type: ignore[method-assign]
    view = scene.cycle()
    assert scene.schemata("BE")["L3"] == {0: 0xF, 1: 0xF}
    assert view.ready_groups == ()
    view = scene.cycle()
    assert reasons(view) == {"ResctrlRefused"}
    assert view.ready_groups == ("BE",)
    assert scene.members("BE") == set(tasks)


def test_no_task_enters_a_group_whose_values_are_refused() -> None:
    scene = Scene()
    tasks = scene.add_pod(1, "BE")
    scene.set_class("BE", qos(0, 30))
    requests = refuse(scene, "write", "BE/schemata", errno.EIO)
    view = scene.cycle()
    assert "write BE/tasks" not in requests
    assert view.ready_groups == ()
    assert reasons(view) == {"ResctrlFailed"}
    accept(scene)
    scene.cycle()
    assert scene.members("BE") == set(tasks)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EROFS])
@pytest.mark.parametrize("operation", ["make BE", "write BE/schemata", "write BE/tasks"])
def test_without_a_permission_nothing_is_tried_for_ten_minutes(number: int, operation: str) -> None:
    scene = Scene()
    scene.add_pod(1, "BE")
    scene.set_class("BE", qos(0, 30))
    kind, _, path = operation.partition(" ")
    requests = refuse(scene, kind, path, number)
    view = scene.cycle()
    assert reasons(view) == {"ResctrlNotPermitted"}
    assert view.refusals == ((errno.errorcode[number], 1),)
    requests.clear()
    view = scene.cycle(500)
    assert requests == []
    assert reasons(view) == {"ResctrlNotPermitted"}
    accept(scene)
    view = scene.cycle(120)
    assert scene.tasks_of(1) == scene.members("BE")
    assert not view.problems


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV])
def test_a_group_that_vanishes_under_a_write_is_planned_again(number: int) -> None:
    scene = Scene()
    scene.add_pod(1, "BE")
    scene.set_class("BE", qos(0, 30))
    refuse(scene, "write", "BE/schemata", number)
    scene.cycle()
    accept(scene)
    scene.cycle()
    assert scene.members("BE") == scene.tasks_of(1)


def test_a_group_that_cannot_be_removed_now_is_removed_later() -> None:
    scene = Scene()
    scene.set_class("BE", qos(0, 30))
    scene.cycle()
    scene.classes.clear()
    refuse(scene, "remove", "BE", errno.EBUSY)
    view = scene.cycle()
    assert (scene.groups(), reasons(view)) == ({"BE"}, {"ResctrlFailed"})
    accept(scene)
    scene.cycle()
    assert scene.groups() == set()


def test_while_the_ledger_cannot_be_written_nothing_is_changed(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.write_text("a file where a folder should be")
    scene = Scene()
    scene.restart()
    scene.ledger.path = str(folder / "ledger.log")
    scene.set_class("BE", qos(0, 30))
    view = scene.cycle(2)
    assert scene.groups() == set()
    assert reasons(view) == {"LedgerNotWritable"}
    folder.unlink()
    view = scene.cycle()
    assert scene.groups() == {"BE"}
    assert not view.problems


def test_a_root_group_that_is_not_readable_is_a_reason_to_wait() -> None:
    scene = Scene()
    scene.set_class("BE", qos(0, 30))
    scene.cycle()
    real = scene.host.resctrl.read

    def read(path: str) -> str:
        if path == "schemata":
            raise OSError(errno.EIO, "EIO")
        return real(path)

    scene.host.resctrl.read = read  # type: ignore[method-assign]
    view = scene.cycle()
    assert view.state is StrategyState.WAITING
    assert reasons(view) == {"ResctrlUnreadable"}
    scene.host.resctrl.read = real  # type: ignore[method-assign]
    scene.cycle()
    assert scene.ledger.entries
    assert scene.groups() == {"BE"}


@pytest.mark.parametrize("damage", ["", "zz\n", "-1\n", "0\n", "9" * 40])
def test_damaged_info_leaves_a_resource_out_with_a_problem(damage: str) -> None:
    scene = Scene()
    real: Callable[[str], str] = scene.host.resctrl.read
    scene.host.resctrl.read = (  # type: ignore[method-assign]
        lambda path: damage if path == "info/L3/cbm_mask" else real(path)
    )
    scene.set_class("BE", qos(0, 30, 30))
    view = scene.cycle()
    assert reasons(view) == {"ResctrlInfoInvalid"}
    assert scene.schemata("BE") == {"L3": {0: 0x7FF, 1: 0x7FF}, "MB": {0: 30, 1: 30}}


@pytest.mark.parametrize("number", [errno.EPERM, errno.EBUSY, errno.ENODEV])
def test_a_mount_that_is_refused_is_tried_once_a_minute_and_reported(number: int) -> None:
    scene = Scene(mount=True)
    scene.host.is_mounted = False
    tries: list[str] = []

    def mount(point: str) -> None:
        tries.append(point)
        raise OSError(number, os.strerror(number))

    scene.host.mount = mount  # type: ignore[method-assign]
    scene.restart()
    scene.set_class("BE", qos(0, 30))
    view = scene.cycle(30)
    assert tries == ["/sys/fs/resctrl"]
    assert view.message == f"/sys/fs/resctrl: {os.strerror(number)}"
    assert reasons(view) == {"ResctrlNotMounted"}


def test_a_group_that_nobody_asks_for_any_more_is_contested_no_more() -> None:
    scene = Scene()
    scene.set_class("BE", qos(0, 30))
    scene.set_class("LS", qos(0, 60))
    scene.cycle()
    for _ in range(5):
        scene.host.write("/sys/fs/resctrl/BE/schemata", "L3:0=1\n")
        view = scene.cycle()
    assert reasons(view) == {"ResctrlForeignWriter"}
    del scene.classes["BE"]
    scene.cycle()
    assert reasons(scene.cycle()) == set()
