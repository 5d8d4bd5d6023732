"""Finds and loads NVML; maps its return codes to typed errors."""

from __future__ import annotations

import ctypes
import importlib
import os
from types import ModuleType

import msgspec

from agent.errors import DeviceGone, NotSupported
from plugins.shared.call_journal import NO_JOURNAL, LibraryCallJournal
from plugins.shared.library_file import LibraryUnavailable
from plugins.vendors.nvidia.library.codes import (
    FUNCTION_NOT_FOUND,
    SUCCESS,
    GarbledAnswer,
    NvmlFault,
    error_of,
    reason_of,
)
from plugins.vendors.nvidia.settings import NvidiaSettings

SONAME = "libnvidia-ml.so.1"
INIT_NO_GPUS = 1  # a flag: a node without cards for this driver is not an error
DRIVER_ROOTS = ("/", "/run/nvidia/driver")

DIRS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "usr/local/nvidia/lib64",
    "usr/lib/wsl/lib",  # the library of the Windows host
)

_HANDLES = ("c_nvmlDevice_t", "c_nvmlGpuInstance_t", "c_nvmlComputeInstance_t")
MAX_HANDLES = 4096
_BLOCKING_CALLS = frozenset({"nvmlEventSetWait_v2"})  # waits by design, so not in the journal


def library_dirs(settings: NvidiaSettings) -> tuple[str, ...]:
    """Return the directories to search: `library_dirs`, else the usual ones in `driver_root`."""
    if settings.library_dirs:
        return settings.library_dirs
    root = settings.driver_root
    roots = (root,) if root != "/" else DRIVER_ROOTS  # a driver container mounts the second
    return tuple(os.path.join(r, d) for r in roots for d in DIRS)


def find_library(settings: NvidiaSettings) -> str:
    """Return the library's absolute path, or its bare name for the search of the loader.

    Raises `LibraryUnavailable` if `library_dirs` is set and no directory in it has the library.
    """
    dirs = library_dirs(settings)
    for directory in dirs:
        path = os.path.join(directory, SONAME)
        if os.path.isfile(path):
            return path
    if settings.library_dirs:
        searched = ", ".join(dirs)
        raise LibraryUnavailable(
            "LibraryMissing", f"{SONAME} is not in {searched}: install the driver"
        )
    return SONAME


class MemorySizes(msgspec.Struct, frozen=True):
    """The memory of a card or an instance in bytes; `None` is unknown."""

    total: int
    used: int | None
    free: int | None = None
    reserved: int | None = None  # by the driver


class Nvml:
    """NVML, loaded and initialised; functions are called by their name in the binding.

    A loaded library and its entry points stay until the process ends. Each call is entered in
    the call journal with the card that it is for.
    """

    def __init__(self, path: str, calls: LibraryCallJournal = NO_JOURNAL) -> None:
        self._calls = calls
        self._devices: dict[int, str] = {}  # address of a handle: the card it belongs to
        try:
            # load by absolute path first: the binding's bare name then resolves to this file
            self._dll = ctypes.CDLL(path)
        except OSError as error:
            message = f"{path} cannot be loaded: {str(error)[:120]}"
            raise LibraryUnavailable("LibraryMissing", message) from error
        self._binding: ModuleType = importlib.import_module("pynvml")
        self._handles = tuple(getattr(self._binding, name) for name in _HANDLES)
        self.path = path
        self.missing: set[str] = set()  # calls that this driver turned out not to have
        self._start()

    def _start(self) -> None:
        try:
            self.call("nvmlInitWithFlags", INIT_NO_GPUS)
        except (NotSupported, DeviceGone) as error:
            raise LibraryUnavailable("LibraryUnfit", f"{self.path}: {error}") from error
        except NvmlFault as error:
            advice = f"{error}; check that the kernel module of this driver is loaded"
            raise LibraryUnavailable(reason_of(error.code), advice) from error

    def call(self, name: str, *args: object, owner: object = None) -> object:
        """Call one function of the binding; raise the error that `error_of` returns for its code.

        `owner` is the handle of the card, if no argument of the call names the card.
        """
        function = getattr(self._binding, name)
        device = self._device_of(args if owner is None else (owner,))
        if name not in _BLOCKING_CALLS:
            self._calls.enter(name, device)
        try:
            answer = function(*args)
        except self._binding.NVMLError as error:
            if error.value == FUNCTION_NOT_FOUND:
                self.missing.add(name)
            raise error_of(name, int(error.value)) from error
        except UnicodeDecodeError as error:
            raise GarbledAnswer(f"{name}: the answer is not text") from error
        finally:
            if name not in _BLOCKING_CALLS:
                self._calls.leave()
        if device and isinstance(answer, self._handles):
            self.assign(answer, device)
        return answer

    def assign(self, handle: object, device: str) -> None:
        """Record the card that a handle of a card or of an instance belongs to."""
        if len(self._devices) >= MAX_HANDLES:
            self._devices.clear()  # most are handles of instances that no longer exist
        self._devices[handle_address(handle)] = device

    def _device_of(self, args: tuple[object, ...]) -> str:
        """Return the card that a call is for, by handle or name; empty if there is none."""
        first = args[0] if args else None
        if isinstance(first, str):
            return first
        return (
            self._devices.get(handle_address(first), "") if isinstance(first, self._handles) else ""
        )

    def memory(self, handle: object, *, version2: bool) -> MemorySizes:
        """Return the memory; version 1 counts the driver's reserve as used."""
        version = (self._binding.nvmlMemory_v2,) if version2 else ()
        info = self.call("nvmlDeviceGetMemoryInfo", handle, *version)
        total, used, free = (int(getattr(info, name)) for name in ("total", "used", "free"))
        reserved = int(getattr(info, "reserved")) if version2 else None  # noqa: B009 - a ctypes structure
        return MemorySizes(total, used, free, reserved)

    def bus_id(self, name: str, *args: object) -> str:
        """Return the long bus id in the PCI information that a call returns."""
        info = self.call(name, *args)
        try:
            return str(getattr(info, "busId", ""))  # the binding decodes on access
        except UnicodeDecodeError as error:
            raise GarbledAnswer(f"{name}: the bus id is not text") from error

    def fabric(self, handle: object, version: int) -> object:
        """Read the state of the NVLink fabric with version 3, 2 or 1 of its structure."""
        types = {3: "c_nvmlGpuFabricInfo_v3_t", 2: "c_nvmlGpuFabricInfo_v2_t"}
        info = getattr(self._binding, types.get(version, "c_nvmlGpuFabricInfo_t"))()
        name = "nvmlDeviceGetGpuFabricInfoV" if version > 1 else "nvmlDeviceGetGpuFabricInfo"
        self.call(name, handle, ctypes.byref(info))
        return info

    def allocate(self, name: str, count: int) -> ctypes.Array[ctypes.Structure]:
        """Return an array of the binding's structures, for a call that fills it."""
        kind: type[ctypes.Structure] = getattr(self._binding, name)
        return (kind * count)()

    def call_symbol(self, symbol: str, *args: object) -> object:
        """Call an entry point of old drivers, which the binding no longer offers."""
        function = getattr(self._dll, symbol, None)
        if function is None:
            raise error_of(symbol, FUNCTION_NOT_FOUND)
        self._calls.enter(symbol, self._device_of(args))
        try:
            code = int(function(*args))
        finally:
            self._calls.leave()
        if code != SUCCESS:
            raise error_of(symbol, code)
        return code

    def close(self) -> None:
        """Shut NVML down; the library stays loaded."""
        self.call("nvmlShutdown")


def handle_address(handle: object) -> int:
    """Return a handle's address, which identifies the card in events."""
    # reads the pointer in place: `ctypes.cast` takes three times as long, for each call
    return ctypes.c_void_p.from_buffer(handle).value or 0  # type: ignore[arg-type]  # opaque
