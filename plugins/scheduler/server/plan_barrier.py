"""Binds the pods of a plan together: each waits until all have arrived, or none is bound.

kube-scheduler calls `bind` for each pod in a task of its own, so a call that waits delays no other
pod.
"""

from __future__ import annotations

import asyncio

from agent.errors import AgentError
from plugins.scheduler.cluster_state import ClusterState, Plan


class PlanIncomplete(AgentError):
    """Not all pods of a plan have arrived to be bound."""


class _Arrivals:
    """The waiting pods of one plan, and the pods that they wait for."""

    def __init__(self) -> None:
        self.uids: set[str] = set()
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class PlanBarrier:
    """The pods of plans that have arrived to be bound. Belongs to the loop thread."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._arrivals: dict[Plan, _Arrivals] = {}
        self._ready: dict[Plan, frozenset[str]] = {}  # uids that wait no more

    async def wait(self, uid: str) -> None:
        """Return once all pods of the pod's plan have arrived; raises `PlanIncomplete`.

        Pods that were let through before, or are bound already, need not arrive again. A pod
        without a plan does not wait.
        """
        plan = self._state.plan_of(uid)
        if plan is None:
            return
        arrivals = self._arrivals.setdefault(plan, _Arrivals())
        arrivals.uids.add(uid)
        if not self._missing(plan, arrivals):
            self._admit(plan, arrivals)
        try:
            await asyncio.wait((arrivals.end,), timeout=plan.wait_s)
            if not arrivals.end.done():
                self._refuse(plan, arrivals)
        finally:
            arrivals.uids.discard(uid)
        arrivals.end.result()

    def _missing(self, plan: Plan, arrivals: _Arrivals) -> frozenset[str]:
        ready = self._ready.get(plan, frozenset())
        return self._state.uids_of_plan(plan) - ready - arrivals.uids

    def _admit(self, plan: Plan, arrivals: _Arrivals) -> None:
        before = self._ready.get(plan, frozenset())
        self._ready = {
            one: uids for one, uids in self._ready.items() if self._state.uids_of_plan(one)
        }
        self._ready[plan] = before | arrivals.uids
        del self._arrivals[plan]
        arrivals.end.set_result(None)

    def _refuse(self, plan: Plan, arrivals: _Arrivals) -> None:
        count = len(self._missing(plan, arrivals))
        text = f"{count} of its pods did not come to be bound within {plan.wait_s:g} s"
        del self._arrivals[plan]
        arrivals.end.set_exception(PlanIncomplete(f"{plan.name}: {text}"))
