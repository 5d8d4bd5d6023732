"""Who holds what of each device. Nothing is ever held twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.grants.known import Found, functions_of, takes_all, totals_of
from agent.model.grant.granted import MEMORY, RATIO, GrantedDevice
from agent.model.grant.refusal import GrantRefused, Refusal


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """What one entry of a grant takes: all, amounts of it, or named pieces of it."""

    key: str  # Device.key
    totals: Mapping[str, int]
    whole: bool = False
    amounts: Mapping[str, int] = {}
    piece: str = ""  # a slice or a replica
    functions: tuple[str, ...] = ()  # virtual ones


def hold_of(entry: GrantedDevice, found: Found) -> Hold:
    """Return what an entry takes of what it means; raise `GrantRefused` if that cannot be.

    Amounts of a kind that the device does not have are passed over: upstream's scheduler writes
    some. An entry that then has no amount takes the whole device.
    """
    device, totals = found.device, totals_of(found.device)
    _check_functions(entry, found)
    if found.piece:
        return Hold(key=device.key, totals=totals, piece=found.piece)
    amounts = {name: amount for name, amount in entry.resources if name in totals}
    if amounts and not any(amounts.values()):
        raise GrantRefused(Refusal.INCOMPLETE_GRANT, f"{device.key}: nothing of it")
    whole = takes_all(amounts, totals) if amounts else not entry.vfs
    if whole and amounts.get(RATIO) == totals.get(RATIO):
        amounts.pop(MEMORY, None)  # another driver may count a little more or less of it
    for name, amount in amounts.items():
        if amount > totals[name]:
            told = f"{device.key}: {amount} of {name} was granted, it has {totals[name]}"
            raise GrantRefused(Refusal.DEVICE_TAKEN, told)
    return Hold(key=device.key, totals=totals, whole=whole, amounts=amounts, functions=entry.vfs)


def _check_functions(entry: GrantedDevice, found: Found) -> None:
    if not entry.vfs:
        return
    known = functions_of(found.device)
    for address in entry.vfs:
        if address not in known:
            told = f"{address[:64]!r} is no virtual function of {found.device.key} for pods"
            raise GrantRefused(Refusal.VIRTUAL_FUNCTION_UNKNOWN, told)
    if len(set(entry.vfs)) < len(entry.vfs):
        raise GrantRefused(Refusal.BAD_GRANT, f"{found.device.key}: one function twice")


class _Account:
    """One device."""

    def __init__(self) -> None:
        self.whole = ""  # who has it all
        self.used: dict[str, int] = {}
        self.sharers: dict[str, None] = {}  # who has amounts of it, the first first
        self.named: dict[str, str] = {}  # who has which slice, replica or function
        self.pieces: set[str] = set()  # those of `named` that are slices or replicas


class Books:
    """All devices; names of holders are for people."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def take(self, holder: str, holds: Iterable[Hold]) -> None:
        """Enter all holds of one pod, or none and raise `GrantRefused`."""
        wanted = tuple(holds)
        tried: dict[str, _Account] = {}
        for hold in wanted:
            account = tried.get(hold.key)
            if account is None:
                account = tried[hold.key] = _copied(self._accounts.get(hold.key))
            _enter(account, hold, holder)
        self._accounts.update(tried)


def _copied(account: _Account | None) -> _Account:
    new = _Account()
    if account is not None:
        new.whole, new.used, new.sharers = account.whole, dict(account.used), dict(account.sharers)
        new.named, new.pieces = dict(account.named), set(account.pieces)
    return new


def _enter(account: _Account, hold: Hold, holder: str) -> None:
    if account.whole:
        raise _taken(hold, account.whole)
    if hold.piece:
        _refuse_beside(hold, account.sharers)
        _name(account, hold, hold.piece, holder)
        account.pieces.add(hold.piece)
        return
    if account.pieces:
        raise _taken(hold, account.named[min(account.pieces)])
    if hold.whole:
        _refuse_beside(hold, account.sharers)
        account.whole = holder
    for address in hold.functions:
        _name(account, hold, address, holder)
    for name, amount in hold.amounts.items():
        used = account.used.get(name, 0) + amount
        if used > hold.totals[name]:
            told = f"{amount} of {name} was granted, {hold.totals[name] - used + amount} are left"
            raise GrantRefused(
                Refusal.DEVICE_TAKEN, f"{hold.key}: {told} by {', '.join(account.sharers)}"
            )
        account.used[name] = used
    account.sharers[holder] = None


def _name(account: _Account, hold: Hold, name: str, holder: str) -> None:
    if name in account.named:
        raise _taken(hold, account.named[name], f" {name}")
    account.named[name] = holder


def _refuse_beside(hold: Hold, sharers: Mapping[str, None]) -> None:
    if sharers:
        raise _taken(hold, next(iter(sharers)))


def _taken(hold: Hold, by: str, what: str = "") -> GrantRefused:
    return GrantRefused(Refusal.DEVICE_TAKEN, f"{hold.key}{what} is held by {by}")
