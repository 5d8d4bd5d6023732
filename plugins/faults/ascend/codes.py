"""Which class a fault code is in: the maker's table, or the administrators'."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.errors import ParseError
from plugins.faults.ascend.table import RECURRING, TABLE

LINK_DOWN = 0x81078603  # a RoCE port lost its link: often gone before anybody notices
DRIVER_HANGS = 0x80E18005
MAX_FILE = 1 << 20
MAJOR = 2  # severity, and health, from which a chip is in real trouble
_CODE = re.compile(r"[0-9A-Fa-f]{1,9}")


class FaultClass(enum.Enum):
    """What a fault asks for, from the worst down."""

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


def expand(text: str) -> Iterator[int]:
    """Yield the codes that a line of the table stands for."""
    for word in text.split():
        head, colon, tails = word.partition(":")
        if not colon:
            yield int(head, 16)
            continue
        for part in tails.split(","):
            first, _, last = part.partition("-")
            for tail in range(int(first, 16), int(last or first, 16) + 1):
                yield int(head, 16) << 16 | tail


@functools.cache
def maker_table() -> CodeTable:
    """Return the maker's table; a code in several lists is of the worst of them."""
    return _table((name, expand(text)) for name, text in TABLE.items())


@functools.cache
def recurring() -> frozenset[int]:
    """Return the codes that, twice within a day, take a chip out until a person lets it back."""
    return frozenset(expand(RECURRING))


def parse_fault_codes(data: bytes) -> CodeTable:
    """Read `faultCode.json`: an object of lists of hexadecimal codes, by the name of the class.

    It replaces the maker's table whole, as it does for Huawei's own tools. `ParseError` for
    anything that is not such a file; lists of other names are passed over.
    """
    if len(data) > MAX_FILE:
        raise ParseError("fault codes: too large", "")
    try:
        body = msgspec.json.decode(data, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"fault codes ({error})", data[:80].decode("utf-8", "replace")) from error
    return _table((name, _listed(name, body[name])) for name in TABLE if name in body)


def _listed(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ParseError(f"fault codes: {name} is no list", str(value))
    wrong = [code for code in value if not (isinstance(code, str) and _CODE.fullmatch(code))]
    if wrong:
        raise ParseError(f"fault codes: {name} has no code in", str(wrong[0]))
    return tuple(int(code, 16) for code in value)


def _table(lists: Iterable[tuple[str, Iterable[int]]]) -> CodeTable:
    found: dict[int, FaultClass] = {}
    by_name = {name: FaultClass(name.removesuffix("Codes")) for name in TABLE}
    for name, codes in sorted(lists, key=lambda item: ORDER.index(by_name[item[0]])):
        for code in codes:
            found.setdefault(code, by_name[name])
    return found


def classify(code: int, table: CodeTable, severity: int | None, health: int | None) -> FaultClass:
    """Return the class of an active code.

    A code that the table lacks is judged by the severity of its event. If none was seen, the
    chip's own health decides: a newer driver's harmless notice must not drain a node.
    """
    known = table.get(code)
    if known is not None:
        return known
    if severity is not None:
        return FaultClass.SEPARATE if severity >= MAJOR else FaultClass.NONE
    return FaultClass.SEPARATE if (health or 0) >= MAJOR else FaultClass.SUB_HEALTH


def worst(classes: Iterable[FaultClass]) -> FaultClass:
    """Return the class that asks for most; `NONE` of nothing."""
    return min(classes, key=ORDER.index, default=FaultClass.NONE)
