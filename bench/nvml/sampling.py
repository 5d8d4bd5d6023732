"""CPU of the NVIDIA worker that samples eight busy cards each second, its idle threads included.

Peer: a process that asks the same cards one value a call. Limit: the cycle's calls from C. The
stub's own work is in all three.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness import Row, compare
from bench.limit_in_c import built
from tests.fault.nvml_stub import Stub, add_function, build, gpu, on_live_tree

CARDS = 8
SECONDS = 4  # of one figure, with a cycle in each
GATE = "subject<=5"  # thousandths of a core
ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).parent / "limit.c"
_BUSES = tuple(f"0000:{0x10 + 8 * index:02x}:00.0" for index in range(CARDS))
_FIELDS = ("186", "185", "83", "82", "197", "198", "94", "138:0xffffffff", "139:0xffffffff")
_EXTRA = {"encoder": 0, "decoder": 0, "sram": 0, "repair": 0, "unrepairable": 0, "uncorrected": 0}


class _QuietStub(Stub):
    """A stub that writes no log of its calls: that would cost more than the calls."""

    @property
    def environment(self) -> dict[str, str]:
        """Return what makes a child load the stub."""
        full = super().environment
        return {name: text for name, text in full.items() if name != "XPU_NVML_CALLS"}


def busy_card(index: int, bus: str) -> list[str]:
    """Return the statements of a Hopper with two processes and eighteen NVLinks."""
    lines = [gpu(index, bus, **_EXTRA), f"field {index} 230 u32 0", f"field {index} 91 u32 18"]
    lines += [f"field {index} {number} u64 123456" for number in _FIELDS]
    lines += [f"gpm {index} {number} 40.5" for number in (2, 3, 5, 10, 11, 12, 13)]
    pids = (4000 + 2 * index, 4001 + 2 * index)
    return lines + [f"proc {index} pid={pid} mem=5000000000 sm=40 list=compute" for pid in pids]


def cpu_ms(pid: int) -> float:
    """Return what all threads of a process have run, in milliseconds."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e6


def each_second(cycle: Callable[[], object]) -> None:
    """Call once a second."""
    began_s = time.monotonic()
    for outcome in range(1, SECONDS + 1):
        cycle()
        time.sleep(max(0.0, began_s + outcome - time.monotonic()))


def millicores(pid: int, cycle: Callable[[], object]) -> Callable[[], float]:
    """Return a figure: what a process runs in a second in which it is asked once."""

    def figure() -> float:
        before_ms = cpu_ms(pid)
        each_second(cycle)
        return (cpu_ms(pid) - before_ms) / SECONDS

    return figure


@contextmanager
def peer(stub: Stub) -> Iterator[Callable[[], float]]:
    """Run the naive monitor."""
    with subprocess.Popen(
        [sys.executable, "-m", "bench.nvml.naive"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **stub.environment, "PYTHONPATH": str(ROOT)},
    ) as process:
        requests, reports = process.stdin, process.stdout
        if requests is None or reports is None:
            raise AssertionError("both are pipes")

        def cycle() -> None:
            requests.write(b"\n")
            requests.flush()
            if int(reports.readline()) < CARDS:
                raise AssertionError("the naive monitor saw fewer cards than there are")

        yield millicores(process.pid, cycle)
        requests.close()


@contextmanager
def limit(stub: Stub) -> Iterator[Callable[[], float] | None]:
    """Build the cycle in C; it runs in this process, of which only its own time counts."""
    os.environ.update(stub.environment)
    with built(SOURCE) as library:
        path = str(build() / "libnvidia-ml.so.1").encode()
        if library is None or library.limit_open(path, CARDS) != 0:
            yield None
            return
        spent: list[float] = []

        def cycle() -> None:
            began_s = time.thread_time()
            library.limit_cycle(ctypes.c_ulonglong(0))
            spent.append((time.thread_time() - began_s) * 1e3)

        def figure() -> float:
            spent.clear()
            each_second(cycle)
            return sum(spent) / SECONDS

        yield figure


def rows() -> Iterator[Row]:
    """Yield the one row; a figure takes seconds, as what it measures does."""
    with tempfile.TemporaryDirectory(prefix="xpu-bench-") as folder:
        stub, tree = _QuietStub(Path(folder)), Path(folder, "root")
        for index, bus in enumerate(_BUSES):
            add_function(tree, bus, Model="NVIDIA H100 80GB HBM3", Device_Minor=str(index))
        cards = [line for index, bus in enumerate(_BUSES) for line in busy_card(index, bus)]
        stub.play("system driver=570.124.06 cuda=12080", *cards)
        with on_live_tree(stub, tree) as child, peer(stub) as naive, limit(stub) as calls:
            child.discover()
            if [s.core_percent is None for s in child.sample()] != [False] * CARDS:
                raise AssertionError("the worker does not sample all cards")
            yield compare(
                "nvml_sampling_8_cards",
                "millicores",
                millicores(child.process.pid, child.sample),
                peer=naive,
                limit=calls,
                gate=GATE,
                rounds=3,
            )
