"""The sessions of `tests.resctrl` on the machine's own resctrl file system, and the whole agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.containers.resctrl import RESCTRL
from agent.resctrl.files import mount_resctrl
from tests.guest.inside.groups import MOUNT as CGROUPS
from tests.resctrl import agent_session, session
from tests.resctrl.killed import failures_of_killed_agents

MOUNT = Path("/sys/fs/resctrl")
UID = "00000000-0000-0000-0000-00000000000a"
CONTAINER = "a" * 64
GROUP = MOUNT / f"koordlet-{UID}"
DEADLINE_S = 100.0  # the machine is emulated
LOOK_S = 0.2


def facts() -> object:
    """Mount, run both sessions and the agent, and return what was printed and found."""
    mount_resctrl(str(MOUNT))
    calls = session.answers(str(MOUNT))
    with tempfile.TemporaryDirectory(dir="/run") as folder:
        agent = agent_session.answers(Path("/"), Path(folder) / "ledger.log", _place)
    with tempfile.TemporaryDirectory(dir="/run") as folder:
        killed = _killed_agents(Path(folder))
    with tempfile.TemporaryDirectory(dir="/run") as folder:
        whole = _whole_agent(Path(folder))
    return {
        "release": os.uname().release,
        "calls": calls,
        "agent": agent,
        "killed": killed,
        "whole": whole,
    }


def _killed_agents(folder: Path) -> list[str | None]:
    child = subprocess.Popen(["sleep", "3600"])
    try:
        return list(failures_of_killed_agents(Path("/"), folder, _place, child.pid))
    finally:
        child.kill()
        child.wait()


def _place(cgroup: str, process: int) -> None:
    folder = Path(f"{CGROUPS}{cgroup}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text(str(process))


def _whole_agent(folder: Path) -> dict[str, Any]:
    """Run the agent as a process for a pod with an annotation, end it, and restore."""
    child = subprocess.Popen(["sleep", "3600"])
    _place(f"/kubepods/burstable/pod{UID}/{CONTAINER}", child.pid)
    pods = folder / "pods.json"
    pods.write_text(json.dumps({"kind": "PodList", "items": [_pod()]}))
    environment = {
        **os.environ,
        "XPU_AGENT_NRI__ATTACH": "on",
        "XPU_AGENT_NODE__STATE_DIR": str(folder / "state"),
        "XPU_AGENT_NODE__RUN_DIR": str(folder / "run"),
    }
    options = ["--pods", str(pods), "--out", str(folder / "out"), "--listen", "127.0.0.1:0"]
    command = [sys.executable, "-m", "agent"]
    agent = subprocess.Popen([*command, "run", "--standalone", *options], env=environment)
    result: dict[str, Any] = {}
    try:
        _wait_for(lambda: str(child.pid) in (GROUP / "tasks").read_text().split())
        result["schemata"] = (GROUP / "schemata").read_text()
        agent.send_signal(signal.SIGTERM)
        result["status"] = agent.wait(DEADLINE_S)
        result["is_group_left"] = GROUP.exists()
        restore = subprocess.run(
            [*command, "restore"], env=environment, capture_output=True, text=True, check=False
        )
        result["restore"] = (restore.returncode, restore.stdout, restore.stderr)
        result["groups"] = sorted(path.parent.name for path in MOUNT.glob("*/schemata"))
        result["is_child_in_root"] = str(child.pid) in (MOUNT / "tasks").read_text().split()
    finally:
        for process in (agent, child):
            process.kill()
            process.wait()
    return result


def _pod() -> dict[str, Any]:
    status = {"name": "app", "containerID": f"containerd://{CONTAINER}"}
    annotations = {RESCTRL: '{"llc":{"schemata":{"range":[0,50]}}}'}
    return {
        "metadata": {"uid": UID, "name": "web", "namespace": "d", "annotations": annotations},
        "spec": {"containers": [{"name": "app"}]},
        "status": {"phase": "Running", "qosClass": "Burstable", "containerStatuses": [status]},
    }


def _wait_for(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            if is_so():
                return
        except OSError:
            pass  # not there yet
        if time.monotonic() > until_s:
            raise TimeoutError
        time.sleep(LOOK_S)
