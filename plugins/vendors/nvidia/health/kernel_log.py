"""Parses kernel log lines of NVIDIA's modules: card and error. Pure."""

from __future__ import annotations

import re

import msgspec

MAX_TEXT = 300  # characters of a line that are parsed
FALLEN_OFF = 79

_CARD = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})"
_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?{_CARD}(?:\.[0-7])?(?: GPU-I:([0-9]{{1,2}}))?\): ([0-9]{{1,6}})\b(.*)",
    re.DOTALL,
)
_FALLEN = re.compile(
    rf"NVRM: (?:The NVIDIA )?GPU {_CARD}(?:\.[0-7])?\b.*fallen off the bus", re.DOTALL
)
_SXID = re.compile(
    rf"nvidia-nvswitch([0-9]{{1,4}}): SXid \((?:PCI:)?{_CARD}(?:\.[0-7])?\): "
    r"([0-9]{1,6}), (Fatal|Non-fatal)\b(.*)",
    re.DOTALL,
)
# NVLink 5: columns are padded, and drivers before R575 write `XC 1 i 2` for `XC1 i2`
_SEVERITY = re.compile(r"\b(Fatal|Nonfatal) +XC ?[0-9]{1,2} +i ?[0-9]{1,3}\b")
_LINK = re.compile(r"\bLink +([0-9]{1,3})\b")
_PID = re.compile(r"\bpid='?([0-9]{1,8})\b")
# Xid 154: the recovery action before, the action from now on
_ACTION = re.compile(r"action changed from 0x[0-9a-fA-F]{1,8}\b.{0,60}? to 0x([0-9a-fA-F]{1,8})\b")
_LOADED = re.compile(r"NVRM: loading NVIDIA UNIX\b")


class LoggedXid(msgspec.Struct, frozen=True, kw_only=True):
    """One error of one card, or of an NVSwitch."""

    card: str  # PCI address without the function: 0000:05:00
    number: int
    is_fatal: bool | None = None  # NVLink 5 and NVSwitches only; None: the line does not say
    instance: int | None = None  # GPU instance of MIG
    link: int | None = None
    pid: int | None = None
    action: int | None = None  # recovery action that the driver requires from now on (Xid 154)
    switch: int | None = None  # number of the NVSwitch; None: a GPU


class DriverLoaded(msgspec.Struct, frozen=True):
    """The kernel module was loaded, which resets every card of this driver."""


def parse_line(text: str) -> LoggedXid | DriverLoaded | None:
    """Parse one line; `None` if it reports neither an error nor a load of the module."""
    if "NVRM" not in text and "SXid" not in text:
        return None
    line = text[:MAX_TEXT]
    if match := _XID.search(line):
        return _xid(match)
    if match := _SXID.search(line):
        return _sxid(match)
    if match := _FALLEN.search(line):
        return LoggedXid(card=address(match[1]), number=FALLEN_OFF)
    return DriverLoaded() if _LOADED.search(line) else None


def _xid(match: re.Match[str]) -> LoggedXid:
    severity = _SEVERITY.search(match[4])
    link = _LINK.search(match[4]) if severity else None
    pid, action = _PID.search(match[4]), _ACTION.search(match[4])
    return LoggedXid(
        card=address(match[1]),
        number=int(match[3]),
        instance=int(match[2]) if match[2] else None,
        is_fatal=severity[1] == "Fatal" if severity else None,
        link=int(link[1]) if link else None,
        pid=int(pid[1]) if pid else None,
        action=int(action[1], 16) if action else None,
    )


def _sxid(match: re.Match[str]) -> LoggedXid:
    link = _LINK.search(match[5])
    return LoggedXid(
        card=address(match[2]),
        number=int(match[3]),
        is_fatal=match[4] == "Fatal",
        link=int(link[1]) if link else None,
        switch=int(match[1]),
    )


def address(card: str) -> str:
    """Return an address as sysfs writes it: lower case, a four-digit domain if it fits."""
    domain, _, rest = card.lower().partition(":")
    short = domain[4:] if len(domain) == 8 and domain.startswith("0000") else domain
    return f"{short}:{rest}"
