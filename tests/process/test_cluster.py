"""`xpu-agent run` in a cluster, as its users meet it: objects, events, outages, other writers."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver import ApiServer
from tests.process.agent import EIGHT_CARDS, Agent, run_agent
from tests.process.citizen import NODE, citizen
from tests.process.test_health import CARDS, EVENT, environment

HEALTHY, FAILED = True, False


def stored(api: ApiServer, kind: str) -> Any:
    return api.get(kind, NODE)


def device(api: ApiServer) -> Any:
    return stored(api, "Device")


def health_of(api: ApiServer) -> list[bool]:
    result = device(api)
    return [] if result is None else [entry["health"] for entry in result["spec"]["devices"]]


def writes(api: ApiServer) -> list[tuple[str, str]]:
    verbs = ("create", "update", "patch", "delete")
    return [
        (request.verb, request.resource_path) for request in api.requests() if request.verb in verbs
    ]


def checks(agent: Agent, name: str) -> str:
    lines = agent.get("healthz?verbose")[1].splitlines()
    return next((line for line in lines if line[4:].startswith(f"{name} ")), "")


def says(agent: Agent, name: str, *words: str) -> Callable[[], bool]:
    return lambda: all(word in checks(agent, name) for word in words)


def has_event(api: ApiServer, words: str) -> bool:
    return any(words in event["note"] for event in api.list("events"))


def reasons(api: ApiServer) -> set[str]:
    return {event["reason"] for event in api.list("events")}


def node_is(api: ApiServer, boot_id: str, machine_id: str) -> None:
    node = api.get("Node", NODE)
    assert node is not None
    node["status"]["nodeInfo"].update(bootID=boot_id, machineID=machine_id)
    api.put(node)


@pytest.fixture
def api() -> Any:
    """A cluster whose node is this machine, by its boot id."""
    with ApiServer(nodes=(NODE,)) as server:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        node_is(server, boot_id, "")
        yield server


def test_objects_belong_to_the_node_and_a_restart_of_an_unchanged_node_writes_none(
    api: ApiServer, tmp_path: Path
) -> None:
    host = ("--host", str(EIGHT_CARDS))
    with citizen(api, tmp_path, *host) as agent:
        agent.wait_until(lambda: device(api) is not None, "a Device")
        agent.wait_until(lambda: api.get("NodeResourceTopology", NODE) is not None, "a topology")
        assert agent.end() == 0
    uid = stored(api, "Node")["metadata"]["uid"]
    for kind in ("Device", "NodeResourceTopology"):
        (owner,) = stored(api, kind)["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Node", uid)
    assert not [request for request in api.requests() if request.dropped]
    api.clear_requests()
    with citizen(api, tmp_path, *host) as agent:
        for publisher in ("publisher:device", "publisher:topology"):
            agent.wait_until(says(agent, publisher, "idle", "0 written"), "it was compared")
        assert writes(api) == []
        assert agent.end() == 0
    assert device(api) is not None  # an agent that stops takes nothing with it


def test_a_failed_card_is_out_of_service_and_reported_by_an_event(
    api: ApiServer, tmp_path: Path
) -> None:
    scene = environment(tmp_path, f"{CARDS}events:\n- {EVENT}\n")
    scene["XPU_AGENT_HEALTH__CLEAN_PROBES"] = "1000"
    with citizen(api, tmp_path, "--host", "/", **scene) as agent:
        agent.wait_until(lambda: health_of(api) == [HEALTHY, FAILED], "the second card failed")
        condition = device(api)["spec"]["devices"][1]["conditions"][0]
        assert (condition["status"], condition["reason"]) == ("False", "Xid95")
        agent.wait_until(lambda: has_event(api, "uncontained error"), "the event")
        assert agent.end() == 0


def test_events_during_an_outage_of_the_api_server_are_sent_afterwards(
    api: ApiServer, tmp_path: Path
) -> None:
    scene = environment(tmp_path, f"{CARDS}events:\n- {EVENT.replace('at_s: 1', 'at_s: 10')}\n")
    scene["XPU_AGENT_HEALTH__CLEAN_PROBES"] = "1000"
    with citizen(api, tmp_path, "--host", "/", **scene) as agent:
        agent.wait_until(lambda: health_of(api) == [HEALTHY, HEALTHY], "both serve")
        api.stop()
        agent.wait_until(lambda: "xpu_agent_api_reachable" in agent.get("metrics")[1], "metrics")
        agent.wait_until(
            lambda: (
                '"state": "failed"' in agent.get("api/v1/snapshot")[1]
                or '"state": "probing"' in agent.get("api/v1/snapshot")[1]
            ),
            "the card fails meanwhile",
        )
        agent.wait_until(lambda: agent.get("readyz") == (200, "ok\n"), "ready")
        api.start()
        agent.wait_until(lambda: health_of(api) == [HEALTHY, FAILED], "it is told")
        agent.wait_until(lambda: has_event(api, "uncontained error"), "the event")
        assert agent.end() == 0


def test_a_start_without_an_api_server_serves_and_publishes_once_there_is_one(
    api: ApiServer, tmp_path: Path
) -> None:
    api.stop()
    with citizen(api, tmp_path, "--host", str(EIGHT_CARDS)) as agent:
        agent.wait_until(says(agent, "node", "was not read yet"), "it says what it waits for")
        assert checks(agent, "api-server").startswith("[-]")
        api.start()
        agent.wait_until(lambda: device(api) is not None, "a Device")
        assert agent.end() == 0


def test_a_new_token_is_read_when_the_old_one_is_refused(api: ApiServer, tmp_path: Path) -> None:
    fast = {"XPU_AGENT_API__RESYNC_S": "10"}
    with citizen(api, tmp_path, "--host", str(EIGHT_CARDS), **fast) as agent:
        agent.wait_until(lambda: device(api) is not None, "a Device")
        api.rotate_token()
        api.delete("Device", NODE)
        agent.wait_until(lambda: device(api) is not None, "it is made again with the new token")
        assert agent.end() == 0


def test_a_crd_that_is_not_there_stops_only_its_own_object(api: ApiServer, tmp_path: Path) -> None:
    api.remove_crd("devices")
    with citizen(api, tmp_path, "--host", str(EIGHT_CARDS)) as agent:
        agent.wait_until(lambda: api.get("NodeResourceTopology", NODE) is not None, "a topology")
        agent.wait_until(says(agent, "publisher:device", "absent"), "the page says so")
        agent.wait_until(lambda: agent.get("readyz") == (200, "ok\n"), "ready")
        assert agent.end() == 0


def test_a_koordlet_that_still_writes_is_reported_and_not_overwritten(
    api: ApiServer, tmp_path: Path
) -> None:
    fast = {"XPU_AGENT_API__RESYNC_S": "10"}
    with citizen(api, tmp_path, "--host", str(EIGHT_CARDS), **fast) as agent:
        agent.wait_until(lambda: device(api) is not None, "a Device")
        theirs = {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Device",
            "metadata": {"name": NODE},
            "spec": {"devices": [{"type": "gpu", "id": "GPU-1", "minor": 0, "health": True}]},
        }
        api.put(theirs, manager="koordlet")
        api.clear_requests()
        agent.wait_until(says(agent, "publisher:device", "held", "koordlet"), "it is seen")
        agent.wait_until(lambda: "WriteConflict" in reasons(api), "it is told")
        assert device(api)["spec"] == theirs["spec"]
        forced = [request for request in api.requests() if request.query.get("force") == "true"]
        assert not [one for one in forced if one.resource == "devices"]
        assert agent.end() == 0


def test_nothing_is_written_for_a_node_that_is_another_machine(
    api: ApiServer, tmp_path: Path
) -> None:
    if not Path("/etc/machine-id").exists():
        pytest.skip("this machine has no /etc/machine-id to tell machines apart by")
    node_is(api, f"{'0' * 8}-0000-4000-8000-{'f' * 12}", "f" * 32)
    scene = environment(tmp_path, CARDS)
    with citizen(api, tmp_path, "--host", "/", **scene) as agent:
        agent.wait_until(says(agent, "node", "is another machine"), "it is said")
        assert agent.get("readyz") == (503, "unready\n")
        assert agent.end() == 0
    assert device(api) is None


def test_the_next_agent_reports_that_its_predecessor_was_killed(
    api: ApiServer, tmp_path: Path
) -> None:
    scene = environment(tmp_path, CARDS)
    with citizen(api, tmp_path, "--host", "/", **scene) as agent:
        agent.process.send_signal(signal.SIGKILL)
        agent.process.wait()
    with citizen(api, tmp_path, "--host", "/", **scene) as agent:
        agent.wait_until(lambda: "AgentEndedUnexpectedly" in reasons(api), "the crash is told")
        assert agent.end() == 0
    api.clear_requests()
    with citizen(api, tmp_path, "--host", "/", **scene) as agent:
        agent.wait_until(says(agent, "publisher:device", "idle"), "it publishes")
        assert agent.end() == 0
    assert not [
        request
        for request in api.requests()
        if request.resource == "events" and request.verb == "create"
    ]


def test_without_any_api_server_to_be_found_it_says_what_to_do(tmp_path: Path) -> None:
    answer = run_agent(
        *("run", "--host", str(EIGHT_CARDS)),
        KUBERNETES_SERVICE_HOST="",
        KUBECONFIG="",
        HOME=str(tmp_path),
    )
    assert answer.returncode == 3
    assert "--standalone" in answer.stderr
