"""Quotas of pods that share CPUs, made smaller on CPUs that do more work in the same time."""

from __future__ import annotations

from agent.hooks.classes import qos_label
from agent.hooks.cpu.quota import PERIOD_US, scaled
from agent.hooks.cpu.ratio import Ratio
from agent.hooks.cpu.status import cpu_status
from agent.model.cluster.pod_cpus import RESOURCE_STATUS
from agent.model.runtime.adjustment import NOTHING, Adjustment, Resources
from agent.model.runtime.request import HookRequest, Stage
from agent.model.snapshot import NodeSnapshot

CLASSES = ("LS", "")


class NormalisationHook:
    """Scales a quota that was asked for by the node's ratio, the one in force never.

    Pods with CPUs of their own have no quota. A pod's own quota stays on cgroup v1: a container's
    that is larger would be refused, and those of init containers and of containers that are made
    while the agent is away are not scaled. A ratio that is taken away leaves nothing to say: what
    this hook wrote is then undone by who wrote it.
    """

    name = "cpu_normalization"
    stages = frozenset({Stage.CREATE, Stage.UPDATE, Stage.RECONCILE})
    required = False

    def __init__(self, ratio: Ratio) -> None:
        self._ratio = ratio

    def adjust(self, request: HookRequest, snapshot: NodeSnapshot) -> Adjustment:
        """Return the scaled quota, with the period it was asked for in."""
        ratio, quota_us = self._ratio(snapshot), request.resources.quota_us
        if ratio is None or quota_us is None or quota_us <= 0:
            return NOTHING
        if request.container is None and snapshot.means.value.kernel.cgroup_version != 2:
            return NOTHING
        if qos_label(request.pod) not in CLASSES:
            return NOTHING
        if cpu_status(request.pod.annotation(RESOURCE_STATUS)).cpus:
            return NOTHING
        period_us = request.resources.period_us or PERIOD_US
        return Adjustment(
            resources=Resources(quota_us=scaled(quota_us, ratio), period_us=period_us)
        )
