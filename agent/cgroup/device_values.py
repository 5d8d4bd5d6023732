"""Files with one line for each block device, as `io.max` and `blkio.throttle.read_bps_device`."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation

import msgspec

from agent.errors import ParseError

UNSET = "unset"  # in the ledger: there is no line of the device, or one without effect
AUTOMATIC = "auto"  # the kernel chooses the other values
MAX_DEVICE_FILE = 64 * 1024  # bytes
MAX_BPS = (1 << 63) - 1
MAX_IOPS = (1 << 32) - 2  # the kernel stores 32 bits; the largest number is no limit
MAX_WEIGHT, MAX_WEIGHT_V1 = 10000, 100
DEVICE_NUMBER = re.compile("[0-9]{1,7}:[0-9]{1,7}")
_DECIMAL = re.compile(r"[0-9]{1,20}(\.[0-9]{1,6})?")
_WORD = re.compile(r"[a-z0-9_.]{1,32}")


class DeviceFieldKind(enum.Enum):
    """The meaning of a field's text."""

    NUMBER = "number"
    DECIMAL = "decimal"  # `95` or `95.00`
    WORD = "word"


class DeviceField(msgspec.Struct, frozen=True):
    """One value of a line. Without a name it is the only one, and the line has no `=`.

    `default` is the text of a line that has no such value; empty: the value has no default. One
    that is not `required` keeps its value in the kernel when it is not written.
    """

    name: str
    kind: DeviceFieldKind = DeviceFieldKind.NUMBER
    default: str = ""
    low: int = 0
    high: int = MAX_BPS
    required: bool = True


class DeviceFile(msgspec.Struct, frozen=True):
    """One kind of file, of one version of cgroups."""

    name: str
    version: int
    fields: tuple[DeviceField, ...]
    decimals: int = 0  # of a decimal that is written

    @property
    def controller(self) -> str:
        """Return the controller of the file."""
        return "io" if self.version == 2 else "blkio"

    @property
    def has_automatic_values(self) -> bool:
        """Return whether the kernel chooses the values unless `ctrl=user` is written."""
        return any(field.name == "ctrl" for field in self.fields)


class DeviceLine(msgspec.Struct, frozen=True):
    """The line of one device: names and values that are not the default, in the file's order.

    Without any, the device has no line, or one without effect.
    """

    fields: tuple[tuple[str, str], ...] = ()


NO_LINE = DeviceLine()


def device_line(file: DeviceFile, values: Mapping[str, str]) -> DeviceLine:
    """Return the line with these values; raise `ParseError` for one that no kernel prints."""
    fields: list[tuple[str, str]] = []
    for field in file.fields:
        text = values.get(field.name)
        if text is not None and (canonical := _canonical(file, field, text)) != field.default:
            fields.append((field.name, canonical))
    if file.has_automatic_values and ("ctrl", "user") not in fields:
        fields = [field for field in fields if field[0] == "enable"]
    return DeviceLine(tuple(fields))


def _canonical(file: DeviceFile, field: DeviceField, text: str) -> str:
    if text == field.default:
        return text
    if field.kind is DeviceFieldKind.WORD:
        if not _WORD.fullmatch(text):
            raise ParseError(f"{field.name} of {file.name}", text)
        return text
    try:
        number = Decimal(text) if _DECIMAL.fullmatch(text) else None
    except InvalidOperation:
        number = None
    is_whole = field.kind is DeviceFieldKind.NUMBER
    if number is None or (is_whole and number != int(number)):
        raise ParseError(f"{field.name or 'value'} of {file.name}", text)
    return str(int(number)) if is_whole else format(number.normalize(), "f")


def check_device_line(file: DeviceFile, line: DeviceLine) -> DeviceLine:
    """Return the line; raise `ParseError` if a number is outside of what the kernel accepts."""
    fields = {field.name: field for field in file.fields}
    for name, text in line.fields:
        field = fields.get(name)
        is_number = field is not None and field.kind is not DeviceFieldKind.WORD
        if field is None or (is_number and not field.low <= Decimal(text) <= field.high):
            raise ParseError(f"{name or 'value'} of {file.name}", text)
    return line


def is_same_line(file: DeviceFile, desired: DeviceLine, current: DeviceLine) -> bool:
    """Return whether the current value has the same effect as the desired one."""
    if desired == current:
        return True
    names = {name for name, _ in desired.fields}
    free = {field.name for field in file.fields if not field.required} - names
    return bool(free) and desired.fields == tuple(
        field for field in current.fields if field[0] not in free
    )


def parse_device_line(file: DeviceFile, device: str, data: bytes) -> DeviceLine:
    """Return the line of one device in a file's contents.

    Raise `ParseError` for what no kernel prints, and for a file that was read in part.
    """
    if data and not data.endswith(b"\n"):
        raise ParseError(file.name, "a line that is cut off")
    prefix = f"{device} ".encode()
    for line in data.splitlines():
        if line.startswith(prefix):
            return parse_fields(file, line[len(prefix) :].decode("ascii", "replace"))
    return NO_LINE


def parse_fields(file: DeviceFile, text: str) -> DeviceLine:
    """Return a line from its text without the device's number."""
    words = text.split()
    if not file.fields[0].name:
        if len(words) != 1:
            raise ParseError(file.name, text)
        return device_line(file, {"": words[0]})
    pairs = [word.partition("=") for word in words]
    if not pairs or not all(equals and value for _, equals, value in pairs):
        raise ParseError(file.name, text)
    return device_line(file, {name: value for name, _, value in pairs})


def device_text(file: DeviceFile, device: str, value: DeviceLine) -> str:
    """Return the line that sets the value, or that removes it."""
    return " ".join((device, *_words(file, value)))


def ledger_text(file: DeviceFile, value: DeviceLine) -> str:
    """Return the value as text for the ledger; `parse_ledger_text` parses it."""
    return " ".join(_words(file, value)) if value.fields else UNSET


def parse_ledger_text(file: DeviceFile, text: str) -> DeviceLine:
    """Return the value of a text of `ledger_text`."""
    return NO_LINE if text == UNSET else parse_fields(file, text)


def _words(file: DeviceFile, value: DeviceLine) -> Iterator[str]:
    values = dict(value.fields)
    is_automatic = file.has_automatic_values and "ctrl" not in values
    for field in file.fields:
        text = values.get(field.name, field.default)
        if not text or (is_automatic and field.name not in ("enable", "ctrl")):
            continue
        if field.kind is DeviceFieldKind.DECIMAL:
            text = f"{Decimal(text):.{file.decimals}f}" if file.decimals else text
        yield f"{field.name}={text}" if field.name else text


def _numbers(names: Iterable[str], default: str, low: int, high: int) -> tuple[DeviceField, ...]:
    return tuple(DeviceField(name, DeviceFieldKind.NUMBER, default, low, high) for name in names)


_CONTROL = DeviceField("ctrl", DeviceFieldKind.WORD, AUTOMATIC)
_COSTS = _numbers(
    ("rbps", "rseqiops", "rrandiops", "wbps", "wseqiops", "wrandiops"), "", 1, MAX_BPS
)
_LATENCIES = (
    DeviceField("enable", DeviceFieldKind.NUMBER, "0", 0, 1),
    _CONTROL,
    DeviceField("rpct", DeviceFieldKind.DECIMAL, "", 0, 100),
    DeviceField("rlat"),
    DeviceField("wpct", DeviceFieldKind.DECIMAL, "", 0, 100),
    DeviceField("wlat"),
    # of the rate, in percent
    DeviceField("min", DeviceFieldKind.DECIMAL, "", 0, 10000, required=False),
    DeviceField("max", DeviceFieldKind.DECIMAL, "", 0, 10000, required=False),
)


def _throttle_file(name: str, high: int) -> DeviceFile:
    return DeviceFile(f"blkio.throttle.{name}_device", 1, _numbers(("",), "0", 0, high))


READ_IOPS = _throttle_file("read_iops", MAX_IOPS)
READ_BPS = _throttle_file("read_bps", MAX_BPS)
WRITE_IOPS = _throttle_file("write_iops", MAX_IOPS)
WRITE_BPS = _throttle_file("write_bps", MAX_BPS)
WEIGHT_V1 = DeviceFile("blkio.cost.weight", 1, _numbers(("",), "100", 1, MAX_WEIGHT_V1))
LATENCY_V1 = DeviceFile("blkio.cost.qos", 1, _LATENCIES)
MODEL_V1 = DeviceFile("blkio.cost.model", 1, (_CONTROL, *_COSTS))
LIMITS = DeviceFile(
    "io.max",
    2,
    (
        *_numbers(("rbps", "wbps"), "max", 1, MAX_BPS),
        *_numbers(("riops", "wiops"), "max", 1, MAX_IOPS),
    ),
)
WEIGHT = DeviceFile("io.weight", 2, _numbers(("",), "default", 1, MAX_WEIGHT))
LATENCY = DeviceFile("io.cost.qos", 2, _LATENCIES, 2)
MODEL = DeviceFile(
    "io.cost.model", 2, (_CONTROL, DeviceField("model", DeviceFieldKind.WORD), *_COSTS)
)
LATENCY_TARGET = DeviceFile("io.latency", 2, _numbers(("target",), "0", 0, MAX_BPS))

DEVICE_FILES = {
    file.name: file
    for file in (
        *(READ_IOPS, READ_BPS, WRITE_IOPS, WRITE_BPS, WEIGHT_V1, LATENCY_V1, MODEL_V1),
        *(LIMITS, WEIGHT, LATENCY, MODEL, LATENCY_TARGET),
    )
}
