"""The sessions of `tests.resctrl` on the machine's own resctrl file system."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from tests.guest.inside.groups import MOUNT as CGROUPS
from tests.resctrl import agent_session, session

MOUNT = "/sys/fs/resctrl"


def facts() -> object:
    """Mount, run both sessions, and return their lines."""
    subprocess.run(["mount", "-t", "resctrl", "resctrl", MOUNT], check=True)
    calls = session.answers(MOUNT)
    with tempfile.TemporaryDirectory(dir="/run") as folder:
        agent = agent_session.answers(Path("/"), Path(folder) / "ledger.log", _place)
    return {"release": os.uname().release, "calls": calls, "agent": agent}


def _place(cgroup: str, process: int) -> None:
    folder = Path(f"{CGROUPS}{cgroup}")
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text(str(process))
