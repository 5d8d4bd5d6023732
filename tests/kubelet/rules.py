"""Rules of the real kubelet that need no connection: names, NUMA hints, which devices are taken."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
NO_NODE = -1

Nodes = Mapping[str, frozenset[int]]  # of devices; empty: no topology


def is_extended_resource_name(name: str) -> bool:
    """Say whether a device plug-in may have a resource of that name."""
    if "/" not in name or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    prefix, _, rest = f"requests.{name}".partition("/")
    if len(prefix) > 253 or not _SUBDOMAIN.fullmatch(prefix):
        return False
    return len(rest) <= 63 and _NAME.fullmatch(rest) is not None


def hints(
    nodes: Nodes, available: set[str], size: int, reusable: Iterable[str] = ()
) -> list[tuple[frozenset[int], bool]] | None:
    """Return masks of NUMA nodes and whether each is preferred; `None`: any will do."""
    if not any(nodes.values()):
        return None
    all_nodes = sorted(set().union(*nodes.values()))
    again = set(reusable)
    smallest, result = len(all_nodes), []
    for count in range(1, len(all_nodes) + 1):
        for mask in map(frozenset, itertools.combinations(all_nodes, count)):
            if sum(bool(nodes[node] & mask) for node in nodes) >= size:
                smallest = min(smallest, count)
            if not all(nodes[one] & mask for one in again):
                continue
            if sum(bool(nodes[one] & mask) for one in available | again) >= size:
                result.append(mask)
    return [(mask, len(mask) == smallest) for mask in result]


def split(
    nodes: Nodes, available: set[str], mask: frozenset[int] | None
) -> tuple[set[str], set[str], set[str]]:
    """Return the devices that are aligned, unaligned, and of no affinity."""
    if mask is None:
        return set(), set(), set(available)
    none = {one for one in available if not nodes[one]}
    aligned = {one for one in available if nodes[one] & mask}
    return aligned, available - aligned - none, none


def choose_devices(
    parts: tuple[set[str], set[str], set[str]],
    needed: int,
    preferred: Callable[[set[str]], set[str]],
) -> list[str]:
    """Return what is taken of aligned, unaligned and no affinity, in that order.

    `preferred` asks the plug-in about some of them; its word is advice.
    """
    aligned, unaligned, none = parts
    chosen: list[str] = []

    def take(some: Iterable[str]) -> None:
        for one in some:
            if len(chosen) < needed and one not in chosen:
                chosen.append(one)

    if needed < len(aligned):
        take(sorted(preferred(aligned) & aligned))
        take(aligned)
        return chosen
    take(aligned)
    if len(chosen) < needed:
        everything = aligned | unaligned | none
        take(sorted(preferred(everything) & everything))
        take(unaligned)
        take(none)
    return chosen
