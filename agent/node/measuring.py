"""Usage into the snapshot each cycle, and its history into the report when one is due."""

from __future__ import annotations

from types import MappingProxyType

from msgspec.structs import replace

from agent.cgroup.locate import KubeletRoot, nowhere
from agent.clock import Clock
from agent.collect.history import History
from agent.collect.report import LEAST_AGGREGATE_S, ReportPolicy
from agent.collect.usage import Known, UsageCollector, nobody
from agent.config.sections import Settings
from agent.model.cluster.facts import MetricPolicy
from agent.model.inventory import DeviceSample
from agent.model.part import Part
from agent.model.snapshot import NodeSnapshot
from agent.node.store import SnapshotStore
from agent.recording.open import OpenedHost
from agent.sharing.collector import SharingCollector

MAX_WINDOWS = 8  # of percentiles: each is sorted anew for every report
MAX_WINDOW_S = 86400


def report_policy(settings: Settings, told: MetricPolicy | None = None) -> ReportPolicy:
    """Return the windows and the memory rule: what the NodeMetric object says, else the settings.

    Field by field; what cannot be meant is passed over, and the means' window is never shorter
    than a minute. A window longer than the history stays without values.
    """
    publish = settings.publish
    default = ReportPolicy(aggregate_s=publish.aggregate_duration_s, memory=publish.memory_policy)
    if told is None:
        return default
    windows = (window for window in told.durations_s or () if 0 < window <= MAX_WINDOW_S)
    return ReportPolicy(
        aggregate_s=max(told.aggregate_s or default.aggregate_s, LEAST_AGGREGATE_S),
        windows_s=tuple(dict.fromkeys(windows))[:MAX_WINDOWS] or default.windows_s,
        memory=told.memory or default.memory,
    )


class Measuring:
    """One collector and its history. Belongs to the collector thread.

    A recorded host stands still: its counters are read with a time that does not move, so that
    it has totals but no rates, which would all be a false 0.
    """

    def __init__(
        self,
        opened: OpenedHost,
        settings: Settings,
        store: SnapshotStore,
        clock: Clock,
        known: Known = nobody,
        *,
        kubelet_root: KubeletRoot = nowhere,
    ) -> None:
        collect = settings.collect
        self._collector = UsageCollector(
            opened.files,
            known,
            interval_s=collect.interval_s,
            pressure_interval_s=collect.pressure_interval_s if collect.pressure else None,
            pods=collect.pods,
            applications=lambda: store.current.cluster.slo.value.slo.host_applications,
            kubelet_root=kubelet_root,
        )
        self._history = History(
            collect.interval_s, pod_window_s=settings.publish.aggregate_duration_s
        )
        self._sharing = SharingCollector(opened.files, collect.hami_regions)
        self._settings = settings
        self._still = opened.spec is not None
        self._store = store
        self._clock = clock
        self._sampled_s: dict[str, float] = {}  # by vendor, of the last samples taken in
        self._owners: dict[int, tuple[str, str]] = {}  # of the processes on devices, by pid
        self.cycles = 0  # that are in the history

    def cycle(self) -> None:
        """Measure once and take the devices' new samples into the history."""
        now_s = self._clock.monotonic()
        sample = self._collector.cycle(0.0 if self._still else now_s)
        devices = self._new_samples(self._store.current)
        owners = self._collector.owners(devices) if devices and not self._still else None
        self._history.add(now_s, sample, devices, owners)
        if owners is not None:
            self._remember(owners)
        sample = replace(sample, owners=MappingProxyType(self._owners))
        self._store.put(usage=Part(sample, now_s), pods=Part(self._collector.pods, now_s))
        self.cycles += 1
        self._look_at_sharing(now_s)

    def _remember(self, found: dict[int, tuple[str, str]]) -> None:
        """Keep the owners of processes that the last samples of all vendors have."""
        samples = (one for vendor in self._store.current.vendors for one in vendor.samples.value)
        pids = {process.pid for one in samples for process in one.processes or ()}
        self._owners = {p: who for p, who in (self._owners | found).items() if p in pids}

    def report(self) -> None:
        """Put means and percentiles of the windows that stand now into the snapshot.

        A cluster without a NodeMetric is told of none: looking for it often costs nothing then.
        """
        cluster = self._store.current.cluster
        told = cluster.metric_policy.value
        if cluster.clustered and told is None:
            return
        now_s = self._clock.monotonic()
        policy = report_policy(self._settings, told)
        report = self._history.report(now_s, policy)
        self._history.remember_pods(policy.aggregate_s)  # it may drop what was kept: not before
        self._store.put(report=Part(report, now_s))

    def close(self) -> None:
        """Let go of all descriptors."""
        self._collector.close()

    def _look_at_sharing(self, now_s: float) -> None:
        now, wall_s = self._store.current, self._clock.wall()
        samples = [sample for vendor in now.vendors for sample in vendor.samples.value]
        devices = now.devices.value.devices
        view = self._sharing.look(now_s, wall_s, self._collector.pods, devices, samples)
        if view is not None:
            self._store.put(sharing=Part(view, now_s))

    def _new_samples(self, snapshot: NodeSnapshot) -> tuple[DeviceSample, ...]:
        fresh: list[DeviceSample] = []
        for vendor in snapshot.vendors:
            taken_s = vendor.samples.taken_s
            if taken_s is not None and self._sampled_s.get(vendor.vendor) != taken_s:
                self._sampled_s[vendor.vendor] = taken_s
                fresh += vendor.samples.value
        return tuple(fresh)
