"""Minors of RDMA devices, and the file that stores them.

Stored numbers come first, then the kernel's own: the result equals koordlet's on every node
whose devices have distinct mlx names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec

from agent.errors import ParseError
from agent.snapshot.inventory import Problem
from agent.snapshot.pci import parse_address
from agent.state_writer import NO_ANSWER, StateStatus, StateWriter, StoredState
from plugins.vendors.rdma.sysfs.functions import RdmaPciFunction
from plugins.vendors.rdma.sysfs.values import is_name

MAX_MINORS = 512

_KERNEL_NAME = re.compile(
    r"(mlx5_|mlx4_|bnxt_re|irdma|hns_|erdma_|efa_|qedr|hfi1_|cxgb4_|mana_|ionic_"
    r"|mlx5_bond_|rxe|siw)([0-9]{1,3})"
)
_FIRST = ("mlx5_", "mlx4_")  # what koordlet numbers


class MinorRequest(msgspec.Struct, frozen=True):
    """One device that needs a number: where it is, for ever, and how the kernel calls it now."""

    key: str  # PCI address and ids, as stored
    name: str


def kernel_number(name: str) -> int | None:
    """Return the number in a name that the kernel gave; persistent names want nothing."""
    found = _KERNEL_NAME.fullmatch(name)
    return int(found[2]) if found and int(found[2]) < MAX_MINORS else None


def _is_first(name: str) -> bool:
    found = _KERNEL_NAME.fullmatch(name)
    return found is not None and found[1] in _FIRST


def assign_minors(claims: Sequence[MinorRequest], stored: Mapping[str, int]) -> dict[str, int]:
    """Give every device its number; devices come in PCI order with distinct keys.

    Stored numbers win, also those of devices that are away: they may come back. Then wanted
    numbers are granted, mlx names first; the others get the lowest that nobody wants, and if there
    is none left, one of a device that is away. A device beyond the 512th gets none.
    """
    given = {claim.key: stored[claim.key] for claim in claims if claim.key in stored}
    taken = set(stored.values())
    open_claims = [claim for claim in claims if claim.key not in given]
    for first in (True, False):
        for claim in open_claims:
            number = kernel_number(claim.name)
            if number is not None and number not in taken and _is_first(claim.name) is first:
                given[claim.key] = number
                taken.add(number)
    wishes = {kernel_number(claim.name) for claim in claims}
    for claim in open_claims:
        if claim.key in given:
            continue
        free = [n for n in range(MAX_MINORS) if n not in taken]
        if not free:
            free = sorted(set(range(MAX_MINORS)).difference(given.values()))
        if free:
            given[claim.key] = next((n for n in free if n not in wishes), free[0])
            taken.add(given[claim.key])
    return given


VERSION = 1
FILE_NAME = "rdma.json"
MAX_FILE = 1 << 20  # bytes; 512 devices need a tenth of it
MAX_KEY = 128


class RdmaDeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A device that this boot has shown, by the address of its function."""

    name: str
    guid: str | None
    driver: str | None
    used_ports: tuple[int, ...] = ()


class RdmaState(msgspec.Struct, frozen=True):
    """What outlives the process: numbers for ever, sightings for one boot."""

    minors: Mapping[str, int] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    seen: Mapping[str, RdmaDeviceRecord] = msgspec.field(
        default_factory=lambda: MappingProxyType({})
    )


def encode_state(state: RdmaState, boot_id: str) -> bytes:
    """Write the state as JSON; equal states give equal bytes."""
    seen = {
        address: {
            "name": item.name,
            "guid": item.guid,
            "driver": item.driver,
            "used_ports": list(item.used_ports),
        }
        for address, item in state.seen.items()
    }
    body = {"version": VERSION, "boot_id": boot_id, "minors": dict(state.minors), "seen": seen}
    return json.dumps(body, sort_keys=True, indent=1).encode() + b"\n"


def _minors(value: object, text: str) -> dict[str, int]:
    if not isinstance(value, dict) or len(value) > MAX_MINORS:
        raise ParseError("state file: minors", text)
    for key, number in value.items():
        if len(key) > MAX_KEY or type(number) is not int or not 0 <= number < MAX_MINORS:
            raise ParseError("state file: minor", f"{key}: {number}")
    if len(set(value.values())) != len(value):
        raise ParseError("state file: one minor twice", text)
    return value


def _seen(value: object, text: str) -> dict[str, RdmaDeviceRecord]:
    if not isinstance(value, dict) or len(value) > MAX_MINORS:
        raise ParseError("state file: seen", text)
    found: dict[str, RdmaDeviceRecord] = {}
    for address, item in value.items():
        try:
            name, ports = str(item["name"]), tuple(item["used_ports"])
            guid, driver = item["guid"], item["driver"]
        except (TypeError, KeyError) as error:
            raise ParseError("state file: seen", address) from error
        texts = all(part is None or isinstance(part, str) for part in (guid, driver))
        numbers = all(type(port) is int and 1 <= port <= 255 for port in ports)
        if not is_name(name) or not texts or not numbers:
            raise ParseError("state file: seen", address)
        found[parse_address(address)] = RdmaDeviceRecord(
            name=name, guid=guid, driver=driver, used_ports=ports
        )
    return found


def decode_state(data: bytes, boot_id: str) -> RdmaState:
    """Read what `encode` wrote; of another boot only the numbers are kept.

    Raises `ParseError` for everything else: the file is then good for nothing.
    """
    text = data.decode("utf-8", "replace")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError("state file", text) from error
    if not isinstance(body, dict) or body.get("version") != VERSION:
        raise ParseError("state file: version", text)
    minors, seen = _minors(body.get("minors"), text), _seen(body.get("seen"), text)
    same_boot = bool(boot_id) and body.get("boot_id") == boot_id
    return RdmaState(MappingProxyType(minors), MappingProxyType(seen if same_boot else {}))


class RdmaStateFile:
    """One file that is replaced whole; a damaged one is put aside as `.bad` and started anew."""

    def __init__(self, directory: str, boot_id: str) -> None:
        self._path = str(Path(directory) / FILE_NAME)
        self._writer = StateWriter(FILE_NAME)
        self._file = self._writer.file(self._path)
        self._boot_id = boot_id
        self._written: bytes | None = None

    def load(self) -> StoredState[RdmaState]:
        """Return the stored state, or why there is none."""
        return self._writer.load(
            self._path, MAX_FILE, lambda data: decode_state(data, self._boot_id)
        )

    def save(self, state: RdmaState) -> None:
        """Write the state if it differs from the last one; `OSError` if it is not on the disk."""
        data = encode_state(state, self._boot_id)
        if data == self._written:
            return
        if not self._file.save(data):
            raise OSError(self._file.error or f"{self._path}: {NO_ANSWER}")
        self._written = data


class RdmaStateStore:
    """The state of one session: loaded at its start, written when it changes.

    Without a directory nothing outlives the session. A file that cannot be used stops nothing:
    `problem` tells of it.
    """

    def __init__(self, directory: str | None, boot_id: str) -> None:
        self.state = RdmaState()
        self.problem: Problem | None = None
        self._identities: dict[str, str] = {}  # by address, as last told
        self._file = RdmaStateFile(directory, boot_id) if directory else None
        if self._file is None:
            return
        stored = self._file.load()
        self.state = stored.value or RdmaState()
        if stored.status is StateStatus.UNREADABLE or stored.rename_error is not None:
            error = stored.rename_error or stored.error
            self.problem = Problem(reason="StateFileUnreadable", message=str(error))
        elif stored.status is StateStatus.DAMAGED:
            message = f"put aside as .bad, numbers are assigned anew: {stored.reason}"
            self.problem = Problem(reason="StateFileDamaged", message=message)

    def record_of(self, address: str) -> RdmaDeviceRecord | None:
        """Return what this boot has shown at an address."""
        return self.state.seen.get(address)

    def identity(self, function: RdmaPciFunction) -> str:
        """Return what a function's number belongs to.

        One that does not tell what it is, for now, is what was numbered at its place before.
        """
        address = function.address
        if function.identity:
            self._identities[address] = function.identity
        if address in self._identities:
            return self._identities[address]
        here = [key for key in self.state.minors if key.startswith(f"{address} ")]
        return here[-1] if here else f"{address} unknown"

    def assign(self, claims: Sequence[MinorRequest]) -> dict[str, int]:
        """Assign numbers and remember them."""
        given = assign_minors(claims, self.state.minors)
        used = set(given.values())
        away = {key: number for key, number in self.state.minors.items() if number not in used}
        self.state = RdmaState(MappingProxyType(away | given), self.state.seen)
        return given

    def save_records(self, seen: Mapping[str, RdmaDeviceRecord]) -> None:
        """Add sightings and write the file; the numbers of this round are in it."""
        newest = dict([*self.state.seen.items(), *seen.items()][-MAX_MINORS:])
        self.state = RdmaState(self.state.minors, MappingProxyType(newest))
        if self._file is None:
            return
        try:
            self._file.save(self.state)
        except OSError as error:
            message = f"numbers of devices may change at the next start: {error}"
            self.problem = Problem(reason="StateNotWritten", message=message)
