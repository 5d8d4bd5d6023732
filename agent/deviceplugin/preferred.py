"""Which ids the kubelet had best take: those a scheduler granted, else those that work together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from agent.deviceplugin.accounts import Accounts
from agent.deviceplugin.base import UNSEEN, PodNotSeen
from agent.deviceplugin.match import Asker, askers, places
from agent.deviceplugin.units import Place, Served, Unit, slot_of
from agent.grants.kept import Kept
from agent.model.snapshot import NodeSnapshot
from plugins.injection.preferred.board import UNKNOWN_MINOR, Board
from plugins.injection.preferred.cards import NotEnough, preferred_cards
from plugins.injection.preferred.slots import Slot, preferred_slots

Ids = tuple[str, ...]


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What the kubelet asks to choose from."""

    available: Ids
    required: Ids = ()
    size: int
    last: bool = False  # there is no new try with a newer snapshot


def preferred(
    wish: Wish,
    one: Served,
    offered: Mapping[str, Served],
    snapshot: NodeSnapshot,
    board: Board,
    kept: Kept | None = None,
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
        raise NotEnough
    known = tuple(name for name in free if name in one.units or name in wish.required)
    if len(known) >= wish.size:
        free = known  # what is gone since is taken where nothing else is left
    found = askers(one.name, wish.size, one.devices, snapshot, kept)
    if not (found or wish.last) and snapshot.cluster.clustered:
        raise PodNotSeen(UNSEEN, f"no pod that waits for {wish.size} of {one.name} is known")
    choice = _Choice(one, board, _companions(found, one, offered, snapshot), packed=packed)
    names = set(free)
    fixed = [name for name in dict.fromkeys(wish.required) if name in names][: wish.size]
    accounts = Accounts(one, offered, snapshot, free, [asker.pod.uid for asker in found])
    steered: Sequence[str] = fixed
    for tier in _tiers(free, found, choice, one, accounts):
        more = tuple(dict.fromkeys((*steered, *tier)))
        if len(more) >= wish.size:
            return choice.of(more, steered, wish.size)
        steered = more
    return choice.of(free, steered, wish.size)


def _tiers(
    free: Ids, found: Sequence[Asker], choice: _Choice, one: Served, accounts: Accounts
) -> Iterator[Ids]:
    """Yield ids from the best to the worst for the kubelet's account.

    For granted pods the devices that they have, then what other pods have that the kubelet holds
    for free: so its account of free devices stays as near to the truth as it can be. For pods
    without a grant what nobody has.
    """
    taken = tuple(
        name for name in free if name in one.units and accounts.is_in_use(one.units[name])
    )
    if not any(asker.granted for asker in found):
        yield tuple(name for name in free if name not in taken)
        return
    mine = [places(asker.found) for asker in found]
    yield tuple(name for name in free if choice.place(name) in frozenset.intersection(*mine))
    yield tuple(name for name in free if choice.place(name) in frozenset.union(*mine))
    yield taken


def _companions(
    found: Sequence[Asker],
    one: Served,
    offered: Mapping[str, Served],
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
            keys += [_board_id(unit) for unit in units if unit is not None]
    return tuple(dict.fromkeys(keys))


def _board_id(unit: Unit) -> str:
    """Return what the board calls the card."""
    return unit.device.info.uuid or unit.device.key


class _Choice:
    """Chooses among ids of one resource, by no other thing than where they are."""

    def __init__(
        self, one: Served, board: Board, companions: Sequence[str], *, packed: bool
    ) -> None:
        self._one = one
        self._board = board
        self._companions = companions
        self._packed = packed

    def place(self, name: str) -> Place | None:
        """Return what an id is; `None` for one that is not known any more."""
        unit = self._one.units.get(name)
        return unit.place if unit else None

    def of(self, available: Sequence[str], required: Sequence[str], size: int) -> Ids:
        """Return the best so many, with all required ones."""
        if not self._one.slots or all(name not in self._one.slots for name in available):
            return self._cards(available, required, size)
        if self._companions and not self._one.shared:
            return self._nearest(available, required, size)
        return preferred_slots(
            [self._slot(name) for name in available],
            required,
            size,
            self._one.capacity,
            spread=self._one.shared,
            packed=self._packed or not self._one.shared,
        )

    def _nearest(self, available: Sequence[str], required: Sequence[str], size: int) -> Ids:
        """Choose functions and slices of the cards that are nearest to what the pod has."""

        def order(name: str) -> tuple[bool, int, int, tuple[int, ...], str]:
            unit = self._one.units.get(name)
            near = self._near(_board_id(unit)) if unit else 0
            slot = self._slot(name)
            return name not in required, -near, slot.minor, slot.number, name

        return tuple(sorted(available, key=order)[:size])

    def _slot(self, name: str) -> Slot:
        """Return a slot, also of a whole card among others and of what is not known any more."""
        slot = self._one.slots.get(name)
        if slot is None:
            unit = self._one.units.get(name)
            slot = slot_of(unit) if unit else Slot(id=name, card="", minor=UNKNOWN_MINOR, number=())
        return slot

    def _near(self, card: str) -> int:
        return sum(self._board.score(card, other) for other in self._companions)

    def _cards(self, available: Sequence[str], required: Sequence[str], size: int) -> Ids:
        """Choose cards by the names that they have on the board, which are not the kubelet's."""
        units = self._one.units
        names = {name: _board_id(units[name]) if name in units else name for name in available}
        ids = {card: name for name, card in names.items()}
        near = {card: self._near(card) for card in ids}
        wanted = [names[name] for name in required]
        chosen = preferred_cards(list(ids), wanted, size, self._board, near)
        return tuple(ids[card] for card in chosen)
