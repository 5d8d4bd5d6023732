"""CPU shares and quotas.

The node's CPU normalization ratio, and the hook that scales quotas by it.

How much more this node's CPUs do than the cluster's measure, as its manager notes.

Quotas of pods that share CPUs, made smaller on CPUs that do more work in the same time.
"""

from __future__ import annotations

import math
import re

from agent.containers.qos_class import qos_label
from agent.snapshot.container import (
    NO_ADJUSTMENT,
    UNLIMITED,
    Adjustment,
    HookRequest,
    HookStage,
    LinuxResources,
)
from agent.snapshot.node import NodeSnapshot, SnapshotMemo
from agent.wire_formats.resource_status import RESOURCE_STATUS, parse_resource_status

PERIOD_US = 100_000

MIN_QUOTA_US = 1000  # the kernel takes none below

MIN_SHARES, MAX_SHARES = 2, 262144


def shares_of(milli: int) -> int:
    """Return the weight of so many thousandths of a CPU, as Kubernetes does."""
    return max(MIN_SHARES, min(milli * 1024 // 1000, MAX_SHARES))


def quota_of(milli: int) -> int:
    """Return the limit in microseconds a period; unlimited where that is nothing."""
    quota_us = milli * PERIOD_US // 1000
    return UNLIMITED if quota_us <= 0 else max(quota_us, MIN_QUOTA_US)


def scale_quota(quota_us: int, ratio: float | None) -> int:
    """Return the quota on a CPU that does `ratio` times the work; never one the kernel refuses."""
    if quota_us <= 0 or ratio is None or ratio <= 1.0:
        return quota_us
    return max(math.ceil(quota_us / ratio), MIN_QUOTA_US)


RATIO = "node.koordinator.sh/cpu-normalization-ratio"

MIN_CHANGE = 0.01

MAX_RATIO = 1000.0

_DECIMAL = re.compile(r"[0-9]{1,4}(\.[0-9]{1,17})?")

NodeRatio = SnapshotMemo[float | None]


def next_ratio(text: str | None, before: float | None) -> float | None:
    """Return the ratio in force; `None`: the Node does not say.

    A text that is no positive number leaves the old one in force, as does a change of less than
    a hundredth: quotas of all pods would be written for nothing.
    """
    if text is None:
        return None
    found = float(text) if _DECIMAL.fullmatch(text) else 0.0
    if not 0.0 < found <= MAX_RATIO:
        return before
    # of binary fractions: 2.01 is not quite a hundredth more than 2.00
    near = before is not None and round(abs(found - before), 6) < MIN_CHANGE
    return before if near else found


def node_ratio() -> NodeRatio:
    """Return a function that tells the ratio; hooks that scale share one, and so agree."""
    return SnapshotMemo(lambda now: (now.cluster.node.value,), _read_ratio)


def _read_ratio(snapshot: NodeSnapshot, before: float | None) -> float | None:
    node = snapshot.cluster.node.value
    return None if node is None else next_ratio(node.annotation(RATIO), before)


NORMALIZED_CLASSES = ("LS", "")


class NormalizationHook:
    """Scales a quota that was asked for by the node's ratio, the one in force never.

    Pods with CPUs of their own have no quota. A pod's own quota stays on cgroup v1: a container's
    that is larger would be refused, and those of init containers and of containers that are made
    while the agent is away are not scaled. A ratio that is taken away leaves nothing to say: what
    this hook wrote is then undone by who wrote it.
    """

    name = "cpu_normalization"
    stages = frozenset({HookStage.CREATE, HookStage.UPDATE, HookStage.RECONCILE})
    required = False

    def __init__(self, ratio: NodeRatio) -> None:
        self._ratio = ratio

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return the scaled quota, with the period it was asked for in."""
        ratio, quota_us = self._ratio(snapshot), request.resources.quota_us
        if ratio is None or quota_us is None or quota_us <= 0:
            return NO_ADJUSTMENT
        if request.container is None and snapshot.means.value.kernel.cgroup_version != 2:
            return NO_ADJUSTMENT
        if qos_label(request.pod) not in NORMALIZED_CLASSES:
            return NO_ADJUSTMENT
        if parse_resource_status(request.pod.annotation(RESOURCE_STATUS)).cpus:
            return NO_ADJUSTMENT
        period_us = request.resources.period_us or PERIOD_US
        return Adjustment(
            resources=LinuxResources(quota_us=scale_quota(quota_us, ratio), period_us=period_us)
        )
