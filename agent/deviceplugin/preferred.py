"""Which ids the kubelet had best take: those a scheduler granted, else those that work together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from agent.allocation.device_scores import PairScores
from agent.allocation.index import AllocationIndex
from agent.allocation.preferred_devices import (
    DeviceSlot,
    TooFewDevices,
    preferred_cards,
    preferred_slots,
)
from agent.deviceplugin.pod_devices import (
    CandidatePod,
    DeviceAccounting,
    find_candidates,
    matched_hardware,
)
from agent.deviceplugin.resources import (
    POD_UNKNOWN,
    ResourceUnits,
    UnknownPodError,
    slot_of_unit,
)
from agent.snapshot.device import UNKNOWN_MINOR
from agent.snapshot.device_plugin import DeviceUnit, HardwareKey
from agent.snapshot.node import NodeSnapshot

Ids = tuple[str, ...]


class PreferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the kubelet asks to choose from."""

    available: Ids
    required: Ids = ()
    size: int
    is_last_try: bool = False  # there is no new try with a newer snapshot


def select_preferred(
    wish: PreferenceRequest,
    one: ResourceUnits,
    offered: Mapping[str, ResourceUnits],
    snapshot: NodeSnapshot,
    board: PairScores,
    kept: AllocationIndex | None = None,
    *,
    packed: bool,
) -> Ids:
    """Return the best `size` of the available ids, with the required ones that are among them.

    What was granted to the pods that can be meant comes first; for a pod without a grant what is
    granted to others comes last. Cards are near to each other and to what the pod has already of
    the other resources `offered`. Replicas are taken from cards with few free ones if `packed`.
    Raises `NotEnough` only if there are fewer ids than asked for, and `PodNotSeen` unless it is
    the last try: what the kubelet then chooses cannot be changed any more. `kept` saves time.
    """
    free = tuple(sorted(set(wish.available)))
    if not 0 <= wish.size <= len(free):
        raise TooFewDevices
    known = tuple(name for name in free if name in one.units or name in wish.required)
    if len(known) >= wish.size:
        free = known  # what is gone since is taken where nothing else is left
    found = find_candidates(one.name, wish.size, one.devices, snapshot, kept)
    if not (found or wish.is_last_try) and snapshot.cluster.is_clustered:
        raise UnknownPodError(
            POD_UNKNOWN, f"no pod that waits for {wish.size} of {one.name} is known"
        )
    choice = _UnitSelector(
        one, board, _companion_cards(found, one, offered, snapshot), packed=packed
    )
    names = set(free)
    fixed = [name for name in dict.fromkeys(wish.required) if name in names][: wish.size]
    accounts = DeviceAccounting(one, offered, snapshot, free, [asker.pod.uid for asker in found])
    steered: Sequence[str] = fixed
    for tier in _preference_tiers(free, found, choice, one, accounts):
        more = tuple(dict.fromkeys((*steered, *tier)))
        if len(more) >= wish.size:
            return choice.select(more, steered, wish.size)
        steered = more
    return choice.select(free, steered, wish.size)


def _preference_tiers(
    free: Ids,
    found: Sequence[CandidatePod],
    choice: _UnitSelector,
    one: ResourceUnits,
    accounts: DeviceAccounting,
) -> Iterator[Ids]:
    """Yield ids from the best to the worst for the kubelet's account.

    For granted pods the devices that they have, then what other pods have that the kubelet holds
    for free: so its account of free devices stays as near to the truth as it can be. For pods
    without a grant what nobody has.
    """
    taken = tuple(
        name for name in free if name in one.units and accounts.is_in_use(one.units[name])
    )
    if not any(asker.has_allocation for asker in found):
        yield tuple(name for name in free if name not in taken)
        return
    mine = [matched_hardware(asker.matches) for asker in found]
    yield tuple(name for name in free if choice.hardware_key(name) in frozenset.intersection(*mine))
    yield tuple(name for name in free if choice.hardware_key(name) in frozenset.union(*mine))
    yield taken


def _companion_cards(
    found: Sequence[CandidatePod],
    one: ResourceUnits,
    offered: Mapping[str, ResourceUnits],
    snapshot: NodeSnapshot,
) -> tuple[str, ...]:
    """Return the devices of other resources that the pod has already, if only one can be meant."""
    if len(found) != 1:
        return ()
    keys = []
    for held in snapshot.served.value.held:
        other = offered.get(held.resource)
        if held.pod_uid == found[0].pod.uid and other is not None and other.name != one.name:
            units = (other.units.get(name) for name in held.device_ids)
            keys += [_card_id(unit) for unit in units if unit is not None]
    return tuple(dict.fromkeys(keys))


def _card_id(unit: DeviceUnit) -> str:
    """Return what the board calls the card."""
    return unit.device.info.uuid or unit.device.key


class _UnitSelector:
    """Chooses among ids of one resource, by no other thing than where they are."""

    def __init__(
        self, one: ResourceUnits, board: PairScores, companions: Sequence[str], *, packed: bool
    ) -> None:
        self._units = one
        self._board = board
        self._companions = companions
        self._is_packed = packed

    def hardware_key(self, name: str) -> HardwareKey | None:
        """Return what an id is; `None` for one that is not known any more."""
        unit = self._units.units.get(name)
        return unit.hardware_key if unit else None

    def select(self, available: Sequence[str], required: Sequence[str], size: int) -> Ids:
        """Return the best so many, with all required ones."""
        if not self._units.slots or all(name not in self._units.slots for name in available):
            return self._select_cards(available, required, size)
        if self._companions and not self._units.has_replicas:
            return self._select_nearest(available, required, size)
        return preferred_slots(
            [self._slot(name) for name in available],
            required,
            size,
            self._units.capacity,
            spread=self._units.has_replicas,
            packed=self._is_packed or not self._units.has_replicas,
        )

    def _select_nearest(self, available: Sequence[str], required: Sequence[str], size: int) -> Ids:
        """Choose functions and slices of the cards that are nearest to what the pod has."""

        def order(name: str) -> tuple[bool, int, int, tuple[int, ...], str]:
            unit = self._units.units.get(name)
            near = self._closeness(_card_id(unit)) if unit else 0
            slot = self._slot(name)
            return name not in required, -near, slot.minor, slot.number, name

        return tuple(sorted(available, key=order)[:size])

    def _slot(self, name: str) -> DeviceSlot:
        """Return a slot, also of a whole card among others and of what is not known any more."""
        slot = self._units.slots.get(name)
        if slot is None:
            unit = self._units.units.get(name)
            slot = (
                slot_of_unit(unit)
                if unit
                else DeviceSlot(id=name, card="", minor=UNKNOWN_MINOR, number=())
            )
        return slot

    def _closeness(self, card: str) -> int:
        return sum(self._board.score(card, other) for other in self._companions)

    def _select_cards(self, available: Sequence[str], required: Sequence[str], size: int) -> Ids:
        """Choose cards by the names that they have on the board, which are not the kubelet's."""
        units = self._units.units
        names = {name: _card_id(units[name]) if name in units else name for name in available}
        ids = {card: name for name, card in names.items()}
        near = {card: self._closeness(card) for card in ids}
        wanted = [names[name] for name in required]
        chosen = preferred_cards(list(ids), wanted, size, self._board, near)
        return tuple(ids[card] for card in chosen)
