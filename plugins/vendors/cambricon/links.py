"""Which cards MLULink joins, and which of them are granted together at best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from agent.errors import ParseError
from agent.model.device import DeviceLink
from agent.model.grouping.cliques import clique_groups
from agent.model.grouping.graph import Grouping
from agent.model.inventory import DeviceGroup

LINK = "MLULink"
MAX_SETS = 100_000


class _Rings(msgspec.Struct):
    nonconflict_rings_num: int


class _Host(msgspec.Struct):
    ordinal_list: tuple[int, ...]


class _Set(msgspec.Struct):
    device_num: int
    info_by_host: _Host
    nonconflict_rings: _Rings


def links(keys: Mapping[str, str], remotes: Mapping[str, Sequence[str]]) -> tuple[DeviceLink, ...]:
    """Return the links that both ends report; `keys` are devices by UUID, `remotes` UUIDs by key.

    A UUID that is no card's of this node leads outside.
    """
    told: Counter[tuple[str, str]] = Counter()
    for key, others in remotes.items():
        told.update((key, keys[uuid]) for uuid in others if keys.get(uuid, key) != key)
    return tuple(
        DeviceLink(a=a, b=b, type=LINK, count=min(count, told[b, a]))
        for (a, b), count in sorted(told.items())
        if a < b and told[b, a]
    )


def ring_pairs(text: bytes) -> tuple[tuple[int, int], ...]:
    """Return the pairs of card numbers with a ring of their own, from what `cntopo` writes."""
    try:
        sets = msgspec.json.decode(text, type=list[_Set])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError("list of rings", text[:80].decode("utf-8", "replace")) from error
    found = {
        (min(numbers), max(numbers))
        for item in sets[:MAX_SETS]
        if item.nonconflict_rings.nonconflict_rings_num > 0
        and len(numbers := item.info_by_host.ordinal_list) == 2
    }
    return tuple(sorted((a, b) for a, b in found if a != b))


def groups(
    keys: Sequence[str], found: Sequence[DeviceLink], pairs: Sequence[tuple[str, str]] = ()
) -> Grouping:
    """Return the node's groups: pairs with a ring, if no card is in two, and cliques of links.

    `keys` are devices in the order of their minors.
    """
    cliques = clique_groups(keys, ((link.a, link.b) for link in found), LINK)
    listed = [key for pair in pairs for key in pair]
    if not pairs or len(listed) != len(set(listed)) or not set(listed) <= set(keys):
        return cliques
    place = {key: index for index, key in enumerate(keys)}
    inside = (tuple(sorted(pair, key=place.__getitem__)) for pair in pairs)
    ordered = sorted(inside, key=lambda pair: [place[key] for key in pair])
    rings = tuple(DeviceGroup(keys=pair, link_type=LINK) for pair in ordered)
    larger = tuple(group for group in cliques.groups if len(group.keys) != 2)
    return Grouping(groups=(*rings, *larger), problems=cliques.problems)
