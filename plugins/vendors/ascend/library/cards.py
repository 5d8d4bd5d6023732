"""Lists cards and chips of the driver; a failing card does not hide other cards."""

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
NPU = 0  # value of dcmi_get_device_type; the driver also lists a card's controller and CPU


class ChipListing(msgspec.Struct, frozen=True, kw_only=True):
    """All NPU chips, sorted by card, and the errors of cards that could not be listed."""

    chips: tuple[Chip, ...] = ()
    faults: tuple[str, ...] = ()
    expected: int = 0  # number of cards that the driver counts
    cards: int = 0  # number of cards that it lists by id


def list_cards(dcmi: Dcmi) -> tuple[int, tuple[int, ...]]:
    """Return the driver's number of cards and their ids; raises the errors of the call.

    Ids may have gaps. If there are fewer ids than cards, some cards are still booting.
    """
    count, buffer = ctypes.c_int32(0), (ctypes.c_int32 * MAX_CARDS)(*([-1] * MAX_CARDS))
    symbol = "dcmi_get_card_list"
    dcmi.call(symbol, ctypes.byref(count), buffer, MAX_CARDS)
    if not 0 <= count.value <= MAX_CARDS:
        raise BadDriverAnswer(symbol, f"{count.value} cards")
    card_ids = [int(card) for card in buffer[: count.value] if card >= 0]
    return count.value, tuple(dict.fromkeys(card_ids))


def list_chips(dcmi: Dcmi, chip_of: Callable[[int, int], Chip]) -> ChipListing:
    """Return all NPU chips; `chip_of` returns the `Chip` for a card and a number in the card."""
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
    return kind in (None, NPU)  # a driver without this call lists NPUs only
