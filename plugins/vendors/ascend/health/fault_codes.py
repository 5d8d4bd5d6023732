"""Huawei's fault codes and their classes, worst first.

`80C9:8000,8002-8004` stands for 80C98000, 80C98002, 80C98003 and 80C98004, all hexadecimal.
Names are those of `faultCode.json`, the file by which administrators replace the table.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.errors import ParseError
from agent.wire_formats.json_values import JSON_ERRORS

FAULT_CODES: dict[str, str] = {
    "SeparateNPUCodes": (
        "020001002 4C4B:A00C 8081:8C00,8C05 80DF:8402 80E0:020B 80E1:8402 80E3:A201 814F:8002 "
        "817F:8002 "
        "8F18:0200-0219,0234,0242,0245,0246,0249,024A,024D,024E,0252,0253,0256-0258,025B-0292 "
        "8F18:0400-041C,0460-047C,0A00,0A01,0E00,0E10-0E21,1020,1021,1210-121A 8F19:800C "
        "9419:321B A230:1000,1001,2001 A419:2C1A,3216,321B,321C A42F:390F,3916,391A A618:3207 "
        "A62F:3934 A802:8801 A819:320F,3234,3235"
    ),
    "PreSeparateNPUCodes": (
        "110001024 8118:043C,045A "
        "8F18:0220-0233,0235,0236,0241,0243,0244,0247,0248,024B,024C,024F,0251,0254,0255 "
        "8F18:0259,025A,0420-043C,0440-0448,044B-045C,121B,1801,4C00-4C05,4C10-4C1C,4C1E "
        "8F18:4C1F,4C21-4C24 8F19:A000-A04E"
    ),
    "RestartNPUCodes": (
        "40F8:4E00 80A1:8008 80A3:8008 80A5:8008 80B5:8000 80B7:8000 80B9:8000,8008 80BD:8008 "
        "80C7:8008 80C9:8001 80CB:8001 80CD:8008 80CF:8000,8008,8009 80D3:8001 80D5:8001 "
        "80DD:8001 80DE:1801 80DF:8000,8008-800A 80E1:8000,8005,8008,800A,8404 "
        "80E2:1008,120D,1E01,4E00 80E3:8008,9200,A202,A203,A207 80E4:4E00 "
        "80E5:8005,8008,8009,8E02,8E03,8E05 80E7:8000,8008 80F1:8000,8008,800A 80F2:180D "
        "80F3:8000,8008 80F7:8003,8008,8009,8C02-8C04 80FA:4E00 80FB:8005 812E:4E00 812F:8000 "
        "8133:8002,8008 8135:8004 8139:800A 813B:8002,8008 813D:8004 813F:800A 8145:800A "
        "8147:8002,8008 8149:8004 814D:800A 814F:8008 8157:8002,8008 815F:8002,8008 "
        "816F:8002,8008 817F:8008 8193:8002,8008 8195:8002,8008 8197:8002,8008 8199:8008,8009 "
        "819B:800A 81AE:4E00 81AF:8000,8004,8008 81B1:8008,800D 81B3:8000,8004,8008,8009 "
        "81B5:8002 81B7:8004 81C3:8000 81C5:800A 81C7:800A 81C9:800A 8C03:A000 8C1F:A006 "
        "8C4B:A00C 8C4D:A000 A214:1004,1006,2004,2006,5004 A418:3200 A602:3001-3004 "
        "A606:0000-0005,000A-000C,000F,009D,0FFF A607:FFFF "
        "A614:0001-0006,1003,2003,3003,4003,5003 A619:2D15,3206,3215,3248 A62F:3905,FFFF "
        "A630:3003,3004 A636:0000,1000,2000 A802:1004 A806:0FFF A807:FFFF A82A:0000"
    ),
    "FreeRestartNPUCodes": (
        "41AE:4E01 80AD:8009 81CB:8003,8009 8C04:4E00 8C06:4E00 8C08:4E00 8C0A:4E00 8C0C:4E00 "
        "8C0E:4E00 8C10:4E00 8C12:4E00 8C17:A005 8C19:A005 8C1D:A005 8C46:4E00 8C48:4E00 "
        "8C4C:4E00 A419:3217,3218 A42A:0000 A42F:3917,3918"
    ),
    "RestartBusinessCodes": (
        "80E0:1801 81B3:8002 8C20:4E00 A230:1001,1002,3001 A430:2003-2006,2009,200A A602:50A1 "
        "A630:1002 A802:8802 B406:0006-0009,000D,000E,0010,0011,0014,009C"
    ),
    "RestartRequestCodes": (
        "80BB:8000,8003,8008-800A 80BD:8000,8003,8009 80C9:8000,8002,8003,8008-800A "
        "80CB:8000,8002,8008-800A 80CF:8003 80D5:8000,8009 80D9:8008 80DB:8000,800A "
        "80DD:8000,8003 8107:800D 8131:8008,800A 81AB:8003,8008,800D"
    ),
    "SubHealthFaultCodes": (
        "020000002 110000002 8081:8C06 80DE:0207 80E1:8405 80E2:0207 8107:8605 819B:8605 "
        "81A3:880C 81AD:8605 81B1:8605 8C1F:860A 8C2F:A001"
    ),
    "NotHandleFaultCodes": (
        "200001002 4C1F:8608 8081:8200-8205 80A1:8005,8006 80A3:8003,8006 80A5:8003,8006 "
        "80B1:8009 80B7:8005,8006,8009 80B9:8006 80BD:8006 80C9:8006,8010 80CB:8006,8010 "
        "80CD:8003,8006 80D3:8009 80DD:8007,8008 80DE:0200,1803,1805 80DF:8006,8400,8401 "
        "80E0:0209,1805,1809 80E1:8006,800F,8400,8401 80E2:1007 80E3:8003,8009 80F1:8003,8006 "
        "80F3:8003,8006,8009 80F7:8006,860C 80FB:8000 8107:8008,8603,8607 8131:8006 "
        "8133:8004,8006 8135:8005,8009 813B:8004,8006 813D:8005,8009 8147:8004,8006 "
        "8149:8005,8009 814D:8006 814F:8004,8006 8157:8004,8006 815F:8004,8006 8161:8009 "
        "816F:8004,8006 8171:8009 817F:8004,8006 8193:8004,8006 8195:8004,8006 8197:8004,8006 "
        "8199:8006 819B:8003,8006,800D 819D:8000 81A4:4E00 81AF:8009,AA00-AA06 81B1:8603 "
        "81B3:8010 81B5:8004 81B7:8009 8C1F:8608,8609,860B 8C2F:A009 A214:0007-000B,000D "
        "A402:5021,5041,5061,5081,50E1,5101,8801 A414:0007-000D A430:3002 A602:50C1"
    ),
}

# twice within a day: the chip is out of service until a person releases it
RECURRING_CODES = (
    "80C9:8000,8008 80B7:8000 80B5:8000 80A1:8008 80A3:8008 80A5:8008 80B9:8000,8008 "
    "80BB:8000,8008 80BD:8000,8008 80C7:8008 80CB:8008 80CD:8008 80CF:8008 80D9:8008 "
    "80DF:8008 80DE:1801 80E0:1801 80E1:8008 80E3:8008,9200,A202,A203 80E7:8000,8008 "
    "80F1:8000,8008 80F3:8008 80F7:8008 8131:8008 8133:8008 813B:8008 8147:8008 8157:8008 "
    "815F:8008 8193:8008 8195:8008 8197:8008"
)

LINK_DOWN = 0x81078603  # a RoCE port lost its link, often for a short time only
DRIVER_HANGS = 0x80E18005
MAX_FAULT_FILE = 1 << 20
MAJOR_SEVERITY = 2  # from this severity, or health code, on a chip has failed
_CODE = re.compile(r"[0-9A-Fa-f]{1,9}")


class FaultClass(enum.Enum):
    """The action that a fault requires, the worst first."""

    MANUAL = "ManuallySeparateNPU"
    SEPARATE = "SeparateNPU"
    PRE_SEPARATE = "PreSeparateNPU"
    RESTART_CHIP = "RestartNPU"
    RESTART_CHIP_IF_FREE = "FreeRestartNPU"
    RESTART_JOB = "RestartBusiness"
    RESTART_REQUEST = "RestartRequest"
    SUB_HEALTH = "SubHealthFault"
    NONE = "NotHandleFault"


ORDER = tuple(FaultClass)

CodeTable = Mapping[int, FaultClass]


def expand_codes(text: str) -> Iterator[int]:
    """Yield the codes of a line of the table."""
    for group in text.split():
        head, colon, tails = group.partition(":")
        if not colon:
            yield int(head, 16)
            continue
        for part in tails.split(","):
            first, _, last = part.partition("-")
            for tail in range(int(first, 16), int(last or first, 16) + 1):
                yield int(head, 16) << 16 | tail


@functools.cache
def maker_table() -> CodeTable:
    """Return the maker's table; a code in several lists has the worst class of them."""
    return _table((name, expand_codes(text)) for name, text in FAULT_CODES.items())


@functools.cache
def recurring_codes() -> frozenset[int]:
    """Return the codes that, twice within a day, take a chip out until a person releases it."""
    return frozenset(expand_codes(RECURRING_CODES))


def parse_fault_codes(data: bytes) -> CodeTable:
    """Parse `faultCode.json`: an object with a list of hexadecimal codes for each class.

    The file replaces the whole table of the maker, as with Huawei's own tools. Lists with other
    names are ignored. Raises `ParseError` for an invalid file.
    """
    if len(data) > MAX_FAULT_FILE:
        raise ParseError("fault codes: too large", "")
    try:
        body = msgspec.json.decode(data, type=dict[str, object])
    except JSON_ERRORS as error:
        raise ParseError(f"fault codes ({error})", data[:80].decode("utf-8", "replace")) from error
    return _table((name, _parse_list(name, body[name])) for name in FAULT_CODES if name in body)


def _parse_list(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ParseError(f"fault codes: {name} is no list", str(value))
    invalid = [code for code in value if not (isinstance(code, str) and _CODE.fullmatch(code))]
    if invalid:
        raise ParseError(f"fault codes: {name} has no code in", str(invalid[0]))
    return tuple(int(code, 16) for code in value)


def _table(lists: Iterable[tuple[str, Iterable[int]]]) -> CodeTable:
    classes: dict[int, FaultClass] = {}
    by_name = {name: FaultClass(name.removesuffix("Codes")) for name in FAULT_CODES}
    for name, codes in sorted(lists, key=lambda item: ORDER.index(by_name[item[0]])):
        for code in codes:
            classes.setdefault(code, by_name[name])
    return classes


def classify(code: int, table: CodeTable, severity: int | None, health: int | None) -> FaultClass:
    """Return the class of an active code.

    The class of a code that the table lacks follows from the severity of its event. Without an
    event the chip's health decides: harmless codes of newer drivers must not drain a node.
    """
    fault_class = table.get(code)
    if fault_class is not None:
        return fault_class
    if severity is not None:
        return FaultClass.SEPARATE if severity >= MAJOR_SEVERITY else FaultClass.NONE
    return FaultClass.SEPARATE if (health or 0) >= MAJOR_SEVERITY else FaultClass.SUB_HEALTH


def worst_class(classes: Iterable[FaultClass]) -> FaultClass:
    """Return the worst class; `NONE` if there are no classes."""
    return min(classes, key=ORDER.index, default=FaultClass.NONE)
