"""The language a vendor library is described in: its structs, its symbols, where answers come from.

A struct is one line, as in `Power 84 4: usage@0:i32 cap@4:i32 core@8:i32*10 name@48:c36`: size,
alignment, then each member at its offset. A lower-case `v` before the size says that its first
member is a version which the caller sets, `=0x2000028` that it has to be just this. Types: u8 to
u64, i8 to i64, f32, f64, ptr, cN (text of N bytes) and any struct described before; `*N` makes an
array.

A symbol is a C prototype and what answers it. Integers among the arguments are keys that paths
may name (`mlu.{h}.uuid`); the first of them, `Library.scope`, say whom a call is about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

SCALARS: dict[str, tuple[str, int]] = {
    "u8": ("uint8_t", 1),
    "u16": ("uint16_t", 2),
    "u32": ("uint32_t", 4),
    "u64": ("uint64_t", 8),
    "i8": ("int8_t", 1),
    "i16": ("int16_t", 2),
    "i32": ("int32_t", 4),
    "i64": ("int64_t", 8),
    "f32": ("float", 4),
    "f64": ("double", 8),
    "ptr": ("void *", 8),
}
_RECORD = re.compile(r"(\w+)( v| =0x[0-9a-f]+)? (\d+) (\d+):(.*)")
_MEMBER = re.compile(r"(\w+)@(\d+):([A-Za-z]\w*?)(?:\*(\d+))?")
_TEXT = re.compile(r"c(\d+)")


class Member(msgspec.Struct, frozen=True):
    """One member of a struct; `count` 0 is no array. The type `char` has always a count."""

    name: str
    offset: int
    type: str
    count: int = 0


class Record(msgspec.Struct, frozen=True):
    """A struct with its size and alignment in bytes."""

    name: str
    size: int
    align: int
    members: tuple[Member, ...]
    versioned: bool = False
    word: str = ""  # the one version that is taken

    def member(self, name: str) -> Member:
        """Return a member by its name; an unknown one is a mistake in the description."""
        return next(member for member in self.members if member.name == name)


class Get(msgspec.Struct, frozen=True):
    """A line of the scenario as a value. Without the line the call answers `unsupported`.

    `=` is the value of the element's own line, `#` its number. `part` cuts `a:b:c`; what is
    stored is the number times `scale`: 1048576 turns the scenario's MiB into bytes.
    """

    path: str
    otherwise: str | None = None
    part: int = -1
    separator: str = ":"
    base: int = 0
    scale: float = 1.0


class Each(msgspec.Struct, frozen=True):
    """An array filled from every line `<prefix><number>`; `count` is room in, amount out."""

    prefix: str
    into: str
    count: str
    members: Mapping[str, Get]


class Symbol(msgspec.Struct, frozen=True):
    """One exported function.

    `answer` maps members of its one struct, or names of scalar and text arguments, to lines;
    a text is the body in C, for what cannot be told so. `returns` is `code`, `text` (of the
    `Get` under the name `return`) or `number`. `since` is the branch of the driver it came with.
    """

    name: str
    arguments: str
    answer: Mapping[str, Get] | Each | str = msgspec.field(default_factory=dict)
    returns: str = "code"
    since: int = 0


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """A vendor's library. Numbers are its return codes; `sources` are C files to go with it."""

    name: str
    soname: str
    records: tuple[Record, ...]
    symbols: tuple[Symbol, ...]
    unsupported: int
    bad_handle: int = 0  # 0: keys below zero are as good as any
    too_small: int
    bad_version: int = 0  # of a struct that takes one version only
    scope: tuple[str, ...]  # names of the arguments that say whom a call is about
    handles: Mapping[str, str] = msgspec.field(default_factory=dict)  # C type: function to an index
    version_check: str = ""  # C function that judges the version a caller set: its code, or 0
    scenario_env: str = "STUB_SCENARIO"
    trace_env: str = "STUB_TRACE"
    prototypes: str = ""  # header of what `sources` define
    sources: tuple[str, ...] = ()


def records(text: str) -> tuple[Record, ...]:
    """Read structs, one a line; an indented line goes on with the one before."""
    result: list[Record] = []
    for line in re.sub(r"\n[ \t]+", " ", text.strip()).splitlines():
        match = _RECORD.fullmatch(line)
        if match is None:
            raise ValueError(f"not a struct: {line!r}")
        name, version, size, align, rest = match.groups()
        fixed = version.strip(" =v") if version else ""
        members = [Member("version", 0, "u32" if fixed else "i32")] if version else []
        members += [_member(word) for word in rest.split()]
        result.append(Record(name, int(size), int(align), tuple(members), bool(version), fixed))
    return tuple(result)


def _member(word: str) -> Member:
    match = _MEMBER.fullmatch(word)
    if match is None:
        raise ValueError(f"not a member: {word!r}")
    name, offset, type_, count = match.groups()
    text = _TEXT.fullmatch(type_)
    if text is not None:
        return Member(name, int(offset), "char", int(text[1]))
    return Member(name, int(offset), type_, int(count or 0))
