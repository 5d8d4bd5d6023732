"""What the maker's tool prints, as values. Pure: every function is tested on text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec

from agent.errors import ParseError
from agent.topology.address import parse_address

MIB = 1 << 20
MAX_LINES = 4096
MAX_CARDS = 64
_FIRST = re.compile(r"(\d{1,3})\s+(\S+)\s+(\S.*?)\s+(v[\d.]+)")
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_DRIVER = re.compile(r"v(\d+(?:\.\d+){1,3})")
_OF_ALL = re.compile(r"Driver\s+v(\d+(?:\.\d+){1,3})")
_MEMORY = re.compile(r"(\d{1,9})\s*MiB\s*/\s*(\d{1,9})\s*MiB")
_HEAT = re.compile(r"(-?\d{1,3})\s*C\b")
_POWER = re.compile(r"(\d{1,4})\s*W\s*/\s*(\d{1,4})\s*W")
_PERCENT = re.compile(r"(\d{1,3})\s*%")
_TOTAL = re.compile(r"Physical Memory Usage.*?Total\s*:\s*(\d{1,9})\s*MiB", re.DOTALL)


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One card of the table that the tool prints without arguments."""

    index: int
    model: str
    driver: str | None = None
    bus_id: str | None = None  # since version 5
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    core_percent: float | None = None
    celsius: float | None = None
    power_watts: float | None = None
    power_cap_watts: float | None = None


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """What `info` prints of one card."""

    uuid: str | None = None
    address: tuple[str, str, str, str] | None = None  # domain, bus, device, function as printed
    numa_node: int | None = None
    memory_bytes: int | None = None
    good: bool | None = None  # None: not told


def parse_table(text: str) -> tuple[Listed, ...]:
    """Read the table; virtual functions are left out. Text without a card raises `ParseError`."""
    of_all = _OF_ALL.search(text)
    rows = [_cells(line) for line in text.splitlines()[:MAX_LINES]]
    found: list[Listed] = []
    for first, second in pairwise(rows):
        head = _FIRST.fullmatch(first[0]) if len(first) == 3 and len(second) == 3 else None
        if head is not None and head[2] == "/" and len(found) < MAX_CARDS:
            found.append(_listed(head, first, second, of_all[1] if of_all else None))
    if not found:
        raise ParseError("table of cards", text)
    return tuple(found)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _listed(head: re.Match[str], first: list[str], second: list[str], driver: str | None) -> Listed:
    bus, own = _BUS.search(first[1]), _DRIVER.search(first[1])
    memory, heat = _MEMORY.search(second[1]), _HEAT.search(second[0])
    power, busy = _POWER.search(second[0]), _PERCENT.search(first[2])
    return Listed(
        index=int(head[1]),
        model=head[3],
        driver=own[1] if own else driver,
        bus_id=parse_address(bus[0]) if bus else None,
        memory_used_bytes=int(memory[1]) * MIB if memory else None,
        memory_bytes=int(memory[2]) * MIB or None if memory else None,
        core_percent=float(busy[1]) if busy and int(busy[1]) <= 100 else None,
        celsius=float(heat[1]) if heat else None,
        power_watts=float(power[1]) if power else None,
        power_cap_watts=float(power[2]) if power else None,
    )


def parse_detail(text: str) -> Detail:
    """Read `name : value` lines; what is not there is `None`."""
    pairs = list(_pairs(text.splitlines()[:MAX_LINES]))
    first = dict(reversed(pairs))
    # two lines have that name: a number of two digits at most, and a word, which may be hex too
    devices = [value for name, value in pairs if name == "Device"]
    numbers = [v for v in devices if _is_hex(v) and len(v.removeprefix("0x")) < 3]
    states = [v for v in devices if v not in numbers]
    parts = (first.get("Domain ID"), first.get("Bus num"), *numbers[:1], first.get("Function"))
    total, numa = _TOTAL.search(text), first.get("NUMA node id", "")
    known = [part for part in parts if part is not None and _is_hex(part)]
    address = (known[0], known[1], known[2], known[3]) if len(known) == 4 else None
    return Detail(
        uuid=first.get("UUID"),
        address=address,
        numa_node=int(numa) if numa.isdecimal() and len(numa) < 4 else None,
        memory_bytes=int(total[1]) * MIB or None if total else None,
        good=states[0] == "Good" if states else None,
    )


def _pairs(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, colon, value = line.partition(":")
        if colon and value.strip():
            yield name.strip(), value.strip()


def _is_hex(text: str) -> bool:
    return re.fullmatch(r"(0x)?[0-9A-Fa-f]{1,8}", text) is not None


def address_of(parts: tuple[str, str, str, str], known: frozenset[str]) -> str | None:
    """Return the function of `known` that the printed numbers name, in whichever base they are."""
    for base in (16, 10):
        try:
            domain, bus, device, function = (int(part, base) for part in parts)
        except ValueError:
            continue
        found = f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
        if found in known:
            return found
    return None
