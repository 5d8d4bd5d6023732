"""Build the NVML stub, write its scenarios, and drive a vendor's session on it in a child process.

Statements of a scenario, one a line, `#` begins a comment; later ones add to earlier ones:

    system driver=570.86.15 cuda=12080 confidential=1 ready=0
    gpu 0 uuid= minor= module= bus= name="" mem= reserved= used= util=gpu,mem power= temp= arch=
          cc=9.0 virt= serial= vbios= ecc= persistence= mode= pstate= width= maxwidth= sm=
          memclock= energy= throttle= migmode= migpending= events= remap=a,b,c,d
          addressing= numanode= chassis="serial" rack=slot,tray,host,peer
          sram= repair= unrepairable= encoder= decoder= uncorrected=
    mig 0 0 uuid= gi= ci= k= cik= start= size= mb= sm=      profile 0 k id= slices= max= mb= name=""
                                                            starts=0,4 size=4
    proc 0 pid= mem= sm= ts= gi= ci= list=                  field 0 id[:scope] u32|u64|f64 v|!code
    link 0 0 state= type= remote=     ancestor 0 1 level    fabric 0 state= status= uuid= clique=
    error symbol [gpu] code [xN]      delay symbol ms       hang symbol [gpu]    crash symbol
    lost 0                            event 0 type= data= at= gi= ci=
    binding type=1|2                  gpm 0 metric [gi=] value

A value that is not given is one that the driver does not support.
"""

from __future__ import annotations

import functools
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.model.inventory import DeviceEvent, DeviceSample, Inventory
from agent.probe.wire import (
    Ask,
    Discovered,
    Failed,
    Happened,
    LineSplitter,
    Opened,
    Reply,
    Sampled,
    decode_reply,
    encode,
    encode_start,
)

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NEWEST = 999


@functools.cache
def build(level: int = NEWEST) -> Path:
    """Compile the stub of one driver branch, once a run; skip, and say so, without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: the NVML stub cannot be built")
    folder = Path(tempfile.mkdtemp(prefix=f"nvml-stub-{level}-"))
    sources = sorted(str(path) for path in HERE.glob("nvml_stub*.c"))
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", f"-DSTUB_DRIVER={level}"]
    target = folder / "libnvidia-ml.so.1"
    command = [compiler, *flags, "-Wl,-soname,libnvidia-ml.so.1", "-o", str(target), *sources]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@dataclass(slots=True)
class Stub:
    """One scenario and the log of the calls that were made on it."""

    folder: Path
    level: int = NEWEST

    @property
    def scenario(self) -> Path:
        return self.folder / "scenario"

    @property
    def environment(self) -> dict[str, str]:
        """Return what makes a child load the stub and find its texts."""
        return {
            "LD_LIBRARY_PATH": str(build(self.level)),
            "XPU_NVML_SCENARIO": str(self.scenario),
            "XPU_NVML_CALLS": str(self.folder / "calls"),
        }

    def play(self, *lines: str) -> None:
        """Replace the scenario whole; the stub reads it at its next call."""
        fresh = self.folder / "scenario.new"
        fresh.write_text("\n".join(lines) + "\n", encoding="utf-8")
        fresh.replace(self.scenario)

    def take_calls(self) -> list[str]:
        """Return the calls since the last time, as `symbol [gpu] [argument]`."""
        log = self.folder / "calls"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        log.write_text("", encoding="utf-8")
        return lines


@dataclass(slots=True)
class Child:
    """A worker process that serves a session; every answer has a deadline."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    settings: Mapping[str, object] = field(default_factory=dict)
    events: list[DeviceEvent] = field(default_factory=list)
    _number: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _lines: list[bytes] = field(default_factory=list)
    _splitter: LineSplitter = field(default_factory=lambda: LineSplitter("nvidia"))

    def __enter__(self) -> Child:
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG")}
        self._process = subprocess.Popen(
            [sys.executable, *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**kept, "PYTHONPATH": str(ROOT), **self.environment},
        )
        self._say(encode_start("nvidia", self.settings, events=True))
        assert isinstance(self._reply(time.monotonic() + 20), Opened)
        return self

    def __exit__(self, *_: object) -> None:
        process = self.process
        process.kill()
        process.wait(10)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def _say(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def _reply(self, deadline_s: float) -> Reply:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while not self._lines:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                raise TimeoutError
            data = os.read(fd, 65536)
            if not data:
                raise EOFError
            self._lines += self._splitter.feed(data)
        return decode_reply("nvidia", self._lines.pop(0))

    def ask(self, method: str, deadline_s: float = 20.0, device: str = "") -> Reply:
        """Return the answer; `TimeoutError` if late, `EOFError` if the process died."""
        self._number += 1
        asked = Ask(self._number, method, device)  # type: ignore[arg-type]  # tests ask nonsense too
        self._say(encode(asked))
        until_s = time.monotonic() + deadline_s
        while True:
            reply = self._reply(until_s)
            if not isinstance(reply, Happened):
                return reply
            self.events += reply.events

    def discover(self) -> Inventory:
        """Return the inventory; an error of the session fails the test."""
        reply = self.ask("discover")
        assert isinstance(reply, Discovered), reply
        return reply.inventory

    def sample(self) -> tuple[DeviceSample, ...]:
        """Return the samples; an error of the session fails the test."""
        reply = self.ask("sample")
        assert isinstance(reply, Sampled), reply
        return reply.samples

    def wait_event(self, deadline_s: float = 20.0) -> DeviceEvent:
        """Return the next event that was pushed."""
        until_s = time.monotonic() + deadline_s
        while not self.events:
            reply = self._reply(until_s)
            assert not isinstance(reply, Failed), reply
            if isinstance(reply, Happened):
                self.events += reply.events
        return self.events.pop(0)


def on_tree(stub: Stub, tree: Path, **settings: object) -> Child:
    """Return a child whose session sees `tree` as the machine's root and the stub as NVML."""
    given = {"library_dirs": [str(build(stub.level))], **settings}
    return Child(["-m", "tests.fault.nvml_worker", str(tree)], stub.environment, given)


def on_live_tree(stub: Stub, tree: Path, **settings: object) -> Child:
    """Return a child as `on_tree` does, to which the tree is a machine with a kernel log."""
    given = {"library_dirs": [str(build(stub.level))], **settings}
    return Child(["-m", "tests.fault.nvml_worker", str(tree), "live"], stub.environment, given)


def real_worker(stub: Stub, **settings: object) -> Child:
    """Return the agent's own worker; its host is this machine, which shows it no GPUs of ours."""
    given = {"library_dirs": [str(build(stub.level))], **settings}
    arguments = ["-m", "agent.probe.worker", "--vendor", "nvidia"]
    return Child(arguments, stub.environment, given)


def add_function(
    tree: Path, bus: str, driver: str | None = "nvidia", *, code: str = "0x030200", **info: str
) -> None:
    """Put a PCI function of NVIDIA's into a tree, and what its driver says of it in procfs."""
    folder = tree / "sys/bus/pci/devices" / bus
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("0x10de\n")
    (folder / "class").write_text(f"{code}\n")
    if driver is not None:
        (folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    if driver == "nvidia":
        (tree / "sys/module/nvidia").mkdir(parents=True, exist_ok=True)
    if info:
        facts = tree / "proc/driver/nvidia/gpus" / bus
        facts.mkdir(parents=True)
        lines = (f"{key.replace('_', ' ')}: \t {value}\n" for key, value in info.items())
        (facts / "information").write_text("".join(lines))


def gpu(index: int, bus: str, **more: object) -> str:
    """Return the statement of a healthy H100 on a bus id; `None` leaves a value unsupported."""
    values: dict[str, object] = {
        "uuid": f"GPU-00000000-0000-4000-8000-00000000000{index:x}",
        "minor": index,
        "module": index + 1,
        "bus": f"0000{bus.upper()}",
        "name": '"NVIDIA H100 80GB HBM3"',
        "mem": 85520809984,
        "reserved": 500000000,
        "used": 1000000000 + index,
        "util": f"{10 + index},5",
        "power": 250000,
        "temp": 40 + index,
        "arch": 9,
        "cc": "9.0",
        "virt": 0,
        "ecc": 1,
        "persistence": 1,
        "mode": 0,
        "migmode": 0,
        "sm": 1980,
        "memclock": 2619,
        "energy": 5000000,
        "pstate": 0,
        "width": 16,
        "maxwidth": 16,
        "remap": "0,0,0,0",
        "throttle": "0x1",
        **more,
    }
    return f"gpu {index} " + " ".join(f"{k}={v}" for k, v in values.items() if v is not None)
