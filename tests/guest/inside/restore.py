"""What the agent writes to version 2 groups of running containers, and how it is undone."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.cgroup.keys import MEMORY
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import LEDGER_FILE, ChangeLedger
from agent.cgroup.restore import restore_all
from agent.cgroup.values import CgroupValues, KernelFiles
from agent.cgroup.write_plan import DesiredValue
from agent.cgroup.writer import CgroupWriter
from agent.cli.main import main
from agent.clock import ManualClock
from agent.host.files import LiveHostFiles
from agent.host.kernel import read_identity
from agent.snapshot.container import Adjustment, LinuxResources
from tests.cgroup_v2.session import CACHE_BYTES
from tests.guest.inside.groups import MOUNT
from tests.guest.inside.session import kernel_groups
from tests.kill_steps import killed_at
from tests.realgroups import UID
from tests.unit.reconcile.scene import CannedHook, Scene

CONTROLLERS = "+cpu +cpuset +memory"
DRIVERS = ("cgroupfs", "systemd")
MOST_STEPS = 60
LIMIT_BYTES = 10**9  # no multiple of a page
FILES = ("cpuset.cpus", "cpu.max", "memory.max")


class Version2Groups:
    """Groups of one kubelet with one of its two drivers; a process runs in each container."""

    def __init__(self, driver: str) -> None:
        self._slice = driver == "systemd"
        self.root = "/kubepods.slice" if self._slice else "/kubepods"
        self._made: list[Path] = []
        self._children: list[subprocess.Popen[bytes]] = []
        self.layout = CgroupLayout(
            version=2, driver=driver, mounts=(), unified=str(MOUNT), root=self.root
        )
        self.make(self.root)

    def pod_path(self, uid: str) -> str:
        """Return the path; see `PodGroups`."""
        if self._slice:
            return f"{self.root}/kubepods-pod{uid.replace('-', '_')}.slice"
        return f"{self.root}/pod{uid}"

    def container_path(self, pod: str, number: int) -> str:
        """Return the path; see `PodGroups`."""
        return (
            f"{pod}/cri-containerd-{number:064x}.scope" if self._slice else f"{pod}/{number:064x}"
        )

    def pod(self, uid: str = UID) -> str:
        """Make a pod's group."""
        return self.make(self.pod_path(uid))

    def container(self, pod: str, number: int) -> str:
        """Make a container's group with a process in it."""
        cgroup = self.make(self.container_path(pod, number))
        child = subprocess.Popen(["sleep", "3600"])
        self._children.append(child)
        self.put(cgroup, "cgroup.procs", str(child.pid))
        return cgroup

    def path(self, controller: str, cgroup: str) -> Path:  # noqa: ARG002 - as `PodGroups`
        """Return a group's directory, the same of all controllers."""
        return MOUNT / cgroup.lstrip("/")

    def get(self, cgroup: str, name: str) -> str:
        """Read a file."""
        return (self.path("", cgroup) / name).read_text().strip()

    def put(self, cgroup: str, name: str, text: str) -> None:
        """Write a file with one system call."""
        fd = os.open(self.path("", cgroup) / name, os.O_WRONLY)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def stop(self) -> None:
        """End the processes and remove all groups."""
        for child in self._children:
            child.send_signal(signal.SIGKILL)
            child.wait()
        for path in reversed(self._made):
            while "populated 1" in (path / "cgroup.events").read_text():
                time.sleep(0.01)
            path.rmdir()

    def make(self, cgroup: str) -> str:
        """Make a group, with controllers."""
        path = self.path("", cgroup)
        self.put("/" + str(path.parent.relative_to(MOUNT)), "cgroup.subtree_control", CONTROLLERS)
        path.mkdir()
        self._made.append(path)
        return cgroup


class Node:
    """One pod whose container gets two CPUs, a quota and a limit; the state is on a disk."""

    def __init__(self, driver: str, state: Path) -> None:
        self.groups = Version2Groups(driver)
        self.state = state
        self.hook = CannedHook()
        self.hook.answers = {
            "app": Adjustment(
                resources=LinuxResources(
                    cpus="2-3", quota_us=50_000, period_us=100_000, memory_bytes=LIMIT_BYTES
                )
            )
        }
        self.container = Scene(self.groups, self.hook).container

    def ledger(self) -> ChangeLedger:
        """Read the ledger, as a process that starts does."""
        boot_id = read_identity(LiveHostFiles(), "", "").boot_id
        ledger = ChangeLedger(str(self.state / LEDGER_FILE), boot_id)
        ledger.load()
        return ledger

    def agent(self) -> Scene:
        """Start the agent."""
        return Scene(self.groups, self.hook, ledger=self.ledger())

    def restore(self) -> None:
        """Put back what the ledger says."""
        restore_all(self.ledger(), self.groups.layout, LiveHostFiles(), monotonic=time.monotonic)

    def values(self) -> list[str]:
        """Return what the container's files hold."""
        return [self.groups.get(self.container, name) for name in FILES]


@contextmanager
def node_of(driver: str) -> Iterator[Node]:
    """Make a node, and remove all of it."""
    with tempfile.TemporaryDirectory() as folder:
        node = Node(driver, Path(folder))
        try:
            yield node
        finally:
            node.groups.stop()


def _written_and_given_back(driver: str) -> dict[str, object]:
    """Let the agent write, then have nothing to say: it undoes that by itself."""
    with node_of(driver) as node:
        scene = node.agent()
        scene.cycle()
        written = node.values()
        scene.cycle(61.0)
        node.hook.answers = {}
        scene.renew()
        for _ in range(12):
            scene.cycle()
        audits = [
            (audit.key, audit.message, audit.old, audit.new)
            for audit in scene.reconciler.audits
            if audit.message.startswith("put back")
        ]
        keys = [entry.key for entry in scene.ledger.entries.values()]
        return {"written": written, "given_back": node.values(), "audits": audits, "left": keys}


def _commands(driver: str) -> dict[str, object]:
    """Run `restore --dry-run` and `restore`."""
    with node_of(driver) as node:
        node.agent().cycle()
        folders = {name: str(node.state / name) for name in ("run", "cdi", "kubelet")}
        for folder in folders.values():
            Path(folder).mkdir()
        config = node.state / "config.yaml"
        config.write_text(
            json.dumps(
                {
                    "node": {"state_dir": str(node.state), "run_dir": folders["run"]},
                    "cdi": {"dir": folders["cdi"]},
                    "kubelet": {"root_dir": folders["kubelet"]},
                }
            )
        )
        said = {}
        for name, words in (("dry", ("--dry-run",)), ("real", ())):
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                status = main(["restore", *words, "--config", str(config)])
            said[name] = {"status": status, "output": output.getvalue(), "values": node.values()}
        return {"container": node.container, **said}


def _killed(driver: str, prepare: Callable[[Node], object], work: str) -> dict[str, object]:
    """Kill the agent or a restore at each step, then restore; return what is not as it was."""
    wrong = []
    for step in range(MOST_STEPS):
        with node_of(driver) as node:
            prepare(node)
            killed = killed_at(
                step, node.restore if work == "restore" else lambda: node.agent().cycle()
            )
            node.restore()
            cpus, *others = node.values()
            if cpus not in ("", "0-3") or others != ["max 100000", "max"]:
                wrong.append((step, cpus, others))
            if (node.state / LEDGER_FILE).exists():
                wrong.append((step, "the ledger is still there", []))
        if not killed:
            return {"steps": step, "wrong": wrong}
    return {"steps": MOST_STEPS, "wrong": [*wrong, (MOST_STEPS, "never ended", [])]}


def _limits(file: Path) -> dict[str, object]:
    """Limit memory below what is in use: page cache, then anonymous memory."""
    result: dict[str, object] = {}
    with kernel_groups(file) as groups:
        layout = CgroupLayout(version=2, driver="", mounts=(), unified=str(MOUNT), root="/session")
        for name, size in (("cache", CACHE_BYTES), ("held", 4 * CACHE_BYTES)):
            groups.make(name)
            if name == "cache":
                groups.read_file(name)
            else:
                groups.hold(name, size)
            wish = DesiredValue(
                cgroup=f"/session/{name}",
                key=MEMORY,
                value=size // 2,
                owner="test",
                message="limit it",
            )
            values = CgroupValues(KernelFiles(LiveHostFiles()), layout)
            writer = CgroupWriter(values, ChangeLedger(None, ""), ManualClock())
            outcome = writer.apply(writer.prepare((wish,), 0.0), 0.0)
            result[name] = {
                "written": outcome.written,
                "alive": groups.alive(name),
                "max": groups.read(f"{name}/memory.max").strip(),
                "high": groups.read(f"{name}/memory.high").strip(),
                "messages": [audit.message for audit in outcome.audits],
            }
    return result


def facts(file: Path) -> dict[str, object]:
    """Return what became of each."""
    return {
        **{
            driver: {
                "agent": _written_and_given_back(driver),
                "commands": _commands(driver),
                "killed_agent": _killed(driver, lambda _: None, "agent"),
                "killed_restore": _killed(driver, lambda node: node.agent().cycle(), "restore"),
            }
            for driver in DRIVERS
        },
        "limits": _limits(file),
    }
