"""Making and destroying sMLU instances through the driver; only our own are ever destroyed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import partial

from msgspec.structs import replace

from agent.errors import AgentError, NotSupported
from plugins.bindings.cndev import codes
from plugins.bindings.cndev.card import Card, Instance
from plugins.slices.smlu.owned import Owned, OwnershipFile
from plugins.slices.smlu.rules import Profile, SliceRefused, Wanted, choose, handle_of

LISTING = "cndevGetAllSMluInstanceInfo"
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
    """Cut a slice that was written down before, and read back what was cut.

    Raises `SliceRefused` if the card is not cut by sMLU, no slot is left, or the driver made
    something else than was asked for; nothing half made stays behind. If this process is ended
    before it returns, `settle` finds out what became of it.
    """
    if card.mode("cndevGetSMLUMode") is not True:
        raise SliceRefused(f"card {card.index}: sMLU mode is off")
    before = tuple(one.number for one in card.slices())
    if not card.told(LISTING):
        raise SliceRefused(f"card {card.index}: the driver does not list its slices")
    memory_bytes = wanted.memory_bytes(unit_mib)
    profile = choose(profiles(card), wanted.core_percent, memory_bytes)
    number = profile.id if profile else _add_profile(card, wanted.core_percent, memory_bytes)
    coming = Owned(
        card_uuid=card.uuid() or "",
        card=card.index,
        profile=number,
        owner=owner,
        before=before,
        boot=owned.boot,
    )
    try:
        owned.intend(coming)
        instance = _add_instance(card, number, owner)
    except AgentError:
        _tidy(card, number)
        owned.remove(coming)
        raise
    try:
        made = owned.made(coming, instance)
        return made, _read_back(card, instance, wanted.core_percent, memory_bytes)
    except AgentError:
        # a slice that nobody remembers, or that is not what the pod was promised, must not stay
        _drop_instance(card, instance)
        _tidy(card, number)
        owned.remove(replace(coming, instance=instance))
        owned.remove(coming)
        raise


def settle(card: Card, owned: OwnershipFile, coming: Owned) -> None:
    """Find out what became of a slice that was about to be made when the process was ended.

    The one new slice of its profile is ours; several could be anybody's, and none was made. While
    the card does not list its slices nothing is known.
    """
    card.begin()
    listed = card.slices()
    if not card.told(LISTING):
        return
    known = {item.instance for item in owned.read() if item.card_uuid == coming.card_uuid}
    new = [
        one.number
        for one in listed
        if one.profile == coming.profile and one.number not in known.union(coming.before)
    ]
    if len(new) == 1:
        owned.made(coming, new[0])
    else:
        owned.remove(coming)


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


def _read_back(card: Card, instance: int, core_percent: int, memory_bytes: int) -> Instance:
    found = next((one for one in card.slices() if one.number == instance), None)
    if found is None or not found.nodes:
        raise SliceRefused(f"card {card.index}: the driver does not list instance {instance}")
    if (found.cores, found.memory_bytes) != (core_percent, memory_bytes):
        told = f"{found.cores} percent and {found.memory_bytes >> 20}Mi"
        raise SliceRefused(f"asked for {core_percent} percent, {memory_bytes >> 20}Mi; got {told}")
    return found


def destroy(card: Card, gone: Owned, owned: OwnershipFile, pause: Pause) -> None:
    """Give back one of our slices, and its profile once nobody uses it.

    `pause` is called with seconds between tries while the slice is in use; still in use after the
    last one raises `CndevFault` with code 15, and it stays ours.
    """
    ours = gone in owned.read() and (card.uuid() or "") == gone.card_uuid
    if gone.instance is None or not ours:
        raise SliceRefused(f"instance {gone.instance} of card {gone.card} is not ours")
    for last in (*[False] * (DESTROY_TRIES - 1), True):
        try:
            _drop_instance(card, gone.instance)
        except codes.CndevFault as error:
            if error.code != codes.IN_USE or last:
                raise
            pause(DESTROY_PAUSE_S)
        else:
            break
    _tidy(card, gone.profile)
    owned.remove(gone)


def _drop_instance(card: Card, instance: int) -> None:
    try:
        card.cndev.call("cndevDestroySMluInstanceByHandle", handle_of(instance, card.index))
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
    gone = (item for item in owned if item.owner not in living)
    return tuple(item for item in gone if item.instance is not None)
