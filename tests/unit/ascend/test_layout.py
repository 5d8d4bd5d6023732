from __future__ import annotations

import ctypes

import pytest

from agent.errors import VendorFault
from plugins.shared.c_structures import StructureTable
from plugins.vendors.ascend.library import layout
from tests.stubs.dcmi.library import RECORDS

BY_NAME = {record.name: record for record in RECORDS}
KEYWORDS = {"double_bit": "double"}  # a keyword of C cannot be a member


def test_library_and_stub_describe_the_same_structures() -> None:
    assert set(layout.NAMES) == set(BY_NAME)


@pytest.mark.parametrize("name", layout.NAMES)
def test_a_structure_has_the_size_and_offsets_that_the_c_compiler_confirmed(name: str) -> None:
    structure, record = layout.structure(name), BY_NAME[name]
    assert (ctypes.sizeof(structure), ctypes.alignment(structure)) == (record.size, record.align)
    for member in record.members:
        field = getattr(structure, KEYWORDS.get(member.name, member.name))
        assert field.offset == member.offset


def test_a_layout_that_differs_is_refused_instead_of_read_wrongly() -> None:
    with pytest.raises(VendorFault, match="lays the structure out"):
        StructureTable({"odd": "12 8: a@0:u32 b@4:u64"})["odd"]


def test_text_ends_at_its_nul_and_drops_what_is_no_ascii() -> None:
    structure = layout.structure("chip_info")()
    structure.chip_name = b" 910B3\xff \0rest"
    assert layout.text_member(structure, "chip_name") == "910B3"
