"""Cambricon cards for tests: scenarios of the stub, and trees with their PCI functions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.stubs.child import Child, on_tree
from tests.stubs.stub import Stub

BUSES = tuple(f"0000:{bus:02x}:00.0" for bus in (0x1A, 0x1B, 0x3D, 0x3E, 0x89, 0x8A, 0xB2, 0xB3))


def card(index: int, bus_id: str | None = None, **more: object) -> list[str]:
    """Return the lines of a healthy, idle MLU370-X4; `None` removes a line."""
    bus = (bus_id or BUSES[index]).replace(".", ":").split(":")
    facts: dict[str, object] = {
        "uuid": f"00000000-0000-4000-8000-{index:012x}",
        "name": "MLU370-X4",
        "id": 23,
        "sn": 0x4221F400A364 + index,
        "pci": ":".join(str(int(part, 16)) for part in bus),
        "numa": index // 4,
        "mem": 23308,
        "mem_used": 0,
        "util": 0,
        "power": 30,
        "cap": 150,
        "temp": 32,
        "smlu_mode": 0,
        "mim_mode": 0,
        "overall": 0,
        **more,
    }
    return [f"mlu.{index}.{key} {value}" for key, value in facts.items() if value is not None]


def machine(count: int = 2) -> list[str]:
    """Return the scenario of so many healthy cards."""
    lines = [f"count {count}", "driver_version 4:20:11"]
    return [*lines, *(line for index in range(count) for line in card(index))]


def add_function(tree: Path, bus_id: str, *, code: str = "0x120000", virtual: bool = False) -> None:
    """Add a Cambricon PCI function to a tree."""
    folder = tree / "sys/bus/pci/devices" / bus_id
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("0xcabc\n")
    (folder / "class").write_text(f"{code}\n")
    if virtual:
        (folder / "physfn").symlink_to("../0000:1a:00.0")


def tree_of(folder: Path, count: int = 2) -> Path:
    """Return a host's root with so many functions."""
    tree = folder / "host"
    (tree / "proc").mkdir(parents=True)
    (tree / "sys/bus/pci/devices").mkdir(parents=True)
    for bus_id in BUSES[:count]:
        add_function(tree, bus_id)
    return tree


def stub_of(folder: Path, *lines: str, without: tuple[str, ...] = ()) -> Stub:
    """Return the stub with a scenario."""
    stub = Stub("cndev", folder, without=without)
    stub.play(*lines)
    return stub


@contextlib.contextmanager
def session(stub: Stub, tree: Path, **settings: object) -> Iterator[Child]:
    """Run the vendor's session on a stub and a tree, in a separate process."""
    values = {"library_path": str(stub.path), **settings}
    with on_tree("cambricon", stub.environment, tree, values) as child:
        yield child
