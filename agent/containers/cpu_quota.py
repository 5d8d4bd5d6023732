"""CPU shares and quotas, and the hook that scales quotas by the node's CPU normalization ratio.

The ratio says how much more work the node's CPUs do in the same time than the cluster's reference;
Koordinator's manager writes it to the Node.
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
MIN_QUOTA_US = 1000  # minimum of the kernel
MIN_SHARES, MAX_SHARES = 2, 262144


def shares_of(milli: int) -> int:
    """Return the CPU shares for thousandths of a CPU, as Kubernetes computes them."""
    return max(MIN_SHARES, min(milli * 1024 // 1000, MAX_SHARES))


def quota_of(milli: int) -> int:
    """Return the quota in microseconds per period; unlimited for 0."""
    quota_us = milli * PERIOD_US // 1000
    return UNLIMITED if quota_us <= 0 else max(quota_us, MIN_QUOTA_US)


def scale_quota(quota_us: int, ratio: float | None) -> int:
    """Return the quota for a CPU that does `ratio` times the work.

    At least the kernel's minimum.
    """
    if quota_us <= 0 or ratio is None or ratio <= 1.0:
        return quota_us
    return max(math.ceil(quota_us / ratio), MIN_QUOTA_US)


RATIO = "node.koordinator.sh/cpu-normalization-ratio"
MIN_CHANGE = 0.01
MAX_RATIO = 1000.0
_DECIMAL = re.compile(r"[0-9]{1,4}(\.[0-9]{1,17})?")


def next_ratio(text: str | None, previous: float | None) -> float | None:
    """Return the ratio in force; `None` if the Node has none.

    A text that is not a positive number leaves the previous ratio in force, as does a change of
    less than a hundredth: it would rewrite the quotas of all pods for nothing.
    """
    if text is None:
        return None
    ratio = float(text) if _DECIMAL.fullmatch(text) else 0.0
    if not 0.0 < ratio <= MAX_RATIO:
        return previous
    # binary fractions: 2.01 is not quite a hundredth more than 2.00
    is_near = previous is not None and round(abs(ratio - previous), 6) < MIN_CHANGE
    return previous if is_near else ratio


class NodeRatio:
    """The ratio in force. Hooks that scale share one object, so that they agree."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._memo = SnapshotMemo(lambda now: (now.cluster.node.value,), self._read)

    def get(self, snapshot: NodeSnapshot) -> float | None:
        """Return the ratio; `None` if the Node has none."""
        return self._memo(snapshot)

    def _read(self, snapshot: NodeSnapshot) -> float | None:
        node = snapshot.cluster.node.value
        self._last = None if node is None else next_ratio(node.annotation(RATIO), self._last)
        return self._last


NORMALIZED_CLASSES = ("LS", "")


class NormalizationHook:
    """Scales a requested quota by the node's ratio, never the quota in force.

    Pods with CPUs of their own have no quota. On cgroup v1 a pod's quota is not scaled: the kernel
    would refuse larger quotas of its containers, and those of init containers and of containers
    that are created while the agent is away are not scaled. If the ratio is removed, this hook
    returns nothing, and the reconcile loop restores what it wrote.
    """

    name = "cpu_normalization"
    stages = frozenset({HookStage.CREATE, HookStage.UPDATE, HookStage.RECONCILE})
    required = False

    def __init__(self, ratio: NodeRatio) -> None:
        self._ratio = ratio

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return the scaled quota, with the requested period."""
        ratio, quota_us = self._ratio.get(snapshot), request.resources.quota_us
        if ratio is None or quota_us is None or quota_us <= 0:
            return NO_ADJUSTMENT
        if request.container is None and snapshot.host_devices.value.kernel.cgroup_version != 2:
            return NO_ADJUSTMENT
        if qos_label(request.pod) not in NORMALIZED_CLASSES:
            return NO_ADJUSTMENT
        if parse_resource_status(request.pod.annotation(RESOURCE_STATUS)).cpus:
            return NO_ADJUSTMENT
        period_us = request.resources.period_us or PERIOD_US
        return Adjustment(
            resources=LinuxResources(quota_us=scale_quota(quota_us, ratio), period_us=period_us)
        )
