"""How well devices work together: a score for each pair, and the groups worth keeping whole."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from agent.model.distances import address_of, device_levels, level_of
from agent.model.snapshot import DeviceView
from agent.topology.address import slot
from agent.topology.distance import NODE, PHB, PIX, PXB, SYS
from agent.topology.pci import PciTree

LINK = 100  # for each direct link, or link to a common switch
INTERNAL = 60  # two chips on one board
_PCI = {SYS: 10, NODE: 20, PHB: 30, PXB: 40, PIX: 50}
_COUNTED = re.compile(r"(?:NV|ML)([0-9]{1,4})")
# levels that say no number; SIO joins the two dies of one package, which belong together
_LINKED = {"HCCS": 1, "C2C": 1, "UB": 1, "SIO": 2}
UNKNOWN_MINOR = 1 << 31

Pair = tuple[str, str]


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One device that can be chosen, by the id under which the kubelet knows it."""

    id: str
    minor: int = UNKNOWN_MINOR
    numa_node: int = -1


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """All devices of a node; a pair that is not in the tables has neither score nor links."""

    cards: tuple[Card, ...]
    scores: Mapping[Pair, int]  # of each pair of ids, smaller id first
    links: Mapping[Pair, int]  # direct links of each pair
    groups: tuple[tuple[str, ...], ...] = ()  # of ids that belong together

    def score(self, a: str, b: str) -> int:
        """Return how well two devices work together; the same both ways."""
        return self.scores.get(pair_of(a, b), 0)


def pair_of(a: str, b: str) -> Pair:
    """Return the two, the smaller first."""
    return (a, b) if a <= b else (b, a)


def board_of(view: DeviceView, tree: PciTree) -> Board:
    """Score all pairs of a view's devices by their links and their places in the PCI tree."""
    devices = [device for device in view.devices if device.info.uuid]
    pci = device_levels(replace(view, links=()), tree)
    linked = device_levels(view, tree)
    ids = {device.key: device.info.uuid or "" for device in devices}
    scores: dict[Pair, int] = {}
    links: dict[Pair, int] = {}
    for index, a in enumerate(devices):
        for b in devices[:index]:
            pair = pair_of(ids[a.key], ids[b.key])
            links[pair] = _links(level_of(a, b, linked))
            first, second = address_of(a), address_of(b)
            same_board = bool(first and second) and slot(first or "") == slot(second or "")
            near = INTERNAL if same_board else _PCI.get(level_of(a, b, pci) or SYS, _PCI[SYS])
            scores[pair] = LINK * links[pair] + near
    return Board(
        cards=tuple(
            Card(
                id=ids[device.key],
                minor=UNKNOWN_MINOR if device.info.minor is None else device.info.minor,
                numa_node=device.place.numa_node,
            )
            for device in devices
        ),
        scores=scores,
        links=links,
        groups=tuple(
            tuple(ids[key] for key in group.keys)
            for group in view.groups
            if all(key in ids for key in group.keys)
        ),
    )


def _links(level: str | None) -> int:
    counted = _COUNTED.fullmatch(level or "")
    return int(counted[1]) if counted else _LINKED.get(level or "", 0)
