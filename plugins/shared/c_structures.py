"""Builds a vendor's C structures from one table with ctypes, and verifies their layout."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from typing import Any

from agent.errors import VendorFault

_MEMBER = re.compile(r"(\w+)@(\d+):([A-Za-z]\w*)(?:\*(\d+))?")
_SCALARS: dict[str, Any] = {
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}


class StructureTable:
    """The structures of one library, created at their first use.

    The table defines each as `size align: name@offset:type ...`; types are those above, `cN` (text
    of N bytes) and other structures of the table; `*N` makes an array. Bytes between members are
    padding.
    """

    def __init__(self, table: Mapping[str, str]) -> None:
        self._table = table
        self._made: dict[str, type[ctypes.Structure]] = {}

    def __getitem__(self, name: str) -> type[ctypes.Structure]:
        """Return a structure; raise `VendorFault` where this machine lays it out differently."""
        structure = self._made.get(name)
        if structure is None:
            structure = self._made[name] = self._make(name)
        return structure

    def _make(self, name: str) -> type[ctypes.Structure]:
        sizes, _, members = self._table[name].partition(":")
        size, align = map(int, sizes.split())
        fields: list[tuple[str, Any]] = []
        offsets: dict[str, int] = {}
        end = 0
        for member, offset, kind, count in _MEMBER.findall(members):
            type_ = self._type(kind)
            if -(-end // ctypes.alignment(type_)) * ctypes.alignment(type_) != int(offset):
                fields.append((f"gap_{end}", ctypes.c_uint8 * (int(offset) - end)))
            fields.append((member, type_ * int(count) if count else type_))
            offsets[member] = int(offset)
            end = int(offset) + ctypes.sizeof(type_) * int(count or 1)
        if -(-end // align) * align != size:
            fields.append(("tail", ctypes.c_uint8 * (size - end)))
        structure = type(name, (ctypes.Structure,), {"_fields_": fields})
        actual_offsets = {member: getattr(structure, member).offset for member in offsets}
        if actual_offsets != offsets or (ctypes.sizeof(structure), ctypes.alignment(structure)) != (
            size,
            align,
        ):
            raise VendorFault(f"{name}: this machine lays the structure out in another way")
        return structure

    def _type(self, kind: str) -> Any:  # noqa: ANN401 - ctypes names no base of its types
        if kind[0] == "c" and kind[1:].isdecimal():
            return ctypes.c_char * int(kind[1:])
        return _SCALARS[kind] if kind in _SCALARS else self[kind]


def decode_c_text(raw: object) -> str:
    """Return a text up to its first NUL, stripped; characters outside of ASCII are dropped."""
    return raw.decode("ascii", "ignore").strip() if isinstance(raw, bytes) else ""
