"""Chips from the output of `npu-smi`, for hosts where the library cannot be loaded.

The command reports fewer facts than the library and is slower. Other lines than table rows are
ignored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from agent.clock import SYSTEM_CLOCK, Clock
from agent.errors import AgentError, ParseError
from agent.snapshot.device import Health, HealthState, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import DeviceSample, Inventory, MetricValue, Problem
from agent.snapshot.pci import parse_address
from plugins.shared import metric_families
from plugins.shared.tool import find_tool, run_tool
from plugins.vendors.ascend.discovery import models
from plugins.vendors.ascend.discovery.descriptions import (
    MIB,
    ChipDescription,
    chip_uuid,
    describe_chip,
)
from plugins.vendors.ascend.discovery.links import derive_links
from plugins.vendors.ascend.discovery.sysfs import AscendFunction, describe_function
from plugins.vendors.ascend.library.dcmi import driver_version
from plugins.vendors.ascend.library.facts import ChipFacts

MAX_TEXT = 1 << 20
MAX_ROWS = 256
MAX_COLUMN = 16  # characters of a number, with its blanks
HEALTH_OK = "OK"
_HEADER = re.compile(r"\|\s*NPU\s+Name\s*\|\s*Health\s*\|")
_PROCESSES = "Process id"
_NUMBER = re.compile(r"-?\d{1,9}(?:\.\d{1,9})?")
_PAIR = re.compile(r"(?<!\d)(\d{1,9})\s*/\s*(\d{1,9})(?!\d)")
_COLUMN = re.compile(r"(?:NPU|Phy-ID)(\d{1,3})")


class NpuSmiRow(msgspec.Struct, frozen=True, kw_only=True):
    """One chip of `npu-smi info`; `None` for a dash. Memory is (used, total) in MB."""

    card: int
    chip: int
    phy: int | None  # None: the table has no such column
    name: str
    health: str
    bus_id: str | None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    core_percent: float | None = None
    ddr_mb: tuple[int, int] | None = None
    hbm_mb: tuple[int, int] | None = None


def parse_info(text: str) -> tuple[NpuSmiRow, ...]:
    """Parse `npu-smi info`; rows keep their order. Raises `ParseError` without a table."""
    table, _, _ = text[:MAX_TEXT].partition(_PROCESSES)
    head = _HEADER.search(table)
    if head is None:
        raise ParseError("npu-smi info", text)
    cells = list(_cells(table[head.start() :]))
    columns = " ".join(cells[1]) if len(cells) > 1 else ""
    with_phy = "Phy-ID" in columns or "Device" in columns.split()
    rows = [_row(a, b, with_phy=with_phy, hbm="HBM" in columns) for a, b in _row_pairs(cells[2:])]
    return tuple(row for row in rows if row is not None)[:MAX_ROWS]


def _cells(table: str) -> Iterator[tuple[str, ...]]:
    for line in table.splitlines():
        parts = tuple(part.strip() for part in line.strip().strip("|").split("|"))
        if line.strip().startswith("|") and len(parts) == 3:
            yield parts


def _row_pairs(
    rows: list[tuple[str, ...]],
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    yield from zip(rows[::2], rows[1::2], strict=False)


def _row(
    first: tuple[str, ...], second: tuple[str, ...], *, with_phy: bool, hbm: bool
) -> NpuSmiRow | None:
    card, _, name = first[0].partition(" ")
    chip, _, phy = second[0].partition(" ")
    if not (card.isdecimal() and chip.isdecimal()) or len(card + chip) > 6:
        return None
    power, temperature = _leading(first[2], 2)
    (core_percent,) = _leading(second[2], 1)
    pairs = [(int(used), int(total)) for used, total in _PAIR.findall(second[2])]
    return NpuSmiRow(
        card=int(card),
        chip=int(chip),
        phy=int(phy) if with_phy and phy.strip().isdecimal() and len(phy) < MAX_COLUMN else None,
        name=name.strip(),
        health=first[1],
        bus_id=_address(second[1]),
        power_watts=power,
        temperature_celsius=temperature,
        core_percent=core_percent
        if core_percent is not None and 0 <= core_percent <= 100
        else None,
        ddr_mb=_positive_total(pairs[0]) if pairs else None,
        hbm_mb=_positive_total(pairs[1]) if hbm and len(pairs) > 1 else None,
    )


def _leading(text: str, count: int) -> list[float | None]:
    """Return the first words as numbers; `None` for a dash or another text."""
    words = [*text.split()[:count], *[""] * count][:count]
    return [float(text_part) if _NUMBER.fullmatch(text_part) else None for text_part in words]


def _positive_total(pair: tuple[int, int]) -> tuple[int, int] | None:
    return pair if 0 <= pair[0] <= pair[1] and pair[1] > 0 else None


def _address(text: str) -> str | None:
    try:
        return parse_address(text)
    except ParseError:
        return None


def parse_topo(text: str) -> dict[tuple[int, int], str]:
    """Return link types by two physical ids, the smaller first; raises `ParseError` without any.

    Link types are those of the tool's legend: HCCS, HCCS_SW, SIO, PIX, PXB, PHB, SYS, NA.
    """
    lines = text[:MAX_TEXT].splitlines()
    heads = [index for index, line in enumerate(lines) if len(_COLUMN.findall(line)) > 1]
    if not heads:
        raise ParseError("npu-smi topo", text)
    columns = [int(number) for number in _COLUMN.findall(lines[heads[0]])]
    link_types: dict[tuple[int, int], str] = {}
    for line in lines[heads[0] + 1 :]:
        label, *words = line.split() or [""]
        match = _COLUMN.fullmatch(label)
        if match is None:
            continue
        for column, link_type in zip(columns, words, strict=False):
            if int(match[1]) < column:
                link_types[int(match[1]), column] = link_type
    return link_types


PLACES = (
    "/usr/local/bin/npu-smi",
    "/usr/local/sbin/npu-smi",
    "/usr/local/Ascend/driver/tools/npu-smi",
)

DEADLINE_S = 4.0
EVERY_S = 30.0  # between two runs, each of which queries all chips
_LINKS = ("HCCS", "HCCS_SW", "SIO", "UB")

RunTool = Callable[[str, Sequence[str], float], str]


class NpuSmiAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run of the command."""

    chips: tuple[tuple[ChipDescription, NpuSmiRow], ...] = ()
    links: Mapping[tuple[str, str], str] | None = None  # link type by two keys; None: unknown


class NpuSmi:
    """Runs the command of one host at most every 30 seconds."""

    def __init__(
        self,
        driver_root: str,
        run: RunTool = run_tool,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._root = driver_root.rstrip("/")
        self._run = run
        self._clock = clock
        self._last: tuple[float, NpuSmiAnswer] | None = None
        self._link_types: Mapping[tuple[str, str], str] | None = None
        self._has_queried_links = False  # once is enough: links do not change

    def path(self) -> str | None:
        """Return the command's path; `None` without a command that only root can replace."""
        return find_tool(self._root + place for place in PLACES)

    def query(self, functions: tuple[AscendFunction, ...] = ()) -> NpuSmiAnswer | None:
        """Return the command's chips; `None` without a command, `AgentError` if it fails.

        `functions` are those of sysfs, whose device ids the command does not report.
        """
        path = self.path()
        if path is None:
            return None
        if self._last is None or self._clock.monotonic() - self._last[0] >= EVERY_S:
            rows = _rows_with_number(parse_info(self._run(path, ("info",), DEADLINE_S)))
            devices = {function.bus_id: function.device_id for function in functions}
            chips = tuple((describe_row(row, devices.get(row.bus_id or "")), row) for row in rows)
            if not self._has_queried_links:
                self._has_queried_links = True
                self._link_types = self._links(path, chips)
            self._last = (
                self._clock.monotonic(),
                NpuSmiAnswer(chips=chips, links=self._link_types),
            )
        return self._last[1]

    def samples(self, functions: tuple[AscendFunction, ...]) -> tuple[DeviceSample, ...]:
        """Return the rows as samples; empty if the command fails."""
        try:
            answer = self.query(functions)
        except AgentError:
            return ()
        return tuple(_sample(chip, row) for chip, row in answer.chips) if answer is not None else ()

    def _links(
        self, path: str, chips: tuple[tuple[ChipDescription, NpuSmiRow], ...]
    ) -> Mapping[tuple[str, str], str] | None:
        try:
            link_types = parse_topo(self._run(path, ("info", "-t", "topo"), DEADLINE_S))
        except AgentError:
            return None  # some models have no such table
        keys = {chip.phy: chip.key for chip, _ in chips}
        return {
            (keys[a], keys[b]): link_type
            for (a, b), link_type in link_types.items()
            if link_type in _LINKS and a in keys and b in keys
        }


def _rows_with_number(rows: tuple[NpuSmiRow, ...]) -> tuple[NpuSmiRow, ...]:
    """Return the rows with a known physical id: with the column, or of cards with one chip."""
    chips = Counter(row.card for row in rows)
    return tuple(row for row in rows if row.phy is not None or chips[row.card] == 1)


def describe_row(row: NpuSmiRow, pci_device: int | None = None) -> ChipDescription:
    """Describe a row; without a column for the physical id, it is the number of the card."""
    facts = ChipFacts(
        name=row.name or None,
        bus_id=row.bus_id,
        hbm_mb=row.hbm_mb[1] if row.hbm_mb else None,
        ddr_mb=row.ddr_mb[1] if row.ddr_mb else None,
    )
    phy = row.phy if row.phy is not None else row.card
    return ChipDescription(
        card=row.card,
        number=row.chip,
        logic=phy,
        phy=phy,
        facts=facts,
        bus_id=row.bus_id,
        uuid=chip_uuid(facts, row.card, phy),
        family=models.family_of(row.name, None, pci_device),
    )


def health_of_row(row: NpuSmiRow, phy: int) -> Health:
    """Return the health for the text in the health column."""
    if row.health == HEALTH_OK:
        return Health()
    state = HealthState.SUSPECT if row.health in ("Warning", "UNKNOWN") else HealthState.FAILED
    reason = "SubHealth" if state is HealthState.SUSPECT else "ChipFault"
    return Health(
        state=state, reason=reason, message=f"NPU {phy} is said to be {row.health[:40]!r}"
    )


def _sample(chip: ChipDescription, row: NpuSmiRow) -> DeviceSample:
    memory = row.hbm_mb or row.ddr_mb
    values = (
        (metric_families.POWER, row.power_watts, ()),
        (metric_families.TEMPERATURE, row.temperature_celsius, ("chip",)),
    )
    return DeviceSample(
        key=chip.key,
        core_percent=row.core_percent,
        memory_used_bytes=memory[0] * MIB if memory else None,
        memory_total_bytes=memory[1] * MIB if memory else None,
        readings=tuple(
            MetricValue(family=family.name, value=value, labels=labels)
            for family, value, labels in values
            if value is not None
        ),
        health=health_of_row(row, chip.phy),
    )


def inventory_from_npu_smi(
    answer: NpuSmiAnswer, host: HostFiles, functions: tuple[AscendFunction, ...], problem: Problem
) -> Inventory:
    """Return an inventory of the command's chips and of the functions that it does not list."""
    chips = [chip for chip, _ in answer.chips]
    devices = [
        describe_chip(chip, health_of_row(row, chip.phy), host) for chip, row in answer.chips
    ]
    bus_ids = {chip.bus_id for chip in chips}
    others = [
        describe_function(s, problem.reason, problem.message)
        for s in functions
        if s.bus_id not in bus_ids
    ]
    topology = derive_links(chips, answer.links, None)
    return Inventory(
        vendor="ascend",
        devices=(*devices, *others),
        links=topology.links,
        driver_version=driver_version(host),
        facts=(("source", "npu-smi"),),
        problems=(problem, *topology.problems),
        groups=topology.groups,
        group_policy=topology.policy,
    )


def inventory_from_sysfs(
    functions: tuple[AscendFunction, ...],
    stored: Mapping[str, VendorDevice],
    host: HostFiles,
    problem: Problem,
) -> Inventory:
    """Return an inventory from sysfs, with the stored numbers of the chips.

    Without its number a chip would leave the Device object while pods still use it.
    """
    devices = []
    for function in functions:
        device = describe_function(function, problem.reason, problem.message)
        stored_device = stored.get(function.bus_id)
        if stored_device is None or not device.managed:
            devices.append(device)
        else:
            devices.append(
                replace(stored_device, health=device.health, partitions=(), conditions=())
            )
    return Inventory(
        vendor="ascend",
        devices=tuple(devices),
        driver_version=driver_version(host),
        problems=(problem,),
    )
