"""The suppression of best-effort CPU on version 2 groups, and its trigger by CPU pressure."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.cgroup.ledger import LEDGER_FILE, ChangeLedger
from agent.cgroup.restore import restore_all
from agent.clock import SystemClock
from agent.config.containers import CpuSuppressionSettings
from agent.host.files import LiveHostFiles
from agent.qos.pressure import TRIGGER, PressureMonitor
from agent.snapshot.node import SnapshotStore
from agent.snapshot.pod import PodView
from agent.snapshot.usage import PressureWatch
from tests.guest.inside.restore import DRIVERS, MOST_STEPS, Version2Groups
from tests.kill_steps import killed_at
from tests.unit.reconcile.suppressed_node import QUOTA_POLICY, SuppressedNode

FILES = ("cpuset.cpus", "cpu.max", "cpu.idle", "cpu.weight")
EFFECTIVE = "cpuset.cpus.effective"
LAST_CPU = "3"
CLASS_IDLE = CpuSuppressionSettings(idle="class")
STALL_DEADLINE_S = 60.0  # the machine is emulated
BURN = "import os\nos.sched_setaffinity(0, {0})\nwhile True: pass"
TRIGGERS = {
    "accepted": TRIGGER,
    "short window": b"some 50000 100000\0",
    "long window": b"some 50000 20000000\0",
    "threshold above window": b"some 600000 500000\0",
    "no number": b"some x y\0",
}


class Node:
    """A node with one best-effort pod; the ledger is on a disk."""

    def __init__(self, driver: str, state: Path) -> None:
        self.groups = Version2Groups(driver)
        self._state = state
        self.suppressed = SuppressedNode(self.groups, CLASS_IDLE, self.ledger())
        self.groups.put(self.suppressed.best_effort, "cpu.weight", "1")  # as the kubelet does
        self.pod = self.suppressed.add_pod()

    def ledger(self) -> ChangeLedger:
        """Read the ledger, as a process that starts does."""
        ledger = ChangeLedger(str(self._state / LEDGER_FILE), "boot")
        ledger.load()
        return ledger

    def restore(self) -> None:
        """Put back what the ledger says."""
        restore_all(self.ledger(), self.groups.layout, LiveHostFiles(), monotonic=time.monotonic)

    def values(self) -> dict[str, list[str]]:
        """Return the files of the class, of the pod and of its container."""
        return {name: self.suppressed.values(name, self.pod) for name in FILES}


@contextmanager
def node_of(driver: str) -> Iterator[Node]:
    """Make a node, and remove all of it."""
    with tempfile.TemporaryDirectory() as folder:
        node = Node(driver, Path(folder))
        try:
            yield node
        finally:
            node.groups.stop()


def _by_cpus(node: Node) -> None:
    node.suppressed.reserve(LAST_CPU)


def _by_quota(node: Node) -> None:
    node.suppressed.thresholds = QUOTA_POLICY
    node.suppressed.protected_cores = 4.0


def _written_and_restored(driver: str, ask: Callable[[Node], None]) -> dict[str, object]:
    """Suppress, then switch it off; return the files before, meanwhile and afterwards."""
    with node_of(driver) as node:
        suppressed = node.suppressed
        before = node.values()
        ask(node)
        report = suppressed.cycle()
        again = suppressed.cycle()
        written = node.values()
        effective = suppressed.values(EFFECTIVE, node.pod)
        suppressed.switch_off()
        return {
            "before": before,
            "written": written,
            "effective": effective,
            "restored": node.values(),
            "writes": [report.written, report.unwritten, again.written],
            "left": [entry.key for entry in suppressed.scene.ledger.entries.values()],
        }


def _without_processes() -> list[str]:
    """Suppress a class without processes: its list of CPUs is empty again afterwards."""
    groups = Version2Groups("cgroupfs")
    try:
        node = SuppressedNode(groups)
        lists = [groups.get(node.best_effort, "cpuset.cpus")]
        node.reserve(LAST_CPU)
        node.cycle()
        lists.append(groups.get(node.best_effort, "cpuset.cpus"))
        node.switch_off()
        return [*lists, groups.get(node.best_effort, "cpuset.cpus")]
    finally:
        groups.stop()


def _killed(driver: str, ask: Callable[[Node], None]) -> dict[str, object]:
    """Kill the agent at each step, then restore; return what is not as it was."""
    wrong: list[object] = []
    for step in range(MOST_STEPS):
        with node_of(driver) as node:
            before = node.values()
            ask(node)
            killed = killed_at(step, node.suppressed.cycle)
            node.restore()
            after = node.values()
            if after["cpuset.cpus"][0] == "0-3":  # all that the kernel gives back to a group in use
                after["cpuset.cpus"][0] = ""
            if after != before:
                wrong.append((step, after))
        if not killed:
            return {"steps": step, "wrong": wrong}
    return {"steps": MOST_STEPS, "wrong": [*wrong, "never ended"]}


def _trigger_answers(groups: Version2Groups) -> dict[str, str]:
    """Write triggers, and one more to a descriptor that has one."""
    path, answers = groups.path("", groups.root) / "cpu.pressure", {}
    for name, text in TRIGGERS.items():
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        try:
            answers[name] = _answer(fd, text)
            if name == "accepted":
                answers["second on a descriptor"] = _answer(fd, text)
        finally:
            os.close(fd)
    return answers


def _answer(fd: int, text: bytes) -> str:
    try:
        os.write(fd, text)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def _pressure() -> dict[str, object]:
    """Let burstable processes wait for CPU, and let the agent react to what the kernel reports."""
    groups = Version2Groups("cgroupfs")
    burners: list[subprocess.Popen[bytes]] = []
    try:
        node = SuppressedNode(groups, CpuSuppressionSettings(pressure=True))
        pod: PodView = node.add_pod()
        burstable = groups.make(f"{groups.root}/burstable")
        busy = groups.make(f"{burstable}/podbusy")
        answers = _trigger_answers(groups)
        node.cycle()
        store = SnapshotStore(node.scene.snapshot)
        monitor = PressureMonitor(store, SystemClock())
        try:
            monitor.watch(groups.layout, (burstable,))
            idle = _wait(store, lambda view: view.groups == 1)
            for _ in range(3):
                burners.append(subprocess.Popen([sys.executable, "-c", BURN]))
                groups.put(busy, "cgroup.procs", str(burners[-1].pid))
            stalled = _wait(store, lambda view: view.stalls > 0)
        finally:
            monitor.close()
        node.pressure = stalled
        node.cycle(0.05)
        cut = node.values("cpu.max", pod)
        for _ in range(20):
            node.cycle()
        return {
            "answers": answers,
            "method": idle.method,
            "stalls before": idle.stalls,
            "stalls": stalled.stalls,
            "cut": cut,
            "later": node.values("cpu.max", pod),
        }
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
        groups.stop()


def _wait(store: SnapshotStore, holds: Callable[[PressureWatch], bool]) -> PressureWatch:
    until_s = time.monotonic() + STALL_DEADLINE_S
    while time.monotonic() < until_s and not holds(store.current.pressure.value):
        time.sleep(0.01)
    return store.current.pressure.value


def facts() -> dict[str, object]:
    """Return what the kernel holds and answers."""
    policies = {"cpus": _by_cpus, "quota": _by_quota}
    return {
        **{
            driver: {
                name: {
                    "agent": _written_and_restored(driver, ask),
                    "killed": _killed(driver, ask),
                }
                for name, ask in policies.items()
            }
            for driver in DRIVERS
        },
        "empty": _without_processes(),
        "pressure": _pressure(),
    }
