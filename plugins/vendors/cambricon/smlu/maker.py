"""Creates sMLU instances for pods, and destroys instances that the agent created."""

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
    """Return a card's sMLU profiles; profiles that cannot be read are left out."""
    cndev = card.cndev
    ids = cndev.read("cndevGetSMluProfileIdInfo", "ProfIds", card.handle)
    profiles = []
    for number in ids.id[: max(0, min(ids.count, MAX_PROFILES))]:
        symbol = "cndevGetSMluProfileInfo"
        read = partial(cndev.read, symbol, "Prof", number, card.handle)
        record = card.call(f"{symbol} {number}", read)
        if record is not None:
            profiles.append(
                SmluProfile(
                    id=int(record.id),
                    core_percent=int(record.quota[0]),
                    memory_bytes=int(record.memory[0]),
                    total=int(record.total),
                    remain=int(record.remain),
                )
            )
    return tuple(profiles)


def make_slice(
    card: CndevCard, request: SmluRequest, unit_mib: int, owner: str, owned: SmluOwnershipFile
) -> tuple[OwnedSmlu, MluInstance]:
    """Create an instance for a pod and read it back; an entry is written first.

    Raises `SliceRefused` if sMLU mode is off, no slot is free, or the instance differs from the
    request; such an instance is destroyed. If the process ends meanwhile, `resolve_intent` finds
    the instance later.
    """
    if card.mode("cndevGetSMLUMode") is not True:
        raise SliceRefused(f"card {card.index}: sMLU mode is off")
    before = tuple(instance_before.number for instance_before in card.smlu_instances())
    if not card.is_answer_valid(LISTING):
        raise SliceRefused(f"card {card.index}: the driver does not list its slices")
    memory_bytes = request.memory_bytes(unit_mib)
    profile = choose_profile(read_profiles(card), request.core_percent, memory_bytes)
    number = profile.id if profile else _add_profile(card, request.core_percent, memory_bytes)
    intent = OwnedSmlu(
        card_uuid=card.uuid() or "",
        card=card.index,
        profile=number,
        owner=owner,
        before=before,
        boot=owned.boot,
    )
    try:
        owned.record_intent(intent)
        instance = _add_instance(card, number, owner)
    except AgentError:
        _remove_unused_profile(card, number)
        owned.remove(intent)
        raise
    try:
        owned_slice = owned.record_created(intent, instance)
        return owned_slice, _read_back(card, instance, request.core_percent, memory_bytes)
    except AgentError:
        # an instance without an entry, or with another size than requested, must not stay
        _destroy_instance(card, instance)
        _remove_unused_profile(card, number)
        owned.remove(replace(intent, instance=instance))
        owned.remove(intent)
        raise


def resolve_intent(card: CndevCard, owned: SmluOwnershipFile, intent: OwnedSmlu) -> bool:
    """Find the instance of an entry whose creation was interrupted, or remove the entry.

    Return whether it was found, so that the instance has an owner again.

    If there is exactly one new instance of the profile, the agent created it. Otherwise the entry
    is removed. While the card's list cannot be read, nothing changes.
    """
    card.begin_round()
    instances = card.smlu_instances()
    if not card.is_answer_valid(LISTING):
        return False
    known_numbers = {item.instance for item in owned.read() if item.card_uuid == intent.card_uuid}
    candidates = [
        instance.number
        for instance in instances
        if instance.profile == intent.profile
        and instance.number not in known_numbers.union(intent.before)
    ]
    if len(candidates) == 1:
        owned.record_created(intent, candidates[0])
        return True
    owned.remove(intent)
    return False


def _add_profile(card: CndevCard, core_percent: int, memory_bytes: int) -> int:
    request, number = card.cndev.record("Set"), ctypes.c_int32()
    request.quota, request.memory = core_percent, memory_bytes
    card.cndev.call(
        "cndevCreateSMluProfileInfo", ctypes.byref(request), ctypes.byref(number), card.handle
    )
    return number.value


def _add_instance(card: CndevCard, profile: int, owner: str) -> int:
    handle = ctypes.c_int32()
    name = owner.encode("ascii", "replace")[:99]
    symbol = "cndevCreateSMluInstanceByProfileId"
    card.cndev.call(symbol, ctypes.byref(handle), profile, card.handle, name)
    return handle.value >> 8


def _read_back(card: CndevCard, instance: int, core_percent: int, memory_bytes: int) -> MluInstance:
    created = next((one for one in card.smlu_instances() if one.number == instance), None)
    if created is None or not created.nodes:
        raise SliceRefused(f"card {card.index}: the driver does not list instance {instance}")
    if (created.cores, created.memory_bytes) != (core_percent, memory_bytes):
        actual = f"{created.cores} percent and {created.memory_bytes >> 20}Mi"
        raise SliceRefused(
            f"asked for {core_percent} percent, {memory_bytes >> 20}Mi; got {actual}"
        )
    return created


def destroy_slice(
    card: CndevCard, owned_slice: OwnedSmlu, owned: SmluOwnershipFile, pause: Pause
) -> None:
    """Destroy an instance of the agent, and its profile if it is unused.

    While the instance is in use, `pause` is called with seconds between tries. If it is still in
    use after the last try, raises `CndevFault` with code 15, and the entry stays.
    """
    is_owned = owned_slice in owned.read() and (card.uuid() or "") == owned_slice.card_uuid
    if owned_slice.instance is None or not is_owned:
        raise SliceRefused(
            f"instance {owned_slice.instance} of card {owned_slice.card} is not ours"
        )
    for is_last in (*[False] * (DESTROY_TRIES - 1), True):
        try:
            _destroy_instance(card, owned_slice.instance)
        except codes.CndevFault as error:
            if error.code != codes.IN_USE or is_last:
                raise
            pause(DESTROY_PAUSE_S)
        else:
            break
    _remove_unused_profile(card, owned_slice.profile)
    owned.remove(owned_slice)


def _destroy_instance(card: CndevCard, instance: int) -> None:
    try:
        card.cndev.call("cndevDestroySMluInstanceByHandle", handle_of(instance, card.index))
    except codes.CndevFault as error:
        if error.code != codes.NOT_FOUND:  # otherwise it is destroyed already
            raise


def _remove_unused_profile(card: CndevCard, profile: int) -> None:
    """Remove a profile that has no instances."""
    unused = [p for p in read_profiles(card) if p.id == profile and p.remain == p.total]
    for _ in unused:
        try:
            card.cndev.call("cndevDestroySMluProfileInfo", profile, card.handle)
        except (codes.CndevFault, NotSupported):
            return  # an unused profile does no harm


def orphaned_slices(owned: Iterable[OwnedSmlu], pods: frozenset[str]) -> tuple[OwnedSmlu, ...]:
    """Return the agent's instances of deleted pods; `pods` are the uids of the node's pods."""
    orphans = (item for item in owned if item.owner not in pods)
    return tuple(item for item in orphans if item.instance is not None)


class DivisibleCard(msgspec.Struct, frozen=True, kw_only=True):
    """An answering card with the facts that its slicing needs."""

    card: CndevCard
    unit_mib: int
    describe: Callable[[MluInstance], DevicePartition]


def reconcile_slices(
    owned: SmluOwnershipFile | None,
    cards: Mapping[str, DivisibleCard],
    requests: Sequence[SliceRequest],
    pods: Collection[str] | None,
    pause: Pause = time.sleep,
) -> SliceReport:
    """Create the requested instances on the cards (by key), and destroy those of deleted pods.

    Without an ownership file no instance is created, because it could not be destroyed later.
    Raises `OwnershipUnknown` if the file cannot be read.
    """
    if owned is None:
        return _refuse_all(requests)
    intents = [
        (item, one) for item, one in _with_cards(owned.read(), cards) if item.instance is None
    ]
    adopted = [item for item, one in intents if resolve_intent(one.card, owned, item)]
    destroyed, failed = _destroy_orphans(
        owned, cards, pods, limited_pause(pause, DESTROY_TRIES - 1)
    )
    existing, lost = _existing_slices(owned, cards)
    open_cards = {item.card_uuid for item in owned.read() if item.instance is None}

    def make(request: SliceRequest) -> DevicePartition:
        divisible_card = cards.get(request.device)
        if divisible_card is None or request.core_percent is None or request.memory_bytes is None:
            problem = (
                "there is no card that answers"
                if divisible_card is None
                else "cores or memory missing"
            )
            raise SliceRefused(f"{request.device}: {problem}")
        if (divisible_card.card.uuid() or "") in open_cards:
            raise SliceRefused(
                f"{request.device}: it is not known yet what became of an earlier try"
            )
        size, _ = request_of(
            divisible_card.card.index,
            request.core_percent,
            request.memory_bytes,
            divisible_card.unit_mib,
        )
        _, instance = make_slice(
            divisible_card.card, size, divisible_card.unit_mib, request.pod, owned
        )
        return divisible_card.describe(instance)

    created, refused, changed = make_missing_slices(requests, existing, make)
    return SliceReport(
        made=created,
        unmade=refused,
        reclaimed=tuple(_describe(item) for item in destroyed),
        lost=tuple(item.owner for item in lost),
        failed=failed,
        changed=changed or bool(adopted or destroyed or lost),
    )


def _refuse_all(requests: Sequence[SliceRequest]) -> SliceReport:
    def refuse(_: SliceRequest) -> DevicePartition:
        raise SliceRefused("node.state_dir is not set: what is cut could not be given back")

    created, refused, _ = make_missing_slices(requests, {}, refuse)
    return SliceReport(made=created, unmade=refused)


def _destroy_orphans(
    owned: SmluOwnershipFile,
    cards: Mapping[str, DivisibleCard],
    pods: Collection[str] | None,
    pause: Pause,
) -> tuple[list[OwnedSmlu], tuple[str, ...]]:
    orphans = () if pods is None else orphaned_slices(owned.read(), frozenset(pods))
    destroyed: list[OwnedSmlu] = []
    failed: list[str] = []
    for item, divisible in _with_cards(orphans, cards):
        try:
            destroy_slice(divisible.card, item, owned, pause)
            destroyed.append(item)
        except AgentError as error:
            failed.append(f"{_describe(item)}: {error}"[:200])
    return destroyed, tuple(failed)


def _existing_slices(
    owned: SmluOwnershipFile, cards: Mapping[str, DivisibleCard]
) -> tuple[dict[SliceKey, DevicePartition], list[OwnedSmlu]]:
    """Return the agent's instances by pod and card, and lost ones, whose entries are removed."""
    keys = {id(divisible): key for key, divisible in cards.items()}
    existing: dict[SliceKey, DevicePartition] = {}
    lost: list[OwnedSmlu] = []
    for item, divisible in _with_cards(owned.read(), cards):
        if item.instance is None:
            continue
        divisible.card.begin_round()
        instances = {instance.number: instance for instance in divisible.card.smlu_instances()}
        if item.instance in instances:
            existing[item.owner, keys[id(divisible)]] = divisible.describe(instances[item.instance])
        elif divisible.card.is_answer_valid(LISTING):  # without a valid list nothing is lost
            owned.remove(item)
            lost.append(item)
    return existing, lost


def _with_cards(
    items: Sequence[OwnedSmlu], cards: Mapping[str, DivisibleCard]
) -> Iterator[tuple[OwnedSmlu, DivisibleCard]]:
    by_uuid = {divisible.card.uuid() or "": divisible for divisible in cards.values()}
    for item in items:
        if item.card_uuid and item.card_uuid in by_uuid:
            yield item, by_uuid[item.card_uuid]


def _describe(item: OwnedSmlu) -> str:
    return f"sMLU slice {item.instance} of card {item.card}, of pod {item.owner}"
