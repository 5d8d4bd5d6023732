"""750 files kept at desired values, on this machine's version 1 groups, beside a writer in C.

Changed files get values that they never had, which the ledger records; toggled ones get one of
three values in turn, as from a strategy that goes back and forth, which are in the ledger already.
The kernel's part is the same for both. Of unchanged files the agent reads one of several parts in
each cycle, and so the writer in C counts for that part only. Where no version 1 groups can be made,
there is no row.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CDLL
from functools import partial
from pathlib import Path

from agent.cgroup.keys import BURST, MEMORY, CgroupKey
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import LEDGER_FILE, ChangeLedger
from agent.cgroup.values import CgroupValues, KernelFiles
from agent.cgroup.write_plan import DesiredValue
from agent.cgroup.writer import PARTS, CgroupWriter
from agent.clock import ManualClock
from agent.host.files import LiveHostFiles
from bench.counters import cpu_ms
from bench.harness import Row, compare
from bench.limit_in_c import built
from bench.usage.cgroup_trees import cgroups, version_1

SOURCE = Path(__file__).parent / "values_limit.c"
GROUP = "bench"
CYCLES = 20  # a figure of unchanged files: the CPU time of one cycle is near the clock's grain
# the file, the step between two values, the gate; where a write costs the kernel little, the ratio
# says what the interpreter costs and not what a strategy does, which writes the first kind
KEYS = ((BURST, 1000, "ratio_limit<=3"), (MEMORY, 1 << 20, "ratio_limit<=3"))


def desired_values(layout: CgroupLayout, key: CgroupKey, value: int) -> tuple[DesiredValue, ...]:
    """Return one desired value for each pod and each container."""
    pods, containers = cgroups()
    return tuple(
        DesiredValue(
            cgroup=f"{layout.root}{below}",
            key=key,
            value=value,
            owner="cpu_burst",
            message=f"set container {key.name} to {value}",
            source="NodeSLO spec.cpuBurstStrategy",
        )
        for below in (*pods, *containers)
    )


class Subject:
    """The agent's writer with a ledger on a disk."""

    def __init__(self, layout: CgroupLayout, folder: str) -> None:
        ledger = ChangeLedger(str(Path(folder) / LEDGER_FILE), "bench")
        ledger.load()
        values = CgroupValues(KernelFiles(LiveHostFiles()), layout)
        self._writer = CgroupWriter(values, ledger, ManualClock())
        self.written = 0

    def cycle(self, desired: tuple[DesiredValue, ...]) -> None:
        """Compare and write once, as the reconciler does."""
        plan = self._writer.prepare(desired, 0.0, GROUP)
        self._writer.record_in_ledger(plan)
        self._writer.ledger.flush()
        self.written = self._writer.apply(plan, 0.0).written if plan.steps else 0

    def change(self, desired: tuple[DesiredValue, ...]) -> None:
        """Write every file."""
        self.cycle(desired)
        if self.written != len(desired):
            raise RuntimeError(f"only {self.written} of {len(desired)} files were written")


@contextmanager
def c_writer(layout: CgroupLayout, key: CgroupKey) -> Iterator[CDLL | None]:
    """Build the writer in C and let it follow the same files; `None` without a compiler."""
    with built(SOURCE) as writer:
        if writer is None:
            yield None
            return
        for below in itertools.chain(*cgroups()):
            directory = layout.directory(key.controller, f"{layout.root}{below}")
            path = f"{directory}/{key.files(layout.version)[0]}"
            if writer.writer_add(path.encode()) != 0:
                raise OSError(f"{path}: the writer in C cannot open it")
        try:
            yield writer
        finally:
            writer.writer_reset()


def rows() -> Iterator[Row]:
    """Yield changed, toggled and unchanged files, of a dear and of a cheap kind for the kernel."""
    with version_1() as layout, tempfile.TemporaryDirectory() as folder:
        if layout is None:
            print("qos.values is skipped: no version 1 groups can be made", file=sys.stderr)
            return
        for key, step, gate in KEYS:
            with c_writer(layout, key) as writer:
                yield from _rows(layout, key, step, gate, Subject(layout, folder), writer)


def _rows(
    layout: CgroupLayout,
    key: CgroupKey,
    step: int,
    gate: str,
    subject: Subject,
    writer: CDLL | None,
) -> Iterator[Row]:
    new_sets = (desired_values(layout, key, step * n) for n in itertools.count(10))
    toggled_sets = itertools.cycle([next(new_sets) for _ in range(3)])
    last = [next(toggled_sets)]

    def change(sets: Iterator[tuple[DesiredValue, ...]]) -> float:
        last[0] = next(sets)
        return cpu_ms(lambda: subject.change(last[0]))

    def repeat(work: Callable[[], object], parts: int = 1) -> Callable[[], float]:
        return lambda: cpu_ms(lambda: [work() for _ in range(CYCLES)]) / CYCLES / parts

    kinds = (("changed", new_sets), ("toggled", toggled_sets))
    unchanged = f"qos_values_unchanged {key.name}"
    if writer is None:
        for kind, sets in kinds:
            yield compare(f"qos_values_{kind} {key.name}", "cpu_ms", partial(change, sets))
        yield compare(unchanged, "cpu_ms", repeat(lambda: subject.cycle(last[0])))
        return
    peer = CWriter(writer)
    numbers = itertools.count(1000)

    def c_change() -> float:
        """Write every file in C; afterwards they have the agent's values again."""
        spent_ms = cpu_ms(lambda: peer.write(step * next(numbers)))
        peer.write(_number(last[0]))
        return spent_ms

    for kind, sets in kinds:
        name = f"qos_values_{kind} {key.name}"
        yield compare(name, "cpu_ms", partial(change, sets), limit=c_change, gate=gate)
    peer.write(_number(last[0]))
    yield compare(
        unchanged,
        "cpu_ms",
        repeat(lambda: subject.cycle(last[0])),
        limit=repeat(writer.writer_cycle, PARTS),
        gate="subject<=1,ratio_limit<=3",
    )


class CWriter:
    """The writer in C."""

    def __init__(self, library: CDLL) -> None:
        self._library = library

    def write(self, number: int) -> None:
        """Write this number to every file that has another one."""
        self._library.writer_want(b"%d\n" % number)
        if self._library.writer_cycle() < 0:
            raise OSError("the writer in C cannot write all files")


def _number(desired: tuple[DesiredValue, ...]) -> int:
    value = desired[0].value
    if not isinstance(value, int):
        raise TypeError("a number is desired")
    return value
