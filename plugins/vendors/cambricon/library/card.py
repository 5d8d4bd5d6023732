"""CNDev calls for one card, with values in the agent's units."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from agent.errors import AgentError, CallSuspended, NotSupported, ParseError
from agent.snapshot.inventory import (
    CELSIUS,
    PERCENT,
    PIDS,
    WATTS,
    Bounds,
    Rejection,
    is_within,
)
from agent.snapshot.pci import parse_address
from plugins.shared.c_structures import decode_c_text
from plugins.vendors.cambricon.library import codes
from plugins.vendors.cambricon.library.cndev import Cndev, card_name

MIB = 1 << 20
KIB = 1 << 10
MAX_MEMORY_MIB = 1 << 24  # 16 TiB
MAX_PORTS = 64
MAX_CORES = 80
MAX_INCIDENTS = 64
_CORES = "cores"
# (member of the structure, engine)
_PROCESS_ENGINES = (
    ("mlu", _CORES),
    ("jpu", "image_codec"),
    ("dec", "decoder"),
    ("enc", "encoder"),
    ("mem", "memory"),
)
VIRTUAL_KIB: Bounds = (0, 1 << 40)  # of one process: the address space of a card
_NO_NUMBER = (1 << 64) - 1  # all bits set: no serial number
COUNTS: Bounds = (0, 1 << 53)  # highest: the largest count that a metric value represents exactly
CARD_CELSIUS: Bounds = (0, CELSIUS[1])  # -1 stands for no value, as all bits are set
MEMORY_MIB: Bounds = (1, MAX_MEMORY_MIB)
MAX_REJECTIONS = 64  # between two samples
_FAIL = 20  # health of an incident
_MAX_STATE = 31  # bound of driver states; nine are documented
_OVERALL = (0, 10, _FAIL)
T = TypeVar("T")


class MluStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A card's health as the library reports it; `None` is unknown."""

    health: int | None = None  # 1 good
    device: int | None = None  # 1 good
    driver: int | None = None  # 4 running
    compute: int | None = None  # 2 prohibited
    overall: int | None = None  # 0 pass, 10 warn, 20 fail
    incidents: tuple[tuple[int, str], ...] = ()  # (code, text), failures first


class MluProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One host process on the card."""

    pid: int
    memory_bytes: int
    core_percent: float | None = None
    virtual_bytes: int | None = None
    engine_percents: tuple[tuple[str, float], ...] = ()  # (engine, busy percent)


class MluInstance(msgspec.Struct, frozen=True, kw_only=True):
    """One sMLU or MIM instance. The library reports no usage of MIM instances."""

    number: int
    profile: int
    name: str  # name of the profile
    uuid: str
    nodes: tuple[str, ...]  # paths of its device nodes, without those of the card
    cores: int
    memory_bytes: int
    used_percent: int | None = None
    used_bytes: int | None = None


class CndevCard:
    """A card by its index. Each call returns a value, or `None`.

    An unsupported call is not repeated. Other error codes are stored in `faults` by call until
    `begin_round`. A value outside its bounds counts as no value, and is in `take_rejections`.
    """

    def __init__(self, cndev: Cndev, index: int) -> None:
        self.cndev = cndev
        self.index = index
        self.handle = cndev.handle(index)
        self.faults: dict[str, int] = {}
        self._rejections: list[Rejection] = []
        self._suspended: set[str] = set()  # calls that hung earlier and are skipped
        self._unsupported: set[str] = set()

    def begin_round(self) -> None:
        """Start a round of calls: clear the errors of the last one."""
        self.faults = {}
        self._suspended.clear()

    def is_possible(self, source: str, value: float, bounds: Bounds) -> bool:
        """Return whether a value is within bounds; remember it if it is not."""
        if is_within(value, bounds):
            return True
        if len(self._rejections) < MAX_REJECTIONS:
            self._rejections.append(Rejection(family=source, value=str(value)))
        return False

    def take_rejections(self) -> tuple[Rejection, ...]:
        """Return the values outside their bounds since the last call."""
        rejections, self._rejections = tuple(self._rejections), []
        return rejections

    def is_answer_valid(self, call_name: str) -> bool:
        """Return whether a call returned a valid result, which may be empty, in this round."""
        return call_name not in self.faults and call_name not in self._unsupported | self._suspended

    def is_unsupported(self, call_name: str) -> bool:
        """Return whether the library or the driver lacks a call."""
        return call_name in self._unsupported

    def call(self, call_name: str, call: Callable[[], T]) -> T | None:
        """Run a call; if the handle is stale, get a new one and try again once."""
        if call_name in self._unsupported:
            return None
        try:
            self.cndev.calls.enter(call_name, card_name(self.index))
            try:
                return call()
            except codes.CndevFault as error:
                if error.code != codes.BAD_HANDLE:
                    raise
                self.handle = self.cndev.handle(self.index)
                return call()
            finally:
                self.cndev.calls.leave()
        except CallSuspended:
            self._suspended.add(call_name)  # for a limited time: the call is repeated
        except NotSupported:
            self._unsupported.add(call_name)
        except codes.CndevFault as error:
            self.faults[call_name] = error.code
        return None

    def read(self, symbol: str, name: str, *args: object) -> ctypes.Structure | None:
        """Return the structure that a call fills; `None` if it fails."""
        return self.call(symbol, lambda: self.cndev.read(symbol, name, self.handle, *args))

    def read_list(self, symbol: str, name: str) -> tuple[ctypes.Structure, ...] | None:
        """Return the list of structures that a call fills; `None` if it fails."""
        return self.call(symbol, lambda: self.cndev.read_all(symbol, name, self.handle))

    def uuid(self) -> str | None:
        """Return the card's UUID as the library spells it."""
        record = self.read("cndevGetUUID", "UUID")
        return (decode_c_text(record.uuid) or None) if record else None

    def name(self) -> str | None:
        """Return the model's name."""
        symbol = "cndevGetCardNameStringByDevId"
        return self.call(symbol, lambda: self.cndev.text(symbol, self.handle)) or None

    def name_id(self) -> int | None:
        """Return the model's number."""
        record = self.read("cndevGetCardName", "CardName")
        return int(record.id) if record else None

    def serial(self) -> str | None:
        """Return the serial number in hexadecimal."""
        record = self.read("cndevGetCardSN", "CardSN")
        return f"{record.sn:x}" if record and 0 < record.sn < _NO_NUMBER else None

    def driver(self) -> str | None:
        """Return the version of the driver."""
        return self._version("driver")

    def mcu(self) -> str | None:
        """Return the version of the controller on the board."""
        return self._version("mcu")

    def _version(self, member: str) -> str | None:
        record = self.read("cndevGetVersionInfo", "VersionInfo")
        parts = tuple(getattr(record, member)) if record else ()
        return ".".join(map(str, parts)) if parts and max(parts) < 1 << 16 else None

    def memory(self) -> tuple[int, int | None] | None:
        """Return (total, used) bytes; `None` if the total is implausible."""
        record = self.read("cndevGetMemoryUsageV2", "MemV2")
        if record is None or not self.is_possible("memory total", record.total, MEMORY_MIB):
            return None
        is_used_possible = self.is_possible("memory used", record.used, (0, record.total))
        used = int(record.used) * MIB if is_used_possible else None
        return int(record.total) * MIB, used

    def bus_id(self) -> str | None:
        """Return the PCI address; `None` if its parts are invalid."""
        record = self.read("cndevGetPCIeInfoV2", "PcieV2")
        if record is None:
            return None
        address = f"{record.domain:04x}:{record.bus:02x}:{record.dev:02x}.{record.func:x}"
        try:
            return parse_address(address)
        except ParseError:
            return None

    def numa(self) -> int | None:
        """Return the NUMA node; `None` if it is unknown."""
        record = self.read("cndevGetNUMANodeIdByDevId", "Numa")
        return int(record.node) if record and 0 <= record.node < 1024 else None

    def status(self) -> MluStatus | None:
        """Return the card's health; `None` if the call for it failed."""
        record = self.read("cndevGetCardHealthState", "Health")
        if record is None:
            return None
        if record.health not in (0, 1) or not 0 <= record.driver <= _MAX_STATE:
            self.faults["cndevGetCardHealthState"] = codes.GARBLED
            return None
        compute = self.read("cndevGetComputeMode", "Mode")
        details = self.read("cndevGetCardHealthStateV2", "HealthV2")
        return MluStatus(
            health=int(record.health),
            device=int(record.device),
            driver=int(record.driver),
            compute=int(compute.mode) if compute else None,
            overall=int(details.overall) if details and details.overall in _OVERALL else None,
            incidents=_incidents(details) if details and details.overall in _OVERALL else (),
        )

    def utilisation(self) -> tuple[float | None, tuple[float | None, ...]]:
        """Return the utilization in percent of the card and of each core."""
        record = self.read("cndevGetDeviceUtilizationInfo", "Util")
        if record is None:
            return None, ()
        count = self.read("cndevGetCoreCount", "CoreCount")
        cores = record.core[: count.count] if count and 0 < count.count <= MAX_CORES else ()
        average, *by_core = (
            float(value) if self.is_possible("utilization", value, PERCENT) else None
            for value in (record.average, *cores)
        )
        return average, tuple(by_core)

    def power_watts(self) -> tuple[float | None, float | None]:
        """Return the power consumption and its present limit."""
        record = self.read("cndevGetDevicePowerInfo", "Power")
        if record is None:
            return None, None
        usage = float(record.usage) if self.is_possible("power", record.usage, WATTS) else None
        # 0: the card has no limit
        is_limited = record.cap and self.is_possible("power limit", record.cap, WATTS)
        return usage, float(record.cap) if is_limited else None

    def temperatures(self) -> tuple[tuple[str, float], ...]:
        """Return (sensor, degrees Celsius) for board, chip and memory."""
        record = self.read("cndevGetTemperatureInfo", "Temp")
        if record is None:
            return ()
        values = (("board", record.board), ("chip", record.chip), ("memory", record.memory))
        return tuple(
            (name, float(value))
            for name, value in values
            if self.is_possible(f"temperature {name}", value, CARD_CELSIUS)
        )

    def ecc(self) -> tuple[tuple[str, int], ...]:
        """Return (kind, count) of memory errors."""
        record = self.read("cndevGetECCInfo", "Ecc")
        if record is None:
            return ()
        values = (("corrected", record.corrected), ("uncorrected", record.uncorrected))
        return tuple(
            (kind, int(count))
            for kind, count in values
            if self.is_possible(f"ecc {kind}", count, COUNTS)
        )

    def processes(self) -> tuple[MluProcess, ...] | None:
        """Return the processes on the card, with their utilization where it is known."""
        record = self.read_list("cndevGetProcessInfo", "Proc")
        if record is None:
            return None
        percents = {
            p.pid: dict(self._process_percents(p))
            for p in self.read_list("cndevGetProcessUtilization", "ProcUtil") or ()
            if is_within(p.pid, PIDS)  # others are in the list of processes, too
        }
        return tuple(
            MluProcess(
                pid=int(p.pid),
                memory_bytes=int(p.physical) * KIB,
                core_percent=percents.get(p.pid, {}).get(_CORES),
                virtual_bytes=int(p.virtual) * KIB
                if self.is_possible("process virtual memory", p.virtual, VIRTUAL_KIB)
                else None,
                engine_percents=tuple(
                    (engine, percent)
                    for engine, percent in percents.get(p.pid, {}).items()
                    if engine != _CORES
                ),
            )
            for p in record
            if self.is_possible("process", p.pid, PIDS)
            and self.is_possible("process memory", p.physical, (0, MAX_MEMORY_MIB * KIB))
        )

    def _process_percents(self, record: ctypes.Structure) -> Iterator[tuple[str, float]]:
        for member, engine in _PROCESS_ENGINES:
            percent = getattr(record, member)
            source = "process utilization" if engine == _CORES else f"process {engine}"
            if self.is_possible(source, percent, PERCENT):
                yield engine, float(percent)

    def link_ports(self) -> range:
        """Return the numbers of the MLULink ports."""
        symbol = "cndevGetMLULinkPortNumber"
        ports = self.call(symbol, lambda: self.cndev.number(symbol, self.handle)) or 0
        if ports < 0:
            self.faults[symbol] = codes.GARBLED
        return range(min(max(ports, 0), MAX_PORTS))

    def linked_uuids(self) -> tuple[str, ...]:
        """Return the UUIDs of the cards at the other ends of active MLULink ports."""
        uuids: list[str] = []
        for port in self.link_ports():
            state = self.read_port("cndevGetMLULinkStatusV2", "LinkV2", port)
            if state is None or state.mac == 0:
                continue
            remote = self.read_port("cndevGetMLULinkRemoteInfo", "Remote", port)
            if remote is not None and (uuid := decode_c_text(remote.uuid)):
                uuids.append(uuid)
        return tuple(uuids)

    def read_port(self, symbol: str, name: str, port: int) -> ctypes.Structure | None:
        """Return the structure that a call fills for an MLULink port; `None` if it fails."""
        # by port: one unsupported port does not make the other ports unsupported
        call_name = f"{symbol} {port}"
        return self.call(call_name, lambda: self.cndev.read(symbol, name, self.handle, port))

    def mode(self, symbol: str) -> bool | None:
        """Return whether sMLU or MIM (`cndevGetSMLUMode`, `cndevGetMimMode`) is on."""
        record = self.read(symbol, "Mode")
        return None if record is None or record.mode not in (0, 1) else record.mode == 1

    def smlu_instances(self) -> tuple[MluInstance, ...]:
        """Return the sMLU instances."""
        return tuple(
            MluInstance(
                number=int(s.instance),
                profile=int(s.profile),
                name=decode_c_text(s.profile_name),
                uuid=decode_c_text(s.uuid),
                nodes=(decode_c_text(s.dev_node),) if decode_c_text(s.dev_node) else (),
                cores=int(s.quota[0]),
                memory_bytes=int(s.memory[0]),
                used_percent=int(s.quota[1])
                if self.is_possible("smlu cores", s.quota[1], PERCENT)
                else None,
                used_bytes=int(s.memory[1])
                if self.is_possible("smlu memory", s.memory[1], (0, s.memory[0]))
                else None,
            )
            for s in self.read_list("cndevGetAllSMluInstanceInfo", "SMlu") or ()
            if s.instance >= 0 and s.quota[0] <= 100 and s.memory[0] <= MAX_MEMORY_MIB * MIB
        )

    def mim_instances(self) -> tuple[MluInstance, ...]:
        """Return the MIM instances."""
        return tuple(
            MluInstance(
                number=int(m.instance),
                profile=int(m.profile),
                name=decode_c_text(m.profile_name),
                uuid=decode_c_text(m.uuid),
                nodes=(decode_c_text(m.dev_node),) if decode_c_text(m.dev_node) else (),
                cores=int(m.cores),
                memory_bytes=int(m.memory) * MIB,
            )
            for m in self.read_list("cndevGetAllMluInstanceInfo", "Mim") or ()
            if m.instance >= 0 and 0 <= m.memory <= MAX_MEMORY_MIB
        )


def _incidents(record: ctypes.Structure) -> tuple[tuple[int, str], ...]:
    incidents = record.incidents[: min(record.count, MAX_INCIDENTS)]
    ordered = sorted(incidents, key=lambda incident: incident.health != _FAIL)
    return tuple((int(i.code), decode_c_text(i.msg)[:80]) for i in ordered)


def open_cards(cndev: Cndev, limit: int) -> tuple[dict[int, CndevCard], dict[int, AgentError]]:
    """Return the cards by index, and the errors of cards without a handle."""
    cards: dict[int, CndevCard] = {}
    failed: dict[int, AgentError] = {}
    for index in range(min(cndev.count(), limit)):
        try:
            cards[index] = CndevCard(cndev, index)
        except AgentError as error:
            failed[index] = error
    return cards, failed
