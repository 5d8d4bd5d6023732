"""Two whole agents on this machine, in one cluster: the second writes when the first is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.app.identity import read_machine
from agent.app.lock import read_holder
from agent.host.files import LiveHostFiles
from tests.apiserver import ApiServer
from tests.apiserver.access import AGENT
from tests.apiserver.admin import node
from tests.process.agent import DEADLINE_S, ROOT, Agent, command
from tests.process.citizen import NODE, ROLES, citizen, surroundings

NO_KUBELET = {"XPU_AGENT_KUBELET__ENABLED": "false"}


@contextmanager
def cluster() -> Iterator[ApiServer]:
    own = node(NODE, machine_id=read_machine(LiveHostFiles()).machine_id)
    with ApiServer(objects=(own,), roles=ROLES) as api:
        yield api


def request_times(api: ApiServer, verb: str, resource: str) -> list[float]:
    """Return when the agents' account asked for something."""
    return [
        request.time_s
        for request in api.requests()
        if (request.user, request.verb, request.resource) == (AGENT, verb, resource)
    ]


@contextmanager
def second(api: ApiServer, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another agent; it serves only when it holds the lock."""
    process = subprocess.Popen(
        command("run", "--listen", "127.0.0.1:0"),
        stdout=subprocess.PIPE,
        stderr=(folder / "second.log").open("w"),
        text=True,
        cwd=ROOT,
        env={**os.environ, **surroundings(api, folder), **NO_KUBELET},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(DEADLINE_S)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_second_agent_makes_no_request_until_the_first_has_ended(
    tmp_path: Path, number: signal.Signals
) -> None:
    with cluster() as api, citizen(api, tmp_path, **NO_KUBELET) as first:
        first.wait_until(lambda: api.get("NodeResourceTopology", NODE) is not None, "a write")
        with second(api, tmp_path) as other:
            output = tmp_path / "second.log"
            first.wait_until(lambda: "standing by" in output.read_text(), "a standby")
            assert f"(process {first.process.pid}, node {NODE}" in output.read_text()
            assert len(request_times(api, "list", "nodes")) == 1
            # it has loaded all that it serves with: nobody waits for imports afterwards
            loaded = Path(f"/proc/{other.pid}/maps").read_text()
            assert "/cygrpc." in loaded
            assert "/aiohttp/" in loaded
            ended_s = time.time()
            first.process.send_signal(number)
            first.process.wait(DEADLINE_S)
            free_s = time.time()
            following = Agent(other, tmp_path)
            following.wait_until(
                lambda: len(request_times(api, "list", "nodes")) == 2, "its first question"
            )
            waited_s = request_times(api, "list", "nodes")[-1] - free_s
            print(  # noqa: T201 - a figure
                f"{number.name}: the first ended after {(free_s - ended_s) * 1000:.0f} ms, "
                f"the second asked the API {waited_s * 1000:.0f} ms later"
            )
            held_by = read_holder(str(tmp_path / "run"))
            assert held_by is not None
            assert held_by.pid == other.pid
            if number is signal.SIGKILL:
                following.wait_until(lambda: crashes(api) != [], "an event about the crash")
                assert f"process {first.process.pid}" in crashes(api)[0]
            else:
                assert "ended without leaving" not in output.read_text()


def crashes(api: ApiServer) -> list[str]:
    return [
        item["note"] for item in api.list("events") if item["reason"] == "AgentEndedUnexpectedly"
    ]


def test_a_stop_is_marked_before_anything_is_stopped(tmp_path: Path) -> None:
    with cluster() as api, citizen(api, tmp_path, **NO_KUBELET) as agent:
        assert agent.end() == 0
    written = json.loads((tmp_path / "run" / "lock").read_text())
    assert (written["pid"], written["state"]) == (agent.process.pid, "leaving")


def test_a_folder_that_cannot_hold_the_lock_is_one_line_and_status_3(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    with cluster() as api:
        outcome = subprocess.run(
            command("run", "--listen", "127.0.0.1:0"),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            cwd=ROOT,
            env={**os.environ, **surroundings(api, tmp_path)},
            check=False,
        )
        assert request_times(api, "list", "nodes") == []
    assert outcome.returncode == 3
    assert outcome.stderr.startswith("xpu-agent: ")
    assert "cannot be locked: Not a directory; set node.run_dir" in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1
