"""The desired burst and quota files of one pod, from the decisions on its containers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.cgroup.cpu import MIN_QUOTA_US, PERIOD_US, Bandwidth
from agent.cgroup.keys import BURST, QUOTA, UNLIMITED, CgroupKey, CgroupValue
from agent.cgroup.write_plan import DesiredValue
from agent.containers.cpu_quota import scale_quota
from agent.qos.burst_rules import QuotaChange, burst_of, target_quota
from agent.qos.strategy import CurrentValues
from agent.snapshot.pod import ContainerResources, PodView
from agent.snapshot.slo import CpuBurst

NAME = "cpu_burst"
BURST_POLICIES = ("cpuBurstOnly", "auto")
QUOTA_POLICIES = ("cfsQuotaBurstOnly", "auto")
RECHECK_S = 30.0  # between two reads of quotas that nothing changes
RECHECK_GROUPS = 8  # pods are read again in turn, not all in one cycle


class BurstContainer(msgspec.Struct, frozen=True):
    """A running container with a CPU limit. `base_us` is its quota at rest, per default period."""

    id: str
    cgroup: str
    limit_milli: int
    base_us: int


class BurstPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that a policy applies to. `ratio` scales the quotas of its containers.

    Version 1 requires that the pod's own quota is not scaled (`scales_pod` is false).
    """

    view: PodView
    config: CpuBurst
    source: str
    containers: tuple[BurstContainer, ...]
    limit_milli: int | None = None  # that the kubelet sets for the pod as a whole
    ids: frozenset[str] = frozenset()  # of its containers
    ratio: float | None = None
    scales_pod: bool = False

    @property
    def limits_milli(self) -> Mapping[str, int]:
        """Return the limits by cgroup; none of a pod that the kubelet sets no quota for."""
        limits = {container.cgroup: container.limit_milli for container in self.containers}
        if self.limit_milli is not None:
            limits[self.view.cgroup] = self.limit_milli
        return limits

    @property
    def scales_quota(self) -> bool:
        """Return whether quotas may grow."""
        return self.config.policy in QUOTA_POLICIES

    @property
    def has_burst(self) -> bool:
        """Return whether bursts are set."""
        return self.config.policy in BURST_POLICIES

    @property
    def capacity(self) -> int | None:
        """Return the capacity of the containers' token buckets; `None`: they need no tokens."""
        period_s = self.config.cfs_quota_burst_period_s
        return None if period_s < 0 else period_s * (self.config.cfs_quota_burst_percent - 100)


class PodPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is desired of one pod's files."""

    pod: BurstPod
    values: tuple[DesiredValue, ...]
    is_at_rest: bool  # no quota differs from the one without bursts
    raised: int = 0  # containers whose quota is above the limit
    targets: Mapping[str, int] = {}  # quotas by cgroup
    attempt: int = 0  # how often another program had written a quota when it was decided
    read_s: float


def pod_limit_milli(resources: Iterable[ContainerResources]) -> int | None:
    """Return the CPU limit of a pod as the kubelet computes it; `None` if a container has none.

    It is the larger one of two: the total of all containers that stay, and the highest total of an
    init container and the sidecars that start before it.
    """
    total = sidecars = peak = 0
    for container in resources:
        limit_milli = container.cpu_limit_milli
        if not limit_milli:
            return None
        if container.runs_beside_others:
            total += limit_milli
        if container.is_sidecar:
            sidecars += limit_milli
        elif container.is_init:
            peak = max(peak, sidecars + limit_milli)
    return max(total, peak) or None


class PodStep(msgspec.Struct, frozen=True, kw_only=True):
    """One decision on one pod. `changes` are those of its containers, in their order."""

    pod: BurstPod
    changes: tuple[QuotaChange, ...]
    has_burst: bool
    now_s: float
    number: int  # of the pod

    @property
    def read_s(self) -> float:
        """Return a time in the past, so that pods are read again at different times."""
        return self.now_s - RECHECK_S * (self.number % RECHECK_GROUPS) / RECHECK_GROUPS

    def keeps(self, last: PodPlan) -> bool:
        """Return whether the last plan is still right, without reading any file.

        At rest, a quota cannot be lowered. What other programs write is read a little later.
        """
        if last.pod is not self.pod or self.now_s - last.read_s >= RECHECK_S:
            return False
        quiet = (QuotaChange.KEEP, QuotaChange.LOWER) if last.is_at_rest else (QuotaChange.KEEP,)
        return all(change in quiet for change in self.changes)


class _QuotaFile(msgspec.Struct, frozen=True):
    """A group's quota in force, and the one to be restored; `None`: the strategy set none."""

    in_force: Bandwidth
    original: Bandwidth | None
    new_original: Bandwidth | None  # to be restored from now on, because the group was resized
    is_foreign: bool  # another program wrote it since the strategy did

    @property
    def at_rest(self) -> Bandwidth:
        """Return the quota without the strategy."""
        if self.new_original is not None:
            return self.new_original
        return self.in_force if self.original is None or self.is_foreign else self.original

    def needs(self, quota: Bandwidth) -> bool:
        """Return whether the strategy has to set a quota, or to change what is restored.

        What it lowers to the original is restored. Restoring comes after the burst, which a quota
        must not be below.
        """
        if self.original is None or self.in_force.quota_us < quota.quota_us:
            return quota != self.in_force
        return self.new_original is not None or quota != self.original


class _ContainerQuota(msgspec.Struct, frozen=True):
    """A container's quota: of its limit, in force, without the strategy, and desired."""

    container: BurstContainer
    base_us: int
    file: _QuotaFile
    rest_us: int
    target_us: int

    @property
    def burst_us(self) -> int:
        """Return the largest burst that lets the runtime write the quota of the limit.

        It does so at each update of a container, and the kernel refuses a quota below the burst.
        """
        return min(self.base_us, self.target_us)


def plan_pod(step: PodStep, last: PodPlan | None, current: CurrentValues) -> PodPlan:
    """Return what is desired of a pod's files; equal values are the same object as before."""
    if last is not None and step.keeps(last):
        return last
    pod = step.pod
    quotas = [
        quota
        for container, change in zip(pod.containers, step.changes, strict=True)
        if (quota := _container_quota(pod, container, change, last, current)) is not None
    ]
    pod_file = _quota_file(pod, pod.view.cgroup, last, current)
    files = (*(quota.file for quota in quotas), *filter(None, (pod_file,)))
    attempt = 0 if last is None else last.attempt + any(file.is_foreign for file in files)
    values = _PodValueCollector(pod, attempt)
    new_targets: dict[str, int] = {}
    growth_us = sum(quota.target_us - quota.rest_us for quota in quotas)
    least_us = max((quota.target_us for quota in quotas), default=MIN_QUOTA_US)
    pod_quota = None if pod_file is None else _pod_quota(pod, growth_us, least_us, pod_file)
    if pod.scales_quota:
        if pod_file is not None and pod_quota is not None:
            values.add_quota(pod.view.cgroup, "pod", pod_quota, pod_file)
            new_targets[pod.view.cgroup] = pod_quota.quota_us
        for one in quotas:
            target = Bandwidth(one.target_us, one.file.in_force.period_us)
            values.add_quota(one.container.cgroup, "container", target, one.file)
            new_targets[one.container.cgroup] = one.target_us
    if step.has_burst and quotas:
        bursts = [
            burst_of(quota.container.limit_milli, pod.config.cpu_burst_percent, quota.burst_us)
            for quota in quotas
        ]
        total = sum(bursts)
        if pod_quota is not None:
            total = min(total, pod_quota.quota_us)
        values.add(pod.view.cgroup, BURST, total, f"set pod cfs burst to {total}")
        for one, burst in zip(quotas, bursts, strict=True):
            values.add(one.container.cgroup, BURST, burst, f"set container cfs burst to {burst}")
    new = tuple(values.desired)
    return PodPlan(
        pod=pod,
        values=last.values if last is not None and last.values == new else new,
        is_at_rest=all(quota.target_us == quota.base_us for quota in quotas),
        raised=sum(quota.target_us > quota.base_us for quota in quotas),
        targets=new_targets,
        attempt=attempt,
        read_s=step.read_s if last is None else step.now_s,
    )


class _PodValueCollector:
    """Collects the desired values of one pod."""

    def __init__(self, pod: BurstPod, attempt: int) -> None:
        self.desired: list[DesiredValue] = []
        self._pod = pod
        self._attempt = attempt

    def add(
        self,
        cgroup: str,
        key: CgroupKey,
        value: CgroupValue,
        message: str,
        new_original: CgroupValue | None = None,
        replaces: CgroupValue | None = None,
    ) -> None:
        """Add one file."""
        self.desired.append(
            DesiredValue(
                cgroup=cgroup,
                key=key,
                value=value,
                owner=NAME,
                message=message,
                source=self._pod.source,
                original=new_original,
                replaces=replaces,
                attempt=0 if replaces is None else self._attempt,
            )
        )

    def add_quota(self, cgroup: str, level: str, quota: Bandwidth, file: _QuotaFile) -> None:
        """Add a quota, unless it is the one without the strategy."""
        if file.needs(quota):
            message = f"set {level} cfs quota to {quota.quota_us}"
            self.add(cgroup, QUOTA, quota, message, file.new_original, file.in_force)


def _quota_file(
    pod: BurstPod, cgroup: str, last: PodPlan | None, current: CurrentValues
) -> _QuotaFile | None:
    """Return the quota of a group; `None` without one in force, which stays so."""
    in_force = _bandwidth(current.value(cgroup, QUOTA))
    if in_force is None or in_force.quota_us == UNLIMITED:
        return None
    original = _bandwidth(current.original(cgroup, QUOTA))
    target_us = None if last is None else last.targets.get(cgroup)
    return _QuotaFile(
        in_force,
        original,
        _new_original(pod, cgroup, last, in_force, original or in_force),
        is_foreign=target_us is not None and target_us != in_force.quota_us,
    )


def _new_original(
    pod: BurstPod, cgroup: str, last: PodPlan | None, in_force: Bandwidth, original: Bandwidth
) -> Bandwidth | None:
    """Return the quota of a group's limit if a resize changed that; else `None`.

    The kubelet may have written a quota that the strategy wrote, too, so that the file does not
    show the resize. The original does: it is the quota of the limit before. When the agent has
    just started it does not know that limit, but the file often has the quota of the new one.
    """
    limit = _quota_of(pod.limits_milli.get(cgroup), in_force.period_us)
    if limit is None or limit == original:
        return None
    if last is None:
        return limit if in_force == limit else None
    last_limit = _quota_of(last.pod.limits_milli.get(cgroup), in_force.period_us)
    return limit if original == last_limit else None


def _quota_of(limit_milli: int | None, period_us: int) -> Bandwidth | None:
    """Return the quota that the kubelet sets for a limit."""
    if limit_milli is None:
        return None
    return Bandwidth(max(limit_milli * period_us // 1000, MIN_QUOTA_US), period_us)


def _container_quota(
    pod: BurstPod,
    container: BurstContainer,
    change: QuotaChange,
    last: PodPlan | None,
    current: CurrentValues,
) -> _ContainerQuota | None:
    """Return a container's quotas; `None` without a quota in force, which stays so."""
    file = _quota_file(pod, container.cgroup, last, current)
    if file is None:
        return None
    in_force = file.in_force
    base_us = max(container.base_us * in_force.period_us // PERIOD_US, MIN_QUOTA_US)
    target_us = in_force.quota_us
    if pod.scales_quota:
        percent = pod.config.cfs_quota_burst_percent
        target_us = target_quota(change, in_force.quota_us, base_us, percent)
    rest_us = file.at_rest.quota_us
    if rest_us == UNLIMITED:
        rest_us = in_force.quota_us
    elif file.at_rest is not in_force:
        rest_us = scale_quota(rest_us, pod.ratio)
    return _ContainerQuota(container, base_us, file, rest_us, target_us)


def _pod_quota(pod: BurstPod, growth_us: int, least_us: int, file: _QuotaFile) -> Bandwidth | None:
    """Return the pod's quota: the one without bursts, and what its containers have more.

    The former is not always the sum of the containers: a pod may have a limit of its own. It is at
    least the quota of each container, `least_us`. `None`: it has none, which stays so.
    """
    if not pod.scales_quota:
        return file.in_force
    rest_us = scale_quota(file.at_rest.quota_us, pod.ratio if pod.scales_pod else None)
    if rest_us == UNLIMITED:
        return None
    return Bandwidth(max(rest_us + growth_us, least_us), file.in_force.period_us)


def _bandwidth(value: CgroupValue | None) -> Bandwidth | None:
    return value if isinstance(value, Bandwidth) else None
