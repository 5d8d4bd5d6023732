"""Creates and destroys sMLU instances for pods; destroys only the agent's own."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from agent.errors import AgentError, NotSupported
from agent.snapshot.device import DevicePartition
from agent.snapshot.inventory import SliceReport, SliceRequest
from plugins.shared.slices import SliceKey, limited_pause, make_missing_slices
from plugins.vendors.cambricon.library import codes
from plugins.vendors.cambricon.library.card import CndevCard, MluInstance
from plugins.vendors.cambricon.smlu.ownership import OwnedSmlu, SmluOwnershipFile
from plugins.vendors.cambricon.smlu.profiles import (
    SliceRefused,
    SmluProfile,
    SmluRequest,
    choose_profile,
    handle_of,
    request_of,
)

LISTING = "cndevGetAllSMluInstanceInfo"

MAX_PROFILES = 128

DESTROY_TRIES = 5

DESTROY_PAUSE_S = 1.0

Pause = Callable[[float], object]


def read_profiles(card: CndevCard) -> tuple[SmluProfile, ...]:
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
                SmluProfile(
                    id=int(told.id),
                    core_percent=int(told.quota[0]),
                    memory_bytes=int(told.memory[0]),
                    total=int(told.total),
                    remain=int(told.remain),
                )
            )
    return tuple(found)


def make_slice(
    card: CndevCard, wanted: SmluRequest, unit_mib: int, owner: str, owned: SmluOwnershipFile
) -> tuple[OwnedSmlu, MluInstance]:
    """Cut a slice that was written down before, and read back what was cut.

    Raises `SliceRefused` if the card is not cut by sMLU, no slot is left, or the driver made
    something else than was asked for; nothing half made stays behind. If this process is ended
    before it returns, `settle` finds out what became of it.
    """
    if card.mode("cndevGetSMLUMode") is not True:
        raise SliceRefused(f"card {card.index}: sMLU mode is off")
    before = tuple(one.number for one in card.smlu_instances())
    if not card.has_answered(LISTING):
        raise SliceRefused(f"card {card.index}: the driver does not list its slices")
    memory_bytes = wanted.memory_bytes(unit_mib)
    profile = choose_profile(read_profiles(card), wanted.core_percent, memory_bytes)
    number = profile.id if profile else _add_profile(card, wanted.core_percent, memory_bytes)
    coming = OwnedSmlu(
        card_uuid=card.uuid() or "",
        card=card.index,
        profile=number,
        owner=owner,
        before=before,
        boot=owned.boot,
    )
    try:
        owned.record_intent(coming)
        instance = _add_instance(card, number, owner)
    except AgentError:
        _tidy(card, number)
        owned.remove(coming)
        raise
    try:
        made = owned.record_made(coming, instance)
        return made, _read_back(card, instance, wanted.core_percent, memory_bytes)
    except AgentError:
        # a slice that nobody remembers, or that is not what the pod was promised, must not stay
        _drop_instance(card, instance)
        _tidy(card, number)
        owned.remove(replace(coming, instance=instance))
        owned.remove(coming)
        raise


def settle_intent(card: CndevCard, owned: SmluOwnershipFile, coming: OwnedSmlu) -> None:
    """Find out what became of a slice that was about to be made when the process was ended.

    The one new slice of its profile is ours; several could be anybody's, and none was made. While
    the card does not list its slices nothing is known.
    """
    card.begin_round()
    listed = card.smlu_instances()
    if not card.has_answered(LISTING):
        return
    known = {item.instance for item in owned.read() if item.card_uuid == coming.card_uuid}
    new = [
        one.number
        for one in listed
        if one.profile == coming.profile and one.number not in known.union(coming.before)
    ]
    if len(new) == 1:
        owned.record_made(coming, new[0])
    else:
        owned.remove(coming)


def _add_profile(card: CndevCard, core_percent: int, memory_bytes: int) -> int:
    asked, number = card.cndev.record("Set"), ctypes.c_int32()
    asked.quota, asked.memory = core_percent, memory_bytes
    card.cndev.call(
        "cndevCreateSMluProfileInfo", ctypes.byref(asked), ctypes.byref(number), card.handle
    )
    return number.value


def _add_instance(card: CndevCard, profile: int, owner: str) -> int:
    handle = ctypes.c_int32()
    name = owner.encode("ascii", "replace")[:99]
    symbol = "cndevCreateSMluInstanceByProfileId"
    card.cndev.call(symbol, ctypes.byref(handle), profile, card.handle, name)
    return handle.value >> 8


def _read_back(card: CndevCard, instance: int, core_percent: int, memory_bytes: int) -> MluInstance:
    found = next((one for one in card.smlu_instances() if one.number == instance), None)
    if found is None or not found.nodes:
        raise SliceRefused(f"card {card.index}: the driver does not list instance {instance}")
    if (found.cores, found.memory_bytes) != (core_percent, memory_bytes):
        told = f"{found.cores} percent and {found.memory_bytes >> 20}Mi"
        raise SliceRefused(f"asked for {core_percent} percent, {memory_bytes >> 20}Mi; got {told}")
    return found


def destroy_slice(card: CndevCard, gone: OwnedSmlu, owned: SmluOwnershipFile, pause: Pause) -> None:
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


def _drop_instance(card: CndevCard, instance: int) -> None:
    try:
        card.cndev.call("cndevDestroySMluInstanceByHandle", handle_of(instance, card.index))
    except codes.CndevFault as error:
        if error.code != codes.NOT_FOUND:  # somebody destroyed it: so be it
            raise


def _tidy(card: CndevCard, profile: int) -> None:
    """Remove a profile that has no instances."""
    unused = [p for p in read_profiles(card) if p.id == profile and p.remain == p.total]
    for _ in unused:
        try:
            card.cndev.call("cndevDestroySMluProfileInfo", profile, card.handle)
        except (codes.CndevFault, NotSupported):
            return  # an empty profile does no harm


def orphaned_slices(owned: Iterable[OwnedSmlu], living: frozenset[str]) -> tuple[OwnedSmlu, ...]:
    """Return those of our slices whose pod is gone; `living` are the uids of the node's pods."""
    gone = (item for item in owned if item.owner not in living)
    return tuple(item for item in gone if item.instance is not None)


class DivisibleCard(msgspec.Struct, frozen=True, kw_only=True):
    """A card that answers, and what is known of it."""

    card: CndevCard
    unit_mib: int
    describe: Callable[[MluInstance], DevicePartition]


def keep_slices(
    owned: SmluOwnershipFile | None,
    cards: Mapping[str, DivisibleCard],
    wishes: Sequence[SliceRequest],
    pods: Collection[str] | None,
    pause: Pause = time.sleep,
) -> SliceReport:
    """Make what is wished for of the cards (by key), and give back ours of pods not in `pods`.

    Without a place to write down what is ours nothing is made: nobody could take it back.
    `OwnershipUnknown` if that cannot be read.
    """
    if owned is None:
        return _refuse_all(wishes)
    for item, known in _with_cards(owned.read(), cards):
        if item.instance is None:
            settle_intent(known.card, owned, item)
    given, failed = _give_back(owned, cards, pods, limited_pause(pause, DESTROY_TRIES - 1))
    there, lost = _existing_slices(owned, cards)
    open_cards = {item.card_uuid for item in owned.read() if item.instance is None}

    def cut(wish: SliceRequest) -> DevicePartition:
        found = cards.get(wish.device)
        if found is None or wish.core_percent is None or wish.memory_bytes is None:
            what = "there is no card that answers" if found is None else "cores or memory missing"
            raise SliceRefused(f"{wish.device}: {what}")
        if (found.card.uuid() or "") in open_cards:
            raise SliceRefused(f"{wish.device}: it is not known yet what became of an earlier try")
        size, _ = request_of(found.card.index, wish.core_percent, wish.memory_bytes, found.unit_mib)
        _, instance = make_slice(found.card, size, found.unit_mib, wish.pod, owned)
        return found.describe(instance)

    made, unmade, changed = make_missing_slices(wishes, there, cut)
    return SliceReport(
        made=made,
        unmade=unmade,
        reclaimed=tuple(_words(item) for item in given),
        lost=tuple(item.owner for item in lost),
        failed=failed,
        changed=changed or bool(given or lost),
    )


def _refuse_all(wishes: Sequence[SliceRequest]) -> SliceReport:
    def refuse(_: SliceRequest) -> DevicePartition:
        raise SliceRefused("node.state_dir is not set: what is cut could not be given back")

    made, unmade, _ = make_missing_slices(wishes, {}, refuse)
    return SliceReport(made=made, unmade=unmade)


def _give_back(
    owned: SmluOwnershipFile,
    cards: Mapping[str, DivisibleCard],
    pods: Collection[str] | None,
    pause: Pause,
) -> tuple[list[OwnedSmlu], tuple[str, ...]]:
    gone = () if pods is None else orphaned_slices(owned.read(), frozenset(pods))
    given: list[OwnedSmlu] = []
    failed: list[str] = []
    for item, cut in _with_cards(gone, cards):
        try:
            destroy_slice(cut.card, item, owned, pause)
            given.append(item)
        except AgentError as error:
            failed.append(f"{_words(item)}: {error}"[:200])
    return given, tuple(failed)


def _existing_slices(
    owned: SmluOwnershipFile, cards: Mapping[str, DivisibleCard]
) -> tuple[dict[SliceKey, DevicePartition], list[OwnedSmlu]]:
    """Return our slices by pod and card, and those that a reset took; these are struck out."""
    keys = {id(cut): key for key, cut in cards.items()}
    there: dict[SliceKey, DevicePartition] = {}
    lost: list[OwnedSmlu] = []
    for item, cut in _with_cards(owned.read(), cards):
        if item.instance is None:
            continue
        cut.card.begin_round()
        listed = {one.number: one for one in cut.card.smlu_instances()}
        if item.instance in listed:
            there[item.owner, keys[id(cut)]] = cut.describe(listed[item.instance])
        elif cut.card.has_answered(LISTING):  # no answer is no loss
            owned.remove(item)
            lost.append(item)
    return there, lost


def _with_cards(
    items: Sequence[OwnedSmlu], cards: Mapping[str, DivisibleCard]
) -> Iterator[tuple[OwnedSmlu, DivisibleCard]]:
    by_uuid = {cut.card.uuid() or "": cut for cut in cards.values()}
    for item in items:
        if item.card_uuid and item.card_uuid in by_uuid:
            yield item, by_uuid[item.card_uuid]


def _words(item: OwnedSmlu) -> str:
    return f"sMLU slice {item.instance} of card {item.card}, of pod {item.owner}"
