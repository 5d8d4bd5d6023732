"""A NodeMetric for 250 pods: means of five minutes, percentiles, prediction, and the object.

The limit is what no implementation can do without: the sum over the values of each pod's series,
by C. The peer takes the same values from a list of dicts, as one would write it. The cards of the
first row stand still, those of the second change with every sample.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from agent.objects.node_metric import NodeMetricPublisher
from agent.snapshot.cluster import ClusterView, MetricCollectPolicy, NodeView
from agent.snapshot.inventory import DeviceSample
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.usage import CgroupUsage, NodeUsage, UsageSample
from agent.usage.history import UsageHistory, UsageReportPolicy
from agent.usage.peak_monitor import pod_demand
from agent.usage.prediction import PeakPredictor, PredictionPolicy
from bench.counters import cpu_ms
from bench.harness import Row, compare
from tests.factory import BOOT_S, pod, snapshot

PODS = 250
SECONDS = 1801  # of the longest window of percentiles
POD_SECONDS = 301  # of the means
REPEATS = 10  # reports a figure, so that the clock's tick does not matter
ALLOCATABLE = (128.0, 2.0**40)
CREATED = "2025-01-01T00:00:00Z"
NODE = NodeView(name="node-a", uid="u", allocatable={"cpu": "128", "memory": "1Ti"})


class _Reports:
    """A node whose history is full."""

    def __init__(self, *, cards_change: bool = False) -> None:
        values, cards = random.Random(1), random.Random(2)
        pods = tuple(pod(index, containers=2, created=CREATED) for index in range(PODS))
        base = snapshot(pods=pods)
        self._history, self._policy = UsageHistory(), UsageReportPolicy()
        self._predictor = PeakPredictor(PredictionPolicy(cold_start_s=0))
        self._demands = list(map(pod_demand, pods))
        self.minute: list[dict[str, CgroupUsage]] = []
        devices = base.vendors[0].samples.value
        for second in range(SECONDS):
            use = {
                one.uid: CgroupUsage(
                    cpu_cores=values.expovariate(2.0),
                    memory_bytes=(size := values.randrange(1 << 30)),
                    memory_with_cache_bytes=size + (64 << 20),
                )
                for one in (pods if second >= SECONDS - POD_SECONDS else pods[:1])
            }
            node = NodeUsage(
                cpu_cores=values.uniform(60, 80),
                memory_bytes=512 << 30,
                system_cpu_cores=values.uniform(1, 2),
                system_memory_bytes=8 << 30,
            )
            if cards_change:
                devices = tuple(_changed(device, cards) for device in devices)
            self._history.add(float(second), UsageSample(node=node, pods=use), devices)
            if second >= SECONDS - POD_SECONDS:
                self.minute.append(use)
        self._now_s = float(SECONDS - 1)
        self._wall_s = BOOT_S
        for _ in range(2):
            self._wall_s += 60.0
            self._predictor.train(
                self._history.node_percentile(self._now_s, 60.0, 0.9),
                self._history.pod_percentiles(self._now_s, 60.0, 0.9),
                {one.uid: "" for one in pods},
                self._wall_s,
            )
        cluster = ClusterView(
            is_clustered=True,
            node=SnapshotPart(NODE, self._now_s),
            metric_policy=SnapshotPart(MetricCollectPolicy(), self._now_s),
        )
        self._snapshot: NodeSnapshot = replace(base, cluster=cluster)
        self._publisher = NodeMetricPublisher()

    def run(self) -> bytes:
        report = self._history.report(self._now_s, self._policy)
        prediction = self._predictor.predict(self._demands, ALLOCATABLE, self._wall_s)
        part = SnapshotPart(replace(report, prediction=prediction), self._now_s)
        current = replace(self._snapshot, report=part)
        (desired,) = self._publisher.render(current, self._wall_s)
        return msgspec.json.encode(desired.body)


def _changed(sample: DeviceSample, values: random.Random) -> DeviceSample:
    return replace(
        sample,
        core_percent=float(values.randrange(101)),
        memory_used_bytes=values.randrange(80 << 30),
    )


def rows() -> Iterator[Row]:
    """Yield the CPU time of a report."""
    own_values = _Reports()
    if len(msgspec.json.decode(own_values.run())["status"]["podsMetric"]) != PODS:
        raise AssertionError("the report lacks pods")
    uids = tuple(own_values.minute[0])
    series = [
        values
        for uid in uids
        for values in (
            [float(use[uid].cpu_cores or 0) for use in own_values.minute],
            [float(use[uid].memory_bytes or 0) for use in own_values.minute],
        )
    ]

    def plainly() -> None:
        for uid in uids:
            statistics.fmean([use[uid].cpu_cores or 0 for use in own_values.minute])
            statistics.fmean([use[uid].memory_bytes or 0 for use in own_values.minute])

    yield compare(
        "nodemetric",
        "cpu_ms",
        lambda: cpu_ms(lambda: [own_values.run() for _ in range(REPEATS)]) / REPEATS,
        peer=lambda: cpu_ms(plainly),
        limit=lambda: cpu_ms(lambda: [list(map(sum, series)) for _ in range(REPEATS)]) / REPEATS,
        gate="subject<=5,ratio_peer<=0.5",
    )
    busy = _Reports(cards_change=True)
    yield compare(
        "nodemetric_changing_cards",
        "cpu_ms",
        lambda: cpu_ms(lambda: [busy.run() for _ in range(REPEATS)]) / REPEATS,
    )
