from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from agent.usage.hami_regions import (
    LAYOUT_A,
    LAYOUT_B,
    LAYOUT_BY_SIZE,
    LAYOUT_O,
    MAGIC,
    RegionContent,
    RegionLayout,
    layout_of,
    read_region,
)
from tests.unit.usage_sharing.made import GIB, UUID, Region

EVERY = pytest.mark.parametrize(
    "layout", LAYOUT_BY_SIZE.values(), ids=lambda layout: str(layout.name)
)


@pytest.mark.parametrize("layout", [pytest.param(LAYOUT_A, id="V53"), LAYOUT_B, LAYOUT_O])
def test_a_card_is_the_sum_over_the_processes_that_live(layout: RegionLayout) -> None:
    region = Region(layout).limit(0, memory=GIB).slots(3)
    region.process(0, (100, 50, 150, 7, 300), sm=20, host_pid=11)
    region.process(1, (999, 999, 999, 999, 999), sm=99, status=0)
    region.process(2, (0, 0, 0, 0, 200), sm=5, host_pid=12)
    content = region.read()
    (card,) = content.cards
    assert content.layout == layout.name
    assert (card.uuid, card.index) == (UUID, 0)
    assert (card.used_bytes, card.context_bytes, card.module_bytes) == (500, 100, 50)
    assert (card.buffer_bytes, card.offset_bytes, card.core_percent) == (150, 7, 25)
    assert (card.limit_bytes, card.core_limit_percent) == (1073741824, None)
    assert [(p.host_pid, p.memory_bytes) for p in card.processes] == [(11, 300), (12, 200)]


@pytest.mark.parametrize(
    ("offset", "layout", "slot", "card", "sm"),
    [
        pytest.param(3856, LAYOUT_A, 1, 0, False, id="V54 A slot 1"),
        pytest.param(1936, LAYOUT_B, 0, 0, False, id="V54 B slot 0"),
        pytest.param(1888, LAYOUT_O, 0, 0, False, id="V54 O slot 0"),
        pytest.param(3080, LAYOUT_A, 0, 1, True, id="V54 A card 1 sm"),
    ],
)
def test_figures_are_where_the_library_writes_them(
    offset: int, layout: RegionLayout, slot: int, card: int, sm: bool
) -> None:
    region = Region(layout, cards=(UUID, f"{UUID}-b")).slots(2)
    region.process(slot, (0, 0, 0, 0, 0))
    region.put("<Q", offset, 42)
    result = region.read().cards[card]
    assert (result.core_percent if sm else result.used_bytes) == 42


@pytest.mark.parametrize(
    ("used", "read"),
    [pytest.param(-5, 0, id="V55 negative"), pytest.param(5000, 1024, id="V55 many")],
)
def test_the_number_of_slots_is_clamped(used: int, read: int) -> None:
    region = Region(LAYOUT_A).slots(used)
    for slot in range(1024):
        region.process(slot, (0, 0, 0, 0, 1))
    assert region.read().cards[0].used_bytes == read


@pytest.mark.parametrize("size", [pytest.param(2008985, id="V56")])
def test_the_size_chooses_the_layout_before_the_version(size: int) -> None:
    assert layout_of(size, struct.pack("<iII", MAGIC, 1, 1)) is LAYOUT_B


@EVERY
def test_the_size_is_the_structure_and_one_byte(layout: RegionLayout) -> None:
    end = layout.slots + 1024 * layout.slot_bytes
    assert layout.slot_count == end
    assert layout.file_bytes > end


@pytest.mark.parametrize(
    ("size", "head"),
    [
        (2008953, (MAGIC + 1, 1, 1)),
        (2008953, (MAGIC, 2, 0)),
        (2008985, (MAGIC, 1, 2)),
        (804681, (MAGIC, 1, 1)),
        (0, (MAGIC, 1, 1)),
    ],
)
def test_what_is_no_known_layout_is_refused(size: int, head: tuple[int, int, int]) -> None:
    with pytest.raises(ParseError):
        layout_of(size, struct.pack("<iII", *head))


@pytest.mark.parametrize(("value", "limit"), [(0, None), (1, 1), (GIB, GIB), ((1 << 64) - 1, None)])
def test_no_limit_and_an_absurd_one_are_none(value: int, limit: int | None) -> None:
    assert Region(LAYOUT_A).limit(0, memory=value).read().cards[0].limit_bytes == limit


@pytest.mark.parametrize(
    ("value", "limit"), [(0, None), (1, 1), (99, 99), (100, None), (250, None)]
)
def test_all_cores_are_no_limit(value: int, limit: int | None) -> None:
    assert Region(LAYOUT_A).limit(0, core=value).read().cards[0].core_limit_percent == limit


@pytest.mark.parametrize("name", ["", "GPU 1", "GPU\n", "GPÜ"])
def test_a_card_without_a_plain_name_is_left_out(name: str) -> None:
    cards = Region(LAYOUT_A, cards=(name, UUID)).read().cards
    assert [(card.index, card.uuid) for card in cards] == [(1, UUID)]


def test_figures_that_no_card_has_are_left_out_with_their_process() -> None:
    region = Region(LAYOUT_A).slots(2).process(0, (0, 0, 0, 0, (1 << 64) - 1), sm=5)
    region.process(1, (0, 0, 0, 0, 10), sm=(1 << 64) - 1)
    (card,) = region.read().cards
    assert (card.used_bytes, card.core_percent) == (10, 0)


@pytest.mark.parametrize(
    ("layout", "at_s", "told"),
    [
        (LAYOUT_A, 1_700_000_000, 1_700_000_000),
        (LAYOUT_A, 0, None),
        (LAYOUT_A, -5, None),
        (LAYOUT_B, 7, 7),
        (LAYOUT_A, 1 << 62, None),
    ],
)
def test_the_last_kernel_is_reported_after_the_first_one(
    layout: RegionLayout, at_s: int, told: int | None
) -> None:
    region = Region(layout)
    region.put("<q", layout.last_kernel or 0, at_s)
    assert region.read().last_kernel_s == told
    assert Region(LAYOUT_O).read().last_kernel_s is None


class Writing(Region):
    """A region whose first slot is being written: each look at its lock finds the next value."""

    def __init__(self, layout: RegionLayout, version: tuple[int, int], locks: list[int]) -> None:
        super().__init__(layout, version)
        self.locks = locks
        self.looks = 0
        self.slots(1).process(0, (0, 0, 0, 0, 1))
        self.put("<Q", layout.slots + (layout.lock or 0), locks[0])

    def at(self, size: int, offset: int) -> bytes:
        if size == 8 and offset == self.layout.slots + (self.layout.lock or 0):
            self.looks += 1
            now = self.locks[min(self.looks, len(self.locks) - 1)]
            self.put("<Q", offset, now)
            self.process(0, (0, 0, 0, 0, 1 + self.looks))
        return super().at(size, offset)


@pytest.mark.parametrize(("layout", "version"), [(LAYOUT_A, (1, 2)), (LAYOUT_B, (1, 1))])
@pytest.mark.parametrize(
    ("locks", "looks", "used"),
    [([2, 2], 1, 1), ([2, 4, 4], 2, 2), ([1, 1, 1], 2, 3), ([2, 3, 5, 7], 2, 3)],
)
def test_a_slot_that_is_being_written_is_read_again_three_times_at_most(
    layout: RegionLayout, version: tuple[int, int], locks: list[int], looks: int, used: int
) -> None:
    region = Writing(layout, version, locks)
    assert region.read().cards[0].used_bytes == used
    assert region.looks == looks


def test_builds_before_the_lock_are_read_once() -> None:
    region = Writing(LAYOUT_A, (1, 1), [1, 3])
    assert region.read().cards[0].used_bytes == 1
    assert region.looks == 0


patches = st.lists(
    st.tuples(st.integers(0, 5000) | st.integers(2_008_800, 2_008_952), st.binary(max_size=24)),
    max_size=12,
)


def decent(content: RegionContent) -> None:
    assert len(content.cards) <= 16
    for card in content.cards:
        assert card.uuid.isascii()
        assert card.uuid.isprintable()
        assert 0 <= card.used_bytes <= 1 << 60
        assert len(card.processes) <= 1024
        msgspec.json.encode(card)


@pytest.mark.parametrize(
    "layout", [LAYOUT_A, LAYOUT_B, LAYOUT_O], ids=lambda layout: str(layout.name)
)
@given(changes=patches, cut=st.none() | st.integers(0, 3000))
def test_any_bytes_are_read_or_refused(
    layout: RegionLayout, changes: list[tuple[int, bytes]], cut: int | None
) -> None:
    region = Region(layout, (1, 2) if layout is LAYOUT_A else (1, 1)).slots(3)
    size = len(region.data)
    for offset, patch in changes:
        room = region.data[offset : offset + len(patch)]
        region.data[offset : offset + len(room)] = patch[: len(room)]
    if cut is not None:
        del region.data[cut:]
    try:
        decent(read_region(region.at, size))
    except ParseError:
        return


@given(st.binary(max_size=400), st.sampled_from([*LAYOUT_BY_SIZE, 0, 400]))
def test_any_short_file_is_refused(data: bytes, claimed: int) -> None:
    with pytest.raises(ParseError):
        read_region(lambda size, offset: data[offset : offset + size], claimed)
