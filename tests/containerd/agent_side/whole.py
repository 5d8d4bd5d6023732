"""The agent itself at a real runtime, on this machine with two cards that a file describes."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.containerd.agent_side.scene import GRANT
from tests.containerd.runtime.running import Containerd
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]
MAJOR = 240  # for local use: no driver has it
CARDS = 2
UNTIL_S, END_S = PATIENCE_S, PATIENCE_S
WHOLE = {f"koordinator.sh/{name}": "100" for name in ("gpu-core", "gpu-memory-ratio")}


def nodes() -> list[str]:
    """Return the paths of the cards' nodes on this machine, other ones in each test process."""
    return [f"/dev/xpu-{os.getpid()}-{number}" for number in range(CARDS)]


def grant_annotation(number: int) -> dict[str, str]:
    """Return the annotation that grants one of the cards."""
    entry = {"minor": number, "id": f"FAKE-{number}", "resources": WHOLE}
    return {GRANT: json.dumps({"gpu": [entry]})}


class WholeAgent:
    """`xpu-agent run --standalone`; a new process each time it is begun, with what it kept."""

    def __init__(self, runtime: Containerd) -> None:
        self._runtime = runtime
        self._folder = runtime.folder / "agent"
        self._process: subprocess.Popen[str] | None = None
        self._url = ""
        self._folder.mkdir()
        devices = [
            {
                "uuid": f"FAKE-{number}",
                "minor": number,
                "memory_bytes": 1 << 36,
                "resources": WHOLE,
                "nodes": [{"path": path, "major": MAJOR, "minor": number}],
            }
            for number, path in enumerate(nodes())
        ]
        settings = {
            "node": {
                "name": "node-1",
                "run_dir": str(self._folder / "run"),
                "state_dir": str(self._folder / "kept"),
            },
            "nri": {"attach": "on", "socket": str(runtime.nri_socket)},
            "discovery": {"fake": {"file": self._written("fake.json", {"devices": devices})}},
            "cdi": {"write": False},
        }
        self._config = self._written("config.yaml", settings)

    def begin(self) -> WholeAgent:
        """Begin and wait until the runtime has told of all its pods."""
        arguments = ("--standalone", "--listen", "127.0.0.1:0", "--config", self._config)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._runtime.apart.prefix,
                    *(sys.executable, "-m", "agent", "run", *arguments),
                    *("--out", str(self._folder / "out")),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
            )
        assert self._process.stdout is not None
        line = next((one for one in self._process.stdout if " serves " in one), "")
        assert line, (self._folder / "log").read_text()[-2000:]
        self._url = line.split()[-1]
        self.until(lambda: "[+] runtime synchronized" in self.get("healthz?verbose"))
        return self

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.communicate(timeout=END_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def get(self, path: str) -> str:
        try:
            with urllib.request.urlopen(self._url + path, timeout=UNTIL_S) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:  # not ready yet: the words are what is asked for
            return error.read().decode()

    def verified(self, pod: str, container: str) -> str:
        """Return what the metric says of a container: 1, 0, or nothing."""
        names = f'namespace="team-a",pod="{pod}",container="{container}"'
        lines = (line for line in self.get("metrics").splitlines() if names in line)
        own = (line for line in lines if line.startswith("xpu_agent_allocation_verified{"))
        return next((line.split()[-1] for line in own), "")

    def reasons(self, pod: str) -> set[str]:
        """Return the reasons of the pod's events."""
        path = self._folder / "out/events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        events = map(json.loads, lines)
        return {event["reason"] for event in events if event["involvedObject"]["name"] == pod}

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until it is so."""
        end_s = time.monotonic() + UNTIL_S
        while not holds():
            assert time.monotonic() < end_s, (self._folder / "log").read_text()[-3000:]
            time.sleep(0.1)

    def _written(self, name: str, content: object) -> str:
        path = self._folder / name
        path.write_text(json.dumps(content))
        return str(path)


@contextlib.contextmanager
def whole(runtime: Containerd) -> Iterator[WholeAgent]:
    """The agent, registered with the runtime; the nodes of its cards are on this machine."""
    for number, path in enumerate(nodes()):
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(MAJOR, number))
    try:
        agent = WholeAgent(runtime)
        try:
            yield agent.begin()
        finally:
            agent.close()
    finally:
        for path in nodes():
            Path(path).unlink()
