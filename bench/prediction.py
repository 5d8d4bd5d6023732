"""A minute of predictions for 250 pods: samples, models, and the report of peaks.

The limit is what no implementation can do without: the minute's values of each series, sorted by
C. The peer adds the samples and takes the percentiles as Koordinator does, bucket by bucket.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import cycle

from agent.snapshot.usage import CgroupUsage, NodeUsage, UsageSample
from agent.usage.decaying_histogram import CPU_CORES, EPSILON, MEMORY_BYTES, RATIO, BucketScale
from agent.usage.history import UsageHistory
from agent.usage.peak_monitor import SAMPLE_FRACTION, TRAINING_INTERVAL_S
from agent.usage.prediction import PeakPredictor, PodDemand, PredictionPolicy
from bench.counters import cpu_ms
from bench.harness import Row, compare

PODS = 250
SECONDS = 61  # the moments of a closed minute
MINUTES = 5  # as many as the history has, with other values in each
WARM_MINUTES = 30
REPEATS = 20  # minutes a figure, so that the clock's tick does not matter
START_S = 1_767_225_600.0
GIB = 2.0**30
ALLOCATABLE = (128.0, 1024 * GIB)


def _measured(seconds: int) -> tuple[tuple[list[float], list[float]], ...]:
    """Return each pod's CPU, which jumps, and its memory, which drifts."""
    values = random.Random(1)
    pods = []
    for _ in range(PODS):
        size, memory = values.uniform(0.1, 4) * GIB, []
        for _ in range(seconds):
            size += values.choice((-4096.0, 0.0, 0.0, 0.0, 65536.0))
            memory.append(size)
        pods.append(([values.expovariate(2.0) for _ in range(seconds)], memory))
    return tuple(pods)


def _history() -> UsageHistory:
    seconds = MINUTES * 60 + 1
    measured, history = _measured(seconds), UsageHistory()
    for second in range(seconds):
        pods = {
            f"pod-{i}": CgroupUsage(cpu_cores=cpu[second], memory_bytes=int(memory[second]))
            for i, (cpu, memory) in enumerate(measured)
        }
        node = NodeUsage(cpu_cores=70.0, memory_bytes=int(512 * GIB))
        history.add(float(second), UsageSample(node=node, pods=pods))
    return history


class _Minutes:
    """Our minute: each call is the next one."""

    def __init__(self) -> None:
        self._history = _history()
        self._ends_s = cycle([60.0 * (minute + 1) for minute in range(MINUTES)])
        self._predictor = PeakPredictor(PredictionPolicy(cold_start_s=0))
        self._wall_s = START_S
        self._classes = {f"pod-{i}": "koord-prod" for i in range(PODS)}
        self._demands = [
            PodDemand(uid=uid, priority_class="koord-prod", request=(2.0, 4 * GIB), created_s=0.0)
            for uid in self._classes
        ]
        for _ in range(WARM_MINUTES):
            self.train()

    def train(self) -> None:
        self._wall_s += TRAINING_INTERVAL_S
        history, now_s = self._history, next(self._ends_s)
        self._predictor.train(
            history.node_percentile(now_s, TRAINING_INTERVAL_S, SAMPLE_FRACTION),
            history.pod_percentiles(now_s, TRAINING_INTERVAL_S, SAMPLE_FRACTION),
            self._classes,
            self._wall_s,
        )

    def run(self) -> None:
        for _ in range(REPEATS):
            self.train()
            self._predictor.predict(self._demands, ALLOCATABLE, self._wall_s)


class _BucketByBucket:
    """The same minute with one pass over all buckets a percentile, five of them a resource."""

    def __init__(self) -> None:
        self.series = [values for pod in _measured(SECONDS) for values in pod]
        self._scales = [CPU_CORES, MEMORY_BYTES] * PODS
        self._weights = [[0.0] * len(scale.starts()) for scale in self._scales]

    def run(self) -> None:
        for _ in range(REPEATS):
            for values, scale, weights in zip(
                self.series, self._scales, self._weights, strict=True
            ):
                weights[min(_bucket(scale, sorted(values)[53]), len(weights) - 1)] += 1.0
                for fraction in (0.6, 0.9, 0.95, 0.98, 1.0):
                    _percentile(scale, weights, fraction)


def _bucket(scale: BucketScale, value: float) -> int:
    return math.floor(math.log(value * (RATIO - 1.0) / scale.first + 1.0) / math.log(RATIO))


def _percentile(scale: BucketScale, weights: list[float], fraction: float) -> float:
    threshold, running = fraction * sum(weights), 0.0
    for bucket, weight in enumerate(weights):
        running += weight
        if weight >= EPSILON and running >= threshold:
            return scale.first * (math.pow(RATIO, bucket + 1) - 1.0) / (RATIO - 1.0)
    return 0.0


def rows() -> Iterator[Row]:
    """Yield the CPU time of a minute."""
    own_values, peer = _Minutes(), _BucketByBucket()

    def sort_all() -> None:
        for _ in range(REPEATS):
            for values in peer.series:
                sorted(values)

    yield compare(
        "prediction",
        "cpu_ms",
        lambda: cpu_ms(own_values.run) / REPEATS,
        peer=lambda: cpu_ms(peer.run) / REPEATS,
        limit=lambda: cpu_ms(sort_all) / REPEATS,
        gate="subject<=2,ratio_peer<=0.5",
    )
