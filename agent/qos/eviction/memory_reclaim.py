"""The strategy `memory_reclaim`: takes memory back from best-effort pods before any is evicted.

It starts five points below the threshold of evictions: page cache and swappable memory are
reclaimed in bounded steps, and `memory.high` of the best-effort directory keeps the pods from
taking it again. Only cgroup v2 has both files.
"""

from __future__ import annotations

import msgspec

from agent.cgroup.enforcement import MemoryReclaim
from agent.cgroup.keys import HIGH, MIN
from agent.cgroup.paths import qos_directory
from agent.cgroup.write_plan import DesiredValue
from agent.qos.strategy import NOT_REQUESTED, QosInputs, StrategyPlan
from agent.snapshot.pod import KubeQos
from agent.snapshot.self_check import StrategyState

NAME = "memory_reclaim"
SOURCE = "NodeSLO spec.resourceUsedThresholdWithBE.memoryEvictThresholdPercent"
HEADROOM_PERCENT = 5  # below the threshold of evictions
MAX_STEP_BYTES = 256 << 20  # of one cycle: the kernel works until it is done
HOLD_S = 10.0  # `memory.high` stays that long after the usage has fallen
GRAIN_BYTES = 64 << 10  # the largest page size: the kernel rounds limits to pages


class ReclaimState(msgspec.Struct, frozen=True, kw_only=True):
    """One episode of short memory; times are monotonic."""

    values: tuple[DesiredValue, ...] = ()
    until_s: float = 0.0
    floor_bytes: int = 0  # `memory.high` is never lower in this episode
    taken_s: float | None = None  # the sample that was used last


class MemoryReclaimStrategy:
    """Limits and reclaims memory of the best-effort directory."""

    name = NAME

    def start(self) -> ReclaimState:
        """Return the state before the first cycle."""
        return ReclaimState()

    def plan(self, inputs: QosInputs, state: ReclaimState) -> tuple[StrategyPlan, ReclaimState]:
        """Return the limit of the directory, and how much the kernel should reclaim now."""
        slo, layout = inputs.slo.thresholds, inputs.layout
        if not slo.enable or not slo.memory_evict_threshold_percent or layout.root is None:
            return NOT_REQUESTED, ReclaimState()
        if layout.version != 2:
            message = "cgroup v1 has neither memory.high nor memory.reclaim"
            return StrategyPlan(state=StrategyState.UNSUPPORTED, message=message), ReclaimState()
        tier = inputs.usage.best_effort if inputs.usage is not None else None
        use = tier.use if tier is not None else None
        used = inputs.usage.node.memory_bytes if inputs.usage is not None else None
        capacity = inputs.node.memory_bytes
        current = use.memory_with_cache_bytes if use is not None else None
        if used is None or current is None or not capacity:
            message = "no memory usage of the node or of best-effort pods"
            plan = StrategyPlan(values=state.values, state=StrategyState.WAITING, message=message)
            return plan, state
        start_percent = slo.memory_evict_threshold_percent - HEADROOM_PERCENT
        deficit = used - capacity * start_percent // 100
        if deficit <= 0:
            return self._without_deficit(inputs, state)
        return self._with_deficit(inputs, state, deficit, current)

    def _without_deficit(
        self, inputs: QosInputs, state: ReclaimState
    ) -> tuple[StrategyPlan, ReclaimState]:
        if inputs.now_s >= state.until_s:
            return StrategyPlan(), ReclaimState()
        return StrategyPlan(values=state.values), state

    def _with_deficit(
        self, inputs: QosInputs, state: ReclaimState, deficit: int, current: int
    ) -> tuple[StrategyPlan, ReclaimState]:
        cgroup = qos_directory(inputs.layout, KubeQos.BEST_EFFORT)
        if inputs.usage_taken_s == state.taken_s:  # a cycle between two samples
            return StrategyPlan(values=state.values), state
        floor = state.floor_bytes if state.values else self._floor(inputs, cgroup, current)
        high = max(current - deficit, floor) // GRAIN_BYTES * GRAIN_BYTES
        values = (
            DesiredValue(
                cgroup=cgroup,
                key=HIGH,
                value=high,
                owner=self.name,
                message=f"set memory.high of best-effort pods to {high}",
                source=SOURCE,
            ),
        )
        step = min(deficit, current, MAX_STEP_BYTES)
        plan = StrategyPlan(
            values=values,
            reclaims=(MemoryReclaim(cgroup=cgroup, size_bytes=step),) if step else (),
            figures=(("deficit_bytes", float(deficit)), ("reclaim_step_bytes", float(step))),
        )
        next_state = ReclaimState(
            values=values,
            until_s=inputs.now_s + HOLD_S,
            floor_bytes=floor,
            taken_s=inputs.usage_taken_s,
        )
        return plan, next_state

    def _floor(self, inputs: QosInputs, cgroup: str, current: int) -> int:
        """Return the lowest limit: what is protected, and half of what is used at the start.

        Pods whose limit is far below their usage do nothing but reclaim.
        """
        protected = inputs.current.value(cgroup, MIN)
        return max(protected if isinstance(protected, int) else 0, current // 2)
