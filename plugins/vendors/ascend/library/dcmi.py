"""Loads and initialises libdcmi; calls functions by symbol and maps return codes to errors."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

from agent.clock import SYSTEM_CLOCK, Clock
from agent.errors import AgentError, LibraryReplaced
from agent.host.files import read_text
from agent.snapshot.host_files import HostFiles
from plugins.shared.call_journal import NO_JOURNAL, LibraryCallJournal
from plugins.shared.library_file import LibraryFile, LibraryUnavailable, find_library
from plugins.vendors.ascend.library import codes
from plugins.vendors.ascend.settings import AscendSettings

CHIP_INFO = ("dcmi_get_device_chip_info_v2", "dcmi_get_device_chip_info")  # one is enough

MANDATORY: tuple[str, ...] = (
    "dcmi_init",
    "dcmi_get_card_list",
    "dcmi_get_device_num_in_card",
    "dcmi_get_device_logic_id",
    "dcmi_get_device_phyid_from_logicid",
    "dcmi_get_device_health",
)

OPTIONAL: tuple[str, ...] = (
    *CHIP_INFO,
    "dcmi_get_dcmi_version",
    "dcmi_get_device_type",
    "dcmi_get_device_pcie_info_v2",
    "dcmi_get_device_board_info",
    "dcmi_get_product_type",
    "dcmi_get_card_elabel_v2",
    "dcmi_get_device_die_v2",
    "dcmi_get_device_errorcode_v2",
    "dcmi_subscribe_fault_event",
    "dcmi_get_device_network_health",
    "dcmi_get_device_boot_status",
    "dcmi_get_device_hbm_info",
    "dcmi_get_device_memory_info_v3",
    "dcmi_get_memory_info",
    "dcmi_get_device_utilization_rate",
    "dcmi_get_device_multi_utilization_rate",
    "dcmi_get_device_multi_utilization_rate_period",
    "dcmi_get_device_power_info",
    "dcmi_mcu_get_power_info",
    "dcmi_get_device_temperature",
    "dcmi_get_device_voltage",
    "dcmi_get_device_frequency",
    "dcmi_get_device_ecc_info",
    "dcmi_get_device_resource_info",
    "dcmi_get_device_ip",
    "dcmi_get_device_info",
    "dcmi_get_netdev_pkt_stats_info",
    "dcmi_get_rdma_bandwidth_info",
    "dcmi_get_pcie_link_bandwidth_info",
    "dcmi_get_hccs_link_bandwidth_info",
    "dcmi_get_topo_info_by_device_id",
    "dcmi_get_multi_die_policy",
    "dcmi_create_vdevice",
    "dcmi_set_destroy_vdevice",
)
SECOND_INIT = "dcmiv2_init"  # 950 generation; its other functions are not published
SLOW_CALL_S = 1.0
# called on separate threads
_SLOW_BY_NATURE = frozenset(
    {
        "dcmi_get_device_network_health",
        "dcmi_get_netdev_pkt_stats_info",
        "dcmi_get_rdma_bandwidth_info",
        "dcmi_get_pcie_link_bandwidth_info",
        "dcmi_get_hccs_link_bandwidth_info",
    }
)
VERSION_LENGTH = 33
SONAME = "libdcmi.so"
VERSION = "/usr/local/Ascend/driver/version.info"
MANAGER = "/dev/davinci_manager"
_DRIVER = "/usr/local/Ascend/driver/lib64"
FOLDERS = ("/usr/local/dcmi", _DRIVER, f"{_DRIVER}/driver", f"{_DRIVER}/common")


def locate_dcmi(settings: AscendSettings) -> str:
    """Return the library's path; `find_library` describes the search and which files it refuses."""
    return find_library(
        SONAME,
        FOLDERS,
        library_path=settings.library_path,
        driver_root=settings.driver_root,
        search=os.environ.get("LD_LIBRARY_PATH", ""),
    )


class Dcmi:
    """The library of this process; it can be unloaded only by ending the process.

    `missing` has the symbols that the library lacks; their values are absent, without an error.
    `slow` is called with symbol and duration of each call that took longer than a second. Each
    call is entered in the call journal with the chip that it is for.
    """

    def __init__(
        self,
        path: str,
        clock: Clock = SYSTEM_CLOCK,
        slow: Callable[[str, float], None] | None = None,
        calls: LibraryCallJournal = NO_JOURNAL,
    ) -> None:
        self.path = path
        self._calls = calls
        self._clock = clock
        self._slow = slow
        try:
            self._dll = ctypes.CDLL(path, mode=os.RTLD_LAZY | os.RTLD_GLOBAL)
        except OSError as error:
            message = f"{path} cannot be loaded: {str(error)[:120]}"
            raise LibraryUnavailable("LibraryMissing", message) from error
        self.missing = frozenset(name for name in (*MANDATORY, *OPTIONAL) if not self.has(name))
        self._refuse_if_unfit()
        self._start()

    def has(self, symbol: str) -> bool:
        """Return whether the library exports a symbol."""
        return getattr(self._dll, symbol, None) is not None

    def _refuse_if_unfit(self) -> None:
        if self.has(SECOND_INIT) and "dcmi_init" in self.missing:
            return  # the 950 generation, which `_start` detects
        missing = [name for name in MANDATORY if name in self.missing]
        if all(name in self.missing for name in CHIP_INFO):
            missing.append(CHIP_INFO[0])
        if missing:
            message = f"{self.path} lacks {missing[0]}: install a newer driver"
            raise LibraryUnavailable("LibraryUnfit", message)

    def _start(self) -> None:
        try:
            self.call("dcmi_init")
        except AgentError as error:
            if self.has(SECOND_INIT) and self._second_generation():
                message = "chips of the 950 generation: known from sysfs only"
                raise LibraryUnavailable("UnsupportedGeneration", message) from error
            message = f"{error}; check that the driver is loaded and no container holds the chips"
            raise LibraryUnavailable("DriverNotLoaded", message) from error

    def _second_generation(self) -> bool:
        try:
            self.call(SECOND_INIT)
        except AgentError:
            return False
        return True

    def call(self, symbol: str, *args: object) -> None:
        """Call a function; raise the error that `codes.error_of` returns for its code.

        Raises `NotSupported` for a symbol that the library lacks.
        """
        function = getattr(self._dll, symbol, None)
        if function is None:
            raise codes.error_of(symbol, codes.SYMBOL_MISSING)
        is_journaled = symbol not in _SLOW_BY_NATURE
        if is_journaled:
            self._calls.enter(symbol, _chip_of(args))
        began_s = self._clock.monotonic()
        try:
            code = int(function(*args))
        finally:
            if is_journaled:
                self._calls.leave()
        elapsed_s = self._clock.monotonic() - began_s
        if elapsed_s > SLOW_CALL_S and self._slow is not None:
            self._slow(symbol, elapsed_s)
        if code != codes.SUCCESS:
            raise codes.error_of(symbol, code)

    def version(self) -> str | None:
        """Return the version of the driver's interface."""
        buffer = ctypes.create_string_buffer(VERSION_LENGTH)
        try:
            self.call("dcmi_get_dcmi_version", buffer, len(buffer))
        except AgentError:
            return None
        return buffer.value.decode("ascii", "ignore").strip() or None


def chip_name(card: int, number: int) -> str:
    """Return the library's name for a chip: its card and its number in the card."""
    return f"card {card} chip {number}"


def _chip_of(args: tuple[object, ...]) -> str:
    """Return the chip that a call is for; empty if there is none."""
    for position in (0, 1):  # the first argument may be the output
        card, number = [*args[position:], None, None][:2]
        if isinstance(card, int) and isinstance(number, int):
            return chip_name(card, number)
    return f"card {args[0]}" if args and isinstance(args[0], int) else ""


def driver_version(host: HostFiles) -> str | None:
    """Return the driver's version from the file that its installer writes."""
    for line in (read_text(host, VERSION) or "").splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() == "Version":
            return value.strip() or None
    return None


class DcmiLoader:
    """Finds and loads the library of one host, once, and detects when it is replaced."""

    def __init__(
        self,
        host: HostFiles,
        settings: AscendSettings,
        clock: Clock = SYSTEM_CLOCK,
        slow: Callable[[str, float], None] | None = None,
    ) -> None:
        self.calls: LibraryCallJournal = NO_JOURNAL
        self.dcmi: Dcmi | None = None
        self.unloaded = False  # the driver was loaded and is no longer
        self._host = host
        self._settings = settings
        self._clock = clock
        self._slow = slow
        self._file: LibraryFile | None = None  # loaded until the process ends
        self._version: str | None = None
        self._had_manager = False

    def check_not_replaced(self) -> None:
        """Raise `LibraryReplaced` if only a new process can use the present driver."""
        if self._file is not None and self._file.is_replaced():
            raise LibraryReplaced(f"{self._file.path} was replaced: a new process must load it")
        if self.unloaded and self._host.exists(MANAGER):
            raise LibraryReplaced("the driver was loaded again: a new process must talk to it")

    def load(self) -> Dcmi:
        """Return the library, loading it at the first call; raises `LibraryUnavailable`."""
        self.check_not_replaced()
        installed_version = driver_version(self._host)
        if self._version is not None and installed_version not in (None, self._version):
            message = f"driver {installed_version} was installed over {self._version}"
            raise LibraryReplaced(f"{message}: a new process must load it")
        if self._had_manager and not self._host.exists(MANAGER):
            self.unloaded = True
            raise LibraryUnavailable("DriverNotLoaded", f"{MANAGER} is not there any more")
        if self.dcmi is None:
            path = locate_dcmi(self._settings)
            self._file = LibraryFile.stat(path)
            self.dcmi = Dcmi(path, self._clock, self._slow, self.calls)
        self._version = installed_version if self._version is None else self._version
        self._had_manager = self._had_manager or self._host.exists(MANAGER)
        return self.dcmi
