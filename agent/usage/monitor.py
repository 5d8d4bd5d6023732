"""Measures usage once a cycle, puts it into the snapshot, and renders reports from the history."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from agent.cgroup.layout import CgroupLayout, LayoutLocator, parse_owner
from agent.clock import Clock
from agent.config.settings import Settings
from agent.devices.trend import TrendRecorder
from agent.errors import HostFileError
from agent.host.files import MAX_ENTRIES
from agent.kubelet.pod_list_file import PodListFile
from agent.recording.host_source import HostSource
from agent.snapshot.cluster import MetricCollectPolicy
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import DeviceSample, Problem, TrafficSource
from agent.snapshot.node import NodeSnapshot, SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import ContainerView, PodView, static_uid
from agent.snapshot.slo import HostApplication
from agent.snapshot.usage import CollectorStatus, UsageReport, UsageSample
from agent.usage.cgroup_usage import CgroupUsageReader, CgroupUsageTable, PodCgroupTree
from agent.usage.collector import CollectorInput
from agent.usage.file_reader import DescriptorCache, NumaMemoryReader, ReadSchedule, RotatingReader
from agent.usage.history import MIN_AGGREGATE_S, UsageHistory, UsageReportPolicy
from agent.usage.host_applications import HostApplicationReader
from agent.usage.node_usage import (
    NodeCounterReader,
    NodeCounters,
    busy_cores,
    node_usage,
    numa_usage,
    sum_values,
)
from agent.usage.optional_collectors import OptionalCollectors
from agent.usage.peak_monitor import PeakMonitor
from agent.usage.shared_devices import SharedDeviceCollector

MAX_PROCESSES = 4096  # read in one cycle

MAX_CGROUP_BYTES = 16 * 1024

TOO_MANY_CGROUPS = Problem(
    reason="TooManyCgroups",
    message=f"a directory has {MAX_ENTRIES} cgroups or more: others and the system are absent",
)

log = logging.getLogger(__name__)

ProcessOwner = tuple[str, str]  # pod uid, container id


class PodJoiner:
    """Joins running and listed pods. A pod of the same two objects as before stays the same object.

    Usually one of hundreds of pods changes, and readers compare pods with those of the last cycle.
    """

    def __init__(self) -> None:
        # by uid: running, listed, joined
        self._joined: dict[str, tuple[PodView, PodView, PodView]] = {}

    def join(self, running: Iterable[PodView], listed: Iterable[PodView]) -> tuple[PodView, ...]:
        """Return every running or listed pod by uid. A running pod keeps its cgroup's uid and QoS.

        Containers of both lists are joined by id: listed ones have names, running ones cgroups. Any
        user may annotate a pod as a static pod's mirror: two pods with the same annotation are both
        ignored.
        """
        by_uid = {pod.uid: pod for pod in listed}
        static_uids = [
            (uid, pod.uid) for pod in by_uid.values() if (uid := static_uid(pod)) is not None
        ]
        counts = Counter(uid for uid, _ in static_uids)
        by_hash = {uid: listed_uid for uid, listed_uid in static_uids if counts[uid] == 1}
        previous, self._joined = self._joined, {}
        pods = []
        for pod in running:
            listed_pod = by_uid.pop(pod.uid, None) or by_uid.pop(by_hash.get(pod.uid, ""), None)
            if listed_pod is None:
                pods.append(pod)
                continue
            last = previous.get(pod.uid)
            if last is None or last[0] is not pod or last[1] is not listed_pod:
                last = pod, listed_pod, _join_pod(pod, listed_pod)
            self._joined[pod.uid] = last
            pods.append(last[2])
        return tuple(sorted([*pods, *by_uid.values()], key=lambda pod: (pod.uid, pod.cgroup)))


def _join_pod(running: PodView, listed: PodView) -> PodView:
    containers = _join_containers(running.containers, listed.containers)
    return msgspec.structs.replace(
        listed, uid=running.uid, qos=running.qos, cgroup=running.cgroup, containers=containers
    )


def _join_containers(
    running: Iterable[ContainerView], listed: Iterable[ContainerView]
) -> tuple[ContainerView, ...]:
    by_id = {container.id: container for container in listed}
    for container in running:
        listed_container = by_id.get(container.id, container)
        by_id[container.id] = msgspec.structs.replace(listed_container, cgroup=container.cgroup)
    return tuple(sorted(by_id.values(), key=lambda container: container.id))


def parse_process_cgroup(data: bytes) -> ProcessOwner | None:
    """Return the owner in `/proc/<pid>/cgroup`, of any hierarchy; `None`: not in a pod."""
    for line in data.decode("utf-8", "replace").splitlines():
        owner = parse_owner(line.rpartition(":")[2])
        if owner is not None:
            return owner
    return None


def process_owners(host: HostFiles, samples: Iterable[DeviceSample]) -> dict[int, ProcessOwner]:
    """Return the owners of all processes on devices, by pid on the host.

    It reads the cgroup of each process: devices have few processes, while a node has hundreds of
    containers, and one such read costs no more than one `cgroup.procs`.
    """
    pids = {p.pid for sample in samples for p in sample.processes or ()}
    owners: dict[int, ProcessOwner] = {}
    for pid in sorted(pids)[:MAX_PROCESSES]:
        try:
            owner = parse_process_cgroup(host.read(f"/proc/{pid}/cgroup", MAX_CGROUP_BYTES))
        except HostFileError:  # it has ended
            continue
        if owner is not None:
            owners[pid] = owner
    return owners


LAYOUT_RETRY_S = 10.0  # for cgroups and the kubelet's root while they are absent


class PodUsageReader:
    """Reads the present pods and containers below the kubelet's root."""

    def __init__(
        self,
        host: HostFiles,
        descriptors: DescriptorCache,
        layout: CgroupLayout,
        nodes: tuple[int, ...],
        schedule: ReadSchedule,
    ) -> None:
        self.tree = PodCgroupTree(host, descriptors, layout)
        self.pods = CgroupUsageReader(host, descriptors, layout, schedule)
        self.containers = CgroupUsageReader(host, descriptors, layout, schedule)
        self._nodes = nodes
        self._node_memory = RotatingReader(
            NumaMemoryReader(descriptors, layout).read, schedule.numa_memory_period
        )

    def refresh(self) -> bool:
        """Update the set of pods; return whether any was added or removed."""
        has_changes = self.tree.refresh()
        if has_changes:
            views = self.tree.pods
            pods = {pod.uid: pod.cgroup for pod in views}
            self.pods.set_cgroups(pods)
            self.containers.set_cgroups({c.id: c.cgroup for pod in views for c in pod.containers})
            self._node_memory.set_keys(tuple(pods.values()) if len(self._nodes) > 1 else ())
        return has_changes

    def read(self, now_s: float) -> tuple[CgroupUsageTable, CgroupUsageTable]:
        """Read pods and containers; after a removed file the next refresh lists everything."""
        tables = self.pods.read(now_s), self.containers.read(now_s)
        if self.pods.pop_file_loss() | self.containers.pop_file_loss():
            self.tree.must_rescan = True
        return tables

    def memory_by_node(self, pods: CgroupUsageTable) -> dict[int, float | None]:
        """Return the pods' memory on each NUMA node, page cache included."""
        if len(self._nodes) == 1:  # all memory is on this node
            return {self._nodes[0]: sum_values([m[1] if m else None for m in pods.memory])}
        maps = self._node_memory.read()
        return {
            node: sum_values([None if memory is None else memory.get(node, 0) for memory in maps])
            for node in self._nodes
        }

    def close(self) -> None:
        """Close all descriptors."""
        self.tree.close()
        self.pods.close()
        self.containers.close()
        self._node_memory.set_keys(())


class UsageCollector:
    """Measures one host. For one thread; its results never change afterwards."""

    def __init__(
        self,
        host: HostFiles,
        *,
        interval_s: float = 1.0,
        pressure_interval_s: float | None = 10.0,
        pods: bool = True,
        layout: CgroupLayout | None = None,
        locator: LayoutLocator | None = None,
    ) -> None:
        """Create a collector; it does not read the host's cgroups yet.

        `interval_s` is that of the cycles, which determines how often slow files are read; without
        a `pressure_interval_s` no pressure is read, without `pods` neither pods nor containers.
        `layout` is the host's if it is known; else `locator` detects it until the kubelet's root
        exists. Without a `locator` the collector makes one that has no configured root.
        """
        self._host = host
        self._layout = layout
        self._locator = locator or LayoutLocator(host)
        self._detected_layout: CgroupLayout | None = None
        self._reads_pods = pods
        self._schedule = ReadSchedule.for_intervals(interval_s, pressure_interval_s)
        self._descriptors = DescriptorCache(host)
        self._node = NodeCounterReader(host, self._descriptors, self._schedule)
        self._applications = HostApplicationReader(host, self._descriptors)
        self._pod_usage: PodUsageReader | None = None
        self._layout_checked_s: float | None = None
        self._last_listed: tuple[PodView, ...] = ()
        self._joiner = PodJoiner()
        self._previous: tuple[float, NodeCounters] | None = None
        self.pods: tuple[PodView, ...] = ()  # by uid; cgroups joined with the pod list

    def measure(
        self,
        now_s: float,
        listed_pods: tuple[PodView, ...] = (),
        applications: tuple[HostApplication, ...] = (),
    ) -> UsageSample:
        """Measure once; a cycle at the same time as the last has no rates.

        `now_s` is monotonic. `listed_pods` are those of the cluster, beside those in cgroups;
        `applications` are the host applications of the NodeSLO.
        """
        self._find_layout(now_s)
        pods = containers = CgroupUsageTable(index={})
        by_node: dict[int, float | None] = {}
        if self._reads_pods:
            by_node = {node: 0 for node, _ in self._node.nodes}
        self._refresh_pods(listed_pods)
        if self._pod_usage is not None:
            pods, containers = self._pod_usage.read(now_s)
            by_node = self._pod_usage.memory_by_node(pods) if self.is_complete else {}
        application_usage = self._applications.read(now_s, self.layout, applications)
        counters, ticks_per_s = self._node.read(), self._node.ticks_per_s
        previous_s, previous = self._previous or (now_s, None)
        self._previous = (now_s, counters)
        elapsed_ticks = (now_s - previous_s) * ticks_per_s
        busy = busy_cores(previous, counters, elapsed_ticks, self._node.cpus)
        numa = numa_usage(self._node.nodes, busy, counters.node_memory, by_node)
        measured = pods if self._reads_pods and self.is_complete else None
        node = node_usage(counters, busy, ticks_per_s, measured, numa, application_usage)
        return UsageSample(
            node=node, pods=pods, containers=containers, applications=application_usage.by_name
        )

    @property
    def applications(self) -> tuple[tuple[str, str], ...]:
        """Names and cgroups of the running host applications."""
        return self._applications.cgroups

    @property
    def is_complete(self) -> bool:
        """Whether all pods are measured; else what is left for the system is not known."""
        return self._pod_usage is None or self._pod_usage.tree.is_complete

    @property
    def layout(self) -> CgroupLayout | None:
        """The host's cgroups; `None` before the kubelet's root was found."""
        return self._layout or self._detected_layout

    def process_owners(self, samples: Iterable[DeviceSample]) -> dict[int, tuple[str, str]]:
        """Return (pod uid, container id) of the devices' processes, by pid."""
        return process_owners(self._host, samples)

    def close(self) -> None:
        """Close all descriptors."""
        self._node.close()
        self._applications.close()
        if self._pod_usage is not None:
            self._pod_usage.close()

    def _find_layout(self, now_s: float) -> None:
        """Search for the kubelet's root while there are no pods: its driver may have changed."""
        if not self._reads_pods or (self._pod_usage is not None and self._pod_usage.tree.pods):
            return
        if self._layout_checked_s is not None and now_s - self._layout_checked_s < LAYOUT_RETRY_S:
            return
        self._layout_checked_s = now_s
        layout = self._layout or self._locator.refresh(now_s)
        if layout is not None and layout.root is not None and layout != self._detected_layout:
            self._detected_layout = layout
            if self._pod_usage is not None:
                self._pod_usage.close()
            nodes = tuple(node for node, _ in self._node.nodes)
            self._pod_usage = PodUsageReader(
                self._host, self._descriptors, layout, nodes, self._schedule
            )

    def _refresh_pods(self, listed: tuple[PodView, ...]) -> None:
        has_changes = self._pod_usage is not None and self._pod_usage.refresh()
        if has_changes or listed is not self._last_listed:
            self._last_listed = listed
            running = self._pod_usage.tree.pods if self._pod_usage else ()
            self.pods = self._joiner.join(running, listed)


MAX_REPORT_WINDOWS = 8  # each one's percentiles are sorted again for every report

MAX_REPORT_WINDOW_S = 86400


def report_policy(
    settings: Settings, policy: MetricCollectPolicy | None = None
) -> UsageReportPolicy:
    """Return windows and memory policy of the NodeMetric object, else of the settings.

    Each field is decided separately; invalid values are ignored, and the means' window is at least
    a minute. A window has no values while the history has less than half of it: one of 45 minutes
    has those of half an hour, one of two hours has none.
    """
    publish = settings.publish
    default = UsageReportPolicy(
        aggregate_s=publish.aggregate_duration_s, memory=publish.memory_policy
    )
    if policy is None:
        return default
    windows = (window for window in policy.durations_s or () if 0 < window <= MAX_REPORT_WINDOW_S)
    return UsageReportPolicy(
        aggregate_s=max(policy.aggregate_s or default.aggregate_s, MIN_AGGREGATE_S),
        windows_s=tuple(dict.fromkeys(windows))[:MAX_REPORT_WINDOWS] or default.windows_s,
        memory=policy.memory or default.memory,
    )


class UsageMonitor:
    """One collector and its history. Belongs to the collector thread.

    A recorded host does not change: its counters are read at a constant time, so that it has totals
    but no rates, which would all be a false 0.
    """

    def __init__(
        self,
        host: HostSource,
        settings: Settings,
        store: SnapshotStore,
        clock: Clock,
        *,
        pod_file: PodListFile | None = None,
        locator: LayoutLocator | None = None,
        peaks: PeakMonitor | None = None,
        traffic: Mapping[str, tuple[TrafficSource, ...]] = MappingProxyType({}),
    ) -> None:
        """Without `peaks` nothing is predicted. The pods of `pod_file` replace the cluster's.

        `traffic` has the sources of traffic of each vendor, for the trends of its devices.
        """
        collect = settings.collect
        self._collector = UsageCollector(
            host.files,
            interval_s=collect.interval_s,
            pressure_interval_s=collect.pressure_interval_s if collect.pressure else None,
            pods=collect.pods,
            locator=locator,
        )
        self._history = UsageHistory(
            collect.interval_s, pod_window_s=settings.publish.aggregate_duration_s
        )
        self._optional_collectors = OptionalCollectors(host.files, collect, clock)
        self._trend = TrendRecorder(traffic, collect.device_interval_s)
        self._peaks = peaks
        self._sharing = SharedDeviceCollector(host.files, collect.hami_regions)
        self._settings = settings
        self._is_recorded_host = host.spec is not None
        self._store = store
        self._pod_file = pod_file
        self._clock = clock
        self._last_success_s: float | None = None  # Unix time
        self._has_logged_problem = False
        self._sampled_s: dict[str, float] = {}  # by vendor, time of the last samples in the history
        self._owners: dict[int, tuple[str, str]] = {}  # of the processes on devices, by pid
        self.cycle_count = 0  # number of cycles in the history

    def _listed_pods(self) -> tuple[PodView, ...]:
        if self._pod_file is not None:
            return self._pod_file.read()
        return self._store.current.cluster.pods

    def cycle(self) -> None:
        """Measure once and add new device samples to the history."""
        now_s = self._clock.monotonic()
        host_s = 0.0 if self._is_recorded_host else now_s
        applications = self._store.current.cluster.slo.value.slo.host_applications
        sample = self._collector.measure(host_s, self._listed_pods(), applications)
        status = self._usage_status(sample, self._clock.monotonic() - now_s)
        self._optional_collectors.run(
            CollectorInput(
                now_s=host_s,
                layout=self._collector.layout,
                pods=self._collector.pods,
                applications=self._collector.applications,
            )
        )
        devices = self._new_samples(self._store.current)
        owners = (
            self._collector.process_owners(devices)
            if devices and not self._is_recorded_host
            else None
        )
        if owners is not None:
            self._update_owners(owners)
        sample = replace(
            sample,
            owners=MappingProxyType(self._owners),
            collectors=(status, *self._optional_collectors.statuses),
            **self._optional_collectors.values,
        )
        self._history.add(now_s, sample, devices, owners)
        self._record_trend(now_s, sample)
        self._store.put(
            usage=SnapshotPart(sample, now_s), pods=SnapshotPart(self._collector.pods, now_s)
        )
        self.cycle_count += 1
        if self._peaks is not None and now_s >= self._peaks.due_s:
            self._peaks.train(self._history, self._collector.pods, now_s, self._clock.wall())
        if now_s >= self._sharing.due_s:
            self._measure_sharing(now_s)

    def _record_trend(self, now_s: float, sample: UsageSample) -> None:
        trend = self._trend.add(now_s, sample.node, self._store.current.vendors)
        if trend is not None:
            self._store.put(trend=SnapshotPart(trend, now_s))

    def _usage_status(self, sample: UsageSample, duration_s: float) -> CollectorStatus:
        """Return the status of node, pods and host applications, which are measured together."""
        is_known = None not in (sample.node.cpu_total_ns, sample.node.memory_total_bytes)
        problems = () if self._collector.is_complete else (TOO_MANY_CGROUPS,)
        if problems and not self._has_logged_problem:
            log.warning(
                "collector_problem",
                extra={
                    "collector": "usage",
                    "reason": TOO_MANY_CGROUPS.reason,
                    "detail": TOO_MANY_CGROUPS.message,
                },
            )
        self._has_logged_problem = bool(problems)
        success = is_known and not problems
        if success:
            self._last_success_s = self._clock.wall()
        return CollectorStatus(
            name="usage",
            success=success,
            duration_s=duration_s,
            last_success_s=self._last_success_s,
            problems=problems,
        )

    def _update_owners(self, owners: dict[int, tuple[str, str]]) -> None:
        """Keep the owners of processes in the last samples of all vendors."""
        samples = (
            sample for vendor in self._store.current.vendors for sample in vendor.samples.value
        )
        pids = {process.pid for sample in samples for process in sample.processes or ()}
        self._owners = {p: owner for p, owner in (self._owners | owners).items() if p in pids}

    def report(self) -> None:
        """Put means and percentiles of the present windows into the snapshot.

        In a cluster without a NodeMetric there is no report, not even an earlier one.
        """
        cluster = self._store.current.cluster
        metric_policy = cluster.metric_policy.value
        if cluster.is_clustered and metric_policy is None:
            if self._store.current.report.taken_s is not None:
                self._store.put(report=SnapshotPart(UsageReport()))
            return
        now_s = self._clock.monotonic()
        policy = report_policy(self._settings, metric_policy)
        report = self._history.report(now_s, policy)
        if self._peaks is not None:
            prediction = self._peaks.predict(self._store.current, now_s, self._clock.wall())
            report = replace(report, prediction=prediction)
        self._history.set_pod_window(policy.aggregate_s)  # it may drop values, so it comes last
        self._store.put(report=SnapshotPart(report, now_s))

    def close(self) -> None:
        """Close all descriptors."""
        self._collector.close()
        self._optional_collectors.close()

    def _measure_sharing(self, now_s: float) -> None:
        now, wall_s = self._store.current, self._clock.wall()
        # not the last samples of a worker that answers no more, which counts have outgrown
        vendors = (vendor for vendor in now.vendors if not vendor.samples.error)
        samples = (sample for vendor in vendors for sample in vendor.samples.value)
        devices = now.devices.value.devices
        view = self._sharing.collect(now_s, wall_s, self._collector.pods, devices, samples)
        self._store.put(sharing=SnapshotPart(view, now_s))

    def _new_samples(self, snapshot: NodeSnapshot) -> tuple[DeviceSample, ...]:
        new_samples: list[DeviceSample] = []
        for vendor in snapshot.vendors:
            taken_s = vendor.samples.taken_s
            if taken_s is not None and self._sampled_s.get(vendor.vendor) != taken_s:
                self._sampled_s[vendor.vendor] = taken_s
                new_samples += vendor.samples.value
        return tuple(new_samples)
