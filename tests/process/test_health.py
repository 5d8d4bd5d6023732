"""A device's health from its vendor to the files, over a kill of the agent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.process.agent import DEADLINE_S, PATIENT, Agent, run_agent, running

CARDS = "devices:\n- {uuid: g0, minor: 0}\n- {uuid: g1, minor: 1}\n"
EVENT = "{at_s: 1, key: g1, reason: Xid 95!, message: uncontained error, state: failed}"


def device(agent: Agent) -> Any:
    return yaml.safe_load((agent.out / "device.yaml").read_text())


def health(agent: Agent) -> Any:
    """Return what the annotation says of the second card; nothing before the card is published."""
    if not (agent.out / "device.yaml").exists():
        return {}
    annotations = device(agent)["metadata"].get("annotations", {})
    return json.loads(annotations.get("xpu-agent.io/health", "{}")).get("g1", {})


def condition(agent: Agent) -> Any:
    return device(agent)["spec"]["devices"][1]["conditions"][0]


def is_now(agent: Agent, state: str) -> Callable[[], bool]:
    return lambda: health(agent).get("state") == state


def card_in_one_file(agent: Agent) -> dict[str, Any]:
    """Return all that one content of the file says of the second card; nothing before it is there.

    A worker that hangs is replaced, and each replacement answers once: two readings may differ.
    """
    if not (agent.out / "device.yaml").exists():
        return {}
    content = device(agent)
    if len(content["spec"].get("devices", ())) < 2:
        return {}  # written before the vendor answered
    card = content["spec"]["devices"][1]
    state = json.loads(content["metadata"]["annotations"]["xpu-agent.io/health"])["g1"]
    return {
        "condition": (card["conditions"][0]["status"], card["conditions"][0]["reason"]),
        "health": card["health"],
        "state": (state["state"], state.get("certain", True)),
    }


def stored_state(records: Path) -> str:
    """Return the state of the second card that a restart goes by; empty before there is one."""
    stored = json.loads(records.read_text())["vendors"] if records.exists() else {}
    return str(stored.get("fake", {}).get("g1", {}).get("state", ""))


def environment(folder: Path, scene: str, **more: str) -> dict[str, str]:
    (folder / "cards.yaml").write_text(scene)
    return {
        "XPU_AGENT_DISCOVERY__FAKE__FILE": str(folder / "cards.yaml"),
        "XPU_AGENT_NODE__STATE_DIR": str(folder / "state"),
        "XPU_AGENT_HEALTH__LOOK_AGAIN_S": "1",
        **more,
    }


def test_a_failed_card_is_watched_even_by_an_agent_that_did_not_see_it_fail(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    for_ever = {"XPU_AGENT_HEALTH__CLEAN_PROBES": "1000"}
    scene = environment(tmp_path, f"{CARDS}events:\n- {EVENT}\n", **for_ever)
    with running(out, "--host", "/", **scene) as agent:
        agent.wait_until(is_now(agent, "probing"), "the card fails, and looks well again")
        observations = condition(agent)
        assert (observations["status"], observations["reason"]) == ("False", "Xid95")
        assert "uncontained error" in observations["message"]
        assert "Xid 95!" in observations["message"]
        since = health(agent)["since"]
        records = tmp_path / "state" / "health.json"
        agent.wait_until(lambda: stored_state(records) == "probing", "it is kept")
        agent.process.kill()
    with running(out, "--host", "/", **environment(tmp_path, CARDS, **for_ever)) as agent:
        agent.wait_until(is_now(agent, "probing"), "it is known again")
        result = health(agent)
        assert (result["reason"], result["since"]) == ("Xid95", since)
        assert condition(agent)["lastTransitionTime"] == observations["lastTransitionTime"]
        assert agent.check("health-state").startswith(f"[+] health-state {records}")
        agent.process.kill()
    with running(out, "--host", "/", **environment(tmp_path, CARDS)) as agent:
        agent.wait_until(is_now(agent, "healthy"), "it was looked at three times")
        assert condition(agent)["status"] == "True"
        assert agent.end() == 0
    assert stored_state(records) == "healthy"


@pytest.mark.slow
def test_cards_of_a_vendor_that_hangs_become_unknown_and_are_known_again_with_its_answer(
    tmp_path: Path,
) -> None:
    faults = "misbehave:\n- {in: sample, do: hang, after: 1}\n"
    limits = {
        "XPU_AGENT_DISCOVERY__SAMPLE_DEADLINE_S": "0.5",
        "XPU_AGENT_HEALTH__STALLED_UNKNOWN_S": "1",
        "XPU_AGENT_HEALTH__STALLED_FAILED_S": "86400",
    }
    scene = environment(tmp_path, CARDS + faults, **limits)
    with running(tmp_path / "out", "--host", "/", **scene) as agent:
        unknown = {
            "condition": ("Unknown", "DriverStalled"),
            "health": True,
            "state": ("healthy", False),
        }
        agent.wait_until(lambda: card_in_one_file(agent) == unknown, "nobody can tell")
        agent.wait_until(
            lambda: "healthy or not: unknown" in agent.get("")[1], "the page says the same"
        )
        (tmp_path / "cards.yaml").write_text(CARDS)
        certain = {
            "condition": ("True", "DeviceHealthy"),
            "health": True,
            "state": ("healthy", True),
        }
        agent.wait_until(lambda: card_in_one_file(agent) == certain, "it answers again")
        assert agent.end() == 0


def test_doctor_tells_what_the_running_agent_holds_against_a_card(tmp_path: Path) -> None:
    for_ever = {"XPU_AGENT_HEALTH__CLEAN_PROBES": "1000"}
    scene = environment(tmp_path, f"{CARDS}events:\n- {EVENT}\n", **for_ever)
    with running(tmp_path / "out", "--host", "/", **scene) as agent:
        agent.wait_until(is_now(agent, "probing"), "the card fails, and looks well again")
        own = {**scene, "XPU_AGENT_METRICS__LISTEN": agent.url.split("/")[2]}
        process = run_agent("doctor", *PATIENT, "-o", "json", timeout_s=DEADLINE_S, **own)
        agent.process.kill()
    assert process.returncode == 1, process.stderr
    checks = {check["id"]: check for check in json.loads(process.stdout)["checks"]}
    card = checks["device:g1"]
    assert card["result"] == "fail"
    assert "probing: Xid 95!: uncontained error" in card["seen"]
    assert "a new discovery finds it healthy" in card["seen"]
    assert card["do"].startswith("wait")
    alone = run_agent("doctor", *PATIENT, "-o", "json", timeout_s=DEADLINE_S, **scene)
    checks = {check["id"]: check for check in json.loads(alone.stdout)["checks"]}
    assert checks["agent"]["result"] == "warn"
    assert checks["devices"]["seen"] == "2 in service"


def test_doctor_leaves_a_driver_alone_that_the_agent_let_go_of(tmp_path: Path) -> None:
    scene = environment(tmp_path, CARDS)
    with running(tmp_path / "out", "--host", "/", **scene) as agent:
        agent.wait_until(is_now(agent, "healthy"), "the cards are there")
        socket = tmp_path / "out" / "admin.sock"
        agent.wait_until(socket.exists, "the admin socket")
        let_go = run_agent("release", "fake", "--socket", str(socket))
        assert let_go.returncode == 0, let_go.stderr
        own = {**scene, "XPU_AGENT_METRICS__LISTEN": agent.url.split("/")[2]}
        process = run_agent("doctor", *PATIENT, "-o", "json", timeout_s=DEADLINE_S, **own)
        agent.process.kill()
    checks = {check["id"]: check for check in json.loads(process.stdout)["checks"]}
    vendor = checks["vendor:fake"]
    assert vendor["result"] == "warn"
    assert vendor["seen"].startswith("released: Released: ")
    assert "new discovery" not in vendor["seen"]
    assert checks["comparison"]["result"] == "ok"
    assert "did not ask fake" in checks["comparison"]["seen"]
