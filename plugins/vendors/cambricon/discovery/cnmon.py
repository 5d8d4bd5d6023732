"""Devices from the output of `cnmon`, for hosts where the library cannot be loaded."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec

from agent.errors import ParseError
from agent.snapshot.device import DeviceKind, Health, HealthState, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import Inventory, Problem
from agent.snapshot.pci import parse_address
from plugins.shared.resources import card_resources
from plugins.shared.tool import ToolFailed, find_tool, run_tool
from plugins.vendors.cambricon.discovery.descriptions import device_id, model_label
from plugins.vendors.cambricon.discovery.sysfs import describe_function, read_node

MIB = 1 << 20
MAX_LINES = 4096
MAX_CARDS = 64
_FIRST = re.compile(r"(\d{1,3})\s+(\S+)\s+(\S.*?)\s+(v[\d.]+)")
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_DRIVER = re.compile(r"v(\d+(?:\.\d+){1,3})")
_OF_ALL = re.compile(r"Driver\s+v(\d+(?:\.\d+){1,3})")
_MEMORY = re.compile(r"\d{1,9}\s*MiB\s*/\s*(\d{1,9})\s*MiB")
_TOTAL = re.compile(r"Physical Memory Usage.*?Total\s*:\s*(\d{1,9})\s*MiB", re.DOTALL)


class CnmonRow(msgspec.Struct, frozen=True, kw_only=True):
    """One card of the table that the tool prints without arguments."""

    index: int
    model: str
    driver: str | None = None
    bus_id: str | None = None  # since version 5
    memory_bytes: int | None = None


class CnmonDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `cnmon info` for one card."""

    uuid: str | None = None
    address: tuple[str, str, str, str] | None = None  # domain, bus, device, function as printed
    memory_bytes: int | None = None
    good: bool | None = None  # None: unknown


def parse_table(text: str) -> tuple[CnmonRow, ...]:
    """Parse the table, without virtual functions; raises `ParseError` if there is no card."""
    driver_line = _OF_ALL.search(text)
    rows = [_cells(line) for line in text.splitlines()[:MAX_LINES]]
    cards: list[CnmonRow] = []
    for first, second in pairwise(rows):
        head = _FIRST.fullmatch(first[0]) if len(first) == 3 and len(second) == 3 else None
        if head is not None and head[2] == "/" and len(cards) < MAX_CARDS:
            cards.append(_parse_row(head, first, second, driver_line[1] if driver_line else None))
    if not cards:
        raise ParseError("table of cards", text)
    return tuple(cards)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _parse_row(
    head: re.Match[str], first: list[str], second: list[str], driver: str | None
) -> CnmonRow:
    bus, driver_version = _BUS.search(first[1]), _DRIVER.search(first[1])
    memory = _MEMORY.search(second[1])
    return CnmonRow(
        index=int(head[1]),
        model=head[3],
        driver=driver_version[1] if driver_version else driver,
        bus_id=parse_address(bus[0]) if bus else None,
        memory_bytes=int(memory[1]) * MIB or None if memory else None,
    )


def parse_detail(text: str) -> CnmonDetail:
    """Parse `name : value` lines; missing values are `None`."""
    pairs = list(_pairs(text.splitlines()[:MAX_LINES]))
    first = dict(reversed(pairs))
    # two lines are named Device: a number with one or two digits, and a state
    devices = [value for name, value in pairs if name == "Device"]
    numbers = [v for v in devices if _is_hex(v) and len(v.removeprefix("0x")) < 3]
    states = [v for v in devices if v not in numbers]
    parts = (first.get("Domain ID"), first.get("Bus num"), *numbers[:1], first.get("Function"))
    total = _TOTAL.search(text)
    numbers_found = [part for part in parts if part is not None and _is_hex(part)]
    address = (
        (numbers_found[0], numbers_found[1], numbers_found[2], numbers_found[3])
        if len(numbers_found) == 4
        else None
    )
    return CnmonDetail(
        uuid=first.get("UUID"),
        address=address,
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
    """Return the one of `addresses` with the printed numbers, in base 16 or 10."""
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
DEADLINE_S = 8.0  # for all runs of the tool in one discovery


class CnmonCard(msgspec.Struct, frozen=True, kw_only=True):
    """One card as the tool reports it."""

    row: CnmonRow
    detail: CnmonDetail


def run_cnmon(driver_root: str) -> tuple[CnmonCard, ...]:
    """Return the tool's cards; empty if there is no usable tool."""
    path = find_tool((driver_root.rstrip("/") + TOOL,))
    if path is None:
        return ()
    until_s = time.monotonic() + DEADLINE_S
    try:
        rows = parse_table(run_tool(path, (), until_s - time.monotonic()))
    except (ToolFailed, ParseError):
        return ()
    return tuple(CnmonCard(row=card, detail=_detail(path, card.index, until_s)) for card in rows)


def _detail(path: str, index: int, until_s: float) -> CnmonDetail:
    arguments = ("info", "-c", str(index))
    try:
        return parse_detail(run_tool(path, arguments, until_s - time.monotonic()))
    except ToolFailed:
        return CnmonDetail()


def inventory_from_cnmon(
    cards: Sequence[CnmonCard], host: HostFiles, functions: Sequence[str], problem: Problem
) -> Inventory:
    """Return an inventory of the tool's cards, and of other functions from sysfs alone."""
    addresses = frozenset(functions)
    devices = [_device(card, host, addresses) for card in cards]
    bus_ids = {device.bus_id for device in devices}
    others = [b for b in functions if b not in bus_ids][: max(0, len(functions) - len(devices))]
    described = (
        describe_function(b, problem.reason, problem.message, HealthState.FAILED) for b in others
    )
    remark = Problem(reason="ToolOnly", message=f"{TOOL} is asked instead of the library")
    return Inventory(
        vendor="cambricon",
        devices=(*devices, *described),
        driver_version=next((c.row.driver for c in cards if c.row.driver), None),
        problems=(problem, remark),
    )


def _device(card: CnmonCard, host: HostFiles, addresses: frozenset[str]) -> VendorDevice:
    row, detail = card.row, card.detail
    address = address_of(detail.address, addresses) if detail.address else None
    total = row.memory_bytes or detail.memory_bytes
    model = model_label(row.model, None)
    return VendorDevice(
        kind=DeviceKind.MLU,
        vendor="cambricon",
        bus_id=row.bus_id or address,
        uuid=device_id(detail.uuid),
        minor=row.index,
        vendor_minor=row.index,
        model=model,
        memory_bytes=total,
        health=_health(detail),
        resources=card_resources(total) if total else (),
        labels=(("xpu-agent.io/model", model),) if model else (),
        facts=() if total else (("unschedulable", "MemoryUnknown"),),
        nodes=read_node(host, f"/dev/cambricon_dev{row.index}"),
    )


def _health(detail: CnmonDetail) -> Health:
    if detail.good is False:
        message = f"{TOOL} does not call the card good"
        return Health(state=HealthState.FAILED, reason="DeviceInProblem", message=message)
    if detail.good is None:
        message = f"{TOOL} does not say how the card is"
        return Health(state=HealthState.SUSPECT, reason="DriverError", message=message)
    return Health()
