"""A scan of 136 and of 2,000 PCI functions against a naive reader and against its own I/O in C."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from agent.host.files import LiveHostFiles
from agent.host.pci import read_pci
from agent.snapshot.host_files import MAX_READ
from bench.counters import cost, cost_metric
from bench.harness import Row, compare
from bench.limit_in_c import built
from bench.scan.tree import BASE_FUNCTIONS, pci_tree

SOURCE = Path(__file__).parent / "scan" / "limit.c"
SIZES = (BASE_FUNCTIONS, 2000)
GATE_ALONE = "ratio_peer<=0.3"  # without a compiler
GATE = f"{GATE_ALONE},ratio_limit<=7"


class _Spy(LiveHostFiles):
    """Notes each access as the reader in C takes it: an operation and a path."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self.seen: list[bytes] = []

    def _note(self, operation: str, path: str) -> None:
        self.seen.append(f"{operation}{self.path(path)}".encode() + b"\0")

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        """Note a file."""
        self._note("r", path)
        return super().read(path, limit)

    def names(self, path: str) -> tuple[str, ...]:
        """Note a directory."""
        self._note("d", path)
        return super().names(path)

    def link(self, path: str) -> str | None:
        """Note a link."""
        self._note("l", path)
        return super().link(path)

    def exists(self, path: str) -> bool:
        """Note a look."""
        self._note("e", path)
        return super().exists(path)


def naive(top: Path) -> dict[str, dict[str, str]]:
    """Resolve each function and read all its attributes, as many a script does."""
    result = {}
    bus = top / "sys/bus/pci/devices"
    for name in os.listdir(bus):
        where = os.path.realpath(bus / name)
        facts = {"path": where}
        for entry in os.scandir(where):
            if entry.is_symlink():
                facts[entry.name] = os.path.realpath(entry.path)
            elif entry.is_file():
                with open(entry.path, errors="replace") as file:  # noqa: PTH123 - as scripts do
                    facts[entry.name] = file.read().strip()
        result[name] = facts
    return result


@contextmanager
def c_scan(top: Path) -> Iterator[Callable[[], object] | None]:
    """Build what does the scan's accesses and nothing else; `None` without a compiler."""
    spy = _Spy(str(top))
    read_pci(spy)
    accesses = b"".join(spy.seen)
    with built(SOURCE) as library:
        if library is None:
            yield None
            return
        scan = library.scan
        scan.argtypes = (ctypes.c_char_p, ctypes.c_long)
        yield lambda: scan(accesses, len(accesses))


def rows() -> Iterator[Row]:
    """Yield one row a size."""
    for size in SIZES:
        with pci_tree(size) as top, c_scan(top) as limit:
            host = LiveHostFiles(str(top))
            result = len(read_pci(host).functions)
            if result != size:
                raise AssertionError(f"read_pci found {result} functions instead of {size}")
            yield compare(
                f"device_scan_{size}",
                cost_metric(),
                partial(cost, partial(read_pci, host)),
                peer=partial(cost, partial(naive, top)),
                limit=partial(cost, limit) if limit else None,
                gate=GATE if limit else GATE_ALONE,
            )
