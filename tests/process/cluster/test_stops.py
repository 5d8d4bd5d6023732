"""A stop that comes before the agent serves, and a start that comes to nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from agent.app.identity import read_machine
from agent.app.lock import LockHolder, read_holder
from agent.host.files import LiveHostFiles
from tests.apiserver import ApiServer
from tests.apiserver.admin import node
from tests.process.agent import DEADLINE_S, NO_DEVICES, ROOT, command
from tests.process.citizen import NODE, ROLES, surroundings

NO_KUBELET = {"XPU_AGENT_KUBELET__ENABLED": "false"}


@contextmanager
def cluster() -> Iterator[ApiServer]:
    own = node(NODE, machine_id=read_machine(LiveHostFiles()).machine_id)
    with ApiServer(objects=(own,), roles=ROLES) as api:
        yield api


@contextmanager
def started(
    folder: Path, arguments: list[str], environment: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        arguments,
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


def starting(
    folder: Path, environment: dict[str, str], *more: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    return started(folder, command("run", "--listen", "127.0.0.1:0", *more), environment)


def until(holds: Callable[[], object]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.002)  # the machine has other work, the agent first of all


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def holder(folder: Path) -> LockHolder:
    result = read_holder(str(folder / "run"))
    assert result is not None
    return result


def around(api: ApiServer, folder: Path) -> dict[str, str]:
    return {**os.environ, **surroundings(api, folder), **NO_KUBELET}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_as_soon_as_the_lock_is_held_is_no_crash(
    tmp_path: Path, number: signal.Signals
) -> None:
    with cluster() as api, starting(tmp_path, around(api, tmp_path)) as process:
        until(lambda: read_holder(str(tmp_path / "run")))
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


NO_NAMES = """
import socket, sys, time
socket.getaddrinfo = lambda *_, **__: time.sleep(600)
from agent.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_name_server_that_hangs_does_not_keep_the_agent_from_ending(tmp_path: Path) -> None:
    with cluster() as api:
        config = tmp_path / "kubeconfig"
        config.write_text(api.agent_kubeconfig.read_text().replace(api.url, "https://api.test:1"))
        around_it = around(api, tmp_path) | {"XPU_AGENT_API__KUBECONFIG": str(config)}
        arguments = command("run", "--host", str(NO_DEVICES), "--listen", "127.0.0.1:0")
        arguments[1:3] = ["-c", NO_NAMES]
        with started(tmp_path, arguments, around_it) as process:
            until(lambda: " serves " in line_of(process))
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
    assert "thread_stuck_at_stop" in (tmp_path / "stderr.log").read_text()


def test_a_stop_in_the_middle_of_a_start_ends_it_there(tmp_path: Path) -> None:
    cards = tmp_path / "cards.yaml"
    cards.write_text("devices:\n- {uuid: g0, minor: 0}\nmisbehave:\n- {in: discover, do: hang}\n")
    with cluster() as api:
        more = {"XPU_AGENT_DISCOVERY__FAKE__FILE": str(cards)}
        with starting(tmp_path, around(api, tmp_path) | more, "--host", str(NO_DEVICES)) as process:
            until(api.watches)
            process.send_signal(signal.SIGTERM)
            output = process.communicate(timeout=DEADLINE_S)[0]
        assert process.returncode == 0
        assert " serves " not in output
        api.wait_until(lambda: not api.watches())
    assert '"stopping"' in (tmp_path / "stderr.log").read_text().splitlines()[-1]
