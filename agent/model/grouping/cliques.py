"""Groups from links that were told, without a rule of the machine: cliques that share nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.model.grouping.graph import (
    MAX_SEARCHED,
    Adjacency,
    Grouping,
    adjacency,
    complete,
    components,
    largest_cliques,
)
from agent.model.inventory import DeviceGroup, Problem

REASON = "LinksWithoutGroups"


def clique_groups(
    keys: Sequence[str], pairs: Iterable[tuple[str, str]], link_type: str
) -> Grouping:
    """Return each connected component's largest cliques, if they are disjoint and cover it.

    `keys` are `VendorDevice.key`s in the order in which members are to be listed, by minor for
    instance; `pairs` the joined ones, whatever type of link counts for the caller, each once or
    twice. One component that does not fall apart like that leaves the node without any group,
    and with one problem: half a table would refuse pods that fit. Devices without a link are in
    no group. `link_type` is what the groups are labelled with.
    """
    graph = adjacency(keys, pairs)
    place = {key: index for index, key in enumerate(keys)}
    groups: list[tuple[str, ...]] = []
    for component in components(graph):
        if len(component) < 2:
            continue
        parts = _parts(graph, component)
        if parts is None:
            first, *_ = sorted(component, key=place.__getitem__)
            told = f"links of the {len(component)} devices around {first} form no disjoint groups"
            return Grouping(problems=(Problem(reason=REASON, message=told),))
        groups += [tuple(sorted(part, key=place.__getitem__)) for part in parts]
    groups.sort(key=lambda members: (len(members), [place[key] for key in members]))
    return Grouping(groups=tuple(DeviceGroup(keys=g, link_type=link_type) for g in groups))


def _parts(graph: Adjacency, component: frozenset[str]) -> tuple[frozenset[str], ...] | None:
    if complete(graph, component):
        return (component,)
    if len(component) > MAX_SEARCHED:
        return None
    found = largest_cliques(graph, component)
    disjoint = sum(map(len, found)) == len(frozenset().union(*found))
    return found if disjoint and len(frozenset().union(*found)) == len(component) else None
