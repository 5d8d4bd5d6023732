"""One session of calls to a resctrl file system: a kernel and the emulator must print the same.

`python -m tests.resctrl.session MOUNT` prints it. `kernel-6.1-session.txt` is what Linux 6.1
printed in the virtual machine of `make guest`. The empty write of a file is not in it: FUSE does
not pass it on.
"""

from __future__ import annotations

import argparse
import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

RECORDED = Path(__file__).parent / "kernel-6.1-session.txt"
CHILD = "CHILD"  # stands for a sleeping process
ABSENT_TASK = 4194303  # the largest number that a task can have: none has it here
LONG_NAME = "n" * 255
REST_S = 3.0  # until a freed monitor id is free again: the kernel asks once a second

SCHEMATA = (
    *("L3:0=3f;1=3f\n", "MB:0=30;1=30\n", "L3:0=7\nMB:0=50\n", "MB:0=35\n", "L3:0=5\n"),
    *("L3:0=0\n", "L3:0=fffff\n", "L3:9=f\n", "L3:0=f;9=f\n", "MB:0=5\n", "MB:0=101\n"),
    *("MB:0=abc\n", "XX:0=1\n", "L3:0=f;0=f\n", "L3:0=g\n", "L3:0=3f", "L3:0=1\n", "L3:\n"),
    *("L3\n", "\n", "L3:0=0x3f\n", " L3 : 0 = 3f \n", "L3:0=3f;\n", "L3CODE:0=3f\n"),
    *("L3:0=1f\nMB:0=5\n", "L3:1=1\nL3:0=3\n", "L3:0=3f;1=3f\nMB:0=40;1=30\n"),
)
TASKS = (f"{CHILD}\n", f"{ABSENT_TASK}\n", "abc\n", "-1\n", f"1\n{CHILD}\n", CHILD, f"{CHILD}\n")
CPU_LISTS = ("0-1\n", "9999\n", "0-1,3\n", "x\n", "\n")
CPU_MASKS = ("f\n", f"{'f' * 4000}\n", "x\n")
MODES = ("exclusive\n", "shareable\n", "pseudo-locksetup\n", "bogus\n", "exclusive")


class Session:
    """Calls below one mount point; each method returns a line of the answer."""

    def __init__(self, mount: str, child: int) -> None:
        self._mount = mount
        self._child = str(child)

    def write(self, path: str, text: str) -> str:
        """Write a file with one call."""
        sent = text.replace(CHILD, self._child).encode()
        shown = text if len(text) < 99 else f"{len(text)} characters"
        return f"write {path} {shown!r}: {self._answer(lambda: _write(self.at(path), sent))}"

    def read(self, path: str) -> str:
        """Read a file."""
        try:
            text = Path(self.at(path)).read_text()
        except OSError as error:
            return f"read {path}: {errno.errorcode[error.errno or 0]}"
        lines = [CHILD if line == self._child else line for line in text.split("\n")]
        return f"read {path}: {chr(10).join(lines)!r}"

    def make(self, path: str) -> str:
        """Make a folder."""
        return f"mkdir {_short(path)}: {self._answer(lambda: os.mkdir(self.at(path)))}"

    def remove(self, path: str) -> str:
        """Remove a folder."""
        return f"rmdir {_short(path)}: {self._answer(lambda: os.rmdir(self.at(path)))}"

    def rename(self, old: str, new: str) -> str:
        """Rename a folder."""
        answer = self._answer(lambda: os.rename(self.at(old), self.at(new)))
        return f"rename {old} {new}: {answer}"

    def unlink(self, path: str) -> str:
        """Remove a file."""
        return f"unlink {path}: {self._answer(lambda: os.unlink(self.at(path)))}"

    def names(self, path: str) -> str:
        """List a folder."""
        return f"names {path or '/'}: {' '.join(sorted(os.listdir(self.at(path))))}"

    def has_child(self, path: str) -> str:
        """Return whether the child is among the tasks of a group."""
        tasks = Path(self.at(path)).read_text().split()
        return f"child in {path}: {'yes' if self._child in tasks else 'no'}"

    def info_files(self) -> list[str]:
        """Return the paths of all files below `info`."""
        paths = (path for path in Path(self.at("info")).rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self._mount)) for path in paths)

    def at(self, path: str) -> str:
        """Return a path below the mount point."""
        return f"{self._mount}/{path}"

    def _answer(self, call: Callable[[], object]) -> str:
        """Return `ok` or the errno, and the status that the file system then gives."""
        try:
            call()
            result = "ok"
        except OSError as error:
            result = errno.errorcode[error.errno or 0]
        status = Path(self.at("info/last_cmd_status")).read_text()
        return f"{result} | {status.strip()!r}"


def answers(mount: str) -> list[str]:
    """Return the lines of the session, and leave the file system as it was."""
    child = subprocess.Popen(["sleep", "3600"])
    try:
        return list(_steps(Session(mount, child.pid)))
    finally:
        child.kill()
        child.wait()


def _steps(session: Session) -> Iterator[str]:
    yield from (session.read(path) for path in session.info_files())
    yield session.names("")
    yield from map(session.read, ("schemata", "mode", "size", "cpus", "cpus_list"))
    yield session.make("BE")
    yield session.names("BE")
    yield session.read("BE/schemata")
    yield from (session.write("BE/schemata", text) for text in SCHEMATA)
    yield from map(session.read, ("BE/schemata", "BE/size", "info/L3/bit_usage"))
    yield from _task_steps(session)
    yield from (session.write("BE/cpus_list", text) for text in CPU_LISTS)
    yield from (session.write("BE/cpus", text) for text in CPU_MASKS)
    yield from map(session.read, ("BE/cpus", "BE/cpus_list", "cpus_list"))
    yield from (session.write("BE/mode", text) for text in MODES)
    yield session.write("info/last_cmd_status", "x")
    yield session.write("info/L3/cbm_mask", "1\n")
    yield session.write("info/L3_MON/max_threshold_occupancy", "999999999999\n")
    yield session.write("BE/size", "1\n")
    yield from _folder_steps(session)
    yield from _exclusive_steps(session)
    yield from _limit_steps(session)
    yield session.remove("BE")
    yield session.remove("BE")
    yield session.names("")
    yield session.has_child("tasks")


def _task_steps(session: Session) -> Iterator[str]:
    yield from (session.write("BE/tasks", text) for text in TASKS)
    yield session.read("BE/tasks")
    yield session.has_child("tasks")
    yield session.make("BE/mon_groups/m1")
    yield session.names("BE/mon_groups/m1")
    yield session.write("BE/mon_groups/m1/tasks", f"{CHILD}\n")
    yield session.has_child("BE/mon_groups/m1/tasks")
    yield session.has_child("BE/tasks")
    yield session.write("tasks", f"{CHILD}\n")
    yield session.has_child("BE/mon_groups/m1/tasks")
    yield session.write("BE/mon_groups/m1/tasks", f"{CHILD}\n")
    yield session.write("BE/tasks", f"{CHILD}\n")
    yield session.write("BE/mon_groups/m1/tasks", f"{CHILD}\n")
    yield session.write("BE/tasks", f"{CHILD}\n")
    yield session.has_child("BE/mon_groups/m1/tasks")


def _folder_steps(session: Session) -> Iterator[str]:
    created = ("BE", "BE/sub", "BE/mon_groups/m1", "mon_groups/m0", "info/x", "mon_data/x", "a b")
    yield from map(session.make, (*created, LONG_NAME, "info", "schemata"))
    removed = ("info", "mon_data", "mon_groups", LONG_NAME, "a b", "BE/mon_groups/m1")
    yield from map(session.remove, (*removed, "mon_groups/m0", "absent", "schemata"))
    yield session.rename("BE", "BX")
    yield session.unlink("BE/tasks")
    yield from map(session.read, ("mon_data/mon_L3_00/llc_occupancy", "BE/mon_data/mon_L3_01/x"))
    yield session.names("BE/mon_data/mon_L3_00")


def _exclusive_steps(session: Session) -> Iterator[str]:
    """Give the low ways to one group alone; others must not take them."""
    yield session.make("EX")
    yield session.write("EX/schemata", "L3:0=3;1=3\n")
    yield session.write("schemata", "L3:0=7fc;1=7fc\n")
    yield session.write("BE/schemata", "L3:0=7fc;1=7fc\n")
    yield session.write("EX/mode", "exclusive\n")
    yield session.write("BE/schemata", "L3:0=f\n")
    yield session.write("EX/schemata", "L3:0=f\n")
    yield session.make("NEW")
    yield session.read("NEW/schemata")
    yield session.read("info/L3/bit_usage")
    yield session.write("EX/mode", "shareable\n")
    yield from map(session.remove, ("EX", "NEW"))
    yield session.write("schemata", "L3:0=7ff;1=7ff\n")


def _limit_steps(session: Session) -> Iterator[str]:
    """Make groups until the kernel refuses one, for both kinds; a freed monitor id rests first."""
    yield from _fill(session, "G")
    time.sleep(REST_S)
    yield from _fill(session, "mon_groups/M", keep=True)
    yield session.remove("mon_groups/M0")
    yield session.make("mon_groups/M0")
    time.sleep(REST_S)
    yield session.make("mon_groups/M0")
    for name in os.listdir(session.at("mon_groups")):
        session.remove(f"mon_groups/{name}")
    time.sleep(REST_S)


def _fill(session: Session, kind: str, *, keep: bool = False) -> Iterator[str]:
    created = 0
    answer = session.make(f"{kind}0")
    while "ok |" in answer:
        created += 1
        answer = session.make(f"{kind}{created}")
    yield f"{created} of {kind}, then {answer}"
    for number in range(0 if keep else created):
        session.remove(f"{kind}{number}")


def _write(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def _short(path: str) -> str:
    return path if len(path) < 99 else f"a name of {len(path)} characters"


def main(arguments: list[str]) -> int:
    """Print the session; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.resctrl.session", description=__doc__.splitlines()[0]
    )
    parser.add_argument("mount", metavar="MOUNT", help="a mounted resctrl file system; changed")
    mount = parser.parse_args(arguments).mount
    if not Path(mount, "schemata").is_file():
        sys.stderr.write(f"{parser.prog}: {mount}: no resctrl file system is mounted there\n")
        return 3
    sys.stdout.write("".join(f"{line}\n" for line in answers(mount)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
