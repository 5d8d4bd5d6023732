"""The resctrl file system of Linux 6.1 in memory: its groups, its checks, its texts and its errno.

`tests/unit/resctrl/test_emulator.py` compares it with the recorded answers of a kernel, and
`make guest` compares both with a kernel in a virtual machine. Every refusal is an `OSError`.
Tasks are those of this machine; a thread or child that the emulator sees first inherits the group
of its process or parent, as the kernel does at the fork.
"""

from __future__ import annotations

import errno
import itertools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from agent.wire_formats.kernel_text import format_cpu_list
from tests.resctrl.machine import DEFAULT_MACHINE, Machine
from tests.resctrl.tasks import ProcessTasks, TaskTable

GROUP_FILES = ("cpus", "cpus_list", "mode", "schemata", "size", "tasks")
MON_GROUP_FILES = ("cpus", "cpus_list", "tasks")
COUNTERS = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")
SYSTEM_FOLDERS = ("info", "mon_data", "mon_groups")
LIMBO_S = 2.5  # until a freed monitor id is free again; a kernel looks once a second
PID_MAX = (1 << 31) - 1

_HEX = re.compile(r"(?:0[xX])?[0-9a-fA-F]+")
_DECIMAL = re.compile(r"\+?[0-9]+")
_LIST_ITEM = re.compile(r"([0-9]+)(?:-([0-9]+))?")


@dataclass
class Group:
    """A control group, or a monitoring group inside one."""

    name: str
    values: dict[str, dict[int, int]] = field(default_factory=dict)  # by line and domain
    mode: str = "shareable"
    cpus: frozenset[int] = frozenset()
    monitored: dict[str, Group] = field(default_factory=dict)
    inode: int = 0


class Resctrl:
    """One mounted file system. Paths are relative to the mount, without a leading slash."""

    def __init__(self, machine: Machine = DEFAULT_MACHINE, tasks: TaskTable | None = None) -> None:
        self.machine = machine
        self._table = ProcessTasks() if tasks is None else tasks
        self.status = "ok\n"
        self._inodes = itertools.count(16)
        self._limbo: list[float] = []  # when monitor ids were freed that may be in use elsewhere
        self.monotonic: Callable[[], float] = time.monotonic
        self.root = self._new_group("")
        self.root.cpus = frozenset(range(machine.cpus))
        self.groups: dict[str, Group] = {"": self.root}
        self.threshold = 262144
        # of each moved task: its group, its monitoring group, its start
        self._places: dict[int, tuple[str, str, str]] = {}
        # refusals that a test orders: called with the operation and the path before each change
        self.before_change: Callable[[str, str], None] = lambda *_: None

    # --- the tree

    def is_folder(self, path: str) -> bool:
        """Return whether a path is a folder; raise ENOENT if nothing is there."""
        parts = [part for part in path.split("/") if part]
        return self._node(parts) is None

    def names(self, path: str) -> list[str]:
        """Return the sorted names of a folder."""
        parts = [part for part in path.split("/") if part]
        if parts[:1] == ["info"]:
            below = {p[len(parts)] for p in self._info_paths() if list(p[: len(parts)]) == parts}
            return sorted(below)
        group, rest = self._split(parts)
        if rest == []:
            names = [*GROUP_FILES]
            names += ["mon_data", "mon_groups"] if self.machine.rmids else []
            names += ["info", *(name for name in self.groups if name)] if group.name == "" else []
            return sorted(names)
        if rest == ["mon_groups"]:
            return sorted(group.monitored)
        if rest[0] == "mon_groups":
            monitored = self._monitored(group, rest[1])
            assert monitored is not None
            if rest[2:] == []:
                return sorted((*MON_GROUP_FILES, "mon_data"))
            rest = rest[2:]
        if rest == ["mon_data"]:
            return [f"mon_L3_{domain:02d}" for domain in self.machine.l3_domains]
        return sorted(COUNTERS)

    def inode(self, path: str) -> int:
        """Return the inode of a group's folder; 0 for others, which have no identity here."""
        group, rest = self._split([part for part in path.split("/") if part])
        if rest == []:
            return group.inode
        if rest[0] == "mon_groups" and len(rest) == 2:
            return self._monitored(group, rest[1]).inode
        return 0

    def is_writable(self, path: str) -> bool:
        """Return whether a file has the write permission: the kernel asks it of root as well."""
        name = path.rpartition("/")[2]
        if path.startswith("info/"):
            return name == "max_threshold_occupancy"
        return name in ("schemata", "tasks", "cpus", "cpus_list", "mode")

    def _node(self, parts: list[str]) -> Callable[[], str] | None:
        """Return the reader of a file, `None` for a folder; raise ENOENT."""
        if parts[:1] == ["info"]:
            paths = self._info_paths()
            if tuple(parts) in paths:
                return paths[tuple(parts)]
            if any(list(path[: len(parts)]) == parts for path in paths):
                return None
            raise _error(errno.ENOENT)
        group, rest = self._split(parts)
        if rest == []:
            return None
        if rest[0] == "mon_groups" and self.machine.rmids:
            if len(rest) == 1:
                return None
            monitored = self._monitored(group, rest[1])
            return self._member(group, monitored, rest[2:], MON_GROUP_FILES)
        return self._member(group, group, rest, GROUP_FILES)

    def _member(
        self, group: Group, place: Group, rest: list[str], files: tuple[str, ...]
    ) -> Callable[[], str] | None:
        if rest == [] or (rest == ["mon_data"] and self.machine.rmids):
            return None
        if rest[0] == "mon_data" and self.machine.rmids:
            domains = [f"mon_L3_{domain:02d}" for domain in self.machine.l3_domains]
            if rest[1] in domains and len(rest) == 2:
                return None
            if rest[1] in domains and len(rest) == 3 and rest[2] in COUNTERS:
                return lambda: "0\n"
        if len(rest) == 1 and rest[0] in files:
            return lambda: self._text(group, place, rest[0])
        raise _error(errno.ENOENT)

    def _split(self, parts: list[str]) -> tuple[Group, list[str]]:
        """Return the control group of a path and the names below it."""
        if parts and parts[0] in self.groups:
            return self.groups[parts[0]], parts[1:]
        if parts and parts[0] not in (*GROUP_FILES, *SYSTEM_FOLDERS):
            raise _error(errno.ENOENT)
        return self.root, parts

    def _monitored(self, group: Group, name: str) -> Group:
        monitored = group.monitored.get(name)
        if monitored is None:
            raise _error(errno.ENOENT)
        return monitored

    # --- reads

    def read(self, path: str) -> str:
        """Return a file's text."""
        reader = self._node([part for part in path.split("/") if part])
        if reader is None:
            raise _error(errno.EISDIR)
        return reader()

    def _text(self, group: Group, place: Group, name: str) -> str:
        if name == "schemata":
            return self._print(group, self._print_value)
        if name == "size":
            return self._print(group, self._size)
        if name == "mode":
            return f"{group.mode}\n"
        if name == "tasks":
            monitored = place.name if place is not group else None
            return "".join(f"{task}\n" for task in self.tasks(group.name, monitored))
        if name == "cpus":
            return f"{sum(1 << cpu for cpu in place.cpus):x}\n"
        return f"{format_cpu_list(place.cpus)}\n"

    def _print(self, group: Group, show: Callable[[str, int], str]) -> str:
        width = max(6 if self.machine.l3_domains else 2, *(len(line) for line in group.values))
        lines = ["MB"] if "MB" in group.values else []
        lines += [line for line in group.values if line != "MB"]
        return "".join(
            f"{line:>{width}}:"
            + ";".join(
                f"{i}={show(line, value)}" for i, value in sorted(group.values[line].items())
            )
            + "\n"
            for line in lines
        )

    def _print_value(self, line: str, value: int) -> str:
        if line == "MB":
            width = len(str(self.machine.mb_max))
            return f"{value:>{width}}"
        return f"{value:0{(self.machine.l3_mask.bit_length() + 3) // 4}x}"

    def _size(self, line: str, value: int) -> str:
        if line == "MB":
            return str(value)
        ways = self.machine.l3_mask.bit_length()
        return str(self.machine.l3_bytes // ways * value.bit_count())

    def _info_paths(self) -> dict[tuple[str, ...], Callable[[], str]]:
        machine = self.machine
        paths: dict[tuple[str, ...], Callable[[], str]] = {
            ("info", "last_cmd_status"): lambda: self.status
        }
        for line in machine.l3_lines:
            closids = machine.l3_closids // (2 if machine.cdp else 1)
            facts: dict[str, object] = {
                "bit_usage": lambda line=line: self._usage(line),
                "cbm_mask": f"{machine.l3_mask:x}",
                "min_cbm_bits": machine.l3_min_bits,
                "num_closids": closids,
                "shareable_bits": f"{machine.l3_shareable:x}",
            }
            if machine.sparse_masks is not None:
                facts["sparse_masks"] = int(machine.sparse_masks)
            paths |= _constants(line, facts)
        if machine.mb_domains:
            facts = {
                "bandwidth_gran": machine.mb_gran,
                "delay_linear": int(machine.mb_linear),
                "min_bandwidth": machine.mb_min,
                "num_closids": machine.mb_closids,
                "thread_throttle_mode": "max",
            }
            paths |= _constants("MB", facts)
        if machine.rmids:
            facts = {
                "max_threshold_occupancy": lambda: str(self.threshold),
                "mon_features": "\n".join(COUNTERS),
                "num_rmids": machine.rmids,
            }
            paths |= _constants("L3_MON", facts)
        return paths

    def _usage(self, line: str) -> str:
        """Return one letter a way, the highest first; see `bit_usage` in the kernel's manual."""
        machine = self.machine
        texts = []
        for domain in machine.l3_domains:
            used = exclusive = 0
            for group in self.groups.values():
                if group.mode == "exclusive":
                    exclusive |= group.values[line][domain]
                else:
                    used |= group.values[line][domain]
            letters = ""
            for way in reversed(range(machine.l3_mask.bit_length())):
                bit = 1 << way
                if machine.l3_shareable & bit:
                    letters += "X" if used & bit else "H"
                else:
                    letters += "E" if exclusive & bit else "S" if used & bit else "0"
            texts.append(f"{domain}={letters}")
        return ";".join(texts)

    # --- groups

    def make(self, path: str) -> None:
        """Make a control group or a monitoring group."""
        parent, _, name = path.rpartition("/")
        self._refuse_existing(path)
        self.before_change("make", path)
        if "\n" in name:
            raise _error(errno.EINVAL)
        group, rest = self._split([part for part in parent.split("/") if part])
        if rest == ["mon_groups"] and self.machine.rmids:
            self._take_rmid()
            group.monitored[name] = Group(name=name, inode=next(self._inodes))
        elif parent == "":
            if self.machine.rmids:
                self._take_rmid()
            if len(self.groups) >= self.machine.closids:
                self._free_rmid()
                raise self._refuse_more(errno.ENOSPC, "Out of CLOSIDs")
            self.groups[name] = self._new_group(name)
        else:
            raise _error(errno.EPERM)

    def _refuse_existing(self, path: str) -> None:
        try:
            self.is_folder(path)
        except OSError:
            return
        raise _error(errno.EEXIST)

    def _take_rmid(self) -> None:
        used = sum(1 + len(group.monitored) for group in self.groups.values())
        now_s = self.monotonic()
        self._limbo = [freed_s for freed_s in self._limbo if now_s - freed_s < LIMBO_S]
        if used + len(self._limbo) >= self.machine.rmids:
            raise self._refuse_more(errno.EBUSY if self._limbo else errno.ENOSPC, "Out of RMIDs")

    def _free_rmid(self) -> None:
        """Free a monitor id; other caches than that of the caller are asked later."""
        if self.machine.rmids and len(self.machine.l3_domains) > 1:
            self._limbo.append(self.monotonic())

    def _new_group(self, name: str) -> Group:
        machine = self.machine
        groups = self.groups.values() if name else ()
        values: dict[str, dict[int, int]] = {}
        for line in machine.l3_lines:
            values[line] = {}
            for domain in machine.l3_domains:
                chosen = 0
                for group in groups:
                    chosen |= group.values[line][domain] if group.mode == "exclusive" else 0
                values[line][domain] = machine.l3_mask & ~chosen
                if not values[line][domain]:
                    self._free_rmid()
                    raise self._refuse_more(errno.ENOSPC, f"No space on {line}:{domain}")
        if machine.mb_domains:
            values["MB"] = dict.fromkeys(machine.mb_domains, machine.mb_default)
        return Group(name=name, values=values, inode=next(self._inodes))

    def remove(self, path: str) -> None:
        """Remove a group; its tasks return to the group above it."""
        if not self.is_folder(path):
            raise _error(errno.ENOTDIR)
        self.before_change("remove", path)
        group, rest = self._split([part for part in path.split("/") if part])
        if rest == [] and group is not self.root:
            del self.groups[group.name]
            for _ in range(1 + len(group.monitored)):
                self._free_rmid()
            self._forget(lambda place: place[0] == group.name)
            self.root.cpus |= group.cpus
        elif len(rest) == 2 and rest[0] == "mon_groups":
            del group.monitored[rest[1]]
            self._free_rmid()
            for task, (name, monitored, start) in tuple(self._places.items()):
                if (name, monitored) == (group.name, rest[1]):
                    self._places[task] = (name, "", start)
        else:
            raise _error(errno.EPERM)

    # --- writes

    def write(self, path: str, text: str) -> None:
        """Write a file with one call."""
        parts = [part for part in path.split("/") if part]
        if self.is_folder(path):
            raise _error(errno.EISDIR)
        self.before_change("write", path)
        if parts[0] == "info":
            self._write_threshold(text)
            return
        group, rest = self._split(parts)
        monitored = rest[1] if rest[0] == "mon_groups" else ""
        place = group.monitored[monitored] if monitored else group
        {
            "schemata": lambda: self._write_schemata(group, text),
            "tasks": lambda: self._write_task(group, monitored, text),
            "mode": lambda: self._write_mode(group, text),
            "cpus": lambda: self._write_cpus(place, _parse_cpu_mask(text, self.machine.cpus)),
            "cpus_list": lambda: self._write_cpus(place, _parse_cpu_list(text, self.machine.cpus)),
        }[rest[-1]]()

    def _refuse(self, number: int, status: str) -> OSError:
        self.status = f"{status}\n"
        return _error(number)

    def _refuse_more(self, number: int, line: str) -> OSError:
        """Return an error whose line is added: such calls do not clear the status."""
        self.status = f"{line}\n" if self.status == "ok\n" else f"{self.status}{line}\n"
        return _error(number)

    def _write_threshold(self, text: str) -> None:
        if not _DECIMAL.fullmatch(text.strip()):
            raise _error(errno.EINVAL)
        if int(text) > 1 << 32:
            raise _error(errno.ERANGE if int(text) < 1 << 64 else errno.EINVAL)
        self.threshold = int(text)

    def _write_schemata(self, group: Group, text: str) -> None:
        if not text.endswith("\n"):
            raise _error(errno.EINVAL)
        self.status = "ok\n"
        staged: dict[str, dict[int, int]] = {}
        for line in text[:-1].split("\n"):
            name, colon, rest = line.partition(":")
            name = name.strip(" \t")
            if not colon:
                raise self._refuse(errno.EINVAL, "Missing ':'")
            if not rest:
                raise self._refuse(errno.EINVAL, f"Missing '{name}' value")
            if name not in group.values:
                raise self._refuse(errno.EINVAL, f"Unknown or unsupported resource name '{name}'")
            self._stage_line(group, name, rest, staged.setdefault(name, {}))
        for name, values in staged.items():
            group.values[name].update(values)

    def _stage_line(self, group: Group, line: str, text: str, staged: dict[int, int]) -> None:
        for item in text.split(";"):
            if not item:
                return
            domain_text, equals, value_text = item.partition("=")
            if not equals or not _DECIMAL.fullmatch(domain_text):
                raise self._refuse(errno.EINVAL, "Missing '=' or non-numeric domain")
            domain = int(domain_text)
            if domain not in group.values[line]:
                raise _error(errno.EINVAL)
            if domain in staged:
                raise self._refuse(errno.EINVAL, f"Duplicate domain {domain}")
            value_text = value_text.strip(" \t")
            if line == "MB":
                staged[domain] = self._bandwidth(value_text)
            else:
                staged[domain] = self._mask(group, line, domain, value_text)

    def _bandwidth(self, text: str) -> int:
        machine = self.machine
        if not _DECIMAL.fullmatch(text):
            raise self._refuse(errno.EINVAL, f"Invalid MB value {text}")
        value = int(text)
        if not machine.mba_mbps and not machine.mb_min <= value <= machine.mb_max:
            bounds = f"[{machine.mb_min},{machine.mb_max}]"
            raise self._refuse(errno.EINVAL, f"MB value {value} out of range {bounds}")
        return -(-value // machine.mb_gran) * machine.mb_gran

    def _mask(self, group: Group, line: str, domain: int, text: str) -> int:
        machine = self.machine
        if not _HEX.fullmatch(text):
            raise self._refuse(errno.EINVAL, f"Non-hex character in the mask {text}")
        mask = int(text, 16)
        if (machine.l3_min_bits > 0 and mask == 0) or mask > machine.l3_mask:
            raise self._refuse(errno.EINVAL, "Mask out of range")
        run = mask // (mask & -mask)
        if not machine.sparse_masks and run & (run + 1):
            raise self._refuse(errno.EINVAL, f"The mask {mask:x} has non-consecutive 1-bits")
        if mask.bit_count() < machine.l3_min_bits:
            text = f"Need at least {machine.l3_min_bits} bits in the mask"
            raise self._refuse(errno.EINVAL, text)
        for other in self.groups.values():
            if other is not group and other.values[line][domain] & mask:
                if other.mode == "exclusive":
                    raise self._refuse(errno.EINVAL, "Overlaps with exclusive group")
                if group.mode == "exclusive":
                    raise self._refuse(errno.EINVAL, "Overlaps with other group")
        return mask

    def _write_mode(self, group: Group, text: str) -> None:
        if not text.endswith("\n"):
            raise _error(errno.EINVAL)
        self.status = "ok\n"
        mode = text[:-1]
        if mode == group.mode:
            return
        if mode == "exclusive":
            self._check_exclusive(group)
        elif mode == "pseudo-locksetup":
            raise self._refuse(errno.EINVAL, "Pseudo-locking not supported")
        elif mode != "shareable":
            raise self._refuse(errno.EINVAL, "Unknown or unsupported mode")
        group.mode = mode

    def _check_exclusive(self, group: Group) -> None:
        if not self.machine.l3_lines:
            raise self._refuse(errno.EINVAL, "Cannot be exclusive without CAT/CDP")
        for line in self.machine.l3_lines:
            for domain, mask in group.values[line].items():
                others = (
                    one.values[line][domain] for one in self.groups.values() if one is not group
                )
                if mask & self.machine.l3_shareable or any(mask & other for other in others):
                    raise self._refuse(errno.EINVAL, "Schemata overlaps")

    def _write_cpus(self, place: Group, cpus: frozenset[int] | int) -> None:
        if isinstance(cpus, int):
            raise self._refuse_more(cpus, "Bad CPU list/mask")
        if place is not self.root:
            self.root.cpus -= cpus
            self.root.cpus |= place.cpus - cpus
        place.cpus = cpus

    # --- tasks

    def _write_task(self, group: Group, monitored: str, text: str) -> None:
        words = text.strip()
        if not re.fullmatch(r"[+-]?[0-9]+", words) or not 0 <= int(words) <= PID_MAX:
            raise _error(errno.EINVAL)
        self.status = "ok\n"
        task = int(words)
        start = self._table.start(task)
        if start is None:
            raise self._refuse(errno.ESRCH, f"No task {task}")
        if monitored and self._place(task)[0] != group.name:
            raise self._refuse(errno.EINVAL, "Can't move task to different control group")
        self._places[task] = (group.name, monitored, start)

    def tasks(self, group: str, monitored: str | None = None) -> Iterator[int]:
        """Yield the tasks of a group in the order of their numbers."""
        for task in self._table.all_tasks():
            name, inside, _ = self._place(task)
            if name == group and monitored in (None, inside):
                yield task

    def _place(self, task: int) -> tuple[str, str, str]:
        """Return where a task is; one that is new is where its process or its parent is."""
        place = self._places.get(task)
        start = self._table.start(task)
        if place is not None and place[2] == start:
            return place
        self._places.pop(task, None)
        above = self._table.above(task)
        name, monitored, _ = self._place(above) if above else ("", "", "")
        self._places[task] = (name, monitored, start or "")
        return self._places[task]

    def _forget(self, is_forgotten: Callable[[tuple[str, str, str]], bool]) -> None:
        for task, place in tuple(self._places.items()):
            if is_forgotten(place):
                self._places[task] = ("", "", place[2])


def _error(number: int) -> OSError:
    return OSError(number, errno.errorcode[number])


def _constants(folder: str, facts: dict[str, object]) -> dict[tuple[str, ...], Callable[[], str]]:
    paths: dict[tuple[str, ...], Callable[[], str]] = {}
    for name, fact in facts.items():
        paths["info", folder, name] = _line_reader(fact)
    return paths


def _line_reader(fact: object) -> Callable[[], str]:
    return lambda: f"{fact() if callable(fact) else fact}\n"


def _parse_cpu_list(text: str, count: int) -> frozenset[int] | int:
    """Return the CPUs of a list, or the errno of the kernel's parser."""
    cpus: set[int] = set()
    for item in filter(None, text.strip().split(",")):
        match = _LIST_ITEM.fullmatch(item)
        if match is None:
            return errno.EINVAL
        first, last = int(match[1]), int(match[2] or match[1])
        if last >= count:
            return errno.ERANGE
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def _parse_cpu_mask(text: str, count: int) -> frozenset[int] | int:
    words = text.strip()
    if not re.fullmatch(r"[0-9a-fA-F,]*", words):
        return errno.EINVAL
    mask = int(words.replace(",", "") or "0", 16)
    if mask >> -(-count // 4) * 4:
        return errno.EOVERFLOW
    return frozenset(cpu for cpu in range(count) if mask >> cpu & 1)
