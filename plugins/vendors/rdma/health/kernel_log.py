"""Kernel log lines about broken NICs, and for how long each one applies.

A line about a function applies until the function was removed and came back, or until its port was
active for five minutes without another such line. Lines are those of the kernel's mlx5, bnxt_en and
hns3 drivers and of its AER service, in old and new wording.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from agent.errors import HostFileError, NotSupported
from agent.host.kernel_log import KernelLog
from agent.snapshot.device import Health, HealthState
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import Problem

CLEAN_S = 300.0

MAX_LINE = 400  # characters that are looked at

MAX_SHOWN = 200  # and shown

FIRMWARE, PCIE = "FirmwareFatal", "PCIeUncorrectable"

_ADDRESS = r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"

_LINES = (
    (
        FIRMWARE,
        re.compile(
            rf"mlx5_core {_ADDRESS}: .*?(?:health compromised - reached miss count"
            r"|Fatal error [0-9]+ detected|synd 0x[0-9a-f]+: unrecoverable hardware error)"
        ),
    ),
    (FIRMWARE, re.compile(rf"bnxt_en {_ADDRESS}.*?\b[Ff]irmware\b.*?\bfatal\b")),
    (FIRMWARE, re.compile(rf"hns3 {_ADDRESS}.*?\b(?:IMP|[Gg]lobal|core) reset\b")),
    (
        PCIE,
        re.compile(rf"{_ADDRESS}: (?:AER: )?PCIe Bus Error: severity=Uncorrect(?:ed|able)\b"),
    ),
    (
        PCIE,
        re.compile(
            r"AER: (?:Multiple )?Uncorrect(?:ed|able) \([A-Za-z-]+\) error "
            rf"(?:message )?received(?:: | from ){_ADDRESS}"
        ),
    ),
)

_HINTS = ("mlx5_core", "bnxt_en", "hns3", "Uncorrect")


class KernelLogLine(msgspec.Struct, frozen=True):
    """A line that reports a broken function."""

    address: str  # as the kernel prints it: lower case, at least four digits of domain
    reason: str
    text: str


def parse_line(text: str) -> KernelLogLine | None:
    """Parse a line of the log; `None` if it reports no broken NIC."""
    line = text[:MAX_LINE]
    if not any(hint in line for hint in _HINTS):
        return None
    for reason, pattern in _LINES:
        if match := pattern.search(line):
            return KernelLogLine(match[1], reason, " ".join(line.split())[:MAX_SHOWN])
    return None


class KernelLogFault(msgspec.Struct, frozen=True, kw_only=True):
    """The fault of one function in the log, and since when its port is active again."""

    reason: str
    text: str
    last_s: float  # monotonic, of the last such line
    active_s: float | None = None  # since when the port is active without a break

    @property
    def health(self) -> Health:
        """Return the health of the function while the fault lasts."""
        return Health(state=HealthState.FAILED, reason=self.reason, message=self.text)


def record_line(fault: KernelLogFault | None, line: KernelLogLine, at_s: float) -> KernelLogFault:
    """Return the fault with one more line. Broken firmware has precedence over bus errors."""
    if fault is not None and fault.reason == FIRMWARE != line.reason:
        return replace(fault, last_s=max(at_s, fault.last_s))
    last_s = at_s if fault is None else max(at_s, fault.last_s)
    return KernelLogFault(reason=line.reason, text=line.text, last_s=last_s)


def check_port(
    fault: KernelLogFault, *, active: bool, now_s: float, is_first: bool = False
) -> KernelLogFault | None:
    """Return the fault after a reading of the port; `None` if the fault is over.

    At the first reading, a port that is active now counts as active since the line.
    """
    if not active:
        return replace(fault, active_s=None)
    since_s = fault.active_s
    if since_s is None:
        since_s = min(fault.last_s, now_s) if is_first else now_s
    if now_s - max(since_s, fault.last_s) >= CLEAN_S:
        return None
    return replace(fault, active_s=since_s)


MAX_FAULTS = 512

UNREAD = "KernelLogUnread"


class KernelLogFaults:
    """Faults in the kernel log by address of the function. For one thread; never waits.

    A recorded host has no log. `problem` says why the log cannot be read.
    """

    def __init__(self, host: HostFiles, *, replay: bool) -> None:
        self.problem: Problem | None = None
        self._faults: dict[str, KernelLogFault] = {}
        self._checked_addresses: set[str] = set()  # functions whose port was looked at
        self._log: KernelLog | None = None
        try:
            self._log = None if replay else KernelLog(host)
        except (HostFileError, NotSupported) as error:
            self.problem = self._problem_of(error)

    def read(self, now_s: float) -> None:
        """Read new records of the log. Their clock and `now_s` both start with the boot."""
        if self._log is None:
            return
        try:
            records = self._log.read()
        except HostFileError as error:
            self.problem = self._problem_of(error)
            self.close()
            return
        for record in records:
            line = parse_line(record.text)
            if line is None or (
                line.address not in self._faults and len(self._faults) >= MAX_FAULTS
            ):
                continue
            at_s = min(now_s, record.stamp_us / 1e6)
            self._faults[line.address] = record_line(self._faults.get(line.address), line, at_s)

    def check_port(self, address: str, *, active: bool, now_s: float) -> None:
        """Add a reading whether a function's port is active now."""
        fault = self._faults.get(address)
        is_first = address not in self._checked_addresses
        self._checked_addresses.add(address)
        updated = (
            check_port(fault, active=active, now_s=now_s, is_first=is_first) if fault else None
        )
        if updated is not None:
            self._faults[address] = updated
        elif fault is not None:
            del self._faults[address]

    def health(self, address: str | None) -> Health | None:
        """Return the health of a function that has a fault; `None` if it has none."""
        fault = self._faults.get(address or "")
        return fault.health if fault is not None else None

    def forget(self, addresses: Iterable[str]) -> None:
        """Drop the faults of functions that were removed."""
        for address in addresses:
            self._faults.pop(address, None)
            self._checked_addresses.discard(address)

    def close(self) -> None:
        """Close the log; may be called twice."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _problem_of(self, error: Exception) -> Problem | None:
        if isinstance(error, NotSupported):
            return None
        message = f"{error}: fatal errors of firmware and of the bus are not heard"
        return Problem(reason=UNREAD, message=message)
