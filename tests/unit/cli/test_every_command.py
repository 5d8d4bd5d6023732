"""Every command, found in the parsers, with wrong words, wrong files and odd surroundings."""

from __future__ import annotations

import errno
import gc
import importlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli.main import main as agent_main
from agent.command_line import INTERRUPTED
from agent.errors import failure_text
from plugins.scheduler import cli as scheduler_cli
from tests.unit.cli.commands import COMMANDS, Command, takes_value

every_command = pytest.mark.parametrize("command", COMMANDS, ids=str)
MAX_LINE = 400  # characters that a person reads
FILE_OPTIONS = ("host", "config", "pods", "slo", "file", "cluster", "pod")
ERRNO_NAME = re.compile(r"\bE[A-Z]{3,}\b")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run in a folder of its own, without the settings of this machine's user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    interrupt = signal.getsignal(signal.SIGINT)
    yield
    gc.enable()  # `run` leaves both to its process
    signal.signal(signal.SIGINT, interrupt)


def check_one_line(command: Command, status: int, text: str, *allowed: int) -> None:
    assert status in allowed, text
    lines = text.splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith(f"{command.program}"), text
    assert len(lines[0]) <= MAX_LINE
    assert "Traceback" not in text


def test_the_parsers_have_the_commands() -> None:
    names = {str(command) for command in COMMANDS}
    assert {"xpu-agent run", "xpu-agent config check", "xpu-scheduler simulate"} <= names
    assert len(names) == len(COMMANDS) >= 20


@every_command
def test_an_unknown_flag_is_one_line_and_status_2(
    command: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    status = command.main([*command.words, "--no-such-flag"])
    output, text = capfd.readouterr()
    check_one_line(command, status, text, 2)
    assert "--help" in text
    assert output == ""


@every_command
def test_a_flag_without_its_value_is_one_line_and_status_2(
    command: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    for action in command.options:
        if action.option_strings and takes_value(action):
            status = command.main([*command.words, action.option_strings[-1]])
            _, text = capfd.readouterr()
            check_one_line(command, status, text, 2)
            assert "expected one argument" in text


@every_command
def test_an_empty_value_is_not_taken_for_an_absent_one(
    command: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    """A script that did not set a variable means the file, node or socket in it."""
    for action in command.options:
        if takes_value(action):
            option = action.option_strings[-1] if action.option_strings else "value"
            status = command.main(command.arguments("x", action, ""))
            _, text = capfd.readouterr()
            check_one_line(command, status, text, 2)
            assert f"argument {option}: is empty" in text
            if action.option_strings:
                status = command.main([*command.words, f"{option}="])
                assert (status, f"argument {option}: is empty" in capfd.readouterr()[1]) == (
                    2,
                    True,
                )


@every_command
def test_a_choice_that_there_is_not_is_one_line_and_status_2(
    command: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    for action in command.options:
        if action.choices:
            words = command.arguments("x", action, "none\nof them")
            status = command.main(words)
            _, text = capfd.readouterr()
            check_one_line(command, status, text, 2)


@every_command
def test_a_missing_argument_and_one_too_many_are_one_line_and_status_2(
    command: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    needs = any(action.nargs != "?" for action in command.positionals)
    if needs or any(action.required for action in command.options):
        status = command.main([*command.words])
        check_one_line(command, status, capfd.readouterr()[1], 2)
    words = [*command.words, *(["x"] * (len(command.positionals) + 1))]
    status = command.main(words)
    check_one_line(command, status, capfd.readouterr()[1], 2)


def odd_paths(folder: Path) -> dict[str, str]:
    """Return paths that are no good input, by what they are."""
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "empty").write_bytes(b"")
    (folder / "bytes").write_bytes(bytes(range(256)) * 8)
    (folder / "deep").write_text("[" * 400)
    (folder / "date").write_text("a: 2001-99-99\n")
    return {
        "not there": str(folder / "none"),
        "below a file": str(folder / "empty" / "x"),
        "a folder": str(folder / "folder"),
        "a link to itself": str(folder / "loop"),
        "a link to nothing": str(folder / "dangling"),
        "too long": str(folder / ("x" * 300)),
        "no text": str(folder / "bytes"),
        "nested too deep": str(folder / "deep"),
        "no date": str(folder / "date"),
        "without an end": "/dev/zero",
        "a name that is no text": str(folder) + "/\udcff\udcfe",
        "two lines": str(folder / "a\nb"),
    }


@every_command
def test_a_file_that_is_none_is_one_line(
    command: Command, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = odd_paths(tmp_path)
    for action in command.inputs:
        if command.program == "xpu-agent" and action.dest == "kubeconfig":
            continue  # of a daemon, which waits for the lock of this node
        for what, path in paths.items():
            words = command.arguments(str(tmp_path / "empty"), action, path)
            if command.words == ("run",):
                words += ["--standalone", "--once"] if command.program == "xpu-agent" else []
            status = command.main(words)
            _, text = capfd.readouterr()
            assert status in (1, 2, 3), (action.dest, what, text)
            assert "Traceback" not in text
            assert len(text.splitlines()) == 1, (action.dest, what, text)
            assert len(text) <= MAX_LINE + len(path)


@every_command
def test_a_missing_file_or_folder_is_named_with_the_reason_and_what_to_do(
    command: Command, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "some" / "cluster").mkdir(parents=True)
    (tmp_path / "some" / "cluster" / "nodes.yaml").write_bytes(b"")
    missing = str(tmp_path / "none")
    for action in command.inputs:
        if action.dest not in FILE_OPTIONS:
            continue
        words = command.arguments("some/cluster", action, missing)  # also a pod's full name
        if str(command) == "xpu-agent run":
            words += ["--standalone", "--once"]
        command.main(words)
        _, text = capfd.readouterr()
        reason, separator, remedy = text.partition(missing)[2].partition("; ")
        assert "no such" in reason.lower(), (action.dest, text)
        assert separator
        assert len(remedy.split()) > 2, (action.dest, text)
        assert not ERRNO_NAME.search(text.replace(missing, "")), (action.dest, text)


@pytest.mark.parametrize(
    "url", ["", "a", "http:/a", "https://a b", "https://a\nb", "https://a:99999", "ftp://a"]
)
def test_what_is_no_url_is_one_line_and_status_2(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (config,) = (command for command in COMMANDS if str(command) == "xpu-scheduler config")
    status = config.main(["config", "scheduler", "--url", url])
    check_one_line(config, status, capfd.readouterr()[1], 2)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EADDRINUSE, "error while binding"), os.strerror(errno.EADDRINUSE)),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service"),
        (OSError("no number"), "no number"),
    ],
)
def test_the_reason_of_a_failed_call_is_a_text(error: OSError, text: str) -> None:
    assert failure_text(error).startswith(text)


def test_settings_with_which_the_agent_does_not_start_are_an_invalid_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (check,) = (command for command in COMMANDS if str(command) == "xpu-agent config check")
    config = tmp_path / "config.yaml"
    for text, message in (
        ("metrics: {tls: {client_auth: require}}", "metrics.tls: needs a certificate"),
        ("metrics: {auth: {audiences: [a]}}", "metrics.auth.audiences: without effect"),
        ("metrics: {listen: 9316}", "metrics.listen: must be text"),
        ("metrics: {listen: ':9316'}", "metrics.listen: ':9316' is not HOST:PORT"),
        ("metrics: {page_listen: here}", "metrics.page_listen: 'here' is not HOST:PORT"),
    ):
        config.write_text(text)
        status = check.main(["config", "check", str(config)])
        check_one_line(check, status, (line := capfd.readouterr()[1]), 1)
        assert message in line


@every_command
def test_an_output_that_cannot_be_made_is_one_line_and_status_3(
    command: Command, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "host" / "sys").mkdir(parents=True)
    for action in command.outputs:
        path = str(tmp_path / "file" / "below")
        words = command.arguments("x", action, path)
        if command.words == ("run",):
            words += ["--standalone", "--once"]
        status = command.main([*words, "--host", str(tmp_path / "host")])
        _, text = capfd.readouterr()
        if command.words == ("run",):  # the agent logs each object that it cannot write
            assert status == 3
            assert {json.loads(line)["event"] for line in text.splitlines()} == {"publish_failed"}
        else:
            check_one_line(command, status, text, 3)
            assert "; " in text.partition(path)[2]  # after it stands what to do


@every_command
@pytest.mark.parametrize("columns", ["20", "1", "0", "-5", "x", "100000"])
def test_help_needs_no_width(
    command: Command,
    columns: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    status = command.main([*command.words, "--help"])
    output, text = capfd.readouterr()
    assert (status, text) == (0, "")
    assert output.startswith(f"usage: {command.program}")


def test_an_interrupted_command_ends_without_a_trace(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupt)
    monkeypatch.setattr(scheduler_cli, "COMMANDS", {"version": interrupt})
    assert agent_main(["version"]) == INTERRUPTED
    assert scheduler_cli.main(["version"]) == INTERRUPTED
    assert capfd.readouterr() == ("", "")


def test_a_message_of_several_lines_is_printed_as_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a\nb")

    monkeypatch.setattr(scheduler_cli, "COMMANDS", {"version": fail})
    monkeypatch.setattr(sys, "stdout", open(os.dup(1), "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    assert scheduler_cli.main(["version"]) == 3
    assert capfd.readouterr()[1] == "xpu-scheduler: a b: No space left on device\n"
