"""Make the NVIDIA tapes of `fixtures`: the real session, asked about a scenario that moves.

python -m tests.fault.nvml_tape NAME OUT...
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import msgspec
from msgspec.structs import replace

from agent.snapshot.inventory import DeviceSample, Inventory
from agent.workers.tape import TapeWriter
from plugins.vendors.nvidia.library.performance import SPACING_S
from tests.fault.nvml_stub import ROOT, Stub, on_tree
from tests.stubs.child import Child

TAPES = ROOT / "fixtures" / "tapes" / "nvidia"
HOSTS = ROOT / "fixtures" / "hosts"
STEPS = 30  # one second each
GIB = 1 << 30
TRAINING_PERCENT = 90  # cards that are busier train, others serve
# numbers of NVML's performance counters
GRAPHICS, SM_ACTIVE, SM_OCCUPANCY, TENSOR, DRAM, FP32 = 1, 2, 3, 5, 10, 12
Loads = tuple[tuple[int, int, int, int], ...]


class Played(msgspec.Struct, frozen=True):
    """A tape: its scenario and its host by name, and what each whole card does in it.

    Loads are busy percent, GiB used, watts, degrees.
    """

    scenario: str
    host: str
    loads: Loads
    more: tuple[str, ...] = ()  # statements that stay
    has_performance_counters: bool = False

    @property
    def text(self) -> list[str]:
        """Return the statements that do not move."""
        path = TAPES / f"{self.scenario}.scenario"
        return [*path.read_text(encoding="utf-8").splitlines(), *self.more]


H100 = Played(
    "h100x8",
    "qemu-4numa-8xh100",
    (
        (96, 71, 655, 63),
        (95, 71, 648, 61),
        (97, 71, 661, 66),
        (96, 71, 652, 62),
        (48, 38, 340, 49),
        (35, 22, 285, 46),
        (0, 9, 118, 36),
        (0, 0, 71, 31),
    ),
    has_performance_counters=True,
)
A100 = Played(
    "a100-mig-x4",
    "a100-mig-4x",
    ((88, 31, 352, 61), (0, 0, 52, 31)),
    # of cards that are cut: memory, power and heat of the whole, processes by instance
    (
        f"gpu 2 used={17 * GIB} temp=44 power=171000",
        f"gpu 3 used={9 * GIB} temp=41 power=148000",
        f"proc 2 pid=5200 mem={15 * GIB} gi=1 ci=0 list=compute",
        f"proc 2 pid=5201 mem={2 * GIB} gi=9 ci=0 list=compute",
        f"proc 3 pid=5300 mem={4 * GIB} gi=7 ci=0 list=compute",
        f"proc 3 pid=5301 mem={4 * GIB} gi=8 ci=0 list=compute",
    ),
)
ALL = {played.scenario: played for played in (H100, A100)}


def moving(loads: Loads, step: int) -> list[str]:
    """Return the statements of one second: loads swing a little, counters grow."""
    lines: list[str] = []
    for card, (busy, gib, watts, heat) in enumerate(loads):
        swing = (step * 7 + card * 5) % 11 - 5 if busy else 0
        percent = min(100, max(0, busy + swing))
        used = gib * GIB + (abs(swing) * 16 << 20)
        power_mw = (watts + 4 * swing) * 1000 + 137 * card
        energy_mj = 9_000_000_000 + card * 70_000_000 + step * watts * 1000
        traffic = (step * busy + card) << 24
        lines += [
            f"gpu {card} util={percent},{percent // 2} used={used} temp={heat + swing // 3}",
            f"field {card} 186 u32 {power_mw}",
            f"field {card} 185 u32 {watts * 1000}",
            f"field {card} 83 u64 {energy_mj}",
            f"field {card} 82 u32 {heat + 6 + swing // 4}",
            f"field {card} 197 u64 {(40 << 30) + traffic // 8}",
            f"field {card} 198 u64 {(60 << 30) + traffic // 4}",
            f"field {card} 138:0xffffffff u64 {(900 << 20) + traffic // 512}",
            f"field {card} 139:0xffffffff u64 {(900 << 20) + traffic // 500}",
        ]
        if gib:
            own = used - (500 << 20)  # the driver's context counts for the card only
            lines.append(f"proc {card} pid={4100 + card} mem={own} sm={percent} list=compute")
    return lines


def performance(loads: Loads) -> list[str]:
    """Return the performance counters, which stay, and the codecs that some cards use."""
    lines: list[str] = []
    for card, (busy, gib, _, _) in enumerate(loads):
        trains = busy > TRAINING_PERCENT
        percents = {
            GRAPHICS: busy,
            SM_ACTIVE: busy * 9 // 10,
            SM_OCCUPANCY: busy * 4 // 10,
            TENSOR: busy * (6 if trains else 3) // 10,
            DRAM: busy * 5 // 10,
            FP32: busy // 10,
        }
        lines += [f"gpm {card} {number} {percent}" for number, percent in percents.items()]
        is_serving = bool(busy) and bool(gib) and not trains
        lines.append(f"gpu {card} encoder=0 decoder={busy // 4 if is_serving else 0}")
    return lines


def sample_before(child: Child) -> None:
    """Sample as often as counters and NVML's pause between two of their samples need."""
    child.sample()
    time.sleep(2 * SPACING_S)
    child.sample()


def record(played: Played) -> bytes:
    """Return the tape. Times are left at zero: the stub's say nothing of a card's."""
    data = bytearray()
    with tempfile.TemporaryDirectory(prefix="nvml-tape-") as folder:
        stub = Stub(Path(folder))
        base = played.text
        if played.has_performance_counters:
            base += performance(played.loads)
        stub.play(*base, *moving(played.loads, 0))
        writer = TapeWriter("nvidia", data.extend)
        with on_tree(stub, HOSTS / played.host) as child:
            writer.write_inventory(_placeless(child.discover()), 0.0)
            if played.has_performance_counters:
                sample_before(child)
            for step in range(STEPS):
                stub.play(*base, *moving(played.loads, step))
                writer.write_samples(tuple(map(_timeless, child.sample())), 0.0)
    return bytes(data)


def _timeless(sample: DeviceSample) -> DeviceSample:
    # rates depend on how fast this machine samples
    readings = tuple(
        reading for reading in sample.readings if not reading.family.endswith("_per_second")
    )
    return replace(sample, readings=readings)


def _placeless(inventory: Inventory) -> Inventory:
    # the stub's folder is another at each run
    return replace(
        inventory, library=inventory.library.rpartition("/")[2] if inventory.library else None
    )


def main() -> None:
    """Write the tape of that name to every file."""
    tape = record(ALL[sys.argv[1]])
    for name in sys.argv[2:]:
        Path(name).write_bytes(tape)


if __name__ == "__main__":
    main()
