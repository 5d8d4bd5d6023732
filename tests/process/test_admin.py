"""Actions on a running agent: by the command line, through its socket, written down."""

from __future__ import annotations

import http.client
import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from agent.web.admin_socket import bind_socket, connect_socket
from tests.process.agent import NO_DEVICES, Agent, run_agent, running

CARDS = "devices:\n- {uuid: fake-0, minor: 0, health: {state: failed, reason: Broken}}\n"


def fake(folder: Path) -> dict[str, str]:
    cards = folder / "cards.yaml"
    cards.write_text(CARDS)
    return {"XPU_AGENT_DISCOVERY__FAKE__FILE": str(cards)}


def admin_socket(agent: Agent) -> str:
    """Return the path of the agent's socket, which it opens after its page."""
    path = agent.out / "admin.sock"
    agent.wait_until(path.exists, "the admin socket")
    return str(path)


def act(agent: Agent, *words: str) -> Any:
    return run_agent(*words, "--socket", admin_socket(agent))


def ask(agent: Agent, method: str, path: str, body: str | bytes = "") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = connect_socket(admin_socket(agent))
    connection.request(method, path, body)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, json.loads(data) if data.startswith(b"{") else data.decode()


def events(agent: Agent) -> list[Any]:
    path = agent.out / "events.jsonl"
    *lines, _ = (
        path.read_text().split("\n") if path.exists() else [""]
    )  # the last one is unfinished
    return [json.loads(line) for line in lines]


def test_a_driver_is_released_and_taken_back_and_both_are_written_down(tmp_path: Path) -> None:
    with running(tmp_path / "out", "--host", str(NO_DEVICES), **fake(tmp_path)) as agent:
        agent.wait_until(lambda: agent.vendor("fake")["state"] == "ready", "ready")
        pid = agent.vendor("fake")["pid"]
        outcome = act(agent, "release", "fake", "--for-s", "1800")
        assert outcome.returncode == 0, outcome.stderr
        assert outcome.stdout.startswith("fake: released on request until ")
        assert not Path(f"/proc/{pid}").exists()
        released = agent.vendor("fake")
        assert (released["state"], released["pid"]) == ("released", None)
        devices = json.loads(agent.get("api/v1/devices")[1])["devices"]
        assert [device["uuid"] for device in devices] == ["fake-0"]
        assert act(agent, "rescan").stdout == "the host was read; asked: fake\n"
        agent.wait_until(lambda: agent.vendor("fake")["state"] == "ready", "taken back")
        agent.wait_until(lambda: len(events(agent)) >= 3, "events")
        reports = {event["reason"]: event["message"] for event in events(agent)}
        assert reports["AdminRelease"].startswith("user 0: release: fake: released on request")
        assert reports["AdminRescan"] == "user 0: rescan: the host was read; asked: fake"
        assert agent.end() == 0
        assert not (agent.out / "admin.sock").exists()
    log = (tmp_path / "stderr.log").read_text()
    assert log.count('"admin_action"') == 2


@pytest.mark.parametrize(
    ("subject", "name", "message"),
    [
        ("pod", "/", "'/' is not NAMESPACE/NAME"),
        ("pod", "a/", "'a/' is not NAMESPACE/NAME"),
        ("device", "", "value: is empty"),
        ("file", "/", "'/' names nothing"),
        ("pod", f"a/{'x' * 9000}", "the name is too long"),
        ("file", f"/{'ü' * 2000}", "the name is too long"),
    ],
)
def test_a_name_of_nothing_is_wrong_use_of_explain(subject: str, name: str, message: str) -> None:
    process = run_agent("explain", subject, name, "--socket", "/nonexistent")
    assert (process.returncode, process.stdout) == (2, "")
    assert message in process.stderr
    assert len(process.stderr.splitlines()) == 1


def test_a_name_that_is_no_text_is_none_of_this_node(tmp_path: Path) -> None:
    with running(tmp_path / "out", "--host", str(NO_DEVICES), **fake(tmp_path)) as agent:
        for subject, name in (("pod", "a/\udcff"), ("device", "\udcff"), ("file", "/sys/\udcff")):
            process = act(agent, "explain", subject, name)
            assert (process.returncode, process.stdout) == (1, ""), process.stderr
            assert len(process.stderr.splitlines()) == 1


def test_a_person_clears_a_device_by_its_name(tmp_path: Path) -> None:
    with running(tmp_path / "out", "--host", str(NO_DEVICES), **fake(tmp_path)) as agent:
        agent.wait_until(lambda: agent.vendor("fake")["state"] == "ready", "ready")
        assert act(agent, "clear", "fake-0").stdout == "fake-0: cleared; it is asked again\n"
        unknown = act(agent, "clear", "fake-7")
        assert unknown.returncode == 3
        assert "no device is called 'fake-7'; see xpu-agent devices" in unknown.stderr


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/debug/rescan", "", 405),
        ("POST", "/debug/reboot", "", 404),
        ("POST", "/debug/rescan", '{"now": true}', 400),
        ("POST", "/debug/release", "", 400),
        ("POST", "/debug/release", '{"vendor": "fake", "for_s": 3601}', 400),
        ("POST", "/debug/release", '{"vendor": "fake", "for_s": 0}', 400),
        ("POST", "/debug/release", '{"vendor": "nobody"}', 404),
        ("POST", "/debug/loglevel", '{"level": "silly"}', 400),
        ("POST", "/debug/loglevel", "{", 400),
        ("POST", "/debug/clear", json.dumps({"device": "x" * 300}), 400),
        ("POST", "/debug/clear", json.dumps({"device": "x" * 9000}), 413),
        ("POST", "/debug/clear", b'{"device": "\xff"}', 400),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_changes(
    agent: Agent, method: str, path: str, body: str | bytes, status: int
) -> None:
    result, answer = ask(agent, method, path, body)
    assert result == status
    if isinstance(answer, dict):
        assert list(answer) == ["error"]
    assert agent.vendor("fake")["state"] == "ready"


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("admin")
    with running(folder / "out", "--host", str(NO_DEVICES), **fake(folder)) as agent:
        agent.wait_until(lambda: agent.vendor("fake")["state"] == "ready", "ready")
        yield agent


def test_the_log_level_changes_while_the_agent_runs(agent: Agent) -> None:
    assert ask(agent, "POST", "/debug/loglevel", '{"level": "debug"}') == (
        200,
        {"done": "logging from level debug on"},
    )


def test_the_socket_is_for_its_owner_alone(agent: Agent) -> None:
    path = Path(admin_socket(agent))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # the file is there before the first request can be answered
    agent.wait_until(lambda: "[+] admin-socket" in agent.get("healthz?verbose")[1], "served")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_user_is_refused_even_where_the_file_lets_him_in(tmp_path: Path) -> None:
    code = (
        "import os, socket, sys; os.setgid(65534); os.setuid(65534); "
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
        "s.sendall(b'POST /debug/rescan HTTP/1.0\\r\\n\\r\\n'); print(s.recv(4096))"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder, "admin.sock")
        with running(
            tmp_path / "out", "--host", str(NO_DEVICES), XPU_AGENT_ADMIN__SOCKET=str(path)
        ) as agent:
            agent.wait_until(path.exists, "the socket")
            path.chmod(0o666)
            outcome = subprocess.run(
                [sys.executable, "-I", "-S", "-c", code, str(path)],
                capture_output=True,
                text=True,
                check=False,
                cwd="/",
            )
            assert "403" in outcome.stdout, outcome.stderr
            assert "user 65534 may not" in outcome.stdout
            agent.wait_until(lambda: events(agent) != [], "an event")
            assert [event["reason"] for event in events(agent)] == ["AdminRefused"]


def test_an_order_that_is_too_long_is_written_down_as_well(agent: Agent) -> None:
    assert ask(agent, "POST", "/debug/clear", "x" * 5000) == (
        413,
        {"error": "clear: more than 4096 bytes"},
    )
    reports = "user 0: clear: clear: more than 4096 bytes"
    agent.wait_until(lambda: reports in [event["message"] for event in events(agent)], "event")


def test_a_second_agent_does_not_take_the_socket_of_the_first(agent: Agent) -> None:
    with pytest.raises(Exception, match="another agent listens there"):
        bind_socket(admin_socket(agent))


def test_a_socket_that_a_dead_agent_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("deep" * 20) / ("deeper" * 20) / "admin.sock"  # no address has that room
    first = bind_socket(str(path))
    first.close()
    second = bind_socket(str(path))
    assert connect_socket(str(path)).getpeername()
    second.close()


def test_without_an_agent_the_command_says_what_to_do(tmp_path: Path) -> None:
    process = run_agent("rescan", "--socket", str(tmp_path / "admin.sock"))
    assert process.returncode == 3
    assert "no agent listens there" in process.stderr
    assert len(process.stderr.splitlines()) == 1


def test_the_socket_can_be_elsewhere_or_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.sock"
    with running(
        tmp_path / "out", "--host", str(NO_DEVICES), XPU_AGENT_ADMIN__SOCKET=str(path)
    ) as agent:
        agent.wait_until(path.exists, "the admin socket")
        assert run_agent("rescan", XPU_AGENT_ADMIN__SOCKET=str(path)).returncode == 0
        assert not (agent.out / "admin.sock").exists()
    with running(
        tmp_path / "out", "--host", str(NO_DEVICES), XPU_AGENT_ADMIN__SOCKET="off"
    ) as agent:
        off = "[-] admin-socket switched off"
        agent.wait_until(lambda: agent.check("admin-socket") == off, "that there is no socket")
        assert not (agent.out / "admin.sock").exists()
        assert run_agent("rescan", XPU_AGENT_ADMIN__SOCKET="off").returncode == 3


def test_a_socket_that_cannot_be_made_is_said_and_no_more(tmp_path: Path) -> None:
    chosen = tmp_path / "taken"
    chosen.write_text("a file of somebody else")
    with running(
        tmp_path / "out", "--host", str(NO_DEVICES), XPU_AGENT_ADMIN__SOCKET=str(chosen)
    ) as agent:
        refusal = f"[-] admin-socket {chosen}: Address already in use"
        agent.wait_until(lambda: agent.check("admin-socket").startswith(refusal), "the refusal")
        agent.wait_until(lambda: agent.get("readyz")[0] == 200, "ready")
    assert chosen.read_text() == "a file of somebody else"
