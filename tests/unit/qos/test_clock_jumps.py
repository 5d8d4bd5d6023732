"""Clocks that leap: a suspended machine, a wall clock that was set, samples from before."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.qos.eviction.history import RATE_WINDOW_S
from agent.slo.status import build_slo_view
from agent.snapshot.pod import KubeQos
from agent.snapshot.self_check import StrategyState
from agent.snapshot.slo import NodeSloView
from tests.unit.qos.enforced_node import STALE_S, EnforcedNode

BEST_EFFORT = "/kubepods/besteffort"
SPEC: dict[str, Any] = {
    "resourceUsedThresholdWithBE": {
        "enable": True,
        "cpuSuppressPolicy": "cfsQuota",
        "memoryEvictThresholdPercent": 70,
        "cpuEvictThresholdPercent": 10,
        "evictEnabledPriorityThreshold": 9999,
    },
    "cpuBurstStrategy": {"policy": "auto", "cfsQuotaBurstPeriodSeconds": 60},
}
LEAPS = (0.0, 0.001, 1.0, 1.0, 1.0, 2.0, 61.0, 4000.0, 1e6, 1e9)
WALLS = (0.0, 0.0, 0.0, -1e9, -3600.0, 3600.0, 1e9)
STEP_US = 4 * 100_000 // 10  # a tenth of the node of four CPUs, which the quota may grow in a cycle
MAX_PER_MINUTE = 5

steps = st.lists(
    st.tuples(
        st.sampled_from(LEAPS),
        st.sampled_from(WALLS),
        st.sampled_from((0.0, 0.0, 1.5, 3.0, 1e6)),  # age of the last sample of usage
        st.sampled_from((0.0, 0.0, 1000.0, 4000.0)),  # age of the confirmation of the NodeSLO
        st.floats(0.0, 4.0),
    ),
    max_size=25,
)


@settings(max_examples=100, deadline=None)
@given(steps)
def test_no_leap_of_a_clock_makes_a_limit_jump_or_more_pods_be_evicted(
    leaps: list[tuple[float, float, float, float, float]],
) -> None:
    node = EnforcedNode()
    node.slo = build_slo_view({"spec": SPEC}, NodeSloView())
    for _ in range(12):
        node.add_pod("BE", KubeQos.BEST_EFFORT)
    evicted: list[tuple[float, str]] = []
    for seconds, wall_s, usage_age_s, slo_age_s, cores in leaps:
        node.clock.wall_s += wall_s
        node.usage_age_s, node.slo_age_s, node.cores = usage_age_s, slo_age_s, cores
        before = node.quota(BEST_EFFORT).quota_us
        node.cycle(seconds)
        after, now_s = node.quota(BEST_EFFORT).quota_us, node.clock.monotonic()
        assert not [status for status in node.statuses if status.state is StrategyState.FAILED]
        assert before == -1 or after <= before + STEP_US
        if usage_age_s > 2.0 or slo_age_s > STALE_S:
            assert (after, node.requests) == (before, ())
        evicted += ((now_s, request.pod.uid) for request in node.requests)
        uids = [uid for at_s, uid in evicted if now_s - at_s < RATE_WINDOW_S]
        assert len(uids) == len(set(uids)) <= MAX_PER_MINUTE
        for uid in {request.pod.uid for request in node.requests}:
            node.pods.pop(uid)
