"""Build the NVML stub, write its scenarios, and drive a vendor's session on it in a child process.

Statements of a scenario, one a line, `#` begins a comment; later ones add to earlier ones:

    system driver=570.86.15 cuda=12080 confidential=1 ready=0
    gpu 0 uuid= minor= module= bus= name="" mem= reserved= used= util=gpu,mem power= temp= arch=
          cc=9.0 virt= serial= vbios= ecc= persistence= mode= pstate= width= maxwidth= sm=
          memclock= energy= throttle= migmode= migpending= events= remap=a,b,c,d
          addressing= numanode= chassis="serial" rack=slot,tray,host,peer
          sram= repair= unrepairable= encoder= decoder= uncorrected= ecc.type.counter=
          plimit= fans= fan.number= license=supported,features,state attach_ms=
    mig 0 0 uuid= gi= ci= k= cik= start= size= mb= sm=      profile 0 k id= slices= max= mb= name=""
                                                            starts=0,4 size=4
    proc 0 pid= mem= sm= ts= gi= ci= list=                  field 0 id[:scope] u32|u64|f64 v|!code
    link 0 0 state= type= remote=     ancestor 0 1 level    fabric 0 state= status= uuid= clique=
    error symbol [gpu] code [xN]      delay symbol ms       hang symbol [gpu]    crash symbol
    fill symbol [gpu] byte            success, with every byte of the answer so
    lost 0                            event 0 type= data= at= gi= ci=
    binding type=1|2                  gpm 0 metric [gi=] value

A value that is not given is one that the driver does not support.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.stubs.build import build as build_stub
from tests.stubs.child import Child
from tests.stubs.nvml.statements import Translator

ROOT = Path(__file__).parents[2]
NEWEST = 999


def build(level: int = NEWEST) -> Path:
    """Link the stub of one driver branch, once a run; skip, and say so, without a compiler."""
    return build_stub("nvml", driver=level)


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
        fresh.write_text("\n".join(Translator().lines(lines)) + "\n", encoding="utf-8")
        fresh.replace(self.scenario)

    def take_calls(self) -> list[str]:
        """Return the calls since the last time, as `symbol [gpu] [argument]`."""
        log = self.folder / "calls"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        log.write_text("", encoding="utf-8")
        return lines


def on_tree(stub: Stub, tree: Path, **settings: object) -> Child:
    """Return a child whose session sees `tree` as the machine's root and the stub as NVML."""
    inputs = {"library_dirs": [str(build(stub.level))], **settings}
    return _worker(stub, inputs, str(tree))


def on_live_tree(stub: Stub, tree: Path, **settings: object) -> Child:
    """Return a child as `on_tree` does, to which the tree is a machine with a kernel log."""
    inputs = {"library_dirs": [str(build(stub.level))], **settings}
    return _worker(stub, inputs, str(tree), "live")


def _worker(stub: Stub, settings: Mapping[str, object], *arguments: str) -> Child:
    module = ["-m", "tests.fault.nvml_worker", *arguments]
    return Child("nvidia", module, stub.environment, settings, forked=True)


def real_worker(stub: Stub, **settings: object) -> Child:
    """Return the agent's own worker; its host is this machine, which shows it no GPUs of ours."""
    inputs = {"library_dirs": [str(build(stub.level))], **settings}
    arguments = ["-m", "agent.workers.worker", "--vendor", "nvidia"]
    return Child("nvidia", arguments, stub.environment, inputs)


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
