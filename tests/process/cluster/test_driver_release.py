"""A label of the Node releases a driver: the whole agent, at a strict API server."""

from __future__ import annotations

from pathlib import Path

from agent.app.identity import read_machine
from agent.host.files import LiveHostFiles
from agent.workers.driver_release import OWN_LABEL
from tests.apiserver import ApiServer
from tests.apiserver.admin import node
from tests.process.citizen import NODE, ROLES, citizen

CARDS = "devices:\n- {uuid: fake-0, minor: 0}\n"


def event_reasons(api: ApiServer) -> set[str]:
    """Return the reasons of all events at the API server."""
    return {event["reason"] for event in api.list("events")}


def published(api: ApiServer) -> list[str]:
    device = api.get("Device", NODE) or {"spec": {}}
    return [one["id"] for one in device["spec"].get("devices", [])]


def test_a_label_of_the_node_releases_a_driver_until_it_is_removed(tmp_path: Path) -> None:
    cards = tmp_path / "cards.yaml"
    cards.write_text(CARDS)
    body = node(NODE, machine_id=read_machine(LiveHostFiles()).machine_id)
    settings = {
        "XPU_AGENT_KUBELET__ENABLED": "false",
        "XPU_AGENT_NRI__ATTACH": "off",
        "XPU_AGENT_DISCOVERY__FAKE__FILE": str(cards),
    }
    with (
        ApiServer(objects=(body,), roles=ROLES) as api,
        citizen(api, tmp_path / "node", **settings) as agent,
    ):
        agent.wait_until(lambda: agent.vendor("fake")["state"] == "ready", "ready")
        agent.wait_until(lambda: published(api) == ["fake-0"], "the Device")
        pid = agent.vendor("fake")["pid"]
        body["metadata"]["labels"][OWN_LABEL] = "fake"
        api.put(body)
        agent.wait_until(lambda: agent.vendor("fake")["state"] == "released", "released")
        assert not Path(f"/proc/{pid}").exists()
        agent.wait_until(lambda: "VendorWorkerReleased" in event_reasons(api), "the event")
        assert published(api) == ["fake-0"]
        del body["metadata"]["labels"][OWN_LABEL]
        api.put(body)
        agent.wait_until(lambda: agent.vendor("fake")["state"] == "ready", "ready again")
        assert agent.end() == 0
