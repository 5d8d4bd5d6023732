"""Chips from the output of `npu-smi`, for hosts where the library cannot be loaded.

It knows fewer facts than the library and is slower. Lines that are no table rows are ignored.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from agent.errors import AgentError, ParseError, VendorFault
from agent.snapshot.device import Health, HealthState, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import DeviceSample, Inventory, MetricValue, Problem
from agent.snapshot.pci import parse_address
from plugins.shared import metric_families
from plugins.shared.library_file import refuse_untrusted
from plugins.vendors.ascend.discovery import models
from plugins.vendors.ascend.discovery.descriptions import (
    MIB,
    ChipDescription,
    chip_uuid,
    describe_chip,
)
from plugins.vendors.ascend.discovery.links import derive_links
from plugins.vendors.ascend.discovery.sysfs import AscendFunction
from plugins.vendors.ascend.discovery.sysfs import describe_function as sighted
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
    """One chip of `npu-smi info`; `None` is a dash. Memory is (used, total) in MB."""

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
    """Return the chips of `npu-smi info` in the order printed; `ParseError` without its table."""
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
    power, heat = _leading(first[2], 2)
    (busy,) = _leading(second[2], 1)
    pairs = [(int(used), int(total)) for used, total in _PAIR.findall(second[2])]
    return NpuSmiRow(
        card=int(card),
        chip=int(chip),
        phy=int(phy) if with_phy and phy.strip().isdecimal() and len(phy) < MAX_COLUMN else None,
        name=name.strip(),
        health=first[1],
        bus_id=_address(second[1]),
        power_watts=power,
        temperature_celsius=heat,
        core_percent=busy if busy is not None and 0 <= busy <= 100 else None,
        ddr_mb=_positive_total(pairs[0]) if pairs else None,
        hbm_mb=_positive_total(pairs[1]) if hbm and len(pairs) > 1 else None,
    )


def _leading(text: str, count: int) -> list[float | None]:
    """Return the first words as numbers; a dash, or a word that is none, is `None`."""
    words = [*text.split()[:count], *[""] * count][:count]
    return [float(word) if _NUMBER.fullmatch(word) else None for word in words]


def _positive_total(pair: tuple[int, int]) -> tuple[int, int] | None:
    return pair if 0 <= pair[0] <= pair[1] and pair[1] > 0 else None


def _address(text: str) -> str | None:
    try:
        return parse_address(text)
    except ParseError:
        return None


def parse_topo(text: str) -> dict[tuple[int, int], str]:
    """Return how chips are joined, by two numbers, the smaller first; `ParseError` without any.

    Words are those of the tool's legend: HCCS, HCCS_SW, SIO, PIX, PXB, PHB, SYS, NA.
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
        for column, word in zip(columns, words, strict=False):
            if int(match[1]) < column:
                link_types[int(match[1]), column] = word
    return link_types


PLACES = (
    "/usr/local/bin/npu-smi",
    "/usr/local/sbin/npu-smi",
    "/usr/local/Ascend/driver/tools/npu-smi",
)

DEADLINE_S = 4.0

EVERY_S = 30.0  # between two runs: each starts a process that asks all chips

_LINKS = ("HCCS", "HCCS_SW", "SIO", "UB")

RunCommand = Callable[[str, tuple[str, ...]], str]


class NpuSmiAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of the command told."""

    chips: tuple[tuple[ChipDescription, NpuSmiRow], ...] = ()
    links: Mapping[tuple[str, str], str] | None = None  # by keys; None: not told


class NpuSmi:
    """The command of one host, run at most every half a minute."""

    def __init__(
        self,
        driver_root: str,
        run: RunCommand | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = driver_root.rstrip("/")
        self._run = run or run_command
        self._clock = clock
        self._last: tuple[float, NpuSmiAnswer] | None = None
        self._joined: Mapping[tuple[str, str], str] | None = None
        self._asked_links = False  # they are asked once: they do not change

    def path(self) -> str | None:
        """Return the command, if there is one that only root could have put there."""
        for place in PLACES:
            path = self._root + place
            if os.path.isfile(path):
                try:
                    real = os.path.realpath(path)
                    refuse_untrusted(real)
                except VendorFault:
                    continue
                return real
        return None

    def ask(self, seen: tuple[AscendFunction, ...] = ()) -> NpuSmiAnswer | None:
        """Return what the command tells of what sysfs shows; `None` without a command.

        `AgentError` if it fails.
        """
        path = self.path()
        if path is None:
            return None
        if self._last is None or self._clock() - self._last[0] >= EVERY_S:
            rows = _rows_with_number(parse_info(self._run(path, ("info",))))
            devices = {function.bus_id: function.device_id for function in seen}
            chips = tuple((describe_row(row, devices.get(row.bus_id or "")), row) for row in rows)
            if not self._asked_links:
                self._asked_links = True
                self._joined = self._links(path, chips)
            self._last = (self._clock(), NpuSmiAnswer(chips=chips, links=self._joined))
        return self._last[1]

    def samples(self, seen: tuple[AscendFunction, ...]) -> tuple[DeviceSample, ...]:
        """Return the rows as samples; none if the command fails."""
        try:
            answer = self.ask(seen)
        except AgentError:
            return ()
        return tuple(_sample(chip, row) for chip, row in answer.chips) if answer is not None else ()

    def _links(
        self, path: str, chips: tuple[tuple[ChipDescription, NpuSmiRow], ...]
    ) -> Mapping[tuple[str, str], str] | None:
        try:
            link_types = parse_topo(self._run(path, ("info", "-t", "topo")))
        except AgentError:
            return None  # not every model has the table
        keys = {chip.phy: chip.key for chip, _ in chips}
        return {
            (keys[a], keys[b]): word
            for (a, b), word in link_types.items()
            if word in _LINKS and a in keys and b in keys
        }


def run_command(path: str, arguments: tuple[str, ...]) -> str:
    """Run the command and return what it prints; `VendorFault` if it fails or takes too long."""
    environment = {
        name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ
    }
    try:
        done = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DEADLINE_S,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise VendorFault(f"{path}: {type(error).__name__}: it tells nothing now") from error
    if done.returncode:
        raise VendorFault(f"{path}: it ended with {done.returncode}")
    return done.stdout.decode("utf-8", "replace")


def _rows_with_number(rows: tuple[NpuSmiRow, ...]) -> tuple[NpuSmiRow, ...]:
    """Leave out chips whose number the table does not tell: those of cards with several."""
    chips = Counter(row.card for row in rows)
    return tuple(row for row in rows if row.phy is not None or chips[row.card] == 1)


def describe_row(row: NpuSmiRow, pci_device: int | None = None) -> ChipDescription:
    """Describe a row; without a column for it, the number of the card is that of its one chip."""
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
    """Return what the word in the health column comes to."""
    if row.health == HEALTH_OK:
        return Health()
    state = HealthState.SUSPECT if row.health in ("Warning", "UNKNOWN") else HealthState.FAILED
    reason = "SubHealth" if state is HealthState.SUSPECT else "ChipFault"
    return Health(
        state=state, reason=reason, message=f"NPU {phy} is said to be {row.health[:40]!r}"
    )


def _sample(chip: ChipDescription, row: NpuSmiRow) -> DeviceSample:
    memory = row.hbm_mb or row.ddr_mb
    told = (
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
            for family, value, labels in told
            if value is not None
        ),
        health=health_of_row(row, chip.phy),
    )


def inventory_from_npu_smi(
    told: NpuSmiAnswer, host: HostFiles, seen: tuple[AscendFunction, ...], problem: Problem
) -> Inventory:
    """Return what the command told, and functions that it did not."""
    chips = [chip for chip, _ in told.chips]
    listed = [describe_chip(chip, health_of_row(row, chip.phy), host) for chip, row in told.chips]
    known = {chip.bus_id for chip in chips}
    rest = [sighted(s, problem.reason, problem.message) for s in seen if s.bus_id not in known]
    found = derive_links(chips, told.links, None)
    return Inventory(
        vendor="ascend",
        devices=(*listed, *rest),
        links=found.links,
        driver_version=driver_version(host),
        facts=(("source", "npu-smi"),),
        problems=(problem, *found.problems),
        groups=found.groups,
        group_policy=found.policy,
    )


def inventory_from_sysfs(
    seen: tuple[AscendFunction, ...],
    remembered: Mapping[str, VendorDevice],
    host: HostFiles,
    problem: Problem,
) -> Inventory:
    """Return what sysfs shows, with the numbers that the chips had when their driver answered.

    Without them a chip would leave the Device object, and pods that hold it would hold nothing.
    """
    devices = []
    for function in seen:
        plain = sighted(function, problem.reason, problem.message)
        known = remembered.get(function.bus_id)
        if known is None or not plain.managed:
            devices.append(plain)
        else:
            devices.append(replace(known, health=plain.health, partitions=(), conditions=()))
    return Inventory(
        vendor="ascend",
        devices=tuple(devices),
        driver_version=driver_version(host),
        problems=(problem,),
    )
