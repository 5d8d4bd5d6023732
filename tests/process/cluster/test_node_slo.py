"""What a cluster asks of the node by its NodeSLO, as the page and the metrics tell it."""

from __future__ import annotations

from pathlib import Path

from tests.apiserver import ApiServer
from tests.process.agent import EIGHT_CARDS, Agent
from tests.process.citizen import NODE, ROLES, citizen

HOST = ("--host", str(EIGHT_CARDS))
SLO = {
    "apiVersion": "slo.koordinator.sh/v1alpha1",
    "kind": "NodeSLO",
    "metadata": {"name": NODE},
    "spec": {"cpuBurstStrategy": {"policy": "always"}},
}


def figure(agent: Agent, name: str) -> str:
    """Return a figure as the metrics have it; empty while they do not."""
    start = f'xpu_agent_node_slo_{name}{{node="{NODE}"}} '
    lines = agent.get("metrics")[1].splitlines()
    return next((line.removeprefix(start) for line in lines if line.startswith(start)), "")


def test_a_value_that_is_wrong_is_shown_with_its_reason(tmp_path: Path) -> None:
    with (
        ApiServer(nodes=(NODE,), roles=ROLES, objects=(SLO,)) as api,
        citizen(api, tmp_path, *HOST) as agent,
    ):
        agent.wait_until(lambda: figure(agent, "refused_values") == "1", "the NodeSLO")
        page = agent.get("")[1]
    assert ">Cluster</h2>" in page
    assert "spec.cpuBurstStrategy.policy" in page
    assert (
        "must be one of none, cpuBurstOnly, cfsQuotaBurstOnly, auto, is &#x27;always&#x27;" in page
    )


def test_a_cluster_without_the_kind_node_slo_freezes_nothing(tmp_path: Path) -> None:
    with ApiServer(nodes=(NODE,), roles=ROLES) as api:
        api.remove_crd("nodeslos")
        with citizen(api, tmp_path, *HOST) as agent:
            agent.wait_until(
                lambda: figure(agent, "frozen") == "0", "the answer that there are none"
            )
            assert figure(agent, "found") == "0"
