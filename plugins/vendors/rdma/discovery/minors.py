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
    """A device that needs a minor."""

    key: str  # PCI address and ids, as stored
    name: str  # that the kernel gives it now


def kernel_number(name: str) -> int | None:
    """Return the number in a name that the kernel gave; `None` for a persistent name."""
    match = _KERNEL_NAME.fullmatch(name)
    return int(match[2]) if match and int(match[2]) < MAX_MINORS else None


def _is_first(name: str) -> bool:
    match = _KERNEL_NAME.fullmatch(name)
    return match is not None and match[1] in _FIRST


def assign_minors(requests: Sequence[MinorRequest], stored: Mapping[str, int]) -> dict[str, int]:
    """Return the minor of each device; the requests are in PCI order and have distinct keys.

    Stored minors have precedence, and those of absent devices stay reserved. Then devices get the
    number in their kernel name, mlx names first. The others get the lowest number that no name
    contains, or that of an absent device if none is free. A device beyond the 512th gets none.
    """
    minors = {request.key: stored[request.key] for request in requests if request.key in stored}
    taken = set(stored.values())
    open_requests = [request for request in requests if request.key not in minors]
    for first in (True, False):
        for request in open_requests:
            number = kernel_number(request.name)
            if number is not None and number not in taken and _is_first(request.name) is first:
                minors[request.key] = number
                taken.add(number)
    requested = {kernel_number(request.name) for request in requests}
    for request in open_requests:
        if request.key in minors:
            continue
        free = [n for n in range(MAX_MINORS) if n not in taken]
        if not free:
            free = sorted(set(range(MAX_MINORS)).difference(minors.values()))
        if free:
            minors[request.key] = next((n for n in free if n not in requested), free[0])
            taken.add(minors[request.key])
    return minors


VERSION = 1
FILE_NAME = "rdma.json"
MAX_FILE = 1 << 20  # bytes; 512 devices need a tenth of it
MAX_KEY = 128


class RdmaDeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a function's RDMA device when it was last present in this boot."""

    name: str
    guid: str | None
    driver: str | None
    used_ports: tuple[int, ...] = ()


class RdmaState(msgspec.Struct, frozen=True):
    """The stored state: minors stay for ever, records until the next boot."""

    minors: Mapping[str, int] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    records: Mapping[str, RdmaDeviceRecord] = msgspec.field(
        default_factory=lambda: MappingProxyType({})
    )


def encode_state(state: RdmaState, boot_id: str) -> bytes:
    """Return the state as JSON; equal states give equal bytes."""
    records = {
        address: {
            "name": record.name,
            "guid": record.guid,
            "driver": record.driver,
            "used_ports": list(record.used_ports),
        }
        for address, record in state.records.items()
    }
    body = {"version": VERSION, "boot_id": boot_id, "minors": dict(state.minors), "seen": records}
    return json.dumps(body, sort_keys=True, indent=1).encode() + b"\n"


def _decode_minors(value: object, text: str) -> dict[str, int]:
    if not isinstance(value, dict) or len(value) > MAX_MINORS:
        raise ParseError("state file: minors", text)
    for key, number in value.items():
        if len(key) > MAX_KEY or type(number) is not int or not 0 <= number < MAX_MINORS:
            raise ParseError("state file: minor", f"{key}: {number}")
    if len(set(value.values())) != len(value):
        raise ParseError("state file: one minor twice", text)
    return value


def _decode_records(value: object, text: str) -> dict[str, RdmaDeviceRecord]:
    if not isinstance(value, dict) or len(value) > MAX_MINORS:
        raise ParseError("state file: seen", text)
    records: dict[str, RdmaDeviceRecord] = {}
    for address, entry in value.items():
        try:
            name, ports = str(entry["name"]), tuple(entry["used_ports"])
            guid, driver = entry["guid"], entry["driver"]
        except (TypeError, KeyError) as error:
            raise ParseError("state file: seen", address) from error
        are_texts = all(part is None or isinstance(part, str) for part in (guid, driver))
        are_ports = all(type(port) is int and 1 <= port <= 255 for port in ports)
        if not is_name(name) or not are_texts or not are_ports:
            raise ParseError("state file: seen", address)
        records[parse_address(address)] = RdmaDeviceRecord(
            name=name, guid=guid, driver=driver, used_ports=ports
        )
    return records


def decode_state(data: bytes, boot_id: str) -> RdmaState:
    """Return the state that `encode_state` wrote, without the records of another boot.

    Raises `ParseError` for any other content.
    """
    text = data.decode("utf-8", "replace")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError("state file", text) from error
    if not isinstance(body, dict) or body.get("version") != VERSION:
        raise ParseError("state file: version", text)
    minors, records = (
        _decode_minors(body.get("minors"), text),
        _decode_records(body.get("seen"), text),
    )
    same_boot = bool(boot_id) and body.get("boot_id") == boot_id
    return RdmaState(MappingProxyType(minors), MappingProxyType(records if same_boot else {}))


class RdmaStateFile:
    """The file of the state, replaced as a whole; a damaged one is renamed to `.bad`."""

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
    """The state of one session, loaded at its start and written when it changes.

    Without a directory the state ends with the session. If the file cannot be used, `problem`
    says why, and the session works without it.
    """

    def __init__(self, directory: str | None, boot_id: str) -> None:
        self.state = RdmaState()
        self.problem: Problem | None = None
        self._identities: dict[str, str] = {}  # last identity by address
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
        """Return the record of the function at an address; `None` if there is none of this boot."""
        return self.state.records.get(address)

    def identity(self, function: RdmaPciFunction) -> str:
        """Return the key to which a function's minor belongs.

        A function whose ids cannot be read now has the key that was last used for its address.
        """
        address = function.address
        if function.identity:
            self._identities[address] = function.identity
        if address in self._identities:
            return self._identities[address]
        keys = [key for key in self.state.minors if key.startswith(f"{address} ")]
        return keys[-1] if keys else f"{address} unknown"

    def assign(self, requests: Sequence[MinorRequest]) -> dict[str, int]:
        """Return the minor of each requested key, and store them."""
        minors = assign_minors(requests, self.state.minors)
        used = set(minors.values())
        absent = {key: number for key, number in self.state.minors.items() if number not in used}
        self.state = RdmaState(MappingProxyType(absent | minors), self.state.records)
        return minors

    def save_records(self, records: Mapping[str, RdmaDeviceRecord]) -> None:
        """Add records, and write the file with the minors of this discovery."""
        newest = dict([*self.state.records.items(), *records.items()][-MAX_MINORS:])
        self.state = RdmaState(self.state.minors, MappingProxyType(newest))
        if self._file is None:
            return
        try:
            self._file.save(self.state)
        except OSError as error:
            message = f"numbers of devices may change at the next start: {error}"
            self.problem = Problem(reason="StateNotWritten", message=message)
