"""Make the Ascend tapes of `fixtures/hosts`: the real session on the stub, while loads move.

python -m tests.stubs.dcmi.tape
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from msgspec.structs import replace

from agent.snapshot.inventory import Inventory
from agent.workers.tape import TapeWriter
from tests.stubs.child import ROOT, on_tree
from tests.stubs.dcmi.machines import a3x16, b3x8
from tests.stubs.stub import Stub

HOSTS = ROOT / "fixtures" / "hosts"
STEPS = 8

# busy percent, GB in use, 0.1 W and degrees more than idle; by physical id
LOADS = ((96, 58, 2210, 22), (95, 58, 2190, 20), (97, 58, 2230, 23), (96, 58, 2200, 21))
FAULTY = 5  # of the eight


def scenario(name: str) -> list[str]:
    """Return the machine as it is before anything moves."""
    if name == "atlas-a3x16":
        return a3x16()
    # the driver counts a fault and tells no code for it
    return [*b3x8(), f"chip.{FAULTY}.0.health 2", f"chip.{FAULTY}.0.codes 0"]


def moving(name: str, step: int) -> list[str]:
    """Return the lines of one step: four chips train, the others idle."""
    lines: list[str] = []
    for phy, (busy, used, power, heat) in enumerate(LOADS):
        place = f"{phy // 2}.{phy % 2}" if name == "atlas-a3x16" else f"{phy}.0"
        swing = (step * 7 + phy * 5) % 9 - 4
        percent = min(100, busy + swing)
        lines += [
            f"chip.{place}.util {percent}",
            f"chip.{place}.util_13 {percent}",
            f"chip.{place}.hbm_used {used * 1024 + 64 * swing}",
            f"chip.{place}.hbm_busy {40 + swing}",
            f"chip.{place}.temp {41 + heat + swing // 2}",
            f"chip.{place}.clock 1800",
            f"chip.{place}.proc.{4100 + phy} {(used - 3) << 30}",
        ]
        if name != "atlas-a3x16" or phy % 2 == 0:
            lines.append(f"chip.{place}.power {1000 + power + 9 * swing}")
    return lines


def record(name: str) -> bytes:
    """Return the tape. Times are left at zero: the stub's say nothing of a chip's."""
    data = bytearray()
    with tempfile.TemporaryDirectory(prefix="dcmi-tape-") as folder:
        stub = Stub("dcmi", Path(folder))
        base = scenario(name)
        stub.play(*base, *moving(name, 0))
        writer = TapeWriter("ascend", data.extend)
        inputs = {"library_path": str(stub.path), "sample_interval_s": 0.0}
        with on_tree("ascend", stub.environment, HOSTS / name, inputs) as child:
            writer.write_inventory(_placeless(child.discover()), 0.0)
            for step in range(STEPS):
                stub.play(*base, *moving(name, step))
                samples = tuple(replace(result, health=None) for result in child.sample())
                writer.write_samples(samples, 0.0)
    return bytes(data)


def _placeless(inventory: Inventory) -> Inventory:
    # the stub's folder is another at each run
    return replace(
        inventory, library=inventory.library.rpartition("/")[2] if inventory.library else None
    )


def main() -> None:
    """Write both tapes to their hosts."""
    for name in ("atlas-910b3x8", "atlas-a3x16"):
        folder = HOSTS / name / "tapes"
        folder.mkdir(exist_ok=True)
        (folder / "ascend.jsonl").write_bytes(record(name))


if __name__ == "__main__":
    main()
