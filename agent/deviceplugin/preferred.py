"""Chooses the ids that the kubelet should prefer: allocated ones, else ones that are close.

Pure.
"""

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
    """A request of the kubelet to choose among ids."""

    available: Ids
    required: Ids = ()
    size: int
    is_last_try: bool = False  # the caller does not retry with a newer snapshot


def select_preferred(
    request: PreferenceRequest,
    resource_units: ResourceUnits,
    offered: Mapping[str, ResourceUnits],
    snapshot: NodeSnapshot,
    scores: PairScores,
    index: AllocationIndex | None = None,
    *,
    packed: bool,
) -> Ids:
    """Return the best `size` of the available ids, with the required ones that are among them.

    Devices allocated to the candidate pods come first; for a pod without an allocation, devices of
    others come last. Cards are close to each other and to the pod's devices of other resources in
    `offered`. Replicas are chosen from cards with few free ones if `packed`. Raises `TooFewDevices`
    only if there are fewer ids than requested, and `UnknownPodError` unless it is the last try: the
    choice cannot be changed afterwards. `index` is a cache.
    """
    free = tuple(sorted(set(request.available)))
    if not 0 <= request.size <= len(free):
        raise TooFewDevices
    existing = tuple(
        name for name in free if name in resource_units.units or name in request.required
    )
    if len(existing) >= request.size:
        free = existing  # ids that do not exist any more are used only if nothing else is free
    candidates = find_candidates(
        resource_units.name, request.size, resource_units.devices, snapshot, index
    )
    if not (candidates or request.is_last_try) and snapshot.cluster.is_clustered:
        raise UnknownPodError(
            POD_UNKNOWN, f"no pod that waits for {request.size} of {resource_units.name} is known"
        )
    selector = _UnitSelector(
        resource_units,
        scores,
        _companion_cards(candidates, resource_units, offered, snapshot),
        packed=packed,
    )
    names = set(free)
    fixed = [name for name in dict.fromkeys(request.required) if name in names][: request.size]
    accounts = DeviceAccounting(
        resource_units, offered, snapshot, free, [candidate.pod.uid for candidate in candidates]
    )
    selected: Sequence[str] = fixed
    for tier in _preference_tiers(free, candidates, selector, resource_units, accounts):
        extended = tuple(dict.fromkeys((*selected, *tier)))
        if len(extended) >= request.size:
            return selector.select(extended, selected, request.size)
        selected = extended
    return selector.select(free, selected, request.size)


def _preference_tiers(
    free: Ids,
    candidates: Sequence[CandidatePod],
    selector: _UnitSelector,
    resource_units: ResourceUnits,
    accounts: DeviceAccounting,
) -> Iterator[Ids]:
    """Yield groups of ids from the best to the worst for the kubelet's account.

    For pods with an allocation: their own devices, then other devices in use that the kubelet
    counts as free, which keeps its number of free devices close to the truth. For other pods: free
    devices.
    """
    ids_in_use = tuple(
        name
        for name in free
        if name in resource_units.units and accounts.is_in_use(resource_units.units[name])
    )
    if not any(candidate.has_allocation for candidate in candidates):
        yield tuple(name for name in free if name not in ids_in_use)
        return
    candidate_keys = [matched_hardware(candidate.matches) for candidate in candidates]
    yield tuple(
        name
        for name in free
        if selector.hardware_key(name) in frozenset.intersection(*candidate_keys)
    )
    yield tuple(
        name for name in free if selector.hardware_key(name) in frozenset.union(*candidate_keys)
    )
    yield ids_in_use


def _companion_cards(
    candidates: Sequence[CandidatePod],
    resource_units: ResourceUnits,
    offered: Mapping[str, ResourceUnits],
    snapshot: NodeSnapshot,
) -> tuple[str, ...]:
    """Return the pod's devices of other resources, if there is only one candidate."""
    if len(candidates) != 1:
        return ()
    keys = []
    for allocation in snapshot.served.value.held:
        other = offered.get(allocation.resource)
        if (
            allocation.pod_uid == candidates[0].pod.uid
            and other is not None
            and other.name != resource_units.name
        ):
            units = (other.units.get(name) for name in allocation.device_ids)
            keys += [_card_id(unit) for unit in units if unit is not None]
    return tuple(dict.fromkeys(keys))


def _card_id(unit: DeviceUnit) -> str:
    """Return the name of the card in `PairScores`."""
    return unit.device.info.uuid or unit.device.key


class _UnitSelector:
    """Chooses among ids of one resource by their topology only."""

    def __init__(
        self,
        resource_units: ResourceUnits,
        scores: PairScores,
        companions: Sequence[str],
        *,
        packed: bool,
    ) -> None:
        self._units = resource_units
        self._scores = scores
        self._companions = companions
        self._is_packed = packed

    def hardware_key(self, name: str) -> HardwareKey | None:
        """Return the hardware of an id; `None` if it does not exist any more."""
        unit = self._units.units.get(name)
        return unit.hardware_key if unit else None

    def select(self, available: Sequence[str], required: Sequence[str], size: int) -> Ids:
        """Return the best `size` ids, including all required ones."""
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
        """Choose functions and slices of the cards that are closest to the pod's devices."""

        def order(name: str) -> tuple[bool, int, int, tuple[int, ...], str]:
            unit = self._units.units.get(name)
            near = self._closeness(_card_id(unit)) if unit else 0
            slot = self._slot(name)
            return name not in required, -near, slot.minor, slot.number, name

        return tuple(sorted(available, key=order)[:size])

    def _slot(self, name: str) -> DeviceSlot:
        """Return a slot, also for a whole card among slices and for an unknown id."""
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
        return sum(self._scores.score(card, other) for other in self._companions)

    def _select_cards(self, available: Sequence[str], required: Sequence[str], size: int) -> Ids:
        """Choose cards by their names in `PairScores`, which are not the kubelet's ids."""
        units = self._units.units
        names = {name: _card_id(units[name]) if name in units else name for name in available}
        ids = {card: name for name, card in names.items()}
        near = {card: self._closeness(card) for card in ids}
        required_cards = [names[name] for name in required]
        selected_cards = preferred_cards(list(ids), required_cards, size, self._scores, near)
        return tuple(ids[card] for card in selected_cards)
