"""CPU burst and memory QoS on version 2 groups: what the kernel holds, refuses and gives back."""

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

from agent.cgroup import reclaim
from agent.cgroup.ledger import LEDGER_FILE, ChangeLedger
from agent.cgroup.restore import restore_all
from agent.host.files import LiveHostFiles
from tests.cgroup_v2.session import CACHE_BYTES
from tests.guest.inside.restore import DRIVERS, MOST_STEPS, Version2Groups
from tests.kill_steps import killed_at
from tests.unit.reconcile.limited_node import BURST, MIB, LimitedNode, memory_spec

FILES = ("cpu.max", "cpu.max.burst", "memory.min", "memory.low", "memory.high")
BOTH = {**BURST, **memory_spec(minLimitPercent=50, lowLimitPercent=60, throttlingPercent=80)}
CHUNK_BYTES = 1 << 20  # of page cache in one step
DEADLINE_S = 60.0
READ = "import sys, time\nopen(sys.argv[1], 'rb').read()\nprint(flush=True)\ntime.sleep(3600)"


class Node:
    """A node whose ledger is on a disk."""

    def __init__(self, driver: str, state: Path, limit_bytes: int = 256 * MIB) -> None:
        self.groups = Version2Groups(driver)
        self._state = state
        request_bytes = min(64 * MIB, limit_bytes // 4)
        self.limited = LimitedNode(self.groups, self.ledger(), request_bytes, limit_bytes)

    def ledger(self) -> ChangeLedger:
        """Read the ledger, as a process that starts does."""
        ledger = ChangeLedger(str(self._state / LEDGER_FILE), "boot")
        ledger.load()
        return ledger

    def restore(self) -> None:
        """Put back what the ledger says."""
        restore_all(self.ledger(), self.groups.layout, LiveHostFiles(), monotonic=time.monotonic)

    def values(self) -> dict[str, list[str]]:
        """Return the files of the root, the pod and its container."""
        return {name: self.limited.values(name) for name in FILES}


@contextmanager
def node_of(driver: str, limit_bytes: int = 256 * MIB) -> Iterator[Node]:
    """Make a node, and remove all of it."""
    with tempfile.TemporaryDirectory() as folder:
        node = Node(driver, Path(folder), limit_bytes)
        try:
            yield node
        finally:
            node.groups.stop()


def _burst(driver: str) -> dict[str, object]:
    """Raise the quota of a throttled container, lower it on a busy node, switch it off."""
    with node_of(driver) as node:
        limited, before = node.limited, node.values()
        limited.spec, limited.is_throttled = BURST, True
        up, unwritten = [], 0
        for _ in range(8):
            unwritten += limited.cycle().unwritten
            up.append((limited.quotas(), limited.bursts()))
        refusal = _answer(node, "cpu.max.burst", "300001")
        limited.is_throttled, limited.node_cores = False, 4.0
        down = []
        for _ in range(12):
            unwritten += limited.cycle().unwritten
            down.append((limited.quotas(), limited.bursts()))
        limited.spec = {}
        limited.cycle()
        return {
            "up": up,
            "down": down,
            "unwritten": unwritten,
            "burst above the quota": refusal,
            "quota below the burst": _quota_below_burst(node),
            "before": before,
            "restored": node.values(),
            "left": len(limited.scene.ledger.entries),
        }


def _quota_below_burst(node: Node) -> str:
    cgroup = node.limited.scene.container
    node.groups.put(cgroup, "cpu.max.burst", "50000")
    answer = _answer(node, "cpu.max", "40000 100000")
    node.groups.put(cgroup, "cpu.max.burst", "0")
    return answer


def _answer(node: Node, file: str, text: str) -> str:
    try:
        node.groups.put(node.limited.scene.container, file, text)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def _protected(driver: str) -> dict[str, object]:
    """Protect and slow down the memory of a pod, then switch it off."""
    with node_of(driver) as node:
        limited, before = node.limited, node.values()
        limited.spec = memory_spec(minLimitPercent=50, lowLimitPercent=60, throttlingPercent=80)
        reports = [limited.cycle() for _ in range(2)]
        written = node.values()
        limited.spec = {}
        limited.cycle()
        return {
            "before": before,
            "written": written,
            "writes": [(report.written, report.unwritten) for report in reports],
            "restored": node.values(),
            "left": len(limited.scene.ledger.entries),
        }


def _of_kubelet(driver: str) -> dict[str, object]:
    """Protect a pod where the kubelet protects memory, too."""
    with node_of(driver) as node:
        limited, groups = node.limited, node.groups
        groups.put(groups.root, "memory.min", str(128 * MIB))
        groups.put(limited.scene.container, "memory.high", str(200 * MIB))
        limited.spec = memory_spec(minLimitPercent=50, throttlingPercent=80)
        limited.cycle()
        return {"written": node.values()}


def _lowered(driver: str, file: Path) -> dict[str, object]:
    """Lower `memory.high` below the page cache of a container, in steps."""
    limit_bytes = 2 * CACHE_BYTES
    with node_of(driver, limit_bytes) as node:
        container = node.limited.scene.container
        reader = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", f"input()\n{READ}", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        chunk_bytes, reclaim.CHUNK_BYTES = reclaim.CHUNK_BYTES, CHUNK_BYTES
        try:
            node.groups.put(container, "cgroup.procs", str(reader.pid))
            assert reader.stdin is not None
            assert reader.stdout is not None
            reader.stdin.write(b"\n")
            reader.stdin.flush()
            reader.stdout.readline()
            used = int(node.groups.get(container, "memory.current"))
            node.limited.spec = memory_spec(throttlingPercent=1)
            cycles = 0
            until_s = time.monotonic() + DEADLINE_S
            unwritten = 1
            while unwritten and time.monotonic() < until_s:
                unwritten = node.limited.cycle().unwritten
                cycles += 1
            return {
                "limit": limit_bytes,
                "before": used,
                "after": int(node.groups.get(container, "memory.current")),
                "high": int(node.groups.get(container, "memory.high")),
                "unwritten": unwritten,
                "cycles": cycles,
                "alive": reader.poll() is None,
            }
        finally:
            reclaim.CHUNK_BYTES = chunk_bytes
            reader.kill()
            reader.wait()


def _killed(driver: str) -> dict[str, object]:
    """Kill the agent at each step, then restore; return what is not as it was."""
    wrong: list[object] = []
    for step in range(MOST_STEPS):
        with node_of(driver) as node:
            before = node.values()
            node.limited.spec, node.limited.is_throttled = BOTH, True
            killed = killed_at(step, node.limited.cycle)
            node.restore()
            after = node.values()
            if after != before:
                wrong.append((step, after))
        if not killed:
            return {"steps": step, "wrong": wrong}
    return {"steps": MOST_STEPS, "wrong": [*wrong, "never ended"]}


def facts(file: Path) -> dict[str, object]:
    """Return what the kernel holds and answers; nothing of the file is cached before."""
    os.sync()
    parts: dict[str, Callable[[str], dict[str, object]]] = {
        "burst": _burst,
        "protected": _protected,
        "of_kubelet": _of_kubelet,
        "killed": _killed,
    }
    result: dict[str, object] = {
        driver: {name: work(driver) for name, work in parts.items()} for driver in DRIVERS
    }
    return {**result, "lowered": _lowered(DRIVERS[0], file)}
