"""One session of the agent on a resctrl file system, the same on a kernel and on the emulator.

`kernel-6.1-agent-session.txt` is what it printed in the virtual machine of `make guest`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import ChangeLedger
from agent.config.containers import ResctrlSettings
from agent.resctrl.files import KernelResctrlFiles
from agent.resctrl.manager import ResctrlManager
from tests.resctrl.session import CHILD
from tests.unit.resctrl.scene import HALF, SLO_STALE_S, Scene, qos

RECORDED = Path(__file__).parent / "kernel-6.1-agent-session.txt"
MOUNT = "sys/fs/resctrl"
CGROUPS = "/sys/fs/cgroup"
LAYOUT = CgroupLayout(version=2, driver="cgroupfs", mounts=(), unified=CGROUPS, root="/kubepods")

# puts a process into a cgroup, which it makes
Place = Callable[[str, int], None]


class AgentSession:
    """The manager on the file system below a root folder, with one process in one pod."""

    def __init__(self, root: Path, ledger: Path, place: Place, child: int) -> None:
        self.mount = root / MOUNT
        self._root = root
        self._ledger_path = ledger
        self._child = child
        self.scene = Scene()
        self.scene.add_pod(1, "BE", tasks=0)
        place(self.scene.pods[1].containers[0].cgroup, child)
        self._manager = self._start("on", monitor_pods=False)

    def _start(self, mode: str, *, monitor_pods: bool) -> ResctrlManager:
        ledger = ChangeLedger(str(self._ledger_path), "boot")
        ledger.load()
        return ResctrlManager(
            ledger=ledger,
            clock=self.scene.clock,
            mode=mode,
            settings=ResctrlSettings(monitor_pods=monitor_pods),
            slo_stale_s=SLO_STALE_S,
            files=KernelResctrlFiles(str(self._root)),
        )

    def restart(self, mode: str, *, monitor_pods: bool = False) -> None:
        """Start another agent on the ledger of this one."""
        self._manager = self._start(mode, monitor_pods=monitor_pods)

    def write(self, path: str, text: str) -> None:
        """Write a file as another program does."""
        descriptor = os.open(self.mount / path, os.O_WRONLY)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def make(self, path: str) -> None:
        """Make a group as another program does."""
        (self.mount / path).mkdir()

    def remove(self, path: str) -> None:
        """Remove a group as another program does."""
        (self.mount / path).rmdir()

    def run(self, title: str, cycles: int = 2) -> Iterator[str]:
        """Run some cycles; yield what is there and what the agent reports."""
        yield f"== {title}"
        for _ in range(cycles):
            self.scene.clock.advance(1.0)
            view = self._manager.cycle(self.scene.snapshot, LAYOUT).view
        for name in sorted(self.mount.iterdir()):
            if (name / "schemata").exists():
                yield f"group {name.name}: {(name / 'schemata').read_text()!r}"
        for tasks in sorted(self.mount.rglob("tasks")):
            if str(self._child) in tasks.read_text().split():
                yield f"{CHILD} in {tasks.parent.relative_to(self.mount)}"
        yield f"{view.mode} {view.state.value}, {view.closids} groups allowed"
        yield f"ready: {' '.join(view.ready_groups)}; classes: {dict(view.class_groups)}"
        yield from (f"problem {problem.reason}: {problem.message}" for problem in view.problems)


def answers(root: Path, ledger: Path, place: Place) -> list[str]:
    """Return the lines of the session, and leave the file system as it was."""
    child = subprocess.Popen(["sleep", "3600"])
    try:
        return list(_steps(AgentSession(root, ledger, place, child.pid)))
    finally:
        child.kill()
        child.wait()


def _steps(session: AgentSession) -> Iterator[str]:
    scene = session.scene
    yield from session.run("nobody asks for anything")
    scene.set_class("BE", qos(0, 30, 35))
    yield from session.run("best-effort pods get 30 % of the cache and 35 % of the bandwidth")
    scene.set_class("LS", qos(30, 100))
    scene.set_class("LSR", qos(30, 100))
    scene.add_pod(2, "LS", HALF, tasks=0)
    yield from session.run("two classes of equal values, and a pod with an annotation")
    session.write("BE/schemata", "L3:0=1\n")
    yield from session.run("another program changes a value")
    session.remove("LS")
    yield from session.run("another program removes a group")
    for number in range(3, 9):
        scene.add_pod(number, "LS", HALF, tasks=0)
    yield from session.run("more pods with an annotation than groups")
    for number in range(3, 9):
        scene.remove_pod(number)
    scene.annotate(2, None)
    for name in ("LS", "LSR"):
        scene.set_class(name, qos(enable=False))
    scene.set_class("BE", qos(50, 100, 35))
    yield from session.run("these pods end, and best-effort pods get other ways")
    session.make("other")
    session.write("other/schemata", "L3:0=1;1=1\n")
    session.write("schemata", "L3:0=7fe;1=7fe\n")
    session.write("other/mode", "exclusive\n")
    scene.set_class("BE", qos(0, 30, 35))
    yield from session.run("another program has a way for itself", cycles=3)
    session.remove("other")
    session.write("schemata", "L3:0=7ff;1=7ff\n")
    yield from session.run("and gives it back")
    session.restart("on", monitor_pods=True)
    yield from session.run("pods are monitored")
    session.restart("off")
    yield from session.run("resctrl is off")
