"""Lines by which drivers and the PCI core tell that a NIC is broken, and how long that counts.

What is said of a function holds until it left and came back, or until its port was active for
five minutes without another such line. Lines are those of the kernel's mlx5, bnxt_en and hns3
drivers and of its AER service, old and new wording.
"""

from __future__ import annotations

import re

import msgspec
from msgspec.structs import replace

from agent.model.device import Health, HealthState

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


class Logged(msgspec.Struct, frozen=True):
    """A line that says that a function is broken."""

    address: str  # as the kernel prints it: lower case, at least four digits of domain
    reason: str
    text: str


def parse_line(text: str) -> Logged | None:
    """Read one line of the log; `None` for what says nothing of a NIC's end."""
    line = text[:MAX_LINE]
    if not any(hint in line for hint in _HINTS):
        return None
    for reason, pattern in _LINES:
        if match := pattern.search(line):
            return Logged(match[1], reason, " ".join(line.split())[:MAX_SHOWN])
    return None


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """What the log said of one function, and since when its port has been active again."""

    reason: str
    text: str
    last_s: float  # monotonic, of the last such line
    active_s: float | None = None  # since when the port is active without a break

    @property
    def health(self) -> Health:
        """The verdict while the cause holds."""
        return Health(state=HealthState.FAILED, reason=self.reason, message=self.text)


def logged(known: Cause | None, line: Logged, at_s: float) -> Cause:
    """Take a line in. A broken firmware explains errors of the bus, so it is what is told."""
    if known is not None and known.reason == FIRMWARE != line.reason:
        return replace(known, last_s=max(at_s, known.last_s))
    last_s = at_s if known is None else max(at_s, known.last_s)
    return Cause(reason=line.reason, text=line.text, last_s=last_s)


def looked(cause: Cause, *, active: bool, now_s: float, first: bool = False) -> Cause | None:
    """Take a look at the port in; `None` when the cause is over.

    Of a line that is older than the first look, nobody saw the port in between: one that is
    active now is taken to have been.
    """
    if not active:
        return replace(cause, active_s=None)
    since_s = cause.active_s
    if since_s is None:
        since_s = min(cause.last_s, now_s) if first else now_s
    if now_s - max(since_s, cause.last_s) >= CLEAN_S:
        return None
    return replace(cause, active_s=since_s)
