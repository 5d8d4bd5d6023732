from __future__ import annotations

import ctypes

import pytest

from agent.errors import VendorFault
from plugins.shared.c_structures import StructureTable, decode_c_text
from plugins.vendors.cambricon.library.cndev import (
    MANDATORY,
    OPTIONAL,
    STRUCTURE_NAMES,
    STRUCTURES,
    VERSIONED,
)
from tests.stubs.build import described


def test_binding_and_stub_know_the_same_structures_and_symbols() -> None:
    library = described("cndev")
    assert {record.name for record in library.records} == set(STRUCTURE_NAMES)
    assert {record.name for record in library.records if record.versioned} == VERSIONED
    assert {symbol.name for symbol in library.symbols} == {*MANDATORY, *OPTIONAL}


@pytest.mark.parametrize("name", STRUCTURE_NAMES)
def test_structures_are_laid_out_as_the_stub_asserts_in_c(name: str) -> None:
    record = next(record for record in described("cndev").records if record.name == name)
    structure = STRUCTURES[name]
    assert (ctypes.sizeof(structure), ctypes.alignment(structure)) == (record.size, record.align)
    members = {field[0] for field in structure._fields_}
    for member in record.members:
        if member.name in members:
            assert getattr(structure, member.name).offset == member.offset


@pytest.mark.parametrize(
    "table", ["9 4: a@0:u32 b@4:u32", "8 4: a@0:u64", "8 4: a@2:u32 b@4:u32", "4 8: a@0:u32"]
)
def test_a_table_that_this_machine_cannot_follow_is_refused(table: str) -> None:
    with pytest.raises((VendorFault, ValueError)):
        StructureTable({"x": table})["x"]


@pytest.mark.parametrize(
    ("raw", "text"), [(b" MLU370 ", "MLU370"), (b"\xff\xff", ""), (b"a\xffb", "ab"), (None, "")]
)
def test_texts_are_plain(raw: object, text: str) -> None:
    assert decode_c_text(raw) == text
