"""Devices from the output of `cnmon`, for hosts where the library cannot be loaded."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec

from agent.errors import AgentError, ParseError
from agent.snapshot.device import DeviceKind, Health, HealthState, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import Inventory, Problem
from agent.snapshot.pci import parse_address
from plugins.shared.library_file import LibraryUnavailable, refuse_untrusted
from plugins.shared.resources import card_resources
from plugins.vendors.cambricon.discovery.descriptions import device_id, model_label
from plugins.vendors.cambricon.discovery.sysfs import describe_function, read_node

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


class CnmonRow(msgspec.Struct, frozen=True, kw_only=True):
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


class CnmonDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What `info` prints of one card."""

    uuid: str | None = None
    address: tuple[str, str, str, str] | None = None  # domain, bus, device, function as printed
    numa_node: int | None = None
    memory_bytes: int | None = None
    good: bool | None = None  # None: not told


def parse_table(text: str) -> tuple[CnmonRow, ...]:
    """Read the table; virtual functions are left out. Text without a card raises `ParseError`."""
    of_all = _OF_ALL.search(text)
    rows = [_cells(line) for line in text.splitlines()[:MAX_LINES]]
    found: list[CnmonRow] = []
    for first, second in pairwise(rows):
        head = _FIRST.fullmatch(first[0]) if len(first) == 3 and len(second) == 3 else None
        if head is not None and head[2] == "/" and len(found) < MAX_CARDS:
            found.append(_parse_row(head, first, second, of_all[1] if of_all else None))
    if not found:
        raise ParseError("table of cards", text)
    return tuple(found)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _parse_row(
    head: re.Match[str], first: list[str], second: list[str], driver: str | None
) -> CnmonRow:
    bus, own = _BUS.search(first[1]), _DRIVER.search(first[1])
    memory, heat = _MEMORY.search(second[1]), _HEAT.search(second[0])
    power, busy = _POWER.search(second[0]), _PERCENT.search(first[2])
    return CnmonRow(
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


def parse_detail(text: str) -> CnmonDetail:
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
    return CnmonDetail(
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


def address_of(parts: tuple[str, str, str, str], addresses: frozenset[str]) -> str | None:
    """Return the one of `addresses` that the printed numbers name, in base 16 or 10."""
    for base in (16, 10):
        try:
            domain, bus, device, function = (int(part, base) for part in parts)
        except ValueError:
            continue
        address = f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
        if address in addresses:
            return address
    return None


TOOL = "/usr/bin/cnmon"

DEADLINE_S = 8.0  # for all that is asked in one discovery

MAX_OUTPUT = 1 << 20


class CnmonFailed(AgentError):
    """The tool did not answer in time, or said that it failed."""


class CnmonCard(msgspec.Struct, frozen=True, kw_only=True):
    """One card as the tool knows it."""

    row: CnmonRow
    detail: CnmonDetail


def run_cnmon(driver_root: str) -> tuple[CnmonCard, ...]:
    """Return the cards; none if there is no tool, or it is of no use."""
    path = driver_root.rstrip("/") + TOOL
    until_s = time.monotonic() + DEADLINE_S
    try:
        if not os.access(path, os.X_OK):
            return ()
        refuse_untrusted(os.path.realpath(path))
        listed = parse_table(_run([path], until_s))
    except (LibraryUnavailable, CnmonFailed, ParseError):
        return ()
    return tuple(CnmonCard(row=card, detail=_detail(path, card.index, until_s)) for card in listed)


def _detail(path: str, index: int, until_s: float) -> CnmonDetail:
    try:
        return parse_detail(_run([path, "info", "-c", str(index)], until_s))
    except CnmonFailed:
        return CnmonDetail()


def _run(command: Sequence[str], until_s: float) -> str:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise CnmonFailed(f"{command[0]}: no time left")
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=left_s, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CnmonFailed(f"{command[0]}: {str(error)[:100]}") from error
    return done.stdout[:MAX_OUTPUT].decode("utf-8", "replace")


def inventory_from_cnmon(
    told: Sequence[CnmonCard], host: HostFiles, functions: Sequence[str], problem: Problem
) -> Inventory:
    """Return what the tool knows; functions that it does not list are told by sysfs alone."""
    known = frozenset(functions)
    found = [_device(card, host, known) for card in told]
    listed = {device.bus_id for device in found}
    rest = [b for b in functions if b not in listed][: max(0, len(functions) - len(found))]
    silent = (
        describe_function(b, problem.reason, problem.message, HealthState.FAILED) for b in rest
    )
    remark = Problem(reason="ToolOnly", message=f"{TOOL} is asked instead of the library")
    return Inventory(
        vendor="cambricon",
        devices=(*found, *silent),
        driver_version=next((c.row.driver for c in told if c.row.driver), None),
        problems=(problem, remark),
    )


def _device(card: CnmonCard, host: HostFiles, known: frozenset[str]) -> VendorDevice:
    listed, detail = card.row, card.detail
    address = address_of(detail.address, known) if detail.address else None
    total = listed.memory_bytes or detail.memory_bytes
    model = model_label(listed.model, None)
    return VendorDevice(
        kind=DeviceKind.MLU,
        vendor="cambricon",
        bus_id=listed.bus_id or address,
        uuid=device_id(detail.uuid),
        minor=listed.index,
        vendor_minor=listed.index,
        model=model,
        memory_bytes=total,
        health=_health(detail),
        resources=card_resources(total) if total else (),
        labels=(("xpu-agent.io/model", model),) if model else (),
        facts=() if total else (("unschedulable", "MemoryUnknown"),),
        nodes=read_node(host, f"/dev/cambricon_dev{listed.index}"),
    )


def _health(detail: CnmonDetail) -> Health:
    if detail.good is False:
        message = f"{TOOL} does not call the card good"
        return Health(state=HealthState.FAILED, reason="DeviceInProblem", message=message)
    if detail.good is None:
        message = f"{TOOL} does not say how the card is"
        return Health(state=HealthState.SUSPECT, reason="DriverError", message=message)
    return Health()
