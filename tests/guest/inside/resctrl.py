"""The session of `tests.resctrl` on the machine's own resctrl file system."""

from __future__ import annotations

import os
import subprocess

from tests.resctrl.session import answers

MOUNT = "/sys/fs/resctrl"


def facts() -> object:
    """Mount, run the session, and return its lines."""
    subprocess.run(["mount", "-t", "resctrl", "resctrl", MOUNT], check=True)
    return {"release": os.uname().release, "lines": answers(MOUNT)}
