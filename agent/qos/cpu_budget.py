"""How much CPU best-effort pods may use, and the quota that grants it. Pure.

The formulas are Koordinator's (`pkg/koordlet/qosmanager/plugins/cpusuppress`), in whole
milli-cores.
"""

from __future__ import annotations

import msgspec

from agent.cgroup.cpu import PERIOD_US, UNLIMITED_QUOTA, Bandwidth
from agent.qos.strategy import NodeCapacity, QosPod
from agent.snapshot.pod import KubeQos
from agent.snapshot.slo import HostApplication, ResourceThresholds
from agent.snapshot.usage import CgroupUsage, UsageSample

MIN_QUOTA_US = 2000  # best-effort pods get at least this of each period
GROWTH_US_PER_CPU = PERIOD_US // 10  # by which a quota grows in one step
TOLERANCE_US_PER_CPU = PERIOD_US // 100  # a smaller difference is not written
UNMEASURED_S = 5.0  # for which a best-effort pod without a sample counts as one that begins
BEST_EFFORT_BASE = "KubepodsBesteffort"


class CpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """Cores in use, and cores that are reserved for what is no pod."""

    node_cores: float
    pods_cores: float = 0.0
    protected_pods_cores: float = 0.0  # of pods that are not best-effort, or not known
    applications_cores: float = 0.0
    protected_applications_cores: float = 0.0
    reserved_cores: float = 0.0
    pods_without_rate: frozenset[str] = frozenset()  # uids; they are in the sample all the same
    # of what is outside of pods: the rest is that of best-effort pods without a sample
    largest_outside_cores: float = float("inf")

    @property
    def outside_cores(self) -> float:
        """Return what the node uses outside of the pods that were measured and of applications."""
        return self.node_cores - self.pods_cores - self.applications_cores

    @property
    def system_cores(self) -> float:
        """Return what the node uses outside of pods and host applications, or has reserved."""
        outside_cores = min(self.outside_cores, self.largest_outside_cores)
        return max(outside_cores, 0.0, self.reserved_cores)


class OutsideUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the node used outside of pods when all of them were measured.

    The other fields are those of the last sample; times are monotonic.
    """

    cores: float
    complete_s: float
    sample_s: float
    best_effort: frozenset[str]  # uids of the measured pods
    has_ended: bool = False  # a best-effort pod of the sample before is not in it


def without_unmeasured_pods(
    use: CpuUse,
    usage: UsageSample,
    sample_s: float,
    pods: tuple[QosPod, ...],
    last: OutsideUse | None,
) -> tuple[CpuUse, OutsideUse | None]:
    """Return the use without that of best-effort pods that have no sample, and the next `last`.

    A pod that began or ended since the sample before is part of the node's use, but has none of
    its own. Of best-effort pods it must not count as the system's: it would take their CPUs away.
    As long as others are not measured either, or for more than `UNMEASURED_S`, it does.
    """
    sampled = frozenset(usage.pods)
    best_effort = {pod.uid for pod in pods if is_best_effort(pod)}
    unmeasured = use.pods_without_rate.union(
        pod.uid for pod in pods if pod.uid not in sampled and pod.cgroup and pod.is_active
    )
    measured = sampled & best_effort - unmeasured
    has_ended = False
    if last is not None:
        is_new = sample_s != last.sample_s
        has_ended = not last.best_effort <= sampled if is_new else last.has_ended
    if not unmeasured and not has_ended:
        complete = OutsideUse(
            cores=use.outside_cores, complete_s=sample_s, sample_s=sample_s, best_effort=measured
        )
        return use, complete
    if last is None:
        return use, None
    if unmeasured <= best_effort and sample_s - last.complete_s <= UNMEASURED_S:
        use = msgspec.structs.replace(use, largest_outside_cores=last.cores)
    last = msgspec.structs.replace(
        last, sample_s=sample_s, best_effort=measured, has_ended=has_ended
    )
    return use, last


def budget_milli(capacity_milli: int, thresholds: ResourceThresholds, use: CpuUse) -> int:
    """Return what is left below the threshold; negative if others use more than that."""
    budget = (
        capacity_milli * thresholds.cpu_suppress_threshold_percent // 100
        - int(1000 * use.protected_pods_cores)
        - int(1000 * use.protected_applications_cores)
        - int(1000 * use.system_cores)
    )
    if thresholds.cpu_suppress_min_percent is not None:
        budget = max(budget, capacity_milli * thresholds.cpu_suppress_min_percent // 100)
    return budget


def is_best_effort(pod: QosPod) -> bool:
    """Return whether a pod is best-effort by its label or by Kubernetes' class."""
    return pod.label == "BE" or pod.view.qos is KubeQos.BEST_EFFORT


def measured_use(
    usage: UsageSample,
    pods: tuple[QosPod, ...],
    applications: tuple[HostApplication, ...],
    reserved_cores: float,
) -> CpuUse | None:
    """Return the use of one sample; `None` without that of the node.

    A pod that is not listed is protected: its class is not known.
    """
    if usage.node.cpu_cores is None:
        return None
    best_effort = {pod.uid for pod in pods if is_best_effort(pod)}
    rates = {uid: use.cpu_cores for uid, use in usage.pods.items()}
    pod_cores = {uid: cores or 0.0 for uid, cores in rates.items()}
    application_cores = {name: _cores(use) for name, use in usage.applications.items()}
    return CpuUse(
        node_cores=usage.node.cpu_cores,
        pods_cores=sum(pod_cores.values()),
        protected_pods_cores=sum(
            cores for uid, cores in pod_cores.items() if uid not in best_effort
        ),
        applications_cores=sum(application_cores.values()),
        protected_applications_cores=sum(
            application_cores.get(application.name, 0.0)
            for application in applications
            if not _is_best_effort_application(application)
        ),
        reserved_cores=reserved_cores,
        pods_without_rate=frozenset(uid for uid, cores in rates.items() if cores is None),
    )


def reserved_cores(node: NodeCapacity, annotated_cores: float) -> float:
    """Return the cores that pods cannot request: by the Node's capacity, or by its annotation."""
    allocatable = node.allocatable_of("cpu")
    if node.cpu_milli is None or allocatable is None:
        return annotated_cores
    return max((node.cpu_milli - allocatable) / 1000, annotated_cores, 0.0)


def next_quota_us(budget: int, capacity_milli: int, base: Bandwidth, current: Bandwidth) -> int:
    """Return the quota for a budget; the current one if the difference is small.

    It grows by a limited step from `base`, the quota at the start of this step. Without a limit in
    force the quota is set at once: a small one, too.
    """
    wanted = max(budget * PERIOD_US // 1000, MIN_QUOTA_US)
    now, cpus = quota_us(current), -(-capacity_milli // 1000)
    if now == UNLIMITED_QUOTA:
        return wanted
    if abs(wanted - now) < TOLERANCE_US_PER_CPU * cpus and wanted != MIN_QUOTA_US:
        return now
    start = quota_us(base)
    largest = (now if start == UNLIMITED_QUOTA else start) + GROWTH_US_PER_CPU * cpus
    return min(wanted, largest)


def quota_us(bandwidth: Bandwidth) -> int:
    """Return the quota of a period of 100 ms."""
    if bandwidth.quota_us == UNLIMITED_QUOTA:
        return UNLIMITED_QUOTA
    return bandwidth.quota_us * PERIOD_US // bandwidth.period_us


def _cores(use: CgroupUsage) -> float:
    return 0.0 if use.cpu_cores is None else use.cpu_cores


def _is_best_effort_application(one: HostApplication) -> bool:
    place = one.cgroup_path
    return one.qos == "BE" and place is not None and place.base == BEST_EFFORT_BASE


HOLD_S = 5.0  # how long a quota that pressure cut stays
STEP_S = 0.9  # between two steps of growth: a cycle a second, which may start early
IGNORED_S = 60.0  # how long stalls count for nothing after a cut to the floor did not help


class PressureCut(msgspec.Struct, frozen=True, kw_only=True):
    """A quota that was cut because latency-sensitive pods waited for CPU; `None`: none is.

    Times are monotonic.
    """

    quota_us: int | None = None
    cut_s: float = float("-inf")
    grown_s: float = float("-inf")
    floor_s: float | None = None  # since when it is at the floor
    ignored_until_s: float = float("-inf")


NO_CUT = PressureCut()


def react_to_stall(
    cut: PressureCut, effective_us: int, cpus: int, now_s: float, *, is_stalled: bool
) -> PressureCut:
    """Return the cut after a cycle: half of the effective quota at a stall, and growth later.

    Pods that still stall when best-effort pods have been at the floor for a while wait for
    something else, such as their own CPU limit: their stalls are ignored for a time.
    """
    if is_stalled and now_s >= cut.ignored_until_s:
        if cut.floor_s is None or now_s - cut.floor_s < HOLD_S:
            return _halved(cut, effective_us, now_s)
        cut = msgspec.structs.replace(cut, ignored_until_s=now_s + IGNORED_S)
    is_held = now_s - cut.cut_s < HOLD_S or now_s - cut.grown_s < STEP_S
    if cut.quota_us is None or is_held:
        return cut
    grown_us = cut.quota_us + GROWTH_US_PER_CPU * cpus
    return msgspec.structs.replace(cut, quota_us=grown_us, grown_s=now_s, floor_s=None)


def _halved(cut: PressureCut, effective_us: int, now_s: float) -> PressureCut:
    halved_us = max(MIN_QUOTA_US, effective_us // 2)
    floor_s = now_s if cut.floor_s is None else cut.floor_s
    return PressureCut(
        quota_us=halved_us,
        cut_s=now_s,
        grown_s=now_s,
        floor_s=floor_s if halved_us == MIN_QUOTA_US else None,
    )
