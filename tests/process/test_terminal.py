"""What commands print on a terminal, on a stream of another encoding, and on none at all."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from tests.process.agent import (
    DEADLINE_S,
    EIGHT_CARDS,
    NO_DEVICES,
    ROOT,
    command,
    run_agent,
)

HOST = ("--host", str(EIGHT_CARDS))
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
FOR_PEOPLE = [
    ("devices", *HOST),
    ("topology", *HOST),
    ("topology", "-o", "matrix", *HOST),
    ("doctor", *HOST),
    ("config", "show"),
    ("config", "reference"),
    ("metrics", "reference"),
    ("version",),
]
FOR_PROGRAMS = [
    ("devices", "-o", "json", *HOST),
    ("devices", "-o", "yaml", *HOST),
    ("snapshot", *HOST),
    ("render", "device", *HOST),
    ("render", "metrics", *HOST),
    ("topology", "-o", "svg", *HOST),
]


def on_terminal(*arguments: str, width: int, **environment: str) -> tuple[int, str]:
    """Run a command on a terminal of that width; return its status and what it printed."""
    own_values, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        command(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={**inherited, "TERM": "xterm", **environment},
    )
    os.close(theirs)
    printed = b""
    try:
        while data := os.read(own_values, 65536):
            printed += data
    except OSError:  # the last holder of the other end has gone
        pass
    finally:
        os.close(own_values)
        status = process.wait(DEADLINE_S)
    return status, printed.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize("arguments", FOR_PEOPLE, ids=" ".join)
def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(
    arguments: tuple[str, ...], width: int
) -> None:
    status, text = on_terminal(*arguments, width=width)
    plain = ESCAPE.sub("", text)
    assert status == 0
    assert max(map(len, plain.splitlines())) <= width
    assert "Traceback" not in plain


def test_a_narrow_terminal_leaves_no_device_and_no_reason_out() -> None:
    _, text = on_terminal("devices", *HOST, width=60)
    plain = "".join(ESCAPE.sub("", text).split())
    for bus in ("23", "24", "53", "54", "83", "84", "b3", "b4"):
        assert f"0000:{bus}:00.0" in plain
    assert "publishedwithdiscovery.rdma.softonly" in plain


def test_colour_is_used_at_terminals_and_on_request() -> None:
    status, text = on_terminal("devices", *HOST, width=300)
    assert status == 0
    assert "\x1b[32mhealthy\x1b[0m" in text
    plain = run_agent("devices", *HOST).stdout
    assert "\x1b" not in plain
    for switch in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert on_terminal("devices", *HOST, width=300, **switch) == (0, plain)
    assert ESCAPE.sub("", text) == plain


def test_what_programs_read_is_the_same_on_a_terminal() -> None:
    _, text = on_terminal("devices", "-o", "json", *HOST, width=40)
    assert text == run_agent("devices", "-o", "json", *HOST).stdout


@pytest.mark.parametrize("arguments", FOR_PEOPLE, ids=" ".join)
def test_a_stream_of_ascii_gets_ascii(arguments: tuple[str, ...]) -> None:
    process = run_agent(*arguments, timeout_s=DEADLINE_S, PYTHONIOENCODING="ascii")
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.isascii()


@pytest.mark.parametrize("arguments", FOR_PROGRAMS, ids=" ".join)
def test_what_programs_read_is_utf_8_whatever_the_locale(arguments: tuple[str, ...]) -> None:
    process = run_agent(*arguments, timeout_s=DEADLINE_S, PYTHONIOENCODING="ascii")
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout == run_agent(*arguments).stdout


@pytest.mark.parametrize("arguments", [*FOR_PEOPLE, *FOR_PROGRAMS, ("--help",)], ids=" ".join)
def test_without_a_standard_output_it_is_one_line_and_status_3(arguments: tuple[str, ...]) -> None:
    shell = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command(*arguments)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=ROOT,
        check=False,
    )
    assert shell.stderr == "xpu-agent: standard output: Bad file descriptor\n"
    assert shell.returncode == 3


def test_without_any_stream_only_the_status_reports_the_result() -> None:
    for arguments, status in ((("devices", *HOST), 3), (("devices", "--host", "/none"), 3)):
        line = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command(*arguments)]
        assert subprocess.run(line, timeout=DEADLINE_S, cwd=ROOT, check=False).returncode == status


def test_a_daemon_needs_no_stream(tmp_path: Path) -> None:
    run = ("run", "--standalone", "--once", "--out", str(tmp_path), "--host", str(NO_DEVICES))
    line = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command(*run)]
    assert subprocess.run(line, timeout=DEADLINE_S, cwd=ROOT, check=False).returncode == 0
    assert (tmp_path / "nodemetric.yaml").exists()


def test_the_version_is_a_flag_as_well() -> None:
    process = run_agent("--version")
    assert (process.returncode, process.stderr) == (0, "")
    versions = json.loads(run_agent("version", "-o", "json").stdout)["versions"]
    assert process.stdout == f"xpu-agent {versions[0]['version']}\n"


@pytest.mark.parametrize("for_s", ["0", "0.5", "3601", "nan", "inf", "-1", "ten"])
def test_a_release_for_no_time_that_there_is_is_wrong_use(for_s: str) -> None:
    process = run_agent("release", "nvidia", f"--for-s={for_s}")
    assert process.returncode == 2
    assert "--for-s" in process.stderr
    assert "from 1 to 3600" in process.stderr or "invalid" in process.stderr
    assert len(process.stderr.splitlines()) == 1
