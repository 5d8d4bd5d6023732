"""MLULink connections of the cards, and the groups to allocate together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from agent.errors import ParseError
from agent.snapshot.device import DeviceLink
from agent.snapshot.inventory import DeviceGroup
from agent.topology.device_groups import DeviceGrouping, clique_groups
from agent.wire_formats.json_values import JSON_ERRORS

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


def find_links(
    keys: Mapping[str, str], remotes: Mapping[str, Sequence[str]]
) -> tuple[DeviceLink, ...]:
    """Return the links that both ends report; `keys` are devices by UUID, `remotes` UUIDs by key.

    Links to UUIDs outside of this node are ignored.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for key, others in remotes.items():
        counts.update((key, keys[uuid]) for uuid in others if keys.get(uuid, key) != key)
    return tuple(
        DeviceLink(a=a, b=b, type=LINK, count=min(count, counts[b, a]))
        for (a, b), count in sorted(counts.items())
        if a < b and counts[b, a]
    )


def ring_pairs(text: bytes) -> tuple[tuple[int, int], ...]:
    """Return the pairs of card numbers with a ring of their own, from a file of `cntopo`."""
    try:
        sets = msgspec.json.decode(text, type=list[_Set])
    except JSON_ERRORS as error:
        raise ParseError("list of rings", text[:80].decode("utf-8", "replace")) from error
    pairs = {
        (min(numbers), max(numbers))
        for item in sets[:MAX_SETS]
        if item.nonconflict_rings.nonconflict_rings_num > 0
        and len(numbers := item.info_by_host.ordinal_list) == 2
    }
    return tuple(sorted((a, b) for a, b in pairs if a != b))


def group_cards(
    keys: Sequence[str], links: Sequence[DeviceLink], pairs: Sequence[tuple[str, str]] = ()
) -> DeviceGrouping:
    """Return the node's groups: pairs with a ring, and cliques of links.

    The pairs are used if no card is in two of them. `keys` are devices in the order of minors.
    """
    cliques = clique_groups(keys, ((link.a, link.b) for link in links), LINK)
    paired_keys = [key for pair in pairs for key in pair]
    if not pairs or len(paired_keys) != len(set(paired_keys)) or not set(paired_keys) <= set(keys):
        return cliques
    position = {key: index for index, key in enumerate(keys)}
    sorted_pairs = (tuple(sorted(pair, key=position.__getitem__)) for pair in pairs)
    ordered = sorted(sorted_pairs, key=lambda pair: [position[key] for key in pair])
    rings = tuple(DeviceGroup(keys=pair, link_type=LINK) for pair in ordered)
    larger = tuple(group for group in cliques.groups if len(group.keys) != 2)
    return DeviceGrouping(groups=(*rings, *larger), problems=cliques.problems)
