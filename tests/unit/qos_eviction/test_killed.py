"""An agent that is killed at any step, and the next one: no pod is requested twice."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from agent.cgroup.reclaim import MemoryReclaimer
from agent.clock import ManualClock
from agent.config.containers import EvictionSettings
from agent.host.files import LiveHostFiles
from agent.kube.eviction import EvictionService
from agent.messages import MessageQueue
from agent.qos.engine import QosEngine, StrategyRunner
from agent.qos.eviction.history_file import EvictionHistoryFile
from agent.qos.eviction.strategies import eviction_strategies
from agent.snapshot.cluster import ClusterView, NodeView
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import EvictionOutcome, EvictionRequest, EvictionResult
from agent.snapshot.slo import NodeSlo, NodeSloView, ResourceThresholds
from agent.snapshot.usage import CgroupUsage, NodeUsage, UsageSample
from agent.state_writer import StateWriter
from tests.kill_steps import killed_at
from tests.unit.qos.qos_node import V2, DictFiles
from tests.unit.qos_eviction.test_strategies import batch

BOOT = "00000000-0000-4000-8000-000000000001"
MOST_STEPS = 40
GIB = 1 << 30
PODS = tuple(batch(f"p{number}") for number in range(8))
SLO = NodeSloView(
    slo=NodeSlo(thresholds=ResourceThresholds(enable=True, memory_evict_threshold_percent=80))
)


class LoggedEvictions(EvictionService):
    """Writes each request to a file, as an API server would execute it, and answers at once.

    The list of pods does not show the evictions yet.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(MessageQueue(), ManualClock())
        self._path = path

    def submit(self, requests: Iterable[EvictionRequest]) -> None:
        for request in requests:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(fd, f"{request.pod.uid}\n".encode())
            os.close(fd)
            outcome = EvictionOutcome.EVICTED
            self._results.append(EvictionResult(request=request, outcome=outcome))


def snapshot(now_s: float) -> NodeSnapshot:
    """A node whose memory is short, with pods that may go."""
    usage = UsageSample(
        node=NodeUsage(memory_bytes=95 * GIB),
        pods={one.uid: CgroupUsage(memory_bytes=GIB) for one in PODS},
    )
    node = NodeView(name="n", uid="u", capacity={"cpu": "4", "memory": "100Gi"})
    return NodeSnapshot(
        node=NodeIdentity(name="n"),
        pods=SnapshotPart(PODS, now_s),
        usage=SnapshotPart(usage, now_s),
        cluster=ClusterView(
            has_pod_list=True, node=SnapshotPart(node, now_s), slo=SnapshotPart(SLO, now_s)
        ),
    )


def run(folder: Path, first_s: int, last_s: int) -> None:
    """Run an agent for some seconds."""
    strategies = eviction_strategies(EvictionSettings(max_per_minute=2), "")
    modes = {strategy.name: "on" for strategy in strategies}
    runner = StrategyRunner(
        QosEngine(strategies, modes, 1.0, 1800.0),
        LoggedEvictions(folder / "requests"),
        MemoryReclaimer(LiveHostFiles()),
        EvictionHistoryFile(str(folder), BOOT, StateWriter()),
    )
    for second in range(first_s, last_s):
        runner.plan(snapshot(float(second)), V2, DictFiles(), float(second))


def test_killed_at_any_step_no_pod_is_requested_twice_and_the_limit_holds(tmp_path: Path) -> None:
    for step in range(MOST_STEPS):
        folder = tmp_path / str(step)
        folder.mkdir()
        killed = killed_at(step, lambda folder=folder: run(folder, 0, 10))  # type: ignore[misc]
        run(folder, 11, 50)
        path = folder / "requests"
        requests = path.read_text().split() if path.exists() else []
        assert len(requests) == len(set(requests)) <= 2
        if not killed:
            assert len(requests) == 2
            assert step > 3
            return
    raise AssertionError("it never ended")
