"""Making and destroying sMLU instances through the driver; only our own are ever destroyed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import partial

from agent.errors import AgentError, NotSupported
from plugins.bindings.cndev import codes
from plugins.bindings.cndev.card import Card, Instance
from plugins.bindings.cndev.library import Cndev
from plugins.slices.smlu.owned import Owned, OwnershipFile
from plugins.slices.smlu.rules import Profile, SliceRefused, Wanted, choose, handle_of

MAX_PROFILES = 128
DESTROY_TRIES = 5
DESTROY_PAUSE_S = 1.0
Pause = Callable[[float], object]


def profiles(card: Card) -> tuple[Profile, ...]:
    """Return what the driver cuts on a card; one that cannot be read is left out."""
    cndev = card.cndev
    ids = cndev.read("cndevGetSMluProfileIdInfo", "ProfIds", card.handle)
    found = []
    for number in ids.id[: max(0, min(ids.count, MAX_PROFILES))]:
        symbol = "cndevGetSMluProfileInfo"
        read = partial(cndev.read, symbol, "Prof", number, card.handle)
        told = card.ask(f"{symbol} {number}", read)
        if told is not None:
            found.append(
                Profile(
                    id=int(told.id),
                    core_percent=int(told.quota[0]),
                    memory_bytes=int(told.memory[0]),
                    total=int(told.total),
                    remain=int(told.remain),
                )
            )
    return tuple(found)


def make(
    card: Card, wanted: Wanted, unit_mib: int, owner: str, owned: OwnershipFile
) -> tuple[Owned, Instance]:
    """Cut a slice, write down that it is ours, and read back what was cut.

    Raises `SliceRefused` if the card is not cut by sMLU, no slot is left, or the driver made
    something else than was asked for; nothing half made stays behind.
    """
    if card.mode("cndevGetSMLUMode") is not True:
        raise SliceRefused(f"card {card.index}: sMLU mode is off")
    memory_bytes = wanted.memory_bytes(unit_mib)
    profile = choose(profiles(card), wanted.core_percent, memory_bytes)
    number = profile.id if profile else _add_profile(card, wanted.core_percent, memory_bytes)
    try:
        instance = _add_instance(card, number, owner)
    except AgentError:
        _tidy(card, number)
        raise
    made = Owned(
        card_uuid=card.uuid() or "",
        card=card.index,
        instance=instance,
        profile=number,
        owner=owner,
        boot=owned.boot,
    )
    try:
        owned.add(made)
        return made, _read_back(card, made, wanted.core_percent, memory_bytes)
    except AgentError:
        # a slice that nobody remembers, or that is not what the pod was promised, must not stay
        _drop_instance(card.cndev, made)
        _tidy(card, number)
        owned.remove(made)
        raise


def _add_profile(card: Card, core_percent: int, memory_bytes: int) -> int:
    asked, number = card.cndev.record("Set"), ctypes.c_int32()
    asked.quota, asked.memory = core_percent, memory_bytes
    card.cndev.call(
        "cndevCreateSMluProfileInfo", ctypes.byref(asked), ctypes.byref(number), card.handle
    )
    return number.value


def _add_instance(card: Card, profile: int, owner: str) -> int:
    handle = ctypes.c_int32()
    name = owner.encode("ascii", "replace")[:99]
    symbol = "cndevCreateSMluInstanceByProfileId"
    card.cndev.call(symbol, ctypes.byref(handle), profile, card.handle, name)
    return handle.value >> 8


def _read_back(card: Card, made: Owned, core_percent: int, memory_bytes: int) -> Instance:
    found = next((one for one in card.slices() if one.number == made.instance), None)
    if found is None or not found.nodes:
        raise SliceRefused(f"card {card.index}: the driver does not list instance {made.instance}")
    if (found.cores, found.memory_bytes) != (core_percent, memory_bytes):
        told = f"{found.cores} percent and {found.memory_bytes >> 20}Mi"
        raise SliceRefused(f"asked for {core_percent} percent, {memory_bytes >> 20}Mi; got {told}")
    return found


def destroy(card: Card, gone: Owned, owned: OwnershipFile, pause: Pause) -> None:
    """Give back one of our slices, and its profile once nobody uses it.

    `pause` is called with seconds between tries while the slice is in use; still in use after the
    last one raises `CndevFault` with code 15, and it stays ours.
    """
    if gone not in owned.read() or (card.uuid() or "") != gone.card_uuid:
        raise SliceRefused(f"instance {gone.instance} of card {gone.card} is not ours")
    for last in (*[False] * (DESTROY_TRIES - 1), True):
        try:
            _drop_instance(card.cndev, gone)
        except codes.CndevFault as error:
            if error.code != codes.IN_USE or last:
                raise
            pause(DESTROY_PAUSE_S)
        else:
            break
    _tidy(card, gone.profile)
    owned.remove(gone)


def _drop_instance(cndev: Cndev, gone: Owned) -> None:
    try:
        cndev.call("cndevDestroySMluInstanceByHandle", handle_of(gone.instance, gone.card))
    except codes.CndevFault as error:
        if error.code != codes.NOT_FOUND:  # somebody destroyed it: so be it
            raise


def _tidy(card: Card, profile: int) -> None:
    """Remove a profile that has no instances."""
    unused = [p for p in profiles(card) if p.id == profile and p.remain == p.total]
    for _ in unused:
        try:
            card.cndev.call("cndevDestroySMluProfileInfo", profile, card.handle)
        except (codes.CndevFault, NotSupported):
            return  # an empty profile does no harm


def orphans(owned: Iterable[Owned], living: frozenset[str]) -> tuple[Owned, ...]:
    """Return those of our slices whose pod is gone; `living` are the uids of the node's pods."""
    return tuple(item for item in owned if item.owner not in living)
