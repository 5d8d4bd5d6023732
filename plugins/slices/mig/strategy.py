"""Which resources of the kubelet a node's cards and MIG instances are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from agent.model.device import DevicePartition, VendorDevice
from agent.model.inventory import Problem
from plugins.slices.mig.names import resource_name

WHOLE = "nvidia.com/gpu"
NOT_UNIFORM = "MIGNotUniform"


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What the kubelet is offered: ids by resource, both sorted; ids are UUIDs."""

    resources: tuple[tuple[str, tuple[str, ...]], ...] = ()
    problems: tuple[Problem, ...] = ()


def is_cut(card: VendorDevice) -> bool:
    """Say whether MIG is on, with or without instances."""
    return dict(card.labels).get("xpu-agent.io/mig") == "true"


def kubelet_offer(cards: Sequence[VendorDevice], strategy: str) -> Offer:
    """Return the resources by strategy `none`, `single` or `mixed`; unhealthy ones included.

    With `none` a card cut by MIG is nothing, with `single` every instance is a whole card, if all
    are equal and every card is cut, with `mixed` each profile is a resource of its own.
    """
    cards = [card for card in cards if card.managed and card.uuid]
    if strategy == "single":
        return _single(cards)
    found = [(WHOLE, card.uuid or "") for card in cards if not is_cut(card) and card.resources]
    problems: list[Problem] = []
    for part in _instances(cards) if strategy == "mixed" else ():
        name = resource_name(part.profile)
        if name is not None:
            found.append((name, part.uuid))
        else:
            told = f"{part.uuid}: profile {part.profile[:63]!r} makes no resource name"
            problems.append(Problem(reason="BadResourceName", message=told))
    return Offer(resources=_sorted(found), problems=tuple(problems))


def _instances(cards: Iterable[VendorDevice]) -> list[DevicePartition]:
    return [part for card in cards for part in card.partitions]


def _single(cards: Sequence[VendorDevice]) -> Offer:
    parts = _instances(cards)
    for card in cards:
        odd = _odd(card, parts[0] if parts else None)
        if odd:
            problem = Problem(reason=NOT_UNIFORM, message=f"{card.key}: {odd}; nothing is offered")
            return Offer(problems=(problem,))
    return Offer(resources=_sorted([(WHOLE, part.uuid) for part in parts]))


def _odd(card: VendorDevice, first: DevicePartition | None) -> str:
    if not is_cut(card):
        return "the card is not cut by MIG"
    if not card.partitions or first is None:
        return "the card has no instance"
    for part in card.partitions:
        if _attributes(part) != _attributes(first):
            return f"an instance is {part.profile}, another {first.profile}"
    return ""


def _attributes(part: DevicePartition) -> tuple[str, int | None, int | None]:
    return part.profile, part.memory_bytes, part.cores


def _sorted(found: Iterable[tuple[str, str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    table: dict[str, set[str]] = {}
    for name, uuid in found:
        table.setdefault(name, set()).add(uuid)
    return tuple((name, tuple(sorted(ids))) for name, ids in sorted(table.items()))
