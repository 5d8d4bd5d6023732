from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cgroup.ledger import ChangeLedger
from agent.cgroup.restore import restore_all
from agent.host.files import LiveHostFiles
from agent.snapshot.container import Adjustment, LinuxResources
from tests.kill_steps import killed_at
from tests.realgroups import RealGroups, needs_v1, real_groups
from tests.unit.reconcile.scene import CannedHook, Scene

pytestmark = [needs_v1, pytest.mark.root]

MOST = 80  # far more than one cycle makes


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    with real_groups() as created:
        yield created


class Life:
    """A pod whose quota and CPUs are made smaller at one level and moved at the other."""

    def __init__(self, groups: RealGroups, ledger_path: Path) -> None:
        self.groups = groups
        self.path = str(ledger_path)
        hook = CannedHook()
        hook.answers = {
            None: Adjustment(resources=LinuxResources(quota_us=50000, period_us=100000)),
            "app": Adjustment(resources=LinuxResources(cpus="1", quota_us=20000, period_us=50000)),
            "": Adjustment(resources=LinuxResources(cpus="0")),
        }
        self.hook = hook
        scene = Scene(groups, hook)
        self.files = {
            (scene.pod, "cpu.cfs_quota_us"): ("200000", "50000"),
            (scene.pod, "cpu.cfs_period_us"): ("100000", "100000"),
            (scene.container, "cpu.cfs_quota_us"): ("150000", "20000"),
            (scene.container, "cpu.cfs_period_us"): ("100000", "50000"),
            (scene.container, "cpuset.cpus"): ("0", "1"),
            (scene.sandbox, "cpuset.cpus"): ("0-1", "0"),
        }

    def originals(self) -> None:
        """Put everything as it was before the agent came."""
        Path(self.path).unlink(missing_ok=True)
        for (cgroup, name), _ in self.files.items():
            if name == "cpu.cfs_quota_us":
                self.groups.put(cgroup, name, "-1")
        for (cgroup, name), (original, _) in reversed(self.files.items()):
            if name == "cpu.cfs_period_us":
                self.groups.put(cgroup, name, original)
        for (cgroup, name), (original, _) in self.files.items():
            self.groups.put(cgroup, name, original)

    def scene(self) -> Scene:
        """Start the agent."""
        ledger = ChangeLedger(self.path, "boot")
        ledger.load()
        return Scene(self.groups, self.hook, ledger=ledger)

    def live(self) -> None:
        """Start the agent and let it make one cycle."""
        self.scene().cycle()

    def restore(self) -> None:
        """Put back what the ledger says."""
        ledger = ChangeLedger(self.path, "boot")
        ledger.load()
        restore_all(ledger, self.groups.layout, LiveHostFiles(), monotonic=time.monotonic)

    def now(self) -> list[str]:
        """Return what the files hold."""
        return [self.groups.get(*target) for target in self.files]

    def all_of(self, column: int) -> list[str]:
        """Return the originals (0), or what is wanted (1)."""
        return [values[column] for values in self.files.values()]


@pytest.fixture
def life(groups: RealGroups, tmp_path: Path) -> Life:
    return Life(groups, tmp_path / "ledger.log")


def steps() -> Iterator[int]:
    yield from range(MOST)


def test_killed_at_any_step_of_writing_the_next_start_finishes_it(life: Life) -> None:
    for step in steps():
        life.originals()
        killed = killed_at(step, life.live)
        life.live()
        assert life.now() == life.all_of(1), step
        if not killed:
            break
    assert 8 < step < MOST - 1


def test_killed_at_any_step_of_writing_a_restore_gives_the_originals(life: Life) -> None:
    for step in steps():
        life.originals()
        killed = killed_at(step, life.live)
        life.restore()
        assert life.now() == life.all_of(0), step
        assert not Path(life.path).exists()
        if not killed:
            break
    assert 8 < step < MOST - 1


def test_killed_at_any_step_of_a_restore_the_next_one_finishes_it(life: Life) -> None:
    for step in steps():
        life.originals()
        life.live()
        killed = killed_at(step, life.restore)
        life.restore()
        assert life.now() == life.all_of(0), step
        assert not Path(life.path).exists()
        if not killed:
            break
    assert 8 < step < MOST - 1


def test_killed_in_a_second_change_of_mind_a_restore_gives_the_first_originals(
    life: Life,
) -> None:
    other: dict[str | None, Adjustment] = {
        "app": Adjustment(resources=LinuxResources(cpus="0-1", quota_us=-1, period_us=100000))
    }
    desired = dict(life.hook.answers)
    for step in steps():
        life.originals()
        life.hook.answers = desired
        life.live()
        life.hook.answers = {**desired, **other}
        killed = killed_at(step, life.live)
        life.restore()
        assert life.now() == life.all_of(0), step
        if not killed:
            break
    assert 3 < step < MOST - 1
