"""The whole agent beside disks that hang or are full: health, publishing and answers go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.state_writer import NO_ANSWER
from tests.full import fill, needs_mounts, small_files
from tests.hanging import hanging_files, needs_fuse
from tests.process.agent import running
from tests.process.test_health import CARDS, EVENT, condition, environment, is_now

LATER = EVENT.replace("at_s: 1", "at_s: 10")  # a loaded machine starts the agent late


@needs_fuse
@pytest.mark.parametrize("at_start", [True, False], ids=["from the start", "later"])
def test_a_failed_card_is_published_while_the_state_disk_hangs(
    tmp_path: Path, at_start: bool
) -> None:
    for_ever = {"XPU_AGENT_HEALTH__CLEAN_PROBES": "1000"}
    scene = environment(tmp_path, f"{CARDS}events:\n- {LATER}\n", **for_ever)
    with hanging_files(tmp_path / "state") as disk:
        if at_start:
            disk.hang()
        with running(tmp_path / "out", "--host", "/", **scene) as agent:
            disk.hang()
            agent.wait_until(is_now(agent, "probing"), "the card fails")
            assert condition(agent)["status"] == "False"
            agent.wait_until(
                lambda: agent.check("health-state").startswith("[-]"), "that it is not stored"
            )
            assert "the file system does not answer" in agent.check("health-state")
            agent.wait_until(lambda: agent.get("readyz") == (200, "ok\n"), "all that it starts")
            disk.answer()
            stored = tmp_path / "state" / "health.json"
            agent.wait_until(
                lambda: stored.exists() and b"Xid 95!" in stored.read_bytes(), "it is stored"
            )
            result = "[-]" if at_start else "[+]"  # what it was is not known
            agent.wait_until(lambda: agent.check("health-state").startswith(result), result)
            assert agent.end() == 0


@needs_fuse
def test_a_failed_card_is_shown_while_the_output_folder_hangs(tmp_path: Path) -> None:
    for_ever = {"XPU_AGENT_HEALTH__CLEAN_PROBES": "1000"}
    scene = environment(tmp_path, f"{CARDS}events:\n- {LATER}\n", **for_ever)
    with (
        hanging_files(tmp_path / "out") as disk,
        running(tmp_path / "out", "--host", "/", **scene) as agent,
    ):
        disk.hang()

        def state() -> str:
            cards = agent.snapshot()["parts"]["devices"]["value"]["devices"]
            states = (c["info"]["health"]["state"] for c in cards if c["info"]["uuid"] == "g1")
            return str(next(states, ""))

        agent.wait_until(lambda: state() == "probing", "the card fails")
        agent.wait_until(
            lambda: NO_ANSWER in agent.check("publisher:device"), "that it is not published"
        )
        assert agent.get("livez") == (200, "ok\n")
        disk.answer()
        agent.wait_until(is_now(agent, "probing"), "it is published")
        events = tmp_path / "out" / "events.jsonl"
        agent.wait_until(
            lambda: events.exists() and b"Xid 95!" in events.read_bytes(), "it is told"
        )
        assert agent.end() == 0


@needs_mounts
def test_a_failed_card_is_published_while_the_state_disk_is_full(tmp_path: Path) -> None:
    for_ever = {"XPU_AGENT_HEALTH__CLEAN_PROBES": "1000"}
    scene = environment(tmp_path, f"{CARDS}events:\n- {LATER}\n", **for_ever)
    with small_files(tmp_path / "state") as disk:
        filler = fill(disk)
        with running(tmp_path / "out", "--host", "/", **scene) as agent:
            agent.wait_until(is_now(agent, "probing"), "the card fails")
            agent.wait_until(
                lambda: "No space left" in agent.check("health-state"), "that it is not stored"
            )
            filler.unlink()
            agent.wait_until(lambda: agent.check("health-state").startswith("[+]"), "stored")
            assert agent.end() == 0
