"""The tasks that an emulated resctrl file system has: those of this machine, or of a test."""

from __future__ import annotations

import itertools
import re
from contextlib import suppress
from pathlib import Path
from typing import Protocol


class TaskTable(Protocol):
    """The tasks of a machine."""

    def start(self, task: int) -> str | None:
        """Return when a task began; `None` if it has ended. Numbers are used again."""
        ...

    def above(self, task: int) -> int:
        """Return the process of a thread, else the parent of a process; 0 for the first one."""
        ...

    def all_tasks(self) -> list[int]:
        """Return all tasks by number."""
        ...


class ProcessTasks:
    """The tasks of this machine."""

    def start(self, task: int) -> str | None:
        """Read the start from `/proc`."""
        try:
            return Path(f"/proc/{task}/stat").read_text().rpartition(")")[2].split()[19]
        except OSError:
            return None

    def above(self, task: int) -> int:
        """Read the process or the parent from `/proc`."""
        try:
            status = Path(f"/proc/{task}/status").read_text()
        except OSError:
            return 0
        numbers = dict(re.findall(r"^(Tgid|PPid):\t(\d+)$", status, re.MULTILINE))
        leader = int(numbers.get("Tgid", task))
        return leader if leader != task else int(numbers.get("PPid", 0))

    def all_tasks(self) -> list[int]:
        """List `/proc`."""
        tasks: list[int] = []
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                with suppress(OSError):
                    tasks += [int(task.name) for task in (process / "task").iterdir()]
        return sorted(tasks)


class Tasks:
    """Tasks that tests start and end; each one's parent may be another of them."""

    def __init__(self) -> None:
        self.parents: dict[int, int] = {}
        self._numbers = itertools.count(100)

    def add(self, parent: int = 0) -> int:
        """Start a task."""
        task = next(self._numbers)
        self.parents[task] = parent
        return task

    def start(self, task: int) -> str | None:
        """Return a start that no other task has."""
        return str(task) if task in self.parents else None

    def above(self, task: int) -> int:
        """Return the parent, if it still runs."""
        parent = self.parents[task]
        return parent if parent in self.parents else 0

    def all_tasks(self) -> list[int]:
        """Return all tasks."""
        return sorted(self.parents)
