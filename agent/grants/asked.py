"""Whether a grant can be a scheduler's: it grants what the pod asks for, and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.grants.known import Found, totals_of
from agent.model.foreign.asks import GRANTED_FOR
from agent.model.grant.granted import CORE, MEMORY, RATIO, GrantedDevice
from agent.model.grant.refusal import GrantRefused, Refusal
from agent.model.pod import Wants

_GPU, _SHARED = "koordinator.sh/gpu", "koordinator.sh/gpu.shared"
_COUNTED = ("nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu")
_WHOLE = 100
_SLACK = 2  # percent: the other form of memory is rounded, and of a total that may have moved
_RUNS = "; a container of the pod runs, and keeps its devices until the pod is deleted"

Entries = Sequence[tuple[GrantedDevice, Found]]


def refuse_unasked(entries: Entries, wants: Wants, *, holding: bool = False) -> None:
    """Raise `GrantNotAskedFor` for devices that the pod's requests cannot have been granted.

    Users may write the annotation, and a scheduler that is asked for no device leaves it as it is.
    Of a pod that is `holding` devices the amounts are not compared: a device's total memory may
    have changed since its container started.
    """
    asked = dict(wants)
    for kind in dict.fromkeys(entry.type for entry, _ in entries):
        if not any(name in asked for name in GRANTED_FOR.get(kind, ())):
            told = f"the pod asks for nothing of type {kind}"
            raise GrantRefused(Refusal.NOT_ASKED_FOR, told + (_RUNS if holding else ""))
    cards = [(entry, found) for entry, found in entries if entry.type == "gpu"]
    if cards:
        _refuse_more(cards, _normal(asked), holding=holding)


def _normal(asked: Mapping[str, int]) -> Mapping[str, int]:
    """Return requests with whole cards as the percents that schedulers count them in."""
    whole = asked.get(_GPU, 0) + _WHOLE * sum(asked.get(name, 0) for name in _COUNTED)
    percents = {name: whole + asked.get(name, 0) for name in (CORE, RATIO)}
    return {**asked, **{name: amount for name, amount in percents.items() if amount}}


def _refuse_more(cards: Entries, asked: Mapping[str, int], *, holding: bool) -> None:
    percent = max(asked.get(CORE, 0), asked.get(RATIO, 0))
    most = max(asked.get(_SHARED, 0), -(-percent // _WHOLE), 1)
    if len(cards) > most:
        told = f"{len(cards)} cards, and the pod asks for {most}"
        raise GrantRefused(Refusal.NOT_ASKED_FOR, told + (_RUNS if holding else ""))
    if holding:
        return
    given: dict[str, int] = {}
    for entry, found in cards:
        amounts = _amounts(entry, found)
        _refuse_uneven(amounts, found, asked)
        for name, amount in amounts.items():
            given[name] = given.get(name, 0) + amount
    for name, amount in given.items():
        if name in asked and amount > asked[name]:
            told = f"{amount} of {name}, and the pod asks for {asked[name]}"
            raise GrantRefused(Refusal.NOT_ASKED_FOR, told)


def _amounts(entry: GrantedDevice, found: Found) -> Mapping[str, int]:
    """Return what an entry grants; one without amounts grants the whole card."""
    if entry.resources or found.piece:
        return dict(entry.resources)
    return {RATIO: _WHOLE, MEMORY: totals_of(found.device).get(MEMORY, 0)}


def _refuse_uneven(amounts: Mapping[str, int], found: Found, asked: Mapping[str, int]) -> None:
    """Refuse memory that is more in the one form than in the one that was asked for."""
    total, ratio, memory = (
        totals_of(found.device).get(MEMORY),
        amounts.get(RATIO),
        amounts.get(MEMORY),
    )
    if not total or ratio is None or memory is None:
        return
    more_bytes = MEMORY not in asked and memory * _WHOLE > (ratio + _SLACK) * total
    more_ratio = RATIO not in asked and (ratio - _SLACK) * total > memory * _WHOLE
    if more_bytes or more_ratio:
        told = f"{found.device.key}: {ratio} percent of memory and {memory} bytes of {total}"
        raise GrantRefused(Refusal.NOT_ASKED_FOR, told)
