"""A NodeSLO suppresses best-effort CPU on this machine's kernel, more so while others wait."""

from __future__ import annotations

import json
import os

import pytest

from tests.process.cluster.live_node import LiveNode, live_node, needs_live_node, wait_until

pytestmark = [needs_live_node, pytest.mark.root]

# however busy the machine is, the quota of the formula is this much of the node
LEAST_PERCENT = 60
LEAST_US = (os.cpu_count() or 1) * LEAST_PERCENT * 1000


def figures(node: LiveNode) -> dict[str, float]:
    """Return the figures of the strategy, as the agent shows them."""
    snapshot = json.loads(node.agent.get("api/v1/snapshot")[1])
    strategies = snapshot["containers"]["enforcement"]["value"]["strategies"]
    own = next(strategy for strategy in strategies if strategy["name"] == "cpu_suppression")
    return dict(own["figures"])


def test_best_effort_pods_lose_cpu_while_others_wait_for_it_and_get_all_back() -> None:
    with live_node(ENFORCE__CPU_SUPPRESSION__PRESSURE="true") as node:
        service = node.add_pod("service", "LS", "/burstable", cpu="500m")
        node.prepare_burners(node.add_pod("burner", "BE", "/besteffort"), 1).begin()
        node.ask(enable=True, cpuSuppressPolicy="cfsQuota", cpuSuppressMinPercent=LEAST_PERCENT)
        wait_until(lambda: node.quota_us() >= LEAST_US, "the quota of the formula")
        waiting = node.prepare_burners(service, 2 * (os.cpu_count() or 1))
        waiting.begin()
        wait_until(lambda: 0 < node.quota_us() < 0.9 * LEAST_US, "less for best-effort pods")
        wait_until(lambda: figures(node).get("pressure_stalls", 0) >= 1, "the stalls on the page")
        waiting.end()
        wait_until(lambda: node.quota_us() >= LEAST_US, "the quota of the formula again")
        node.ask(enable=False)
        wait_until(lambda: node.quota_us() == -1, "no limit, as before")
