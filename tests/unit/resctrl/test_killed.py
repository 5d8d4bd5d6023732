"""An agent that is killed at any step: the next one finishes the plan, or takes it back whole."""

from __future__ import annotations

import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.resctrl.emulator import Resctrl
from tests.resctrl.fuse import mounted, unavailable_reason
from tests.resctrl.host import CGROUPS, MOUNT_TABLE, POINT
from tests.resctrl.killed import failures_of_killed_agents
from tests.resctrl.machine import Machine
from tests.unit.resctrl.scene import HALF, Scene, qos

PLANS = 100
REASON = unavailable_reason()


class Killed(BaseException):
    """The end of the agent's process."""


def random_scene(seed: int, folder: Path) -> Scene:
    """Return a node with random classes, pods and a group of another program."""
    choose = random.Random(seed)
    machine = choose.choice((Machine(), Machine(mb_closids=4), Machine(cdp=True)))
    scene = Scene(machine, ledger_path=folder / f"{seed}.log", monitor_pods=choose.random() < 0.5)
    if choose.random() < 0.5:
        scene.host.make(f"{POINT}/pqos")
    change(scene, choose)
    return scene


def change(scene: Scene, choose: random.Random) -> None:
    """Change some classes and pods."""
    for name in ("BE", "LS", "LSR"):
        start = choose.choice((0, 10, 50))
        scene.set_class(name, qos(start, 100 - start // 2, 60, enable=choose.random() < 0.6))
    for number in range(4):
        if number in scene.pods:
            scene.annotate(number, choose.choice((None, HALF)))
        else:
            label = choose.choice(("BE", "LS", "LSR"))
            scene.add_pod(number, label, choose.choice((None, HALF)))


def state(scene: Scene) -> dict[str, object]:
    """Return values and tasks of all groups."""
    groups = scene.host.resctrl.groups
    return {
        name: (one.values, scene.members(name), sorted(one.monitored))
        for name, one in groups.items()
    }


def killed_in(scene: Scene, step: int) -> bool:
    """Run one cycle whose process ends before its n-th change; return whether it did."""
    remaining = [step]

    def count(*_: str) -> None:
        remaining[0] -= 1
        if remaining[0] < 0:
            raise Killed

    scene.host.resctrl.before_change = count
    try:
        scene.cycle()
    except Killed:
        return True
    finally:
        scene.host.resctrl.before_change = lambda *_: None
    return False


@pytest.fixture
def memory() -> Iterator[Path]:
    """Return a folder in memory, if there is one: each step of each plan syncs a ledger."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        yield Path(folder)


@pytest.mark.parametrize("seed", range(PLANS))
def test_a_plan_that_was_cut_off_at_any_step_is_finished(seed: int, memory: Path) -> None:
    whole = random_scene(seed, memory)
    whole.cycle(3)
    step, is_killed = 0, True
    while is_killed:
        scene = random_scene(seed, memory / str(step))
        is_killed = killed_in(scene, step)
        scene.restart()
        scene.cycle(3)
        assert state(scene) == state(whole)
        step += 1
    assert step > 0


@pytest.mark.parametrize("seed", range(0, PLANS, 5))
def test_a_plan_that_was_cut_off_at_any_step_is_taken_back(seed: int, memory: Path) -> None:
    step, is_killed = 0, True
    while is_killed:
        scene = random_scene(seed, memory / str(step))
        foreign = scene.groups()
        scene.cycle()
        change(scene, random.Random(seed + 1))
        is_killed = killed_in(scene, step)
        scene.restart("off")
        if is_killed:
            killed_in(scene, step // 2)  # and the one that takes it back is killed, too
        scene.restart("off")
        scene.cycle(2)
        assert scene.groups() == foreign
        assert scene.host.resctrl.root.monitored == {}
        assert scene.ledger.entries == {}
        step += 1


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


@pytest.mark.root
@pytest.mark.skipif(bool(REASON), reason=f"no emulator: {REASON}")
def test_a_process_that_is_killed_before_any_system_call_leaves_what_the_next_one_finishes(
    tmp_path: Path, child: int
) -> None:
    root = tmp_path / "root"
    mount = root / POINT.strip("/")
    mount.mkdir(parents=True)
    table = root / MOUNT_TABLE.strip("/")
    table.parent.mkdir(parents=True)
    table.write_text(f"40 24 0:36 / {POINT} rw shared:9 - resctrl resctrl rw\n")

    def place(cgroup: str, process: int) -> None:
        threads = root / CGROUPS.strip("/") / cgroup.strip("/") / "cgroup.threads"
        threads.parent.mkdir(parents=True)
        threads.write_text(f"{process}\n")

    with mounted(Resctrl(), mount):
        failures = list(failures_of_killed_agents(root, tmp_path / "ledgers", place, child))
    assert failures == [None] * len(failures)
    assert len(failures) > 10
