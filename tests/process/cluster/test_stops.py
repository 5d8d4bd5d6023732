"""A stop that comes before the agent serves, and a start that comes to nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.host.files import LiveRoot
from agent.node.identity import read_machine
from agent.node.lock import Holder, holder_of
from tests.apiserver import ApiServer
from tests.apiserver.admin import node
from tests.process.agent import DEADLINE_S, ROOT, command
from tests.process.citizen import NODE, ROLES, surroundings

NO_KUBELET = {"XPU_AGENT_KUBELET__ENABLED": "false"}


@contextmanager
def cluster() -> Iterator[ApiServer]:
    own = node(NODE, machine_id=read_machine(LiveRoot()).machine_id)
    with ApiServer(objects=(own,), roles=ROLES) as api:
        yield api


@contextmanager
def starting(
    folder: Path, environment: dict[str, str], *more: str
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command("run", "--listen", "127.0.0.1:0", *more),
        stdout=subprocess.PIPE,
        stderr=(folder / "stderr.log").open("w"),
        text=True,
        cwd=ROOT,
        env=environment,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(DEADLINE_S)


def until(holds: Callable[[], object]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < until_s


def holder(folder: Path) -> Holder:
    found = holder_of(str(folder / "run"))
    assert found is not None
    return found


def around(api: ApiServer, folder: Path) -> dict[str, str]:
    return {**os.environ, **surroundings(api, folder), **NO_KUBELET}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_as_soon_as_the_lock_is_held_is_no_crash(
    tmp_path: Path, number: signal.Signals
) -> None:
    with cluster() as api, starting(tmp_path, around(api, tmp_path)) as process:
        until(lambda: holder_of(str(tmp_path / "run")))
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == 0
        assert (holder(tmp_path).pid, holder(tmp_path).state) == (process.pid, "leaving")


def test_a_start_that_cannot_go_on_says_why_and_was_no_crash(tmp_path: Path) -> None:
    def said(*more: str, status: int) -> str:
        with starting(tmp_path, around(api, tmp_path), *more) as process:
            assert process.wait(DEADLINE_S) == status
        assert (holder(tmp_path).pid, holder(tmp_path).state) == (process.pid, "leaving")
        return (tmp_path / "stderr.log").read_text()

    with cluster() as api:
        assert said("--pods", "/none", status=2).startswith("xpu-agent: --pods ")
        words = said("--listen", "192.0.2.1:9", status=3)
        assert "\nxpu-agent: cannot listen on 192.0.2.1:9" in f"\n{words}"
