"""Loads libcndev and its structures (interface version 6, 64-bit); maps return codes to errors."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

from agent.errors import AgentError, NotSupported
from plugins.shared.c_structures import StructureTable, decode_c_text
from plugins.shared.call_journal import NO_JOURNAL, LibraryCallJournal
from plugins.shared.library_file import LibraryUnavailable, find_library
from plugins.vendors.cambricon.library import codes
from plugins.vendors.cambricon.settings import CambriconSettings

_VERSION = "version@0:i32 "

# name: (whether a version comes first; size, alignment and members)
_TABLE: dict[str, tuple[bool, str]] = {
    "CardInfo": (True, "8 4: number@4:u32"),
    "UUID": (True, "56 8: uuid@4:c37 ncs@48:u64"),
    "CardName": (True, "8 4: id@4:i32"),
    "Mode": (True, "8 4: mode@4:i32"),
    "Numa": (True, "8 4: node@4:i32"),
    "CardSN": (True, "24 8: sn@8:u64 motherboard@16:u64"),
    "VersionInfo": (True, "28 4: mcu@4:u32*3 driver@16:u32*3"),
    "MemV2": (False, "176 8: total@0:i64 used@8:i64 reserved@16:i64 vtotal@24:i64 vused@32:i64"),
    "PcieV2": (
        False,
        "64 4: subsystem@0:u32 device@4:u32 vendor@8:u16 subvendor@10:u16 domain@12:u32"
        " bus@16:u32 dev@20:u32 func@24:u32 module@28:u16 slot@30:u16",
    ),
    "Health": (True, "16 4: health@4:i32 device@8:i32 driver@12:i32"),
    "Incident": (
        False,
        "540 4: system@0:i32 health@4:i32 msg@8:c512 device_id@520:i32 bdf@524:u32 code@528:i32",
    ),
    "HealthV2": (
        False,
        "34612 4: health@0:i32 device@4:i32 driver@8:i32 overall@12:i32 count@16:u32"
        " incidents@20:Incident*64",
    ),
    "Util": (True, "328 4: average@4:i32 core@8:i32*80"),
    "Power": (False, "84 4: usage@0:i32 cap@4:i32 machine@8:i32 tdp@12:i32 max@16:i32"),
    "Temp": (True, "148 4: board@4:i32 cluster@8:i32*20 die@88:i32*8 chip@120:i32 memory@132:i32"),
    "Ecc": (
        True,
        "72 8: one@8:u64 multiple_one@16:u64 multiple@24:u64 multiple_multiple@32:u64"
        " corrected@40:u64 uncorrected@48:u64 total@56:u64 forbidden@64:u64",
    ),
    "MemoryErrors": (
        True,
        "160 8: sram_single@4:u32 sram_double@8:u32 sram_parity@12:u32 dram_single@16:u32"
        " dram_double@20:u32 dram_single_total@24:u64 dram_double_total@32:u64"
        " sram_single_total@40:u64 sram_double_total@48:u64 sram_parity_total@56:u64"
        " is_exceeded@64:u8",
    ),
    "Parity": (True, "8 4: count@4:i32"),
    "DieLink": (True, "24 8: errors@8:u64 overflows@16:u64"),
    "Voltage": (False, "40 2: core@0:i16 soc@2:i16 memory@6:i16"),
    "Current": (False, "76 4: core@0:i32 soc@4:i32 memory@8:i32"),
    "Overheat": (True, "16 4: offs@4:u32 slowdowns@8:u32"),
    "Throttle": (
        True,
        "28 4: tdp@4:i32 power_setting@8:i32 clock_setting@12:i32 frequency_locked@16:i32"
        " power_brake@20:i32 thermal@24:i32",
    ),
    "Proc": (True, "24 8: pid@4:u32 physical@8:u64 virtual@16:u64"),
    "ProcUtil": (True, "28 4: pid@4:u32 mlu@8:u32 jpu@12:u32 dec@16:u32 enc@20:u32 mem@24:u32"),
    "LinkV2": (False, "44 4: mac@0:i32 serdes@4:i32 presence@8:i32 progress@12:i32"),
    "Remote": (
        True,
        "376 8: mc_sn@8:u64 ba_sn@16:u64 slot@24:u32 port@28:u32 ip@32:u8*16 uuid@48:c37"
        " ipver@88:u32 ipvalid@92:u32 connect@96:i32 ncs@104:u64 mac@112:u8*6 port_name@118:c256",
    ),
    "CoreCount": (True, "8 4: count@4:i32"),
    "Clocks": (
        True,
        "68 4: board@4:i32 ddr@8:i32 overtemp@12:u8 fast@13:u8 cluster_count@14:u16"
        " cluster@16:u16*20 board_default@56:i32 board_range@60:i32*2",
    ),
    "VideoCodecs": (
        True,
        "256 4: vpus@4:i32 vpu@8:i32*20 encoders@88:i32 encoder@92:i32*20 decoders@172:i32"
        " decoder@176:i32*20",
    ),
    "ImageCodecs": (True, "88 4: jpus@4:i32 jpu@8:i32*20"),
    "PcieTraffic": (
        False,
        "104 8: read@0:i64 write@8:i64 read_total@16:i64 write_total@24:i64 time@32:u64",
    ),
    "PcieReplays": (True, "8 4: count@4:u32"),
    "PowerLimit": (True, "8 4: watts@4:u16 decimal@6:u16"),
    "PowerRange": (True, "12 4: low@4:u16 low_decimal@6:u16 high@8:u16 high_decimal@10:u16"),
    "LinkCounters": (
        True,
        "152 8: read_bytes@8:u64 read_packets@16:u64 write_bytes@24:u64 write_packets@32:u64"
        " replay@40:u64 fatal@48:u64 ecc_double@56:u64 crc24@64:u64 crc32@72:u64 corrected@80:u64"
        " uncorrected@88:u64 read_errors@96:u64 write_errors@104:u64 illegal@112:u64"
        " cnp@120:u64 pfc@128:u64 queues@136:u64 tasks@144:u64",
    ),
    "LinkErrors": (
        False,
        "128 8: corrected_fec@0:u64 uncorrected_fec@8:u64 rx_bad_fcs@16:u64 tx_bad_fcs@24:u64"
        " illegal_access@32:u64",
    ),
    "LinkEvents": (False, "128 8: down@0:u64 replay@8:u64 replay_fail@16:u64"),
    "LinkSpeed": (True, "12 4: gigabytes@4:f32 format@8:i32"),
    "Optical": (
        False,
        "432 8: present@2:u8 temperature@68:f32 voltage@92:f32 lanes@116:i32 sent@120:f32*8"
        " received@280:f32*8 spare@368:u64*8",
    ),
    "LinkCapability": (True, "12 4: p2p@4:u32 serdes@8:u32"),
    "LinkMode": (True, "12 4: mode@4:i32 supported@8:i32"),
    "LinkVersion": (True, "16 4: number@4:u32*3"),
    "LinkName": (False, "16 1: name@0:c16"),
    "TinyCores": (True, "48 4: count@4:i32 core@8:i32*10"),
    "ChipCpu": (
        True,
        "2088 4: average@4:u16 cores@6:u8 core@7:u8*32 mode@39:u8*2048",
    ),
    "OsMemory": (False, "40 4: total@0:u32 used@4:u32"),
    "Bar4": (False, "24 8: total@0:u64 used@8:u64 free@16:u64"),
    "Ddr": (True, "16 4: width@4:u32 bandwidth@8:u32 decimal@12:u32"),
    "ClockLock": (True, "8 4: is_locked@4:u8"),
    "Heartbeats": (True, "8 4: count@4:u32"),
    "FieldValue": (
        False,
        "48 8: id@0:i32 code@4:i32 value@8:u64 type@16:i32 latency@24:i64 time@32:i64 scope@40:u32",
    ),
    "MpmMetric": (
        False,
        "40 8: id@0:i32 code@4:i32 value@8:f64 short_name@16:u64 long_name@24:u64 unit@32:u64",
    ),
    "MpmRequest": (
        False,
        "10264 8: layout@0:u32 count@4:u32 first@8:u64 second@16:u64 metrics@24:MpmMetric*256",
    ),
    "Rows": (True, "20 4: correctable@4:u32 uncorrectable@8:u32 pending@12:u32 failed@16:u32"),
    "RowsV2": (True, "24 4: correctable@4:u32 uncorrectable@8:u32 histogram@12:u32*3"),
    "Repair": (True, "8 4: retire_pending@4:u8 pending@5:u8 failed@6:u8"),
    "RetiredPages": (True, "4112 8: cause@4:i32 count@8:u32 addresses@16:u64*512"),
    "Mim": (
        True,
        "1016 4: parent@4:i32 instance@8:i32 profile@12:i32 uuid@16:c37 bdf@56:u32*4"
        " placement@72:i32 cores@84:i32 memory@100:i32 profile_name@104:c100 dev_node@204:c100"
        " ipcm_node@304:c100 name@404:c100",
    ),
    "SMlu": (
        True,
        "904 8: profile@4:i32 instance@8:i32 uuid@12:c37 bdf@52:u32*4 profile_name@68:c100"
        " name@168:c100 dev_node@268:c100 quota@368:u32*2 memory@376:u64*2",
    ),
    "ProfIds": (True, "520 4: count@4:i32 id@8:i32*128"),
    "Prof": (
        True,
        "144 8: id@4:i32 name@8:c100 total@108:u32 remain@112:u32 quota@116:u32*2 memory@128:u64*2",
    ),
    "Set": (True, "16 8: quota@4:u32 memory@8:u64"),
    "Event": (
        True,
        "104 8: device@4:i32 data@8:u64 type@16:u64 time@24:u64 cpu@32:u32 mlu@36:u32",
    ),
}

STRUCTURE_NAMES = tuple(_TABLE)

VERSIONED = frozenset(name for name, (versioned, _) in _TABLE.items() if versioned)

STRUCTURES = StructureTable(
    {
        name: text.replace(": ", f": {_VERSION}", 1) if versioned else text
        for name, (versioned, text) in _TABLE.items()
    }
)

SONAME = "libcndev.so"

FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/neuware/lib64",
)

VERSIONS = (6, 5)  # versions of the structures, newest first; libraries before 3 refuse 6
FIRST_CAPACITY = 16  # elements in the first try to read a list
MAX_CAPACITY = 4096
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

TEXTS = ("cndevGetCardNameStringByDevId", "cndevGetErrorString")  # functions that return a text

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
    "cndevGetMemEccCounter",
    "cndevGetParityError",
    "cndevGetCRCInfo",
    "cndevGetVoltageInfo",
    "cndevGetCurrentInfo",
    "cndevGetOverTemperatureInfo",
    "cndevGetPerformanceThrottleReason",
    "cndevGetProcessInfo",
    "cndevGetProcessUtilization",
    "cndevGetMLULinkPortNumber",
    "cndevGetMLULinkStatusV2",
    "cndevGetMLULinkRemoteInfo",
    "cndevGetCoreCount",
    "cndevGetFrequencyInfo",
    "cndevGetVideoCodecUtilization",
    "cndevGetImageCodecUtilization",
    "cndevGetPCIethroughputV2",
    "cndevGetPcieReplayCounter",
    "cndevGetPowerManagementDefaultLimitation",
    "cndevGetPowerManagementLimitationRange",
    "cndevGetMLULinkCounter",
    "cndevGetMLULinkErrorCounter",
    "cndevGetMLULinkEventCounter",
    "cndevGetMLULinkSpeedInfo",
    "cndevGetOpticalInfo",
    "cndevGetRemappedRows",
    "cndevGetRemappedRowsV2",
    "cndevGetRepairStatus",
    "cndevGetRetiredPages",
    "cndevGetRetiredPagesOperation",
    "cndevGetAddressSwaps",
    "cndevGetEccMode",
    "cndevGetDDRInfo",
    "cndevGetDeviceOsMemoryUsageV2",
    "cndevGetBAR4MemoryInfo",
    "cndevGetClusterCount",
    "cndevGetTinyCoreUtilization",
    "cndevGetDeviceCPUUtilizationV2",
    "cndevGetMLUFrequencyStatus",
    "cndevGetCardHeartbeatCount",
    "cndevDeviceGetFieldValues",
    "cndevGetMLULinkCapability",
    "cndevGetMLULinkPortMode",
    "cndevGetMLULinkPPI",
    "cndevGetMLULinkState",
    "cndevGetMLULinkVersion",
    "cndevMpmQueryDeviceSupport",
    "cndevMpmSampleAlloc",
    "cndevMpmSampleGet",
    "cndevMpmMetricsGet",
    "cndevMpmSampleFree",
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


def locate_cndev(settings: CambriconSettings) -> str:
    """Return the library's path; see `plugins.shared.library_file`."""
    return find_library(
        SONAME,
        FOLDERS,
        library_path=settings.library_path,
        driver_root=settings.driver_root,
        search=os.environ.get("LD_LIBRARY_PATH", ""),
    )


def card_name(index: int) -> str:
    """Return the card's name in the call journal."""
    return f"card {index}"


class Cndev:
    """The library of this process. `missing` has symbols that it lacks; their values are absent.

    One call runs at a time, except the wait for events.
    """

    def __init__(self, path: str, calls: LibraryCallJournal = NO_JOURNAL) -> None:
        self.path = path
        self.calls = calls  # journal of calls in progress
        self._lock = threading.Lock()
        try:
            self._dll = ctypes.CDLL(path)
        except OSError as error:
            message = f"{path} cannot be loaded: {str(error)[:120]}"
            raise LibraryUnavailable("LibraryMissing", message) from error
        self.missing = frozenset(n for n in (*MANDATORY, *OPTIONAL) if not hasattr(self._dll, n))
        if missing := [name for name in MANDATORY if name in self.missing]:
            message = f"{path} lacks {missing[0]}: install a newer driver"
            raise LibraryUnavailable("LibraryUnfit", message)
        for name in TEXTS:
            if name not in self.missing:
                getattr(self._dll, name).restype = ctypes.c_char_p
        self.version = VERSIONS[0]
        self._start()

    def _start(self) -> None:
        try:
            self.call("cndevInit", 0)
            self._negotiate_version()
        except codes.CndevFault as error:
            is_loaded = error.code not in codes.NOT_LOADED
            reason = "LibraryUnfit" if is_loaded else "DriverNotLoaded"
            message = f"{error}; check that the kernel module of this driver is loaded"
            raise LibraryUnavailable(reason, message) from error

    def _negotiate_version(self) -> None:
        """Set the newest version of the structures that the library accepts."""
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
        """Call a function; raises `NotSupported` for a missing symbol, else `codes.error_of`."""
        with self._lock:
            self._call(symbol, args)

    def wait(self, symbol: str, *args: object) -> None:
        """Call a function that may wait, in parallel with calls of other threads."""
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
        """Return an empty structure with its version set."""
        structure = STRUCTURES[name]()
        if name in VERSIONED:
            structure.version = self.version
        return structure

    def read(self, symbol: str, name: str, *args: object) -> ctypes.Structure:
        """Return the structure that a function fills; `args` are the arguments after it."""
        output = self.record(name)
        self.call(symbol, ctypes.byref(output), *args)
        return output

    def read_all(self, symbol: str, name: str, handle: int) -> tuple[ctypes.Structure, ...]:
        """Return a list of structures; try again with more capacity if it does not fit."""
        capacity = FIRST_CAPACITY
        for is_last in (*[False] * (MAX_TRIES - 1), True):
            output = (STRUCTURES[name] * capacity)()
            output[0].version = self.version
            number = ctypes.c_uint32(capacity)
            try:
                self.call(symbol, ctypes.byref(number), output, handle)
            except codes.CndevFault as error:
                if error.code != codes.INSUFFICIENT_SPACE or is_last:
                    raise
                capacity = max(2 * capacity, min(number.value, MAX_CAPACITY))
            else:
                return tuple(output[: min(number.value, capacity)])
        return ()

    def text(self, symbol: str, *args: object) -> str:
        """Return the text that a function returns; "" if it has none."""
        with self._lock:
            return decode_c_text(self._function(symbol)(*args))

    def number(self, symbol: str, *args: object) -> int:
        """Return the number that a function returns instead of a code."""
        with self._lock:
            return int(self._function(symbol)(*args))

    def count(self) -> int:
        """Return the number of cards."""
        return int(self.read("cndevGetDeviceCount", "CardInfo").number)

    def handle(self, index: int) -> int:
        """Return the handle of a card, which changes with a reset."""
        output, symbol = ctypes.c_int32(), "cndevGetDeviceHandleByIndex"
        self.calls.enter(symbol, card_name(index))
        try:
            self.call(symbol, index, ctypes.byref(output))
        finally:
            self.calls.leave()
        return output.value

    def close(self) -> None:
        """Release the library."""
        try:
            self.call("cndevRelease")
        except AgentError:
            return  # the process ends anyway
