"""Slots of cards, such as replicas for time slicing and MIG instances: spread out or packed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from agent.model.grant.granted import REPLICA
from plugins.injection.preferred.cards import NotEnough


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """One grantable part of a card; `number` orders the parts: (replica,) or (gi, ci)."""

    id: str
    card: str
    minor: int
    number: tuple[int, ...]


def replica_slot(replica: str, minor: int) -> Slot | None:
    """Return the slot of an id `<uuid>::<n>`; `None` if it is no such id."""
    card, separator, number = replica.rpartition(REPLICA)
    if (
        not separator
        or not card
        or not (number.isascii() and number.isdecimal() and len(number) < 10)
    ):
        return None
    return Slot(id=replica, card=card, minor=minor, number=(int(number),))


def preferred_slots(
    available: Sequence[Slot],
    required: Sequence[str],
    size: int,
    capacity: Mapping[str, int],  # slots of each card, taken ones included
    *,
    spread: bool,
    packed: bool,
) -> tuple[str, ...]:
    """Return `size` ids in the order of choice, required ones first.

    With `spread` a card comes again only when every other one was chosen as often; among equals
    those with the most slots taken if `packed`, else with the fewest, then the smallest minor and
    number. Raises `NotEnough`.
    """
    slots = {slot.id: slot for slot in sorted(available, key=lambda slot: slot.id)}
    if size > len(slots) or size < 0:
        raise NotEnough
    free_now = Counter(slot.card for slot in slots.values())
    chosen = [slots.pop(name) for name in dict.fromkeys(required) if name in slots][:size]
    picked = Counter(slot.card for slot in chosen)

    stacks: dict[str, list[Slot]] = {}  # of each card, the next one last
    for slot in sorted(slots.values(), key=lambda slot: (slot.number, slot.id), reverse=True):
        stacks.setdefault(slot.card, []).append(slot)

    def order(card: str) -> tuple[int, int, int, tuple[int, ...], str]:
        taken = max(0, capacity.get(card, 0) - free_now[card]) + picked[card]
        again = picked[card] if spread else 0
        slot = stacks[card][-1]
        return again, -taken if packed else taken, slot.minor, slot.number, slot.id

    while len(chosen) < size:
        card = min(stacks, key=order)
        chosen.append(stacks[card].pop())
        picked[card] += 1
        if not stacks[card]:
            del stacks[card]
    return tuple(slot.id for slot in chosen)
