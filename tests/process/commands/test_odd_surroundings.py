"""Commands of both programs on pipes, full disks, closed streams and in other locales."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from tests.patience import PATIENCE_S
from tests.process.agent import ROOT

AGENT = (sys.executable, "-m", "agent")
SCHEDULER = (sys.executable, "-m", "plugins.scheduler.cli")
CLUSTER = ROOT / "fixtures" / "cluster"
DEVELOPERS = ("bench", "plugins.new", "tests.resctrl.session")  # who work on this project
POD = """
apiVersion: v1
kind: Pod
metadata: {name: träger, namespace: default}
spec: {containers: [{name: a, image: i, resources: {limits: {nvidia.com/gpu: "1"}}}]}
"""


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    file = tmp_path / "pöd.yaml"
    file.write_text(POD, encoding="utf-8")
    return file


def commands(pod: Path) -> dict[str, tuple[str, ...]]:
    """Return commands that print much and soon."""
    simulated = ("--cluster", str(CLUSTER), "--pod", str(pod))
    return {
        "simulate": (*SCHEDULER, "simulate", *simulated),
        "settings": (*AGENT, "config", "reference"),
        "help": (*AGENT, "--help"),
    }


NAMES = ("simulate", "help")


def shell(
    line: str, words: tuple[str, ...], **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell in which `$@` is the command."""
    return subprocess.run(
        ["/bin/bash", "-c", f"set -o pipefail; {line}", "bash", *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=PATIENCE_S,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=False,
    )


@pytest.mark.parametrize("name", NAMES)
def test_pipes_disks_and_closed_streams(name: str, pod: Path) -> None:
    words = commands(pod)[name]
    program = "xpu-agent" if words[:3] == AGENT else "xpu-scheduler"
    head = shell('"$@" | head -n 1', words)
    assert (head.returncode, head.stderr) == (0, "")
    full = shell('"$@" > /dev/full', words)
    message = f"{program}: standard output: No space left on device\n"
    assert (full.returncode, full.stderr) == (3, message)
    closed = shell('"$@" >&-', words)
    message = f"{program}: standard output: Bad file descriptor\n"
    assert (closed.returncode, closed.stderr) == (3, message)
    silent = shell('"$@" 2>&- <&-', words)
    assert (silent.returncode, silent.stdout != "") == (0, True)
    none = shell('"$@" <&- >&- 2>&-', words)
    assert (none.returncode, none.stderr) == (3, "")


@pytest.mark.parametrize(
    ("name", "locale"),
    [
        ("simulate", {"LC_ALL": "C"}),
        ("simulate", {"PYTHONIOENCODING": "iso-8859-1"}),
        ("settings", {"LC_ALL": "C"}),
    ],
)
def test_a_locale_that_is_not_utf_8_stops_no_command(
    name: str, locale: dict[str, str], pod: Path
) -> None:
    outside = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", **locale}
    process = shell('"$@"; "$@" --no-such-flag-ä', commands(pod)[name], **outside)
    assert process.returncode == 2
    assert process.stdout
    (line,) = process.stderr.splitlines()
    assert "--no-such-flag-" in line


def opened_for_writing(fifo: Path, reader: subprocess.Popen[str]) -> IO[str]:
    """Open a FIFO as soon as the process has opened its other end."""
    end_s = time.monotonic() + PATIENCE_S
    while reader.poll() is None and time.monotonic() < end_s:
        with contextlib.suppress(OSError):  # ENXIO: nobody reads yet
            return os.fdopen(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK), "w")
        time.sleep(0.01)
    raise AssertionError(f"nobody reads {fifo}: status {reader.poll()}")


def test_ctrl_c_ends_a_command_without_a_trace(tmp_path: Path) -> None:
    fifo = tmp_path / "config.yaml"
    os.mkfifo(fifo)  # the command waits for whoever writes its settings
    for program in ((*AGENT, "devices", "--config"), (*SCHEDULER, "run", "--config")):
        process = subprocess.Popen(
            # tests that a shell runs in the background ignore Ctrl-C, and their children would too
            ["env", "--default-signal=INT", *program, str(fifo)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        # a signal just before the read does not interrupt it: the end of the file does
        with opened_for_writing(fifo, process):
            process.send_signal(signal.SIGINT)
        output, text = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, output, text) == (130, "", ""), shlex.join(program)


@pytest.mark.parametrize("module", DEVELOPERS)
def test_the_commands_for_developers_explain_themselves(module: str) -> None:
    process = shell('"$@"', (sys.executable, "-m", module, "--help"))
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith("usage: ")


def test_a_folder_that_is_no_resctrl_file_system_is_named(tmp_path: Path) -> None:
    process = shell('"$@"', (sys.executable, "-m", "tests.resctrl.session", str(tmp_path)))
    assert process.returncode == 3
    assert process.stderr.splitlines() == [
        f"python -m tests.resctrl.session: {tmp_path}: no resctrl file system is mounted there"
    ]
