"""Pods whose own files no strategy writes."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from agent.cgroup.keys import CPUS
from agent.cgroup.write_plan import DesiredValue
from agent.qos.strategy import QosPod, StrategyPlan
from agent.snapshot.node import IdentityMemo


class PodProtection:
    """Removes the values of pods in protected namespaces from plans.

    CPU sets are not removed: on cgroup version 1 the kernel refuses to narrow the group of all
    best-effort pods while one of them has more CPUs. For one thread.
    """

    def __init__(self, namespaces: frozenset[str]) -> None:
        self._namespaces = namespaces
        self._cgroups = IdentityMemo[frozenset[str]]()
        self._plans: defaultdict[str, IdentityMemo[StrategyPlan]] = defaultdict(IdentityMemo)

    def apply(self, owner: str, plan: StrategyPlan, pods: tuple[QosPod, ...]) -> StrategyPlan:
        """Return the plan of a strategy without protected pods; the same object while it is."""
        if not self._namespaces or not plan.values:
            return plan
        cgroups = self._cgroups.get((pods,), lambda: self._protected_cgroups(pods))
        if not cgroups:
            return plan
        return self._plans[owner].get((plan, cgroups), lambda: _without(plan, cgroups))

    def _protected_cgroups(self, pods: tuple[QosPod, ...]) -> frozenset[str]:
        return frozenset(
            cgroup
            for pod in pods
            if pod.view.namespace in self._namespaces
            for cgroup in (pod.cgroup, *(one.cgroup for one in pod.containers))
            if cgroup
        )


def _without(plan: StrategyPlan, cgroups: frozenset[str]) -> StrategyPlan:
    values: tuple[DesiredValue, ...] = tuple(
        one for one in plan.values if one.key is CPUS or one.cgroup not in cgroups
    )
    return plan if len(values) == len(plan.values) else msgspec.structs.replace(plan, values=values)
