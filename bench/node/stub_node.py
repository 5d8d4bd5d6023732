"""A node with sixteen cards that answer from the NVML stub, and processes that watch them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.fault.nvml_stub import Stub, add_function, build, gpu

CARDS = 16
DEADLINE_S = 30.0
LOOK_S = 0.001  # between two looks at a file's inode
ROOT = Path(__file__).parents[2]
WELL, BAD = b"health: true", b"health: false"
_LINKS = ("proc/stat", "proc/meminfo", "proc/cpuinfo", "proc/sys", "sys/devices/system")
_BUSES = tuple(f"0000:{0x10 + 8 * index:02x}:00.0" for index in range(CARDS))


@dataclass(slots=True)
class StubNode:
    """The node's folder, its scenario and what has happened to its cards so far."""

    folder: Path
    stub: Stub
    surroundings: dict[str, str] = field(default_factory=dict)  # in every process of this node
    _happened: list[str] = field(default_factory=list)

    @property
    def tree(self) -> Path:
        """Return the root that the worker sees."""
        return self.folder / "root"

    def play(self, *more: str) -> None:
        """Have all cards well, and add what is to happen to what has happened."""
        self._happened += more
        cards = (gpu(index, bus) for index, bus in enumerate(_BUSES))
        self.stub.play("system driver=570.86.15 cuda=12080", *cards, *self._happened)

    def begin(self) -> None:
        """Forget what has happened: for a fresh process, which hears everything once."""
        self._happened.clear()
        self.play()

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that loads the stub."""
        paths = {"PYTHONPATH": str(ROOT), "MALLOC_ARENA_MAX": "2"}
        return {**os.environ, **self.stub.environment, **paths, **self.surroundings}


@contextmanager
def stub_node() -> Iterator[StubNode]:
    """Make the node; everything is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="xpu-bench-") as folder:
        node = StubNode(Path(folder), Stub(Path(folder)))
        for index, bus in enumerate(_BUSES):
            uuid = f"GPU-00000000-0000-4000-8000-00000000000{index:x}"
            names = {"Model": "NVIDIA H100 80GB HBM3", "GPU_UUID": uuid}
            add_function(node.tree, bus, **names, Device_Minor=str(index))
        for name in _LINKS:
            link = node.tree / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path("/") / name)
        yield node


@contextmanager
def running(node: StubNode, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module of ours until the block ends; it is ended by its own process id."""
    with (node.folder / "stderr").open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=node.environment(),
            cwd=ROOT,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(DEADLINE_S)
            assert process.stdout is not None
            process.stdout.close()


@contextmanager
def running_agent(node: StubNode, window_ms: int = 50) -> Iterator[Path]:
    """Run a fresh agent on the node with all cards well; yield its Device file."""
    node.begin()
    with tempfile.TemporaryDirectory(prefix="xpu-bench-out-") as out:
        libraries = str(build())
        arguments = (str(node.tree), libraries, out, str(window_ms))
        with running(node, "bench.node.stub_agent", *arguments):
            device = Path(out, "device.yaml")
            wait_until_bad(device, 0)
            yield device


def inode(path: Path) -> int:
    """Return which file it is now; 0: there is none."""
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return 0


def wait_until_bad(path: Path, cards: int) -> float:
    """Wait until that many of the cards in a file are not well; return when that was seen."""
    until_s = time.monotonic() + DEADLINE_S
    observations = 0
    while time.monotonic() < until_s:
        now = inode(path)
        if now != observations:
            seen_s = time.monotonic()
            data = path.read_bytes()
            if (data.count(WELL), data.count(BAD)) == (CARDS - cards, cards):
                return seen_s
            observations = now
        time.sleep(LOOK_S)
    raise RuntimeError(f"{path.name}: not {cards} bad cards within {DEADLINE_S:g} s")


def count_writes(path: Path, quiet_s: float) -> int:
    """Count how often a file is replaced until it has not been for so long."""
    writes, observations = 0, inode(path)
    last_s = time.monotonic()
    while time.monotonic() - last_s < quiet_s:
        now = inode(path)
        if now != observations:
            writes, observations, last_s = writes + 1, now, time.monotonic()
        time.sleep(LOOK_S)
    return writes
