"""Make the NVIDIA tape of `fixtures`: the real session, asked about a scenario that moves.

python -m tests.fault.nvml_tape OUT...
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from msgspec.structs import replace

from agent.model.inventory import Inventory
from agent.probe.tape import TapeWriter
from tests.fault.nvml_stub import ROOT, Stub, on_tree

SCENARIO = ROOT / "fixtures" / "tapes" / "nvidia" / "h100x8.scenario"
HOST = ROOT / "fixtures" / "hosts" / "qemu-4numa-8xh100"
STEPS = 30  # one second each
GIB = 1 << 30

# what each card does: busy percent, GiB used, watts, degrees
LOADS = (
    (96, 71, 655, 63),
    (95, 71, 648, 61),
    (97, 71, 661, 66),
    (96, 71, 652, 62),
    (48, 38, 340, 49),
    (35, 22, 285, 46),
    (0, 9, 118, 36),
    (0, 0, 71, 31),
)


def moving(step: int) -> list[str]:
    """Return the statements of one second: loads swing a little, counters grow."""
    lines: list[str] = []
    for card, (busy, gib, watts, heat) in enumerate(LOADS):
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


def record() -> bytes:
    """Return the tape. Times are left at zero: the stub's say nothing of a card's."""
    data = bytearray()
    with tempfile.TemporaryDirectory(prefix="nvml-tape-") as folder:
        stub = Stub(Path(folder))
        base = SCENARIO.read_text(encoding="utf-8").splitlines()
        stub.play(*base, *moving(0))
        writer = TapeWriter("nvidia", data.extend)
        with on_tree(stub, HOST) as child:
            writer.discovered(_placeless(child.discover()), 0.0)
            for step in range(STEPS):
                stub.play(*base, *moving(step))
                writer.sampled(child.sample(), 0.0)
    return bytes(data)


def _placeless(found: Inventory) -> Inventory:
    # the stub's folder is another at each run
    return replace(found, library=found.library.rpartition("/")[2] if found.library else None)


def main() -> None:
    """Write the tape to every file that is named."""
    tape = record()
    for name in sys.argv[1:]:
        Path(name).write_bytes(tape)


if __name__ == "__main__":
    main()
