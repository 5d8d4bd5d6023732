"""Parses PCI configuration space: port type, ACS and ATS words."""

from __future__ import annotations

import msgspec

# of an extended configuration space; without the right to read it only 64 bytes are returned
CONFIG_BYTES = 4096

ENDPOINT = 0
ROOT_PORT = 4
UPSTREAM_PORT = 5
DOWNSTREAM_PORT = 6
PCIE_TO_PCI = 7

_STATUS = 0x06
_HAS_CAPABILITIES = 0x10
_FIRST_POINTER = 0x34
_FIRST_CAPABILITY = 0x40
_FIRST_EXTENDED = 0x100
_PCI_EXPRESS = 0x10
_ACS = 0x000D
_ATS = 0x000F
_ATS_ENABLE = 0x8000


class PciConfig(msgspec.Struct, frozen=True):
    """Parsed fields. `None`: not readable, or the function lacks the capability."""

    port_type: int | None = None
    acs_control: int | None = None
    ats_enabled: bool | None = None


def parse_config(data: bytes) -> PciConfig:
    """Read both capability lists; invalid pointers end a list, never loop, never raise.

    Incomplete data give no fields: the kernel returns them without CAP_SYS_ADMIN, and for functions
    of conventional PCI.
    """
    if len(data) < CONFIG_BYTES:
        return PciConfig()
    extended = _extended_capabilities(data)
    acs, ats = extended.get(_ACS), extended.get(_ATS)
    return PciConfig(
        port_type=_port_type(data),
        acs_control=_word(data, acs + 6) if acs is not None else None,
        ats_enabled=bool(_word(data, ats + 6) & _ATS_ENABLE) if ats is not None else None,
    )


def extended_capability(data: bytes, capability: int) -> int | None:
    """Return the offset of an extended capability; `None` if it is absent or not readable."""
    return _extended_capabilities(data).get(capability) if len(data) >= CONFIG_BYTES else None


def _word(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 2], "little")


def _port_type(data: bytes) -> int | None:
    if not data[_STATUS] & _HAS_CAPABILITIES:
        return None
    pointer = data[_FIRST_POINTER] & 0xFC
    visited: set[int] = set()
    while pointer >= _FIRST_CAPABILITY and pointer not in visited:
        visited.add(pointer)
        if data[pointer] == _PCI_EXPRESS:
            return _word(data, pointer + 2) >> 4 & 0xF
        pointer = data[pointer + 1] & 0xFC
    return None


def _extended_capabilities(data: bytes) -> dict[int, int]:
    """Return the offset of the first extended capability of each id."""
    offsets: dict[int, int] = {}
    visited: set[int] = set()
    offset = _FIRST_EXTENDED
    while _FIRST_EXTENDED <= offset <= CONFIG_BYTES - 8 and offset not in visited:
        visited.add(offset)
        header = int.from_bytes(data[offset : offset + 4], "little")
        if header in (0, 0xFFFFFFFF):
            break
        offsets.setdefault(header & 0xFFFF, offset)
        offset = header >> 20 & 0xFFC  # the two lowest bits are reserved
    return offsets
