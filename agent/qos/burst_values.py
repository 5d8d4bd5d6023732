"""The desired burst and quota files of one pod, from the decisions on its containers. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.cgroup.cpu import MIN_QUOTA_US, PERIOD_US, Bandwidth
from agent.cgroup.keys import BURST, QUOTA, UNLIMITED, CgroupKey, CgroupValue
from agent.cgroup.write_plan import DesiredValue
from agent.containers.cpu_quota import scale_quota
from agent.qos.burst_rules import QuotaChange, burst_of, target_quota
from agent.qos.strategy import CurrentValues
from agent.snapshot.pod import PodView
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
    ids: frozenset[str] = frozenset()  # of its containers
    ratio: float | None = None
    scales_pod: bool = False

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
    read_s: float


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


class _ContainerQuota(msgspec.Struct, frozen=True):
    """A container's quota: of its limit, in force, without the strategy, and desired."""

    container: BurstContainer
    base_us: int
    current: Bandwidth
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
    targets = {} if last is None else last.targets
    quotas = [
        quota
        for container, change in zip(pod.containers, step.changes, strict=True)
        if (quota := _container_quota(pod, container, change, targets, current)) is not None
    ]
    values = _PodValueCollector(pod, current)
    new_targets: dict[str, int] = {}
    growth_us = sum(quota.target_us - quota.rest_us for quota in quotas)
    pod_quota = _pod_quota(pod, growth_us, targets, current)
    if pod.scales_quota:
        if pod_quota is not None and pod_quota.quota_us != UNLIMITED:
            values.add_quota(pod.view.cgroup, "pod", pod_quota)
            new_targets[pod.view.cgroup] = pod_quota.quota_us
        for one in quotas:
            target = Bandwidth(one.target_us, one.current.period_us)
            values.add_quota(one.container.cgroup, "container", target)
            new_targets[one.container.cgroup] = one.target_us
    if step.has_burst and quotas:
        bursts = [
            burst_of(quota.container.limit_milli, pod.config.cpu_burst_percent, quota.burst_us)
            for quota in quotas
        ]
        total = sum(bursts)
        if pod_quota is not None and pod_quota.quota_us != UNLIMITED:
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
        read_s=step.read_s if last is None else step.now_s,
    )


class _PodValueCollector:
    """Collects the desired values of one pod."""

    def __init__(self, pod: BurstPod, current: CurrentValues) -> None:
        self.desired: list[DesiredValue] = []
        self._pod = pod
        self._current = current

    def add(self, cgroup: str, key: CgroupKey, value: CgroupValue, message: str) -> None:
        """Add one file."""
        self.desired.append(
            DesiredValue(
                cgroup=cgroup,
                key=key,
                value=value,
                owner=NAME,
                message=message,
                source=self._pod.source,
            )
        )

    def add_quota(self, cgroup: str, level: str, quota: Bandwidth) -> None:
        """Add a quota that is neither in force nor the original: those need no desired value."""
        original = self._current.original(cgroup, QUOTA)
        at_rest = self._current.value(cgroup, QUOTA) if original is None else original
        if quota != at_rest:
            self.add(cgroup, QUOTA, quota, f"set {level} cfs quota to {quota.quota_us}")


def _container_quota(
    pod: BurstPod,
    container: BurstContainer,
    change: QuotaChange,
    targets: Mapping[str, int],
    current: CurrentValues,
) -> _ContainerQuota | None:
    """Return a container's quotas; `None` without a quota in force, which stays so."""
    in_force = _bandwidth(current.value(container.cgroup, QUOTA))
    if in_force is None or in_force.quota_us == UNLIMITED:
        return None
    base_us = max(container.base_us * in_force.period_us // PERIOD_US, MIN_QUOTA_US)
    target_us = in_force.quota_us
    if pod.scales_quota:
        percent = pod.config.cfs_quota_burst_percent
        target_us = target_quota(change, in_force.quota_us, base_us, percent)
    rest_us = in_force.quota_us
    original = _bandwidth(current.original(container.cgroup, QUOTA))
    if original is not None and not _is_foreign(in_force, container.cgroup, targets):
        rest_us = scale_quota(original.quota_us, pod.ratio)
    return _ContainerQuota(
        container, base_us, in_force, in_force.quota_us if rest_us < 0 else rest_us, target_us
    )


def _pod_quota(
    pod: BurstPod, growth_us: int, targets: Mapping[str, int], current: CurrentValues
) -> Bandwidth | None:
    """Return the pod's quota: the one without bursts, and what its containers have more.

    The former is not always the sum of the containers: a pod may have a limit of its own.
    """
    in_force = _bandwidth(current.value(pod.view.cgroup, QUOTA))
    if in_force is None or in_force.quota_us == UNLIMITED or not pod.scales_quota:
        return in_force
    original = _bandwidth(current.original(pod.view.cgroup, QUOTA))
    rest = in_force
    if original is not None and not _is_foreign(in_force, pod.view.cgroup, targets):
        rest = original
    rest_us = scale_quota(rest.quota_us, pod.ratio if pod.scales_pod else None)
    if rest_us == UNLIMITED:
        return None
    return Bandwidth(rest_us + growth_us, in_force.period_us)


def _is_foreign(in_force: Bandwidth, cgroup: str, targets: Mapping[str, int]) -> bool:
    """Return whether another program wrote the quota since this strategy set it."""
    target_us = targets.get(cgroup)
    return target_us is not None and target_us != in_force.quota_us


def _bandwidth(value: CgroupValue | None) -> Bandwidth | None:
    return value if isinstance(value, Bandwidth) else None
