"""A NodeMetric that appears is written at once, each time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent.app.cluster import ClusterService
from agent.clock import ManualClock
from agent.config.settings import Settings
from agent.kube.endpoint import InClusterTarget
from agent.kube.resources import NODE_METRICS
from agent.kube.writer.api_writer import ApiWriter
from agent.messages import MessageQueue
from agent.recording.directory import DirectoryFiles
from agent.snapshot.cluster import MetricCollectPolicy
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore


class Writer(ApiWriter):
    """Counts how often it looks again."""

    def __init__(self) -> None:
        self.rechecked: list[str] = []

    def recheck(self, kind: str) -> None:
        self.rechecked.append(kind)


def test_the_writer_reads_again_when_a_node_metric_appears(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = DirectoryFiles(tmp_path)
        store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="node-a")))
        target = InClusterTarget(url="https://127.0.0.1:1")
        service = ClusterService(Settings(), files, store, ManualClock(), target, MessageQueue())
        writer = Writer()
        following = asyncio.create_task(service._follow_metric_policy(writer))
        await asyncio.sleep(0)
        name, counts = store.current.node.name, []
        there = MetricCollectPolicy(aggregate_s=60.0)
        for view in ({}, {name: there}, {}, {name: there}, {"other": there}):
            service.facts.update_metric_policy(view)
            for _ in range(3):
                await asyncio.sleep(0)
            counts.append(writer.rechecked.count(NODE_METRICS.kind))
        assert counts == [0, 1, 1, 2, 2]
        following.cancel()

    asyncio.run(scenario())
