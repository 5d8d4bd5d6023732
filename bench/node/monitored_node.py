"""The busy node measured in this process, on a clock that only the caller moves."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from itertools import count

import msgspec
from msgspec.structs import replace

from agent.clock import ManualClock
from agent.config.settings import PredictionSettings, Settings, UsageSettings
from agent.host.files import LiveHostFiles
from agent.metrics.exposition import MetricsRenderer
from agent.objects.node_metric import NodeMetricPublisher
from agent.recording.host_source import HostSource
from agent.snapshot.cluster import ClusterView, MetricCollectPolicy, NodeView
from agent.snapshot.node import SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ComputeRequest, ContainerView, KubeQos, PodView
from agent.state_writer import StateWriter
from agent.usage.monitor import UsageMonitor
from agent.usage.peak_monitor import PeakMonitor
from bench.node.busy_node import BusyNode, busy_node
from bench.usage.cgroup_trees import PODS, add_pod, container_ids, pod_uid, remove_pod
from tests.factory import snapshot

GIB = 2.0**30
CREATED = "2025-01-01T00:00:00Z"
NODE = NodeView(name="node-a", uid="u", allocatable={"cpu": "128", "memory": "1024Gi"})
ALIASES = ("hami", "hami_legacy", "koordlet", "node_exporter")
COLD_START_S = 600.0


class _Warnings(logging.Handler):
    """Collects the texts of warnings and errors."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class MonitoredNode:
    """The usage monitor, its report and its page, over 250 pods that come and go."""

    def __init__(self, node: BusyNode, state_folder: str) -> None:
        self._layout = node.layout
        self._clock = ManualClock()
        self._live = deque(range(PODS))
        self._indexes = count(PODS)
        self.store = SnapshotStore(snapshot())
        settings = Settings(
            collect=UsageSettings(prediction=PredictionSettings(cold_start_s=COLD_START_S))
        )
        files = LiveHostFiles(str(node.root))
        peaks = PeakMonitor(settings.collect.prediction, state_folder, StateWriter())
        self.monitor = UsageMonitor(
            HostSource(files=files, source="bench"),
            settings,
            self.store,
            self._clock,
            peaks=peaks,
        )
        self._publisher = NodeMetricPublisher()
        self._renderer = MetricsRenderer({}, aliases=ALIASES)
        self._put_pods()

    def replace_pods(self, number: int) -> None:
        """Remove so many of the oldest pods, and make as many new ones."""
        for _ in range(number):
            remove_pod(self._layout, self._live.popleft())
            index = next(self._indexes)
            add_pod(self._layout, index)
            self._live.append(index)
        self._put_pods()

    def advance(self, seconds: float) -> None:
        """Move the clock, and take new samples of the devices."""
        self._clock.advance(seconds)
        now_s = self._clock.monotonic()
        vendors = tuple(
            replace(vendor, samples=SnapshotPart(vendor.samples.value, now_s))
            for vendor in self.store.current.vendors
        )
        self.store.put(vendors=vendors)

    def unmeasured_pods(self) -> int:
        """Return the pods without values in the last cycle, and those that are gone and have."""
        pods = self.store.current.usage.value.pods
        live = {pod_uid(index) for index in self._live}
        unmeasured = [uid for uid in live & pods.keys() if pods[uid].cpu_total_ns is None]
        return len(unmeasured) + len(live ^ pods.keys())

    def report(self) -> bytes:
        """Report usage, and return NodeMetric as JSON."""
        self.monitor.report()
        (desired,) = self._publisher.render(self.store.current, self._clock.wall())
        return msgspec.json.encode(desired.body)

    def page(self) -> bytes:
        """Return the page of metrics."""
        return self._renderer.render(self.store.current, self._clock.monotonic())

    def _put_pods(self) -> None:
        now_s = self._clock.monotonic()
        self.store.put(
            cluster=ClusterView(
                is_clustered=True,
                node=SnapshotPart(NODE, now_s),
                metric_policy=SnapshotPart(MetricCollectPolicy(), now_s),
                pods=tuple(map(_pod, self._live)),
                has_pod_list=True,
            )
        )


@lru_cache(maxsize=2 * PODS)  # an unchanged pod stays the same object
def _pod(index: int) -> PodView:
    return PodView(
        uid=pod_uid(index),
        name=f"pod-{index}",
        namespace="team-a",
        qos=KubeQos.BURSTABLE,
        created=CREATED,
        compute_request=ComputeRequest(cpu_cores=2.0, memory_bytes=4 * GIB),
        containers=tuple(
            ContainerView(id=name, name=f"worker-{number}")
            for number, name in enumerate(container_ids(index))
        ),
    )


@contextmanager
def monitored_node(state_folder: str = "") -> Iterator[tuple[MonitoredNode, list[str]]]:
    """Yield the node, and the warnings that the agent logs meanwhile."""
    warnings = _Warnings()
    logging.getLogger("agent").addHandler(warnings)
    try:
        with busy_node() as busy:
            node = MonitoredNode(busy, state_folder)
            with closing(node.monitor):
                yield node, warnings.texts
    finally:
        logging.getLogger("agent").removeHandler(warnings)


def open_descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))
