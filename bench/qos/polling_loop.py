"""The peer: best-effort CPU suppression as Koordinator does it, by two loops of one second.

Written by us after `pkg/koordlet/qosmanager/plugins/cpusuppress`: one loop measures, the other
computes the quota of the best-effort class from the last measurement, as the policy `cfsQuota`.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from tests.process.cluster.live_node import LiveNode

INTERVAL_S = 1.0
PERIOD_US = 100_000
FLOOR_US = 2_000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class PollingLoop:
    """Both loops, on threads of their own, until `stop`."""

    def __init__(
        self, node: LiveNode, protected: tuple[str, ...], percent: int, least: int
    ) -> None:
        """`protected` are the groups of pods that are not best-effort, below each hierarchy."""
        self._node = node
        self._protected = protected
        self._percent, self._least = percent, least
        self._is_stopped = threading.Event()
        self._last: tuple[float, float, float, float] | None = None
        self._cores: tuple[float, float, float] | None = None  # node, best-effort, protected pods
        self._threads = [
            threading.Thread(target=self._run, args=(work,), daemon=True)
            for work in (self._measure, self._suppress)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End both loops and remove the quota."""
        self._is_stopped.set()
        for thread in self._threads:
            thread.join()
        self._write(-1)

    def _run(self, work: object) -> None:
        while not self._is_stopped.wait(INTERVAL_S):
            assert callable(work)
            work()

    def _measure(self) -> None:
        now = (
            time.monotonic(),
            _busy_s(),
            self._used_s("/kubepods/besteffort"),
            sum(self._used_s(group) for group in self._protected),
        )
        last, self._last = self._last, now
        if last is not None:
            passed_s = now[0] - last[0]
            node, best_effort, protected = (
                (new - old) / passed_s for new, old in zip(now[1:], last[1:], strict=True)
            )
            self._cores = (node, best_effort, protected)

    def _suppress(self) -> None:
        if self._cores is None:
            return
        node, best_effort, protected = self._cores
        capacity = (os.cpu_count() or 1) * 1000
        system = max(node - best_effort - protected, 0.0)
        budget = capacity * self._percent // 100 - int(1000 * protected) - int(1000 * system)
        budget = max(budget, capacity * self._least // 100)
        desired, current = max(budget * PERIOD_US // 1000, FLOOR_US), self._node.quota_us()
        cpus = os.cpu_count() or 1
        if abs(desired - current) * 100 < cpus * PERIOD_US and desired != FLOOR_US:
            return
        step = cpus * PERIOD_US // 10
        if current != -1 and desired - current > step:
            desired = current + step
        self._write(desired)

    def _write(self, quota_us: int) -> None:
        (self._node.best_effort / "cpu.cfs_quota_us").write_text(str(quota_us))

    def _used_s(self, group: str) -> float:
        return int(self._node.path("cpuacct", f"{group}/cpuacct.usage").read_text()) / 1e9


def _busy_s() -> float:
    fields = [int(part) for part in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    idle = fields[3] + fields[4]
    return (sum(fields[:8]) - idle) / TICKS_PER_S
