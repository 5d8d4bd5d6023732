"""How well devices work together: a score for each pair, and groups to keep unbroken."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations

import msgspec
from msgspec.structs import replace

from agent.snapshot.device import UNKNOWN_MINOR
from agent.snapshot.node import DeviceView
from agent.snapshot.pci import PciTree, address_sort_key, slot_of
from agent.topology.distance import NODE, PHB, PIX, PXB, SYS, device_levels, function_address

LINK = 100  # for each direct link, or link to a common switch
INTERNAL = 60  # two chips on one board
_PCI = {SYS: 10, NODE: 20, PHB: 30, PXB: 40, PIX: 50}
_COUNTED = re.compile(r"(?:NV|ML)([0-9]{1,4})")
# link types without a count; SIO joins the two dies of one package
_LINKED = {"HCCS": 1, "C2C": 1, "UB": 1, "SIO": 2}

DevicePair = tuple[str, str]


class CandidateDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device that can be chosen, with the id that the kubelet uses."""

    id: str
    minor: int = UNKNOWN_MINOR
    numa_node: int = -1


class PairScores(msgspec.Struct, frozen=True, kw_only=True):
    """The pair scores of all devices of a node; an absent pair has score 0 and no links."""

    candidates: tuple[CandidateDevice, ...]
    scores: Mapping[DevicePair, int]  # of each pair of ids, smaller id first
    links: Mapping[DevicePair, int]  # direct links of each pair
    groups: tuple[tuple[str, ...], ...] = ()  # of ids that belong together

    def score(self, a: str, b: str) -> int:
        """Return the score of a pair, in any order."""
        return self.scores.get(pair_of(a, b), 0)


def pair_of(a: str, b: str) -> DevicePair:
    """Return the two ids, the smaller first."""
    return (a, b) if a <= b else (b, a)


def score_pairs(view: DeviceView, tree: PciTree) -> PairScores:
    """Score all pairs of a view's devices by their links and their places in the PCI tree."""
    devices = [device for device in view.devices if device.info.uuid]
    pci = device_levels(replace(view, links=()), tree)
    linked = device_levels(view, tree) if view.links else pci
    ids = {device.key: device.info.uuid or "" for device in devices}
    places = [
        (ids[device.key], address) for device in devices if (address := function_address(device))
    ]
    places.sort(
        key=lambda seat: address_sort_key(seat[1])
    )  # the levels have their pairs in this order
    slots = {address: slot_of(address) for _, address in places}
    scores: dict[DevicePair, int] = {}
    links: dict[DevicePair, int] = {}
    for (a, first), (b, second) in combinations(places, 2):
        key, addresses = pair_of(a, b), (first, second)
        is_same_board = slots[first] == slots[second]
        links[key] = _links(PIX if first == second else linked.get(addresses))
        proximity = INTERNAL if is_same_board else _PCI.get(pci.get(addresses, SYS), _PCI[SYS])
        scores[key] = LINK * links[key] + proximity
    for one, other in combinations(ids.values(), 2):  # of devices without a place
        key = pair_of(one, other)
        scores.setdefault(key, _PCI[SYS])
        links.setdefault(key, 0)
    return PairScores(
        candidates=tuple(
            CandidateDevice(
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
            # combinations across blocks are not listed: another such combination always exists
            if group.aligned and all(key in ids for key in group.keys)
        ),
    )


def _links(level: str | None) -> int:
    counted = _COUNTED.fullmatch(level or "")
    return int(counted[1]) if counted else _LINKED.get(level or "", 0)
