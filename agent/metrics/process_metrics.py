"""Metrics of the agent's own process, in a registry of prometheus-client.

`process_*` describe this process, as in every Prometheus client; vendor workers are separate
processes with their own families. Series of the snapshot are rendered elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import psutil
from prometheus_client import (
    CollectorRegistry,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics_exposition

from agent.access.decision import ACCESS_RESULTS, AccessStatus
from agent.metrics.families import PROCESS_FAMILIES
from agent.snapshot.node import NodeSnapshot

LATENESS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_EOF = b"# EOF\n"
_LABELS = ("node", "vendor")
_HELP = {family.name: family.help for family in PROCESS_FAMILIES}


class ProcessMetrics:
    """The registry. `text` reads files of `/proc`: call it on a thread that may block."""

    def __init__(self, node: str) -> None:
        """Start all values at 0, for the agent of a node."""
        # it would add an unused series to each counter
        disable_created_metrics()  # type: ignore[no-untyped-call]  # of the library
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._workers = _WorkerCollector()
        self._registry.register(self._workers)
        self._access = _AccessCollector(node or "unknown")
        self._registry.register(self._access)
        name = "xpu_agent_event_loop_lateness_seconds"
        lateness = Histogram(
            name, _HELP[name], ("node",), registry=self._registry, buckets=LATENESS_S
        )
        self.lateness = lateness.labels(node or "unknown")

    def set_access(self, status: Callable[[], AccessStatus]) -> None:
        """Take the source of the figures about access to the metrics."""
        self._access.status = status

    def text(self, snapshot: NodeSnapshot, *, openmetrics: bool) -> bytes:
        """Return all families in one of the two formats, without the end mark.

        `snapshot` has the pids of the workers.
        """
        self._workers.snapshot = snapshot
        if not openmetrics:
            return generate_latest(self._registry)
        # of the library
        page: bytes = openmetrics_exposition.generate_latest(self._registry)  # type: ignore[no-untyped-call]
        return page.removesuffix(_EOF)


class _AccessCollector:
    """Collects who asked for the metrics with which result."""

    def __init__(self, node: str) -> None:
        self._node = node
        self.status: Callable[[], AccessStatus] = AccessStatus

    def describe(self) -> Iterable[Metric]:
        """Return nothing: no other collector has these names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the families; without TLS the certificate has no sample."""
        status, name = self.status(), "xpu_agent_metrics_requests_total"
        labels = ("node", "result")
        requests = CounterMetricFamily(name.removesuffix("_total"), _HELP[name], labels=labels)
        for result in ACCESS_RESULTS:
            requests.add_metric((self._node, result), status.results.get(result, 0))
        name = "xpu_agent_metrics_access_stale"
        stale = GaugeMetricFamily(name, _HELP[name], labels=("node",))
        stale.add_metric((self._node,), int(status.is_stale))
        name = "xpu_agent_metrics_certificate_expiry_timestamp_seconds"
        expiry = GaugeMetricFamily(name, _HELP[name], labels=("node",))
        if status.expires_s is not None:
            expiry.add_metric((self._node,), status.expires_s)
        yield from (requests, stale, expiry)


class _WorkerCollector:
    """Collects the resource usage of the vendors' workers."""

    def __init__(self) -> None:
        self.snapshot: NodeSnapshot | None = None
        self._processes: dict[int, psutil.Process] = {}

    def describe(self) -> Iterable[Metric]:
        """Return nothing: no other collector has these names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the families; a worker that has ended has no sample."""
        memory = _gauge("xpu_agent_worker_resident_memory_bytes")
        descriptors = _gauge("xpu_agent_worker_open_fds")
        threads = _gauge("xpu_agent_worker_threads")
        name = "xpu_agent_worker_cpu_seconds_total"
        cpu = CounterMetricFamily(name.removesuffix("_total"), _HELP[name], labels=_LABELS)
        vendors = self.snapshot.vendors if self.snapshot is not None else ()
        node = self.snapshot.node.name if self.snapshot is not None else ""
        pids = {state.vendor: state.pid for state in vendors if state.pid is not None}
        self._processes = {p: state for p, state in self._processes.items() if p in pids.values()}
        for vendor, pid in pids.items():
            labels = (node or "unknown", vendor)
            try:
                process = self._process(pid)
                with process.oneshot():
                    times = process.cpu_times()
                    cpu.add_metric(labels, times.user + times.system)
                    memory.add_metric(labels, process.memory_info().rss)
                    threads.add_metric(labels, process.num_threads())
                    descriptors.add_metric(labels, process.num_fds())
            except psutil.Error:  # it has ended, or may not be read
                self._processes.pop(pid, None)
        yield from (memory, cpu, descriptors, threads)

    def _process(self, pid: int) -> psutil.Process:
        """Return the process; a new object if another process has the pid."""
        process = self._processes.get(pid)
        if process is None or not process.is_running():
            process = self._processes[pid] = psutil.Process(pid)
        return process


def _gauge(name: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, _HELP[name], labels=_LABELS)
