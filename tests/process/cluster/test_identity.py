"""Whose objects the agent writes: those of a Node that is there and is this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent.app.identity import read_machine
from agent.recording.host_source import open_host
from tests.apiserver import ApiServer
from tests.apiserver.access import AGENT
from tests.apiserver.admin import node
from tests.process.agent import EIGHT_CARDS, NO_DEVICES
from tests.process.citizen import NODE, ROLES, citizen

WRITING = ("create", "update", "patch", "delete", "deletecollection")


def written(api: ApiServer) -> list[str]:
    """Return what the agent wrote, objects and events."""
    return [
        request.path
        for request in api.requests()
        if request.user == AGENT and request.verb in WRITING
    ]


def owner_of(api: ApiServer, kind: str) -> Any:
    result = api.get(kind, NODE)
    return result["metadata"]["ownerReferences"][0]["uid"] if result is not None else None


def uid_of_node(api: ApiServer) -> Any:
    result = api.get("Node", NODE)
    assert result is not None
    return result["metadata"]["uid"]


def test_nothing_is_written_for_the_node_of_another_machine_and_that_is_reported(
    tmp_path: Path,
) -> None:
    own = read_machine(open_host(str(NO_DEVICES)).files).machine_id
    with (
        ApiServer(objects=(node(NODE, machine_id="f" * 32),), roles=ROLES) as api,
        citizen(api, tmp_path, "--host", str(NO_DEVICES)) as agent,
    ):
        agent.wait_until(lambda: "another machine" in agent.check("node"), "the check")
        assert agent.get("readyz")[0] == 503
        assert agent.get("livez")[0] == 200
        agent.wait_until(lambda: "last good" in agent.check("loop:publish-topology"), "a run")
        assert written(api) == []
        # the kubelet of this machine takes the name over
        api.put(node(NODE, machine_id=own))
        agent.wait_until(lambda: api.get("NodeResourceTopology", NODE) is not None, "a write")
        agent.wait_until(lambda: agent.get("readyz")[0] == 200, "ready")


def test_an_agent_that_starts_before_its_kubelet_waits_for_the_node(tmp_path: Path) -> None:
    with (
        ApiServer(roles=ROLES) as api,
        citizen(api, tmp_path, "--host", str(EIGHT_CARDS)) as agent,
    ):
        agent.wait_until(lambda: "there is no Node" in agent.check("node"), "the check")
        agent.wait_until(lambda: "last good" in agent.check("loop:publish-device"), "a run")
        assert written(api) == []
        api.put(node(NODE))
        agent.wait_until(lambda: api.get("Device", NODE) is not None, "a Device")
        assert owner_of(api, "Device") == uid_of_node(api)


def test_a_node_that_is_deleted_and_made_again_owns_the_objects_again(tmp_path: Path) -> None:
    with (
        ApiServer(nodes=(NODE,), roles=ROLES) as api,
        citizen(api, tmp_path, "--host", str(EIGHT_CARDS)) as agent,
    ):
        agent.wait_until(lambda: owner_of(api, "Device") == uid_of_node(api), "a Device")
        before = uid_of_node(api)
        api.delete("nodes", NODE)
        agent.wait_until(lambda: "there is no Node" in agent.check("node"), "the check")
        api.put(node(NODE))
        assert uid_of_node(api) != before
        agent.wait_until(lambda: owner_of(api, "Device") == uid_of_node(api), "the Device")
        agent.wait_until(
            lambda: owner_of(api, "NodeResourceTopology") == uid_of_node(api), "the topology"
        )


def test_a_renamed_node_is_distinguished_from_an_existing_one(tmp_path: Path) -> None:
    with (
        ApiServer(nodes=("node-b",), roles=ROLES) as api,
        citizen(api, tmp_path, "--host", str(EIGHT_CARDS)) as agent,
    ):
        agent.wait_until(lambda: "there is no Node node-a" in agent.check("node"), "the check")
        assert "renamed" in agent.check("node")
        assert written(api) == []
        assert api.list("devices") == []
