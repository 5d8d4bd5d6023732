"""The conditions of faults of a Node whose agent ends, is killed, and starts again."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from agent.objects.fault_conditions import FAULT_TYPES
from tests.apiserver import ApiServer
from tests.apiserver.admin import node
from tests.process.agent import ROOT, Agent
from tests.process.citizen import BASE, NODE, ROLES, citizen

BROKEN_CHIP = ROOT / "fixtures" / "hosts" / "atlas-910b3x8"
SETTINGS = {"XPU_AGENT_API__NODE_CONDITION": "true"}


def faults(api: ApiServer) -> dict[str, Any]:
    """Return the Node's conditions of faults by type."""
    node: Any = api.get("Node", NODE) or {}
    conditions = node.get("status", {}).get("conditions", [])
    return {one["type"]: one for one in conditions if one["type"] in FAULT_TYPES}


def is_sick(api: ApiServer) -> bool:
    fault = faults(api).get("DeviceProcessorFault")
    return fault is not None and fault["status"] == "True"


def is_written(agent: Agent) -> bool:
    lines = agent.get("healthz?verbose")[1].splitlines()
    line = next((one for one in lines if "publisher:node_condition" in one), "")
    return line.startswith("[+]") and "nothing to publish yet" not in line


def roles_with_conditions(folder: Path) -> Path:
    """Return the file of the agent's roles, with the right to write conditions."""
    added = BASE.parent / "components" / "node-condition" / "rbac.yaml"
    roles = folder / "roles.yaml"
    roles.write_text(f"{ROLES.read_text()}\n---\n{added.read_text()}")
    return roles


def test_a_restart_changes_no_condition_of_a_fault(tmp_path: Path) -> None:
    roles, host = roles_with_conditions(tmp_path), ("--host", str(BROKEN_CHIP))
    with ApiServer(nodes=(NODE,), roles=roles) as api:
        with citizen(api, tmp_path / "node", *host, **SETTINGS) as agent:
            agent.wait_until(lambda: is_sick(api), "the fault of the recorded chip")
            agent.wait_until(lambda: is_written(agent), "all conditions")
            first = faults(api)
            assert agent.end() == 0
        assert faults(api) == first
        assert first["DeviceRepairRequired"]["status"] == "True"
        assert first["DeviceMemoryFault"]["status"] == "False"
        api.clear_requests()
        with citizen(api, tmp_path / "node", *host, **SETTINGS) as agent:
            agent.wait_until(lambda: is_written(agent), "the second agent's view")
            assert faults(api) == first
            agent.process.send_signal(signal.SIGKILL)
        assert faults(api) == first
        writes = [one for one in api.requests(verb="patch", resource="nodes") if one.status == 200]
        assert writes == []  # what is there is what the second agent would write


def test_a_node_that_is_created_again_gets_its_conditions_again(tmp_path: Path) -> None:
    roles, host = roles_with_conditions(tmp_path), ("--host", str(BROKEN_CHIP))
    with (
        ApiServer(nodes=(NODE,), roles=roles) as api,
        citizen(api, tmp_path / "node", *host, **SETTINGS) as agent,
    ):
        agent.wait_until(lambda: is_sick(api), "the fault of the recorded chip")
        agent.wait_until(lambda: is_written(agent), "all conditions")
        api.delete("Node", NODE)
        api.put(node(NODE), manager="kubelet")
        assert not faults(api)
        agent.wait_until(lambda: is_sick(api), "the fault on the new Node")


def test_a_condition_that_was_removed_is_written_again_and_heartbeats_cost_no_read(
    tmp_path: Path,
) -> None:
    roles, host = roles_with_conditions(tmp_path), ("--host", str(BROKEN_CHIP))
    with (
        ApiServer(nodes=(NODE,), roles=roles) as api,
        citizen(api, tmp_path / "node", *host, **SETTINGS) as agent,
    ):
        agent.wait_until(lambda: is_sick(api), "the fault of the recorded chip")
        agent.wait_until(lambda: is_written(agent), "all conditions")
        api.clear_requests()
        for second in range(3):
            live: Any = api.get("Node", NODE)
            ready = next(c for c in live["status"]["conditions"] if c["type"] == "Ready")
            ready["lastHeartbeatTime"] = f"2026-01-02T03:05:0{second}Z"
            api.put(live, manager="kubelet")
        live = api.get("Node", NODE)
        conditions = live["status"]["conditions"]
        live["status"]["conditions"] = [c for c in conditions if c["type"] not in FAULT_TYPES]
        api.put(live, manager="kubelet")
        assert not faults(api)
        agent.wait_until(lambda: is_sick(api), "the removed condition")
        assert len(api.requests(verb="get", resource="nodes")) == 1
