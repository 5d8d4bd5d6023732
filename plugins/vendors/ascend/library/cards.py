"""Lists cards and chips of the driver; a failing card does not hide others."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import msgspec

from agent.errors import AgentError
from plugins.vendors.ascend.library.chip import Chip
from plugins.vendors.ascend.library.codes import BadDriverAnswer
from plugins.vendors.ascend.library.dcmi import Dcmi

MAX_CARDS = 64
MAX_CHIPS = 4
NPU = 0  # of dcmi_get_device_type; a card's controller and CPU are listed, too


class ChipListing(msgspec.Struct, frozen=True, kw_only=True):
    """Chips by card, and what could not be listed."""

    chips: tuple[Chip, ...] = ()
    faults: tuple[str, ...] = ()
    expected: int = 0  # cards that the driver counts
    cards: int = 0  # cards that it named


def list_cards(dcmi: Dcmi) -> tuple[int, tuple[int, ...]]:
    """Return how many cards the driver counts, and the ids it names; raises what the call does.

    Ids may have gaps. Fewer ids than counted: some cards are still booting.
    """
    count, room = ctypes.c_int32(0), (ctypes.c_int32 * MAX_CARDS)(*([-1] * MAX_CARDS))
    symbol = "dcmi_get_card_list"
    dcmi.call(symbol, ctypes.byref(count), room, MAX_CARDS)
    if not 0 <= count.value <= MAX_CARDS:
        raise BadDriverAnswer(symbol, f"{count.value} cards")
    named = [int(card) for card in room[: count.value] if card >= 0]
    return count.value, tuple(dict.fromkeys(named))


def list_chips(dcmi: Dcmi, chip_of: Callable[[int, int], Chip]) -> ChipListing:
    """Return all NPU chips; `chip_of` returns the object of one that may have been seen before."""
    expected, cards = list_cards(dcmi)
    chips: list[Chip] = []
    faults: list[str] = []
    for card in cards:
        try:
            chips += [chip_of(card, number) for number in range(_count(dcmi, card))]
        except AgentError as error:
            faults.append(f"card {card}: {error}")
    npus = tuple(chip for chip in chips if _is_npu(chip))
    return ChipListing(chips=npus, faults=tuple(faults), expected=expected, cards=len(cards))


def _count(dcmi: Dcmi, card: int) -> int:
    value = ctypes.c_int32(0)
    symbol = "dcmi_get_device_num_in_card"
    dcmi.call(symbol, card, ctypes.byref(value))
    if not 1 <= value.value <= MAX_CHIPS:
        raise BadDriverAnswer(symbol, f"{value.value} chips")
    return value.value


def _is_npu(chip: Chip) -> bool:
    kind = chip.integer("dcmi_get_device_type", low=0, high=255)
    return kind in (None, NPU)  # a driver that cannot tell lists NPUs only
