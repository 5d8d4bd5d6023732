"""The emulator's monitor, and what the machine inside asks of it: to plug and unplug cards.

A request is a file `ask-N.json` in the share, a list of commands with their arguments; its answer
is `told-N.json` with the error, or null.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.guest.pci_ids import H100, set_ids

SET_IDS = "set_ids"  # not a command of the emulator: gives a new test device the ids of a GPU
POLL_S = 0.05


class Monitor:
    """Commands to a running emulator, one at a time, over its standard input and output."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def ask(self, command: str, **arguments: object) -> None:
        """Send a command and wait for its answer; events and the greeting are passed over."""
        if command == SET_IDS:
            set_ids(self.process.pid, [H100])
            return
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = json.dumps({"execute": command, "arguments": arguments})
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        for output in self.process.stdout:
            answer = json.loads(output)
            if "error" in answer:
                raise RuntimeError(f"{command}: {answer['error']}")
            if "return" in answer:
                return
        raise RuntimeError(f"{command}: the emulator ended")


def answer_requests(monitor: Monitor, share: Path, until_s: float) -> None:
    """Do what the machine asks for until it ends; `TimeoutError` if it does not in time."""
    number = 0
    while monitor.process.poll() is None:
        if time.monotonic() > until_s:
            raise TimeoutError
        request = share / f"ask-{number}.json"
        if request.exists():
            (share / f"told-{number}.new").write_text(json.dumps(_execute(monitor, request)))
            (share / f"told-{number}.new").rename(share / f"told-{number}.json")
            number += 1
        time.sleep(POLL_S)


def _execute(monitor: Monitor, request: Path) -> str | None:
    commands: list[tuple[str, dict[str, Any]]] = json.loads(request.read_text())
    try:
        for command, arguments in commands:
            monitor.ask(command, **arguments)
    except (RuntimeError, LookupError) as error:
        return str(error)
    return None
