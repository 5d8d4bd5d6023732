"""libcndev, loaded and initialised: structures with the version it takes, codes as our errors."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from agent.errors import AgentError, NotSupported
from plugins.bindings.cndev import codes
from plugins.bindings.cndev.layout import RECORDS, VERSIONED
from plugins.bindings.locate import LibraryAbsent, find_library
from plugins.bindings.records import text_of
from plugins.calls import NO_JOURNAL, CallJournal

SONAME = "libcndev.so"
FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/neuware/lib64",
)
VERSIONS = (6, 5)  # of the structures, newest first; libraries before 3 refuse 6
FIRST_ROOM = 16  # elements that a list is first asked for with
MAX_ROOM = 4096
MAX_TRIES = 3

MANDATORY = (
    "cndevInit",
    "cndevGetDeviceCount",
    "cndevGetDeviceHandleByIndex",
    "cndevGetUUID",
    "cndevGetCardNameStringByDevId",
    "cndevGetMemoryUsageV2",
    "cndevGetCardHealthState",
)
TEXTS = ("cndevGetCardNameStringByDevId", "cndevGetErrorString")  # they return what they say
OPTIONAL = (
    "cndevRelease",
    "cndevGetErrorString",
    "cndevGetCardName",
    "cndevGetCardSN",
    "cndevGetVersionInfo",
    "cndevGetPCIeInfoV2",
    "cndevGetNUMANodeIdByDevId",
    "cndevGetCardHealthStateV2",
    "cndevGetComputeMode",
    "cndevGetDeviceUtilizationInfo",
    "cndevGetDevicePowerInfo",
    "cndevGetTemperatureInfo",
    "cndevGetECCInfo",
    "cndevGetProcessInfo",
    "cndevGetProcessUtilization",
    "cndevGetMLULinkPortNumber",
    "cndevGetMLULinkStatusV2",
    "cndevGetMLULinkRemoteInfo",
    "cndevGetMimMode",
    "cndevGetSMLUMode",
    "cndevSetSMLUMode",
    "cndevGetAllMluInstanceInfo",
    "cndevGetAllSMluInstanceInfo",
    "cndevGetSMluProfileIdInfo",
    "cndevGetSMluProfileInfo",
    "cndevCreateSMluProfileInfo",
    "cndevDestroySMluProfileInfo",
    "cndevCreateSMluInstanceByProfileId",
    "cndevDestroySMluInstanceByHandle",
    "cndevUpdateSMluInstanceQuotaByHandle",
    "cndevEventHandleCreate",
    "cndevRegisterEvents",
    "cndevEventWait",
    "cndevResetDevice",
)


def locate(settings: Mapping[str, object]) -> str:
    """Return where the library is; see `plugins.bindings.locate`."""
    return find_library(SONAME, FOLDERS, settings, os.environ.get("LD_LIBRARY_PATH", ""))


def card_name(index: int) -> str:
    """Return the library's name for a card: its place among them."""
    return f"card {index}"


class Cndev:
    """The library of this process. `missing` are symbols it lacks: what they tell stays absent.

    Calls of different threads take turns, except the wait for events.
    """

    def __init__(self, path: str, calls: CallJournal = NO_JOURNAL) -> None:
        self.path = path
        self.calls = calls  # told which call of which card is in progress
        self._lock = threading.Lock()
        try:
            self._dll = ctypes.CDLL(path)
        except OSError as error:
            told = f"{path} cannot be loaded: {str(error)[:120]}"
            raise LibraryAbsent("LibraryMissing", told) from error
        self.missing = frozenset(n for n in (*MANDATORY, *OPTIONAL) if not hasattr(self._dll, n))
        if lacking := [name for name in MANDATORY if name in self.missing]:
            told = f"{path} lacks {lacking[0]}: install a newer driver"
            raise LibraryAbsent("LibraryUnfit", told)
        for name in TEXTS:
            if name not in self.missing:
                getattr(self._dll, name).restype = ctypes.c_char_p
        self.version = VERSIONS[0]
        self._start()

    def _start(self) -> None:
        try:
            self.call("cndevInit", 0)
            self._agree()
        except codes.CndevFault as error:
            loaded = error.code not in codes.NOT_LOADED
            reason = "LibraryUnfit" if loaded else "DriverNotLoaded"
            told = f"{error}; check that the kernel module of this driver is loaded"
            raise LibraryAbsent(reason, told) from error

    def _agree(self) -> None:
        """Find the newest version of structures that the library takes."""
        for version in VERSIONS:
            self.version = version
            try:
                self.count()
            except codes.CndevFault as error:
                if error.code != codes.BAD_VERSION or version == VERSIONS[-1]:
                    raise
            else:
                return

    def call(self, symbol: str, *args: object) -> None:
        """Call a function; a symbol that is missing is `NotSupported`, codes as in `error_of`."""
        with self._lock:
            self._call(symbol, args)

    def wait(self, symbol: str, *args: object) -> None:
        """Call a function that may wait, beside the calls of other threads."""
        self._call(symbol, args)

    def _call(self, symbol: str, args: tuple[object, ...]) -> None:
        code = int(self._function(symbol)(*args))
        if code != codes.OK:
            raise codes.error_of(symbol, code)

    def _function(self, symbol: str) -> Callable[..., Any]:
        if symbol in self.missing:
            raise NotSupported(f"{self.path} has no {symbol}")
        function: Callable[..., Any] = getattr(self._dll, symbol)
        return function

    def record(self, name: str) -> ctypes.Structure:
        """Return an empty structure that says its version."""
        made = RECORDS[name]()
        if name in VERSIONED:
            made.version = self.version
        return made

    def read(self, symbol: str, name: str, *args: object) -> ctypes.Structure:
        """Return the structure that a function fills; `args` follow it."""
        to = self.record(name)
        self.call(symbol, ctypes.byref(to), *args)
        return to

    def read_all(self, symbol: str, name: str, handle: int) -> tuple[ctypes.Structure, ...]:
        """Return a list of structures, asking again with more room as long as there are more."""
        room = FIRST_ROOM
        for last in (*[False] * (MAX_TRIES - 1), True):
            to = (RECORDS[name] * room)()
            to[0].version = self.version
            number = ctypes.c_uint32(room)
            try:
                self.call(symbol, ctypes.byref(number), to, handle)
            except codes.CndevFault as error:
                if error.code != codes.INSUFFICIENT_SPACE or last:
                    raise
                room = max(2 * room, min(number.value, MAX_ROOM))
            else:
                return tuple(to[: min(number.value, room)])
        return ()

    def text(self, symbol: str, *args: object) -> str:
        """Return the text that a function returns; "" if it has none."""
        with self._lock:
            return text_of(self._function(symbol)(*args))

    def number(self, symbol: str, *args: object) -> int:
        """Return the number that a function returns instead of a code."""
        with self._lock:
            return int(self._function(symbol)(*args))

    def count(self) -> int:
        """Return the number of cards."""
        return int(self.read("cndevGetDeviceCount", "CardInfo").number)

    def handle(self, index: int) -> int:
        """Return the handle of a card; after a reset it is another."""
        to, symbol = ctypes.c_int32(), "cndevGetDeviceHandleByIndex"
        self.calls.enter(symbol, card_name(index))
        try:
            self.call(symbol, index, ctypes.byref(to))
        finally:
            self.calls.leave()
        return to.value

    def close(self) -> None:
        """Let go of the driver."""
        try:
            self.call("cndevRelease")
        except AgentError:
            return  # the process ends anyway
