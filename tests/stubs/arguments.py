"""Arguments of a C prototype, and which part of a call each of them is."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from tests.stubs.describe import SCALARS, Library, Record

_ARGUMENT = re.compile(r"\s*(.+?)\s*(\**)\s*(\w+)\s*")
_PLAIN = {"int": "i32", "unsigned": "u32", "char": "char", "const char": "const char"}


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """One argument. `key` is the C expression of a call's key, `bytes` the size of an output."""

    name: str
    c: str
    type: str
    key: str = ""
    bytes: str = ""
    room: str = ""  # of a text: the argument that says how long it may be
    record: Record | None = None


def arguments(prototype: str, library: Library, entries: Mapping[str, Record]) -> list[Argument]:
    """Read `Memory *to, handle h, int port, char *text, int length`."""
    matches = [_ARGUMENT.fullmatch(part) for part in prototype.split(",") if part.strip()]
    words = [(m[1], m[2], m[3]) for m in matches if m is not None]
    result: list[Argument] = []
    for place, (type_, stars, name) in enumerate(words):
        following = words[place + 1][2] if place + 1 < len(words) else ""
        result.append(_argument(type_, stars, name, following, library, entries))
    rooms = {argument.room for argument in result}
    return [msgspec.structs.replace(a, key="") if a.name in rooms else a for a in result]


def _argument(
    type_: str,
    stars: str,
    name: str,
    following: str,
    library: Library,
    entries: Mapping[str, Record],
) -> Argument:
    plain = _PLAIN.get(type_, type_)
    c_type = f"struct {type_}" if type_ in entries else SCALARS.get(plain, (type_, 0))[0]
    c = f"{c_type} {stars}{name}"
    index = library.handles.get(f"{c_type} {stars}".strip())
    if index is not None and name in library.scope:
        return Argument(name=name, c=c, type=plain, key=f"{index}({name})")
    if not stars and plain in SCALARS and plain != "ptr":
        return Argument(name=name, c=c, type=plain, key=f"(long long){name}")
    if stars == "*" and plain == "char":
        size = f"{name} ? (size_t){following} : 0"
        return Argument(name=name, c=c, type=plain, bytes=size, room=following)
    if stars and (plain in SCALARS or type_ in entries):
        size = f"{name} ? sizeof *{name} : 0"
        record = entries.get(type_) if stars == "*" else None
        return Argument(name=name, c=c, type=plain, bytes=size, record=record)
    if stars == "**" and plain == "void":
        return Argument(name=name, c=c, type="ptr", bytes=f"{name} ? sizeof *{name} : 0")
    return Argument(name=name, c=c, type=plain)
