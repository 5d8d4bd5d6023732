"""Parsers of the RDMA classes' files. No I/O.

Text that the kernel does not document is parsed as `None`: the fact is then absent, never 0.
"""

from __future__ import annotations

import re

MAX_COUNTER = 2**64 - 1
MAX_LID = 0xFFFF

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,63}")
_ENUM = re.compile(r"([0-9]{1,3}):[ \t]*(\S[^\r\n]{0,62})")
_RATE = re.compile(r"([0-9]{1,6})(?:\.([0-9]))? Gb/sec(?: \(([0-9]{1,2})X(?: ([A-Z0-9]+))?\))?")
_GUID = re.compile(r"[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3}")
_GID = re.compile(r"[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){7}")
_LID = re.compile(r"0x([0-9a-fA-F]{1,8})|([0-9]{1,5})")
_COUNTER = re.compile(r"[0-9]{1,20}")
_PKEY = re.compile(r"0x[0-9a-f]{4}")
_PORT = re.compile(r"[1-9][0-9]{0,2}")
_LIMITS = re.compile(r"(\S{1,63}) hca_handle=([0-9]{1,10}|max) hca_object=([0-9]{1,10}|max)")
_LINK_LOCAL = "fe80:0000:0000:0000:"
_ZERO_HALF = "0000:0000:0000:0000"
_MAPPED = "0000:0000:0000:0000:0000:ffff:"  # an IPv4 address in an IPv6 one


def is_name(text: str) -> bool:
    """Return whether a directory entry is an RDMA device's name that is safe in paths and texts."""
    return _NAME.fullmatch(text) is not None and text not in (".", "..")


def parse_enum(text: str) -> tuple[int, str] | None:
    """Parse `4: ACTIVE` to (4, "ACTIVE"); the number is used, the name is only shown."""
    match = _ENUM.fullmatch(text)
    return (int(match[1]), match[2].rstrip()) if match else None


def parse_rate(text: str) -> int | None:
    """Parse `2.5 Gb/sec (1X SDR)` to Mbit/s: 2500; lanes and speed name are optional."""
    match = _RATE.fullmatch(text)
    return int(match[1]) * 1000 + int(match[2] or 0) * 100 if match else None


def parse_guid(text: str) -> str | None:
    """Parse a GUID to 16 lower-case digits; `None` for zero, which means that it is not set."""
    digits = text.replace(":", "").lower() if _GUID.fullmatch(text) else ""
    return digits if digits.strip("0") else None


def show_guid(digits: str) -> str:
    """Format 16 digits in groups of four, as the kernel does."""
    return ":".join(digits[start : start + 4] for start in range(0, len(digits), 4))


def parse_gid(text: str) -> str | None:
    """Parse a GID to lower case; zeros, and a prefix without address, are empty slots."""
    gid = text.lower() if _GID.fullmatch(text) else ""
    # an InfiniBand port without subnet manager, and unused slots of old kernels, hold fe80::
    if gid.removeprefix(_LINK_LOCAL) == _ZERO_HALF or not gid.strip("0:"):
        return None
    return gid


def is_link_local(gid: str) -> bool:
    """Return whether the address is link-local (fe80::/64)."""
    return gid.startswith(_LINK_LOCAL)


def is_ipv4(gid: str) -> bool:
    """Return whether the address is an IPv4 one mapped into IPv6."""
    return gid.startswith(_MAPPED)


def is_pkey(text: str) -> bool:
    """Return whether the text is a partition key in use: 16 bits, the lower 15 not zero."""
    return _PKEY.fullmatch(text) is not None and int(text, 16) & 0x7FFF != 0


def subnet_prefix(gid: str) -> str:
    """Return the upper half of an address: two NICs with different ones are on two fabrics."""
    return gid[: len(_ZERO_HALF)]


def parse_lid(text: str) -> int | None:
    """Parse a local identifier, `0x` hexadecimal or decimal, of at most 16 bits."""
    match = _LID.fullmatch(text)
    if not match:
        return None
    value = int(match[1], 16) if match[1] else int(match[2])
    return value if value <= MAX_LID else None


def parse_counter(text: str) -> int | None:
    """Parse an unsigned 64-bit counter; `None` for `N/A (no PMA)` and any other text."""
    value = int(text) if _COUNTER.fullmatch(text) else MAX_COUNTER + 1
    return value if value <= MAX_COUNTER else None


def parse_port(text: str) -> int | None:
    """Parse a port directory's name, 1 to 255 without leading zero."""
    return int(text) if _PORT.fullmatch(text) and int(text) <= 255 else None


def parse_limits(text: str) -> dict[str, tuple[int | None, int | None]]:
    """Parse `rdma.max` to (handles, objects) by device.

    `max` is `None`, other lines are skipped.
    """
    limits: dict[str, tuple[int | None, int | None]] = {}
    for line in text.splitlines():
        match = _LIMITS.fullmatch(line.strip())
        if match:
            handles, objects = (None if part == "max" else int(part) for part in match.groups()[1:])
            limits[match[1]] = (handles, objects)
    return limits
