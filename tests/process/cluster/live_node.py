"""A node of this machine: real groups with pods, an API server, and the agent between them.

Version 1 has the controllers, and a unified hierarchy beside it has the pressure files; the agent
sees the groups of the node as the whole of each hierarchy.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agent.app.identity import read_machine
from agent.host.files import LiveHostFiles
from tests.apiserver import ApiServer
from tests.apiserver.admin import node as node_object
from tests.process.agent import Agent
from tests.process.citizen import NODE, ROLES, citizen

MOUNT = Path("/sys/fs/cgroup")
HIERARCHIES = ("cpu", "cpuacct", "cpuset", "memory", "unified")
DEADLINE_S = 120.0
SHARES = {"": 1024, "/besteffort": 2, "/burstable": 1024}  # as the kubelet sets them

needs_live_node = pytest.mark.skipif(
    os.geteuid() != 0
    or not all((MOUNT / one / "cgroup.procs").exists() for one in HIERARCHIES)
    or not (MOUNT / "unified" / "cpu.pressure").exists(),
    reason="needs root, cgroup version 1, and a unified hierarchy with pressure files",
)

_OWN_GROUPS = """
for name in cpu cpuacct cpuset memory unified; do
  mount --bind "/sys/fs/cgroup/$name$0" "/sys/fs/cgroup/$name" || exit
done
exec "$@"
"""
# joins its groups, prints a line, and begins when it reads one
_BURNER = """
import sys
for group in sys.argv[1:]:
    with open(group + "/cgroup.procs", "w") as file:
        file.write("0")
print(flush=True)
sys.stdin.readline()
while True:
    pass
"""
_numbers = itertools.count(1)


class Burners:
    """Programs that use all CPU in some groups."""

    def __init__(self, groups: tuple[str, ...], processes: int) -> None:
        """Start them; return when they are in their groups."""
        command = [sys.executable, "-c", _BURNER, *groups]
        pipe = subprocess.PIPE
        self._children = [
            subprocess.Popen(command, stdin=pipe, stdout=pipe) for _ in range(processes)
        ]
        for child in self._children:
            assert child.stdout is not None
            child.stdout.readline()

    def begin(self) -> None:
        """Let them use CPU."""
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write(b"\n")
            child.stdin.flush()

    def end(self) -> None:
        """End them."""
        for child in self._children:
            child.kill()
            child.communicate()
        self._children.clear()


class LiveNode:
    """The groups, the pods and the NodeSLO of one node."""

    agent: Agent

    def __init__(self, api: ApiServer, root: str) -> None:
        self._api = api
        self.root = root
        self._burners: list[Burners] = []
        for cgroup, shares in SHARES.items():
            self._make(f"/kubepods{cgroup}")
            self.path("cpu", f"/kubepods{cgroup}/cpu.shares").write_text(str(shares))

    @property
    def best_effort(self) -> Path:
        """The directory of the best-effort class in the hierarchy of the CPU controller."""
        return self.path("cpu", "/kubepods/besteffort")

    def path(self, hierarchy: str, below: str) -> Path:
        """Return a path of one hierarchy below the node's root."""
        return MOUNT / hierarchy / f"{self.root}{below}".lstrip("/")

    def add_pod(self, name: str, qos: str, folder: str, cpu: str = "") -> tuple[str, ...]:
        """Make a pod with one container; return the directories of the container."""
        requests = {"requests": {"cpu": cpu}} if cpu else {}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "team-a",
                "labels": {"koordinator.sh/qosClass": qos},
            },
            "spec": {
                "nodeName": NODE,
                "containers": [{"name": "main", "image": "i", "resources": requests}],
            },
            "status": {"phase": "Running"},
        }
        uid = str(self._api.put(body)["metadata"]["uid"])
        pod = self._make(f"/kubepods{folder}/pod{uid}")
        container = self._make(f"{pod}/{next(_numbers):064x}")
        return tuple(str(self.path(one, container)) for one in HIERARCHIES)

    def ask(self, **thresholds: object) -> None:
        """Put the thresholds of the NodeSLO."""
        self._api.put(
            {
                "apiVersion": "slo.koordinator.sh/v1alpha1",
                "kind": "NodeSLO",
                "metadata": {"name": NODE},
                "spec": {"resourceUsedThresholdWithBE": thresholds},
            }
        )

    def quota_us(self) -> int:
        """Return the quota of the best-effort class."""
        return int((self.best_effort / "cpu.cfs_quota_us").read_text())

    def prepare_burners(self, groups: tuple[str, ...], processes: int) -> Burners:
        """Start programs in these groups that use all CPU once they are told to begin."""
        burners = Burners(groups, processes)
        self._burners.append(burners)
        return burners

    def remove(self) -> None:
        """End all programs and remove all groups."""
        for burners in self._burners:
            burners.end()
        for hierarchy in HIERARCHIES:
            for folder, _, _ in os.walk(self.path(hierarchy, ""), topdown=False):
                until_s = time.monotonic() + DEADLINE_S
                while Path(folder).exists() and time.monotonic() < until_s:
                    with suppress(OSError):
                        Path(folder).rmdir()

    def _make(self, below: str) -> str:
        for hierarchy in HIERARCHIES:
            path = self.path(hierarchy, below)
            path.mkdir(exist_ok=True)
            if hierarchy == "cpuset":
                for name in ("cpuset.mems", "cpuset.cpus"):
                    (path / name).write_text((path.parent / name).read_text())
        return below


def wait_until(holds: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait; raise `TimeoutError` after the deadline."""
    until_s = time.monotonic() + deadline_s
    while not holds():
        if time.monotonic() > until_s:
            raise TimeoutError(what)
        time.sleep(0.002)


@contextmanager
def live_node(*, root_shares: int = 1024, **settings: str) -> Iterator[LiveNode]:
    """Make the node and run the agent on it; `settings` are those of the agent.

    `root_shares` weighs the node against all other work on the machine.
    """
    root = f"/xpu-live-{os.getpid()}-{next(_numbers)}"
    for hierarchy in HIERARCHIES:
        (MOUNT / hierarchy / root.lstrip("/")).mkdir()
    for name in ("cpuset.mems", "cpuset.cpus"):
        own = MOUNT / "cpuset" / root.lstrip("/") / name
        own.write_text((own.parents[1] / name).read_text())
    (MOUNT / "cpu" / root.lstrip("/") / "cpu.shares").write_text(str(root_shares))
    machine_id = read_machine(LiveHostFiles()).machine_id
    body = node_object(NODE, machine_id=machine_id)
    cpus = str(os.cpu_count())
    body["status"] |= {"capacity": {"cpu": cpus}, "allocatable": {"cpu": cpus}}
    prefix = ("unshare", "--mount", "--", "sh", "-c", _OWN_GROUPS, root)
    with (
        tempfile.TemporaryDirectory(prefix="x", dir="/tmp") as folder,
        ApiServer(objects=(body,), roles=ROLES) as api,
    ):
        node = LiveNode(api, root)
        own_settings = {
            "XPU_AGENT_NODE__STATE_DIR": f"{folder}/state",
            "XPU_AGENT_KUBELET__ENABLED": "false",
            "XPU_AGENT_KUBELET__ROOT_DIR": f"{folder}/k",
            "XPU_AGENT_NRI__ATTACH": "off",
            "XPU_AGENT_CDI__DIR": f"{folder}/cdi",
            **{f"XPU_AGENT_{name}": value for name, value in settings.items()},
        }
        try:
            with citizen(api, Path(folder) / "node", prefix=prefix, **own_settings) as node.agent:
                yield node
        finally:
            node.remove()
