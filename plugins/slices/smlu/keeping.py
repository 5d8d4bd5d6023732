"""The sMLU slices that pods are to have: cut where they are missing, given back where pods end."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec

from agent.errors import AgentError
from agent.model.device import DevicePartition
from agent.model.runtime.slices import SlicesKept, SliceWish
from plugins.bindings.cndev.card import Card, Instance
from plugins.slices.keeping import Key, fulfil, sparing
from plugins.slices.smlu.effects import (
    DESTROY_TRIES,
    LISTING,
    Pause,
    destroy,
    make,
    orphans,
    settle,
)
from plugins.slices.smlu.owned import Owned, OwnershipFile
from plugins.slices.smlu.rules import SliceRefused, wanted


class Cuttable(msgspec.Struct, frozen=True, kw_only=True):
    """A card that answers, and what is known of it."""

    card: Card
    unit_mib: int
    describe: Callable[[Instance], DevicePartition]


def keep(
    owned: OwnershipFile | None,
    cards: Mapping[str, Cuttable],
    wishes: Sequence[SliceWish],
    pods: Collection[str] | None,
    pause: Pause = time.sleep,
) -> SlicesKept:
    """Make what is wished for of the cards (by key), and give back ours of pods not in `pods`.

    Without a place to write down what is ours nothing is made: nobody could take it back.
    `OwnershipUnknown` if that cannot be read.
    """
    if owned is None:
        return _nowhere(wishes)
    for item, known in _with_cards(owned.read(), cards):
        if item.instance is None:
            settle(known.card, owned, item)
    given, failed = _give_back(owned, cards, pods, sparing(pause, DESTROY_TRIES - 1))
    there, lost = _standing(owned, cards)
    open_cards = {item.card_uuid for item in owned.read() if item.instance is None}

    def cut(wish: SliceWish) -> DevicePartition:
        found = cards.get(wish.device)
        if found is None or wish.core_percent is None or wish.memory_bytes is None:
            what = "there is no card that answers" if found is None else "cores or memory missing"
            raise SliceRefused(f"{wish.device}: {what}")
        if (found.card.uuid() or "") in open_cards:
            raise SliceRefused(f"{wish.device}: it is not known yet what became of an earlier try")
        size, _ = wanted(found.card.index, wish.core_percent, wish.memory_bytes, found.unit_mib)
        _, instance = make(found.card, size, found.unit_mib, wish.pod, owned)
        return found.describe(instance)

    made, unmade, changed = fulfil(wishes, there, cut)
    return SlicesKept(
        made=made,
        unmade=unmade,
        reclaimed=tuple(_words(item) for item in given),
        lost=tuple(item.owner for item in lost),
        failed=failed,
        changed=changed or bool(given or lost),
    )


def _nowhere(wishes: Sequence[SliceWish]) -> SlicesKept:
    def refuse(_: SliceWish) -> DevicePartition:
        raise SliceRefused("node.state_dir is not set: what is cut could not be given back")

    made, unmade, _ = fulfil(wishes, {}, refuse)
    return SlicesKept(made=made, unmade=unmade)


def _give_back(
    owned: OwnershipFile, cards: Mapping[str, Cuttable], pods: Collection[str] | None, pause: Pause
) -> tuple[list[Owned], tuple[str, ...]]:
    gone = () if pods is None else orphans(owned.read(), frozenset(pods))
    given: list[Owned] = []
    failed: list[str] = []
    for item, cut in _with_cards(gone, cards):
        try:
            destroy(cut.card, item, owned, pause)
            given.append(item)
        except AgentError as error:
            failed.append(f"{_words(item)}: {error}"[:200])
    return given, tuple(failed)


def _standing(
    owned: OwnershipFile, cards: Mapping[str, Cuttable]
) -> tuple[dict[Key, DevicePartition], list[Owned]]:
    """Return our slices by pod and card, and those that a reset took; these are struck out."""
    keys = {id(cut): key for key, cut in cards.items()}
    there: dict[Key, DevicePartition] = {}
    lost: list[Owned] = []
    for item, cut in _with_cards(owned.read(), cards):
        if item.instance is None:
            continue
        cut.card.begin()
        listed = {one.number: one for one in cut.card.slices()}
        if item.instance in listed:
            there[item.owner, keys[id(cut)]] = cut.describe(listed[item.instance])
        elif cut.card.told(LISTING):  # no answer is no loss
            owned.remove(item)
            lost.append(item)
    return there, lost


def _with_cards(
    items: Sequence[Owned], cards: Mapping[str, Cuttable]
) -> Iterator[tuple[Owned, Cuttable]]:
    by_uuid = {cut.card.uuid() or "": cut for cut in cards.values()}
    for item in items:
        if item.card_uuid and item.card_uuid in by_uuid:
            yield item, by_uuid[item.card_uuid]


def _words(item: Owned) -> str:
    return f"sMLU slice {item.instance} of card {item.card}, of pod {item.owner}"
