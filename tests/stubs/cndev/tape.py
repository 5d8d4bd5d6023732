"""Make the tape of `fixtures/hosts/mlu370-x4-8`: the real session, asked about a moving scenario.

python -m tests.stubs.cndev.tape OUT...
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from msgspec.structs import replace

from agent.workers.tape import TapeWriter
from tests.stubs.child import ROOT, on_tree
from tests.stubs.stub import Stub
from tests.unit.cambricon.cards import card

HOST = ROOT / "fixtures" / "hosts" / "mlu370-x4-8"
STEPS = 30
# what each card does: busy percent, MiB used, watts, degrees
LOADS = (
    (93, 21540, 131, 61),
    (95, 21540, 134, 63),
    (88, 20110, 125, 60),
    (91, 20110, 128, 58),
    (37, 9020, 72, 46),
    (0, 512, 31, 35),
    (0, 0, 30, 32),
    (0, 0, 25, 33),
)


def moving(step: int) -> list[str]:
    """Return the scenario of one second: loads swing a little, errors stay away."""
    lines = ["count 8", "driver_version 4:20:11"]
    for index, (busy, mib, watts, heat) in enumerate(LOADS):
        swing = (step * 7 + index * 5) % 9 - 4 if busy else 0
        lines += card(
            index,
            util=min(100, busy + swing),
            mem_used=mib + 8 * swing,
            power=watts + swing,
            temp=heat + swing // 3,
            temp_board=heat - 8,
            temp_memory=heat + 4,
            ecc="0:0:0:0",
        )
        if mib:
            kib = (mib + 8 * swing - 256) << 10
            lines.append(f"mlu.{index}.proc.{5200 + index} {kib}:0:{min(100, busy + swing)}")
    return lines


def record() -> bytes:
    """Return the tape. Times are left at zero: the stub's say nothing of a card's."""
    data = bytearray()
    with tempfile.TemporaryDirectory(prefix="cndev-tape-") as folder:
        stub = Stub("cndev", Path(folder))
        stub.play(*moving(0))
        writer = TapeWriter("cambricon", data.extend)
        settings = {"library_path": str(stub.path)}
        with on_tree("cambricon", stub.environment, HOST, settings) as child:
            result = child.discover()
            # the stub's folder is another at each run
            writer.write_inventory(replace(result, library=stub.path.name), 0.0)
            for step in range(STEPS):
                stub.play(*moving(step))
                writer.write_samples(child.sample(), 0.0)
    return bytes(data)


def main() -> None:
    """Write the tape to every file that is named."""
    tape = record()
    for name in sys.argv[1:]:
        Path(name).write_bytes(tape)


if __name__ == "__main__":
    main()
