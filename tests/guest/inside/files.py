"""Every file that the agent writes, on this machine's kernel: written, refused, undone, killed."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from agent.cgroup.host_settings import directory_of
from agent.cgroup.key_index import find_key
from agent.cgroup.keys import CgroupKey
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import LEDGER_FILE, ChangeLedger
from agent.cgroup.restore import restore_all
from agent.cgroup.values import CgroupValues, KernelFiles
from agent.cgroup.write_plan import DesiredValue
from agent.cgroup.writer import CgroupWriter
from agent.clock import ManualClock
from agent.host.block_devices import block_device_names, read_block_device
from agent.host.files import LiveHostFiles
from agent.qos.block_io import BlockIoStrategy
from agent.slo.overlay import overlay_spec
from agent.snapshot.cluster import ClusterView
from agent.snapshot.part import SnapshotPart
from agent.snapshot.slo import NodeSloView
from agent.snapshot.usage import StorageUsage, UsageSample
from tests.guest.file_table import ABSENT, DISK, HOST, PARTITION, POD, ROWS, Row
from tests.guest.inside.groups import MOUNT
from tests.guest.inside.restore import Version2Groups
from tests.kill_steps import killed_at
from tests.unit.reconcile.scene import Scene

CONTROLLERS = "+cpu +cpuset +memory +io"
NAME = "nullb0"  # of the module null_blk
DEBUGFS = "/sys/kernel/debug"
MOST_STEPS = 200
LAYOUT = CgroupLayout(version=2, driver="", mounts=(), unified=str(MOUNT), root="/table")
BLKPG, ADD_PARTITION = 0x1269, 1


class _Partition(ctypes.Structure):
    _fields_ = (
        ("start", ctypes.c_longlong),
        ("length", ctypes.c_longlong),
        ("number", ctypes.c_int),
        ("names", ctypes.c_char * 128),
    )


class _Request(ctypes.Structure):
    _fields_ = (
        ("operation", ctypes.c_int),
        ("flags", ctypes.c_int),
        ("size", ctypes.c_int),
        ("data", ctypes.c_void_p),
    )


def add_partition() -> None:
    """Make a partition of the disk, which has no partition table."""
    partition = _Partition(1 << 20, 1 << 20, 1, b"")
    request = _Request(ADD_PARTITION, 0, ctypes.sizeof(partition), ctypes.addressof(partition))
    with Path(f"/dev/{NAME}").open("rb") as disk:
        fcntl.ioctl(disk, BLKPG, request)


def numbers() -> dict[str, str]:
    """Return the numbers of the disk and of its partition."""
    blocks = Path("/sys/class/block")
    return {
        DISK: (blocks / NAME / "dev").read_text().strip(),
        PARTITION: (blocks / f"{NAME}p1" / "dev").read_text().strip(),
    }


@contextmanager
def table_groups() -> Iterator[None]:
    """Make the group of the table."""
    for path in (MOUNT, MOUNT / "table"):
        path.mkdir(exist_ok=True)
        (path / "cgroup.subtree_control").write_text(CONTROLLERS)
    (MOUNT / POD.lstrip("/")).mkdir()
    try:
        yield
    finally:
        (MOUNT / POD.lstrip("/")).rmdir()
        (MOUNT / "table").rmdir()


class Table:
    """The files of the table on this machine."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._numbers = numbers()

    def text(self, text: str) -> str:
        """Return a text of the table with the numbers of this machine."""
        for name, number in self._numbers.items():
            text = text.replace(name, number)
        return text

    def key(self, name: str) -> CgroupKey:
        """Return the key of a name."""
        key = find_key(self.text(name))
        assert key is not None, name
        return key

    def desired(self, row: Row) -> DesiredValue:
        """Return the desired value of a row."""
        key = self.key(row.key)
        group = directory_of(key) if row.group == HOST else row.group
        value = key.from_ledger(self.text(row.value))
        return DesiredValue(cgroup=group, key=key, value=value, owner="table")

    def path(self, desired: DesiredValue) -> Path:
        """Return the file of a desired value."""
        return Path(
            CgroupValues(KernelFiles(LiveHostFiles()), LAYOUT).paths(desired.cgroup, desired.key)[0]
        )

    def read_row(self, row: Row) -> str:
        """Return the part of a file that is this row's: a line, a word, or all of it."""
        desired = self.desired(row)
        text = self.path(desired).read_text()
        if desired.key.device:
            lines = [x for x in text.splitlines() if x.startswith(f"{desired.key.device} ")]
            return "".join(lines)
        if " " in row.key:
            name = row.key.partition(" ")[2]
            return next(word for word in text.split() if word.removeprefix("NO_") == name)
        return text.strip()

    def ledger(self) -> ChangeLedger:
        """Read the ledger, as a process that starts does."""
        ledger = ChangeLedger(str(self._state / LEDGER_FILE), "boot")
        ledger.load()
        return ledger

    def write(self, *rows: Row) -> list[str]:
        """Let the agent write; return what it reports."""
        ledger = self.ledger()
        values = CgroupValues(KernelFiles(LiveHostFiles()), LAYOUT)
        writer = CgroupWriter(values, ledger, ManualClock())
        plan = writer.prepare([self.desired(row) for row in rows], 0.0, "table")
        writer.record_in_ledger(plan)
        ledger.flush()
        result = writer.apply(plan, 0.0)
        return [f"{problem.reason}: {problem.message}" for problem in result.problems]

    def restore(self) -> list[str]:
        """Restore what the ledger says; return what could not be restored."""
        results = restore_all(self.ledger(), LAYOUT, LiveHostFiles(), monotonic=time.monotonic)
        return [
            f"{result.state} {result.summary} {result.detail}"
            for result in results
            if not result.is_done
        ]

    def refusals(self, row: Row) -> dict[str, str]:
        """Write the texts of a row that are to be refused; return the kernel's answers."""
        path = self.path(self.desired(row))
        return {text: _answer(path, self.text(text)) for text in row.refuses}


def _answer(path: Path, text: str) -> str:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    finally:
        os.close(fd)
    return "ok"


def _rows(table: Table) -> dict[str, object]:
    """Write, read, refuse and undo each row alone; the cost control of the disk is on."""
    answers: dict[str, object] = {}
    for row in ROWS:
        before = table.read_row(row)
        problems = table.write(row)
        shown = table.read_row(row)
        refusals = table.refusals(row)
        unchanged = table.read_row(row) == shown
        remaining = table.restore()
        answers[row.key] = {
            "problems": problems,
            "shown": shown,
            "expected": table.text(row.shows),
            "refusals": refusals,
            "unchanged": unchanged,
            "remaining": remaining,
            "restored": (table.read_row(row), before),
        }
    return answers


def _killed(table: Table, rows: tuple[Row, ...], work: str) -> dict[str, object]:
    """Kill the agent, or a restore, at each step, then restore; return what differs."""
    originals = [table.read_row(row) for row in rows]
    wrong: list[object] = []
    for step in range(MOST_STEPS):
        if work == "restore":
            table.write(*rows)
            killed = killed_at(step, table.restore)
        else:
            killed = killed_at(step, lambda: table.write(*rows))
        if not killed and work == "write":
            wrong += [row.key for row in rows if table.read_row(row) != table.text(row.shows)]
        remaining = table.restore()
        shown = [table.read_row(row) for row in rows]
        wrong += [(step, a, b) for a, b in zip(shown, originals, strict=True) if a != b]
        wrong += [(step, one) for one in remaining]
        if not killed:
            return {"steps": step, "rows": len(rows), "wrong": wrong}
    return {"steps": MOST_STEPS, "rows": len(rows), "wrong": [*wrong, "never ended"]}


def _block_io() -> dict[str, object]:
    """Run the strategy of block IO on the kubelet's groups; return the lines of each state."""
    groups = Version2Groups("cgroupfs")
    result: dict[str, object] = {}
    best_effort = MOUNT / "kubepods/besteffort"
    number = numbers()[DISK]
    for path in (MOUNT, MOUNT / "kubepods"):
        (path / "cgroup.subtree_control").write_text(CONTROLLERS)
    best_effort.mkdir()
    try:
        scene = Scene(groups, strategies=(BlockIoStrategy(),))
        host = LiveHostFiles()
        devices = [read_block_device(host, name) for name in block_device_names(host)]
        storage = StorageUsage(devices=tuple(device for device in devices if device is not None))
        block = {
            "name": f"/dev/{NAME}p1",
            "ioCfg": {"readBPS": 1048576, "writeIOPS": 512, "ioWeightPercent": 40},
        }
        blkio = {"beClass": {"blkioQOS": {"enable": True, "blocks": [block]}}}
        root = {"cgroupRoot": {"blkioQOS": {"enable": True, "blocks": [{**block, "ioCfg": {}}]}}}
        for name, spec in (("limits", blkio), ("weighted", {**blkio, **root}), ("none", {})):
            now_s = scene.clock.monotonic()
            slo = overlay_spec({"resourceQOSStrategy": spec}).slo
            scene.snapshot = msgspec.structs.replace(
                scene.snapshot,
                cluster=ClusterView(slo=SnapshotPart(NodeSloView(found=True, slo=slo), now_s)),
                usage=SnapshotPart(UsageSample(storage=storage), now_s),
            )
            scene.cycle()
            (status,) = scene.view_of_strategies.strategies
            result[name] = {
                "message": status.message.replace(number, DISK),
                "lines": {
                    file: [
                        line.replace(number, DISK)
                        for line in (path / file).read_text().splitlines()
                        if line.startswith(f"{number} ")
                    ]
                    for path, file in (
                        (best_effort, "io.max"),
                        (best_effort, "io.weight"),
                        (MOUNT, "io.cost.qos"),
                    )
                },
                "entries": len(scene.ledger.entries),
            }
    finally:
        best_effort.rmdir()
        groups.stop()
    return result


def facts() -> dict[str, object]:
    """Return the answers of each part."""
    with suppress(subprocess.CalledProcessError):  # it may be mounted
        subprocess.run(["mount", "-t", "debugfs", "none", DEBUGFS], check=True, timeout=60)
    add_partition()
    with tempfile.TemporaryDirectory() as state, table_groups():
        table = Table(Path(state))
        weight = next(row for row in ROWS if row.key.startswith("io.weight"))
        uncontrolled = _answer(table.path(table.desired(weight)), table.text(f"{DISK} 40"))
        controlled = _answer(MOUNT / "io.cost.qos", f"{numbers()[DISK]} enable=0")
        # beside a group that is idle there is no weight
        idle = tuple(row for row in ROWS if row.key == "cpu.idle")
        others = tuple(row for row in ROWS if row not in idle)
        values = CgroupValues(KernelFiles(LiveHostFiles()), LAYOUT)
        present = []
        for name in ABSENT:
            key = table.key(name)
            group = directory_of(key) if key.host_file else POD
            if any(Path(path).exists() for path in values.paths(group, key)):
                present.append(name)
        result = {
            "weight_without_cost_control": uncontrolled,
            "cost_control": controlled,
            "present": present,
            "rows": _rows(table),
            "killed": {
                f"{work} {rows[0].key}": _killed(table, rows, work)
                for rows in (others, idle)
                for work in ("write", "restore")
            },
        }
    return {**result, "block_io": _block_io()}
