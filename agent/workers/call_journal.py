"""Records the library call that a worker executes, in a file that outlives the worker.

A call that hangs in the kernel ends its process. The vendor's next process reads the file and
skips that call of that device for a while; if another call of the device hangs, too, it skips the
whole device. It tries again later, less and less often.

The file is mapped into the worker, so that a call costs no system call. It has one slot for each
thread, with the call in progress, and after them the list of calls that hung.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from agent.clock import SYSTEM_CLOCK, Clock, rfc3339
from agent.errors import CALL_HUNG, CallSuspended
from agent.snapshot.device import DEGRADED, DeviceCondition, Health, HealthState, VendorDevice
from agent.snapshot.inventory import DeviceEvent, Inventory, Problem
from agent.wire_formats.json_values import JSON_ERRORS

FIRST_PAUSE_S = 600.0  # pause before a call that hung is made again; doubles each time
LONGEST_PAUSE_S = 86_400.0
MAX_HANGS = 64
SLOTS = 8  # threads that call the library
SLOT_BYTES = 256
LIST_AT = SLOTS * SLOT_BYTES
FILE_BYTES = 64 * 1024
FILE_MODE = 0o600
_MAX_NAMES = 4096  # encoded calls in memory
_MEMFD: dict[str, int] = {}  # of this process, by vendor; never closed


class LibraryCall(msgspec.Struct, frozen=True):
    """A function of the library, the device of the call, and its start time."""

    symbol: str
    device: str  # key of the device; empty: no particular device
    began_s: float = 0.0  # monotonic

    def __str__(self) -> str:
        """Return the name of the call for people."""
        return f"{self.symbol} of {self.device}" if self.device else self.symbol


class LibraryHang(msgspec.Struct, frozen=True, kw_only=True):
    """A call that did not return. Monotonic times are those of the boot, wall time is for people.

    `every_call` says that another call of the device hung before: all its calls are skipped.
    """

    device: str
    symbol: str
    count: int = 1  # number of hangs, including this one
    wall_s: float
    until_s: float  # monotonic; after that the call is made again
    every_call: bool = False

    @property
    def description(self) -> str:
        """Return a text that names the call and when it is made again."""
        subject = "no call about it is made" if self.every_call else "the call is left out"
        until = rfc3339(self.wall_s + _pause_s(self.count))
        return f"{self.symbol} of {self.device} did not return: {subject} until {until}"


def _pause_s(count: int) -> float:
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(count - 1, 16))


LibraryHangs = tuple[LibraryHang, ...]


def add_hang(hangs: LibraryHangs, call: LibraryCall, now_s: float, wall_s: float) -> LibraryHangs:
    """Return the list with one more hang.

    The second call of a device that hangs suspends the whole device; a call that hangs again pauses
    twice as long as before. A hang is removed when its pause has passed again without another.
    """
    recent = [hang for hang in hangs if now_s < hang.until_s + _pause_s(hang.count)]
    same_device = [hang for hang in recent if hang.device == call.device]
    other_devices = [hang for hang in recent if hang.device != call.device]
    every_call = any(hang.every_call or hang.symbol != call.symbol for hang in same_device)
    counts = [hang.count for hang in same_device if hang.every_call is every_call]
    count = max(counts, default=0) + 1
    hang = LibraryHang(
        device=call.device,
        symbol=call.symbol,
        count=count,
        wall_s=wall_s,
        until_s=now_s + _pause_s(count),
        every_call=every_call,
    )
    return (*other_devices, hang)[-MAX_HANGS:]


def active_hangs(hangs: Iterable[LibraryHang], now_s: float) -> LibraryHangs:
    """Return the hangs whose calls are skipped now."""
    return tuple(hang for hang in hangs if now_s < hang.until_s)


def call_in_progress(data: bytes) -> LibraryCall | None:
    """Return the oldest open call of a journal, preferably one about a device.

    Threads may wait for each other inside the library: the oldest call blocks the others.
    """
    calls: list[LibraryCall] = []
    for index in range(SLOTS):
        slot = data[index * SLOT_BYTES : (index + 1) * SLOT_BYTES]
        fields = slot.partition(b"\0")[0].decode("utf-8", "replace").split("\t")
        if len(fields) == 3:
            try:
                calls.append(LibraryCall(fields[1], fields[2], float(fields[0])))
            except ValueError:
                continue  # the process ended while writing the slot
    return min(calls, key=lambda call: (not call.device, call.began_s), default=None)


def read_hangs(data: bytes) -> LibraryHangs:
    """Return the list of hangs; empty if the journal is damaged: the call then hangs once more."""
    try:
        return msgspec.json.decode(data[LIST_AT:].partition(b"\0")[0], type=LibraryHangs)
    except JSON_ERRORS:
        return ()


def journal_name(vendor: str) -> str:
    """Return the name of the file of a vendor's journal."""
    return f"calls-{vendor}"


def prepare_journal(folder: str, vendor: str) -> str:
    """Return the path of a vendor's journal with its full size allocated; empty if that fails.

    Without a writable folder the journal is in this process's memory and ends with it. The size is
    allocated now: writing a mapped file on a full disk would kill the writer.
    """
    name = journal_name(vendor)
    if folder:
        path = os.path.join(folder, name)
        try:
            os.makedirs(folder, mode=0o755, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(path, flags, FILE_MODE)
            try:
                os.posix_fallocate(fd, 0, FILE_BYTES)
            finally:
                os.close(fd)
        except OSError:
            pass  # use the memory of this process instead
        else:
            return path
    try:
        fd = _MEMFD[vendor] if vendor in _MEMFD else os.memfd_create(name, os.MFD_CLOEXEC)
        os.posix_fallocate(fd, 0, FILE_BYTES)
    except OSError:
        return ""
    _MEMFD[vendor] = fd
    return f"/proc/{os.getpid()}/fd/{fd}"


def find_journal(folder: str, vendor: str) -> str:
    """Return the path of the journal of a running agent; empty if there is none."""
    path = os.path.join(folder, f"calls-{vendor}")
    return path if folder and os.access(path, os.R_OK) else ""


def read_journal(path: str) -> bytes:
    """Return the contents of a journal; empty if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, FILE_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)


class CallJournal:
    """Records the calls of a worker to its library. Any thread may call it."""

    def __init__(
        self,
        path: str = "",
        *,
        record: bool = True,
        hung_call: LibraryCall | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Read the file, and add the call that ended the previous process.

        Without `record` the file is only read: another process writes it.
        """
        self._clock = clock
        self._map = _map_file(path) if path and record else None
        self._slots: dict[int, int] = {}  # by thread
        self._lock = threading.Lock()
        self._devices: dict[str, str] = {}  # key of a device, by the library's name for it
        self._names: dict[tuple[str, str], bytes] = {}
        data = bytes(self._map) if self._map is not None else read_journal(path) if path else b""
        self.hangs = read_hangs(data)
        self.last_hang: LibraryHang | None = None  # the call that ended the previous process
        if hung_call is not None and hung_call.device:
            self.hangs = add_hang(self.hangs, hung_call, clock.monotonic(), clock.wall())
            self.last_hang = self.hangs[-1]
        if self._map is not None:
            self._begin(self._map)

    def _begin(self, file: mmap.mmap) -> None:
        """Write the list and clear the slots of the previous process."""
        data = msgspec.json.encode(self.hangs)
        if len(data) < FILE_BYTES - LIST_AT:
            file[LIST_AT:] = data.ljust(FILE_BYTES - LIST_AT, b"\0")
        file[:LIST_AT] = bytes(LIST_AT)

    def enter(self, symbol: str, device: str) -> None:
        """Record the start of a call; raise `CallSuspended` if the call is skipped."""
        if self.hangs and device:
            self._check_suspended(symbol, device)
        if self._map is None:
            return
        at = self._slot() * SLOT_BYTES
        name = self._name(symbol, device)
        entry = b"%.6f" % self._clock.monotonic() + name
        self._map[at : at + SLOT_BYTES] = entry[:SLOT_BYTES].ljust(SLOT_BYTES, b"\0")

    def leave(self) -> None:
        """Record that this thread's call has returned."""
        if self._map is not None:
            self._map[self._slot() * SLOT_BYTES] = 0

    def assign(self, name: str, device: str) -> None:
        """Record that calls about `name` are about the device with this key."""
        if name in self._devices or len(self._devices) < _MAX_NAMES:
            self._devices[name] = device

    def _check_suspended(self, symbol: str, device: str) -> None:
        for hang in self.hangs:
            matches = hang.device == device and (hang.every_call or hang.symbol == symbol)
            if matches and self._clock.monotonic() < hang.until_s:
                raise CallSuspended(hang.description)

    def _slot(self) -> int:
        thread = threading.get_ident()
        slot = self._slots.get(thread)
        if slot is None:
            with self._lock:  # threads beyond the number of slots share the last one
                slot = self._slots[thread] = min(len(self._slots), SLOTS - 1)
        return slot

    def _name(self, symbol: str, device: str) -> bytes:
        call = (symbol, device)
        name = self._names.get(call)
        if name is None:
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()
            texts = (text.replace("\t", " ").replace("\0", " ") for text in (symbol, device))
            name = self._names[call] = "\t".join(("", *texts)).encode("utf-8", "replace")
        return name

    def annotate(self, inventory: Inventory) -> Inventory:
        """Return the inventory with the skipped calls as conditions and as problems."""
        hangs = active_hangs(self.hangs, self._clock.monotonic())
        if not hangs:
            return inventory
        by_device = {self._devices.get(hang.device, hang.device): hang for hang in hangs}
        devices = tuple(
            _mark_device(device, by_device[device.key]) if device.key in by_device else device
            for device in inventory.devices
        )
        problems = tuple(Problem(reason=CALL_HUNG, message=hang.description) for hang in hangs)
        return replace(inventory, devices=devices, problems=(*inventory.problems, *problems))

    def events(self) -> tuple[DeviceEvent, ...]:
        """Return an event if a call ended the previous process."""
        if self.last_hang is None:
            return ()
        return (
            DeviceEvent(
                key=self.last_hang.device, reason=CALL_HUNG, message=self.last_hang.description
            ),
        )


def _map_file(path: str) -> mmap.mmap | None:
    """Map the file; return `None` if that fails: the worker then has no journal."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return mmap.mmap(fd, FILE_BYTES) if os.fstat(fd).st_size >= FILE_BYTES else None
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


def _mark_device(device: VendorDevice, hang: LibraryHang) -> VendorDevice:
    """Return the device with the condition `Degraded`, failed if all its calls are skipped."""
    other_texts = [f"also {c.reason}: {c.message}" for c in device.conditions if c.type == DEGRADED]
    condition = DeviceCondition(
        type=DEGRADED,
        status=True,
        reason=CALL_HUNG,
        message="; ".join((hang.description, *other_texts)),
    )
    conditions = (*(c for c in device.conditions if c.type != DEGRADED), condition)
    health = device.health
    if hang.every_call and device.managed:
        health = Health(state=HealthState.FAILED, reason=CALL_HUNG, message=hang.description)
    return replace(device, conditions=conditions, health=health)
