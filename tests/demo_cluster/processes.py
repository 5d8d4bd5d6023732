"""Child processes of the demonstration: started together, ended for sure."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
STOP_S = 15.0  # then a child is killed; an agent stops in less than ten seconds
_ADDRESS = re.compile(r"^xpu-(?:agent serves|scheduler:) (http://\S+)$", re.MULTILINE)


class ChildFailed(Exception):
    """A child ended by itself; the text has the end of its log."""


class ChildProcess:
    """One Python module as a process; its output and its log are files in `folder`."""

    def __init__(
        self,
        name: str,
        arguments: Iterable[str],
        folder: Path,
        environment: Mapping[str, str],
    ) -> None:
        """Start it. It gets a SIGTERM when the thread that called this ends, however it ends."""
        self.name = name
        self._output = folder / f"{name}.out"
        self._log = folder / f"{name}.log"
        setpriv = shutil.which("setpriv")
        prefix = (setpriv, "--pdeathsig", "TERM") if setpriv else ()
        with self._output.open("w") as output, self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                cwd=ROOT,
                env={**_neutral_environment(), **environment},
                start_new_session=True,  # Ctrl-C is for the parent, which ends it in order
            )

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    @property
    def address(self) -> str:
        """Return the address that it serves; empty until it has printed it."""
        match = _ADDRESS.search(self._output.read_text())
        return match[1].rstrip("/") if match else ""

    def check(self) -> None:
        """Raise `ChildFailed` if it has ended."""
        status = self._process.poll()
        if status is not None:
            lines = self._log.read_text(errors="replace").splitlines()[-10:]
            raise ChildFailed("\n  ".join((f"{self.name} ended with status {status}:", *lines)))

    def terminate(self) -> None:
        """Ask it to end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, deadline_s: float) -> None:
        """Return when it has ended; kill it at the deadline, a time of `time.monotonic`."""
        try:
            self._process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _neutral_environment() -> dict[str, str]:
    """Return this process's environment without settings of agents and of other clusters."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("XPU_AGENT_", "KUBE"))
    }


def stop_all(children: Iterable[ChildProcess]) -> None:
    """End all children at the same time, and wait for each."""
    running = list(children)
    for child in running:
        child.terminate()
    deadline_s = time.monotonic() + STOP_S
    for child in running:
        child.wait(deadline_s)
