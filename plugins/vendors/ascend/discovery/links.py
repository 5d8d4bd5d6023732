"""Links between chips and groups to allocate together, from the driver or the machine type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import msgspec
from msgspec.structs import replace

from agent.snapshot.device import DeviceLink
from agent.snapshot.inventory import DeviceGroup, Problem
from agent.snapshot.pci import address_sort_key
from agent.topology.device_groups import clique_groups
from plugins.vendors.ascend.discovery.descriptions import ChipDescription
from plugins.vendors.ascend.discovery.models import A3, A910, B910, PCIE_BOARDS

HCCS, SIO = "HCCS", "SIO"
FAMILIES_WITH_LINK_TYPES = (B910, A3)  # families whose driver reports link types
BLOCK = 8  # chips of one board
HALF = 4  # chips of a 910A board that are linked with each other
A3_CHIPS = 16
DIES = 2  # dies of an A3 card
MAX_CARDS = 9  # 511 combinations take 43 KB of the 64 KiB of a table; 10 cards have 1,023
TOGETHER, APART = 0, 1  # the driver's policy for the two dies of a card
ChipPair = tuple[str, str]
LinkTypes = Mapping[ChipPair, str]  # keys of two chips: HCCS, HCCS_SW, SIO or UB


class LinkTopology(msgspec.Struct, frozen=True, kw_only=True):
    """Links, groups and allocation policy of a node."""

    links: tuple[DeviceLink, ...] = ()
    groups: tuple[DeviceGroup, ...] = ()
    policy: str | None = None
    problems: tuple[Problem, ...] = ()


def derive_links(
    chips: Sequence[ChipDescription], link_types: LinkTypes | None, die_policy: int | None
) -> LinkTopology:
    """Return the links and groups of the chips from the driver's link types.

    If `link_types` is `None`, the links are those of the usual machine of the chip family, if all
    its chips are present. The two dies of an A3 card are allocated together, unless the driver
    allows single dies.
    """
    ordered = sorted(chips, key=lambda chip: chip.phy)
    families = {chip.family for chip in ordered}
    if len(families) != 1 or any(chip.facts.board_id in PCIE_BOARDS for chip in ordered):
        return LinkTopology()
    (family,) = families
    topology = (
        _by_links(ordered, link_types) if link_types is not None else _by_family(ordered, family)
    )
    if not topology.groups:
        return topology
    if family == A3 and die_policy != APART:
        return _whole_cards(topology, ordered)
    return replace(topology, policy="Prefer")


def _whole_cards(topology: LinkTopology, chips: Sequence[ChipDescription]) -> LinkTopology:
    """Return the groups of a node where the scheduler allocates whole cards only.

    With the policy Honor the scheduler refuses a number of dies without a row in the table, so
    all combinations of cards get a row. If these are too many for the table, only blocks get
    one, and the policy Prefer allows other numbers.
    """
    slots = {chip.key: chip.phy // DIES for chip in chips}
    pairs = [group for group in topology.groups if len(group.keys) == DIES]
    groups, problems, policy = list(pairs), list(topology.problems), "Honor"
    for island in (group for group in topology.groups if len(group.keys) > DIES):
        cards = sorted(
            (slots[pair.keys[0]], pair.keys) for pair in pairs if {*pair.keys} <= {*island.keys}
        )
        if len(cards) > MAX_CARDS:
            policy = "Prefer"
            message = (
                f"{len(cards)} cards have too many combinations: only aligned blocks are listed"
            )
            problems.append(Problem(reason="PartitionsUnlisted", message=message))
        groups += _combinations(cards, island.link_type)
    return replace(topology, groups=tuple(groups), policy=policy, problems=tuple(problems))


def _combinations(
    cards: Sequence[tuple[int, Sequence[str]]], link_type: str
) -> Iterator[DeviceGroup]:
    """Yield all sets of two or more cards, by size; for many cards only consecutive ones."""
    for size in range(2, len(cards) + 1):
        blocks = [cards[at : at + size] for at in range(len(cards) - size + 1)]
        for members in combinations(cards, size) if len(cards) <= MAX_CARDS else blocks:
            aligned = _is_aligned([slot for slot, _ in members])
            if aligned or len(cards) <= MAX_CARDS:
                keys = tuple(key for _, dies in members for key in dies)
                yield DeviceGroup(keys=keys, link_type=link_type, aligned=aligned)


def _is_aligned(slots: Sequence[int]) -> bool:
    """Return whether the slots are consecutive and start at the start of a block.

    The size of a block is a power of two; three cards start at a block of four.
    """
    block = 1 << (len(slots) - 1).bit_length()
    return slots[0] % block == 0 and slots[-1] - slots[0] == len(slots) - 1


def _by_links(chips: Sequence[ChipDescription], link_types: LinkTypes) -> LinkTopology:
    keys = [chip.key for chip in chips]
    cliques = clique_groups(keys, link_types, HCCS)
    pairs = clique_groups(keys, [pair for pair, kind in link_types.items() if kind == SIO], SIO)
    pair_sizes = {len(group.keys) for group in pairs.groups}
    groups = (*pairs.groups, *(g for g in cliques.groups if len(g.keys) not in pair_sizes))
    links = _links((a, b, kind) for (a, b), kind in link_types.items())
    return LinkTopology(links=links, groups=groups, problems=(*cliques.problems, *pairs.problems))


def _by_family(chips: Sequence[ChipDescription], family: str) -> LinkTopology:
    if family == A910:
        half_boards = _blocks(chips, HALF)
        links = [(a, b, HCCS) for half in half_boards for a, b in combinations(half, 2)]
        boards = _blocks(chips, BLOCK)
        return LinkTopology(links=_links(links), groups=(*_groups(half_boards), *_groups(boards)))
    if family == B910:
        boards = _blocks(chips, BLOCK)
        links = [(a, b, HCCS) for board in boards for a, b in combinations(board, 2)]
        return LinkTopology(links=_links(links), groups=_groups(boards))
    if family == A3:
        return _a3(chips)
    return LinkTopology()


def _a3(chips: Sequence[ChipDescription]) -> LinkTopology:
    cards: dict[int, list[str]] = {}
    for chip in chips:
        cards.setdefault(chip.card, []).append(chip.key)
    pairs = [tuple(keys) for keys in cards.values() if len(keys) == DIES]
    links = [(a, b, SIO) for a, b in pairs]
    all_keys = tuple(key for pair in pairs for key in pair)
    groups = (*_groups(pairs, SIO), *_groups([all_keys] if len(pairs) > 1 else []))
    if len(chips) == A3_CHIPS:
        same_card = {frozenset(pair) for pair in pairs}
        others = (p for p in combinations(all_keys, 2) if frozenset(p) not in same_card)
        links += [(a, b, HCCS) for a, b in others]
    return LinkTopology(links=_links(links), groups=groups)


def _blocks(chips: Sequence[ChipDescription], size: int) -> list[tuple[str, ...]]:
    """Return the blocks of consecutive physical ids that are complete."""
    blocks: dict[int, list[str]] = {}
    for chip in chips:
        blocks.setdefault(chip.phy // size, []).append(chip.key)
    return [tuple(block) for block in blocks.values() if len(block) == size]


def _groups(members: Iterable[Sequence[str]], link_type: str = HCCS) -> tuple[DeviceGroup, ...]:
    return tuple(DeviceGroup(keys=tuple(keys), link_type=link_type) for keys in members)


def _links(links_by_kind: Iterable[tuple[str, str, str]]) -> tuple[DeviceLink, ...]:
    links = []
    for a, b, kind in links_by_kind:
        first, second = sorted((a, b), key=_order)
        kind = HCCS if kind.startswith(HCCS) else kind  # noqa: PLW2901 - with a switch or without
        links.append(DeviceLink(a=first, b=second, type=kind, count=1))
    return tuple(sorted(links, key=lambda link: (_order(link.a), _order(link.b))))


def _order(key: str) -> tuple[bool, tuple[int, ...], str]:
    on_pci = key.count(":") == 2
    return not on_pci, address_sort_key(key) if on_pci else (), key
