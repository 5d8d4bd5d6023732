"""Usage, request and real CPU limit of the best-effort tier: the kubelet's group of that class."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator

from agent.cgroup import usage_files
from agent.cgroup.cpu import (
    PERIOD_FILE,
    QUOTA_FILE,
    UNLIMITED_QUOTA,
    V2_FILE,
    Bandwidth,
    parse_bandwidth_v1,
    parse_bandwidth_v2,
)
from agent.cgroup.layout import CgroupLayout
from agent.clock import Clock
from agent.errors import HostFileError, ParseError
from agent.snapshot.host_files import HostFiles
from agent.snapshot.pod import ENDED_PHASES, KubeQos, PodView
from agent.snapshot.usage import BestEffortUsage
from agent.usage.cgroup_usage import CgroupUsageReader
from agent.usage.collector import CollectorInput, SpreadRound
from agent.usage.file_reader import DescriptorCache
from agent.usage.host_applications import NO_PRESSURE, base_cgroup
from agent.wire_formats.annotations import QOS_LABEL
from agent.wire_formats.kernel_text import parse_cpu_list

MAX_DESCRIPTORS = 8  # the group's own files
CPUS_V1, CPUS_V2 = "cpuset.cpus", "cpuset.cpus.effective"
MAX_CPUS_BYTES = 8192


def request_milli(pods: Iterable[PodView]) -> int | None:
    """Return the batch CPU that all pods labelled `BE` request, in milli-cores.

    `None` if a request is not known: that of a pod without a spec, or a malformed one.
    """
    total = 0
    for pod in pods:
        if pod.phase in ENDED_PHASES:
            continue
        if not pod.name and pod.qos is KubeQos.BEST_EFFORT:
            return None
        if pod.label(QOS_LABEL) == "BE":
            if pod.batch_cpu_milli is None:
                return None
            total += pod.batch_cpu_milli
    return total


def limit_milli(cpu_counts: Iterable[int | None], bandwidth: Bandwidth | None) -> int | None:
    """Return the smaller of the smallest CPU set and the quota, in milli-cores.

    An empty CPU set of version 1 is one that nobody has written yet: it limits nothing. `None` if
    neither a CPU set nor a quota is known, and for a quota of 0, which no kernel accepts.
    """
    if bandwidth is not None and bandwidth.quota_us == 0:
        return None
    limits = [count * 1000 for count in cpu_counts if count]
    if bandwidth is not None and bandwidth.quota_us != UNLIMITED_QUOTA:
        limits.append(bandwidth.quota_us * 1000 // bandwidth.period_us)
    return min(limits, default=None)


class _BestEffortFiles:
    """The files of one layout's best-effort group and of the containers in it."""

    def __init__(self, host: HostFiles, layout: CgroupLayout, cgroup: str) -> None:
        self.layout = layout
        self.cgroup = cgroup
        self._host = host
        self._usage = CgroupUsageReader(
            host, DescriptorCache(host, limit=MAX_DESCRIPTORS), layout, NO_PRESSURE
        )
        self._usage.set_cgroups({cgroup: cgroup})

    def cgroups(self, pods: Iterable[PodView]) -> Iterator[str]:
        """Yield the group and those of the containers in it."""
        yield self.cgroup
        for pod in pods:
            for container in pod.containers:
                if container.cgroup.startswith(f"{self.cgroup}/"):
                    yield container.cgroup

    def read(
        self, now_s: float, pods: Iterable[PodView], cpu_counts: Iterable[int]
    ) -> BestEffortUsage:
        """Read the group's own files; `cpu_counts` are those of `cgroups`."""
        use = self._usage.read(now_s)[self.cgroup]
        try:
            limit = limit_milli(cpu_counts, self._bandwidth())
        except ParseError:
            limit = None
        return BestEffortUsage(use=use, request_milli=request_milli(pods), limit_milli=limit)

    def cpu_count(self, cgroup: str) -> int | None:
        """Return the size of a group's CPU set; `None` if it is not known."""
        directory = self.layout.directory("cpuset", cgroup)
        if directory is None:
            return None
        path = f"{directory}/{CPUS_V2 if self.layout.version == 2 else CPUS_V1}"
        try:
            text = self._host.read(path, MAX_CPUS_BYTES).decode("utf-8", "replace")
            return len(parse_cpu_list(text)) if text.endswith("\n") else None
        except (HostFileError, ParseError):  # the container has ended, or has no such file
            return None

    def close(self) -> None:
        """Close all descriptors."""
        self._usage.close()

    def _bandwidth(self) -> Bandwidth | None:
        """Return the group's quota; `None` where it has no such file."""
        directory = self.layout.directory("cpu", self.cgroup)
        if directory is None:
            return None
        try:
            if self.layout.version == 2:
                return parse_bandwidth_v2(self._read(f"{directory}/{V2_FILE}"))
            quota, period = f"{directory}/{QUOTA_FILE}", f"{directory}/{PERIOD_FILE}"
            return parse_bandwidth_v1(self._read(quota), self._read(period))
        except HostFileError as error:
            if error.errno == errno.ENOENT:
                return None
            raise ParseError(directory, str(error)) from error

    def _read(self, path: str) -> bytes:
        data = self._host.read(path, usage_files.SMALL)
        if not data.endswith(b"\n"):
            raise ParseError(path, data.decode("utf-8", "replace"))
        return data


class BestEffortCollector:
    """Measures the best-effort tier, once the kubelet has created its group."""

    name = "best_effort"

    def __init__(self, host: HostFiles, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._files: _BestEffortFiles | None = None
        self._cpu_counts: SpreadRound[str, int] | None = None  # by cgroup, while they are read

    def collect(self, cycle: CollectorInput) -> BestEffortUsage | None:
        """Read some CPU sets; once all are read, return the values.

        Without the group there is only the request.
        """
        layout = cycle.layout
        cgroup = None
        if layout is not None and layout.root is not None:
            cgroup = base_cgroup(layout, "KubepodsBesteffort")
        if layout is None or not cgroup:
            self.close()
            return BestEffortUsage(request_milli=request_milli(cycle.pods))
        if self._files is None or self._files.layout != layout:
            self.close()
            self._files = _BestEffortFiles(self._host, layout, cgroup)
        if self._cpu_counts is None:
            self._cpu_counts = SpreadRound(self._files.cgroups(cycle.pods))
        if not self._cpu_counts.read_some(self._files.cpu_count, self._clock):
            return None
        counts, self._cpu_counts = self._cpu_counts.values.values(), None
        return self._files.read(cycle.now_s, cycle.pods, counts)

    def close(self) -> None:
        """Close all descriptors."""
        self._cpu_counts = None
        if self._files is not None:
            self._files.close()
            self._files = None
