"""NVLink of a node: which cards are joined, by how many links, directly or through switches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

import msgspec

from agent.model.device import DeviceLink
from agent.model.inventory import Problem
from agent.topology.address import sort_key
from plugins.bindings.nvml.card import Card, CardStopped
from plugins.vendors.nvidia.fabric import COMPLETED, Fabric
from plugins.vendors.nvidia.names import bus_id

MAX_LINKS = 36
LINK_COUNT = (91, 0)
SPEEDS = ((90, 0), (84, 0))  # MB/s of every link, else of the first
_ACTIVE = 1
_GPU, _SWITCH, _UNKNOWN = 0, 2, 255

ANCESTORS: dict[int, str] = {
    0: "INTERNAL",
    10: "PIX",
    20: "PXB",
    30: "PHB",
    40: "NODE",
    50: "SYS",
}


class LinkEnd(msgspec.Struct, frozen=True, kw_only=True):
    """One NVLink as one card sees it; `remote` is the bus id of the other end, when told."""

    number: int
    active: bool
    kind: int = _UNKNOWN  # 0 GPU, 2 switch, 255 unknown
    remote: str | None = None


class CardLinks(msgspec.Struct, frozen=True, kw_only=True):
    """One card's side of the matrix."""

    ends: tuple[LinkEnd, ...] = ()
    fabric: Fabric | None = None  # None: the driver knows of no fabric
    link_bytes_per_s: int | None = None  # one link, one direction; None: not told

    def direct(self) -> Counter[str]:
        """Count the active links to each other card."""
        return Counter(e.remote for e in self.ends if e.active and e.kind == _GPU and e.remote)

    def switched(self) -> int:
        """Count the active links to switches that carry traffic."""
        completed = self.fabric is not None and self.fabric.state == COMPLETED
        if self.fabric is not None and self.fabric.trouble:
            return 0
        kinds = (_SWITCH, _UNKNOWN) if completed else (_SWITCH,)
        return sum(e.active and e.kind in kinds for e in self.ends)

    def down(self) -> tuple[int, ...]:
        """Return the numbers of links that are inactive while others are active."""
        if not any(e.active for e in self.ends):
            return ()
        return tuple(e.number for e in self.ends if not e.active)


def read_links(card: Card) -> CardLinks:
    """Ask a card for its links; a card without NVLink has none."""
    count = card.fields((LINK_COUNT,)).get(LINK_COUNT)
    total = min(int(count), MAX_LINKS) if count is not None else MAX_LINKS
    ends: list[LinkEnd] = []
    for number in range(total):
        state = card.number("nvmlDeviceGetNvLinkState", number)
        if state is None:
            if count is None and not ends:
                break  # nothing says that a card without its first link has others
            continue
        ends.append(_end(card, number, active=state == _ACTIVE))
    speeds = card.fields(SPEEDS) if ends else {}
    speed = next((speeds[key] for key in SPEEDS if speeds.get(key, 0) > 0), None)
    return CardLinks(
        ends=tuple(ends),
        fabric=read_fabric(card),
        link_bytes_per_s=int(speed) * 1_000_000 if speed else None,
    )


def _end(card: Card, number: int, *, active: bool) -> LinkEnd:
    if not active:
        return LinkEnd(number=number, active=False)
    kind = card.number("nvmlDeviceGetNvLinkRemoteDeviceType", number)
    remote = None
    if kind is None or kind == _GPU:
        name = "nvmlDeviceGetNvLinkRemotePciInfo"
        found = card.attempt((name,), lambda: card.nvml.bus_id(name, card.handle, number))
        remote = bus_id(found) if isinstance(found, str) else None
        kind = _GPU if remote else _UNKNOWN
    return LinkEnd(number=number, active=True, kind=kind, remote=remote)


def read_fabric(card: Card) -> Fabric | None:
    """Ask for the fabric in the newest structure that the driver knows."""
    for version in (3, 2, 1):
        info = card.attempt(
            ("fabric", version),
            lambda v=version: card.nvml.fabric(card.handle, v),  # type: ignore[misc]
        )
        if info is not None:
            return Fabric(
                state=int(getattr(info, "state", 0)),
                status=int(getattr(info, "status", 0)),
                clique=int(getattr(info, "cliqueId", 0)),
                cluster=bytes(getattr(info, "clusterUuid", bytes(16))),
                mask=int(getattr(info, "healthMask", 0)),
                summary=int(getattr(info, "healthSummary", 0)),
            )
    return None


def matrix(cards: Mapping[str, CardLinks]) -> tuple[tuple[DeviceLink, ...], tuple[Problem, ...]]:
    """Return the links between cards, by bus id, and what is odd about them.

    Two sides that disagree are taken by the smaller count; cards behind switches have as many
    links between them as the one with fewer.
    """
    links: list[DeviceLink] = []
    problems: list[Problem] = []
    for a, b in combinations(sorted(cards, key=sort_key), 2):
        there, back = cards[a].direct()[b], cards[b].direct()[a]
        if there != back:
            problems.append(
                Problem(
                    reason="NVLinkAsymmetric",
                    message=f"{a} counts {there} links to {b}, which counts {back}",
                )
            )
        if count := min(there, back):
            links.append(DeviceLink(a=a, b=b, type="NVLink", count=count))
        elif count := _switched(cards[a], cards[b]):
            links.append(DeviceLink(a=a, b=b, type="NVSwitch", count=count))
    return tuple(links), (*problems, *_troubles(cards))


def _switched(a: CardLinks, b: CardLinks) -> int:
    ours = a.fabric.clique_id if a.fabric else None
    theirs = b.fabric.clique_id if b.fabric else None
    return 0 if ours and theirs and ours != theirs else min(a.switched(), b.switched())


def _troubles(cards: Mapping[str, CardLinks]) -> Iterator[Problem]:
    for key in sorted(cards, key=sort_key):
        if down := cards[key].down():
            numbers = ",".join(map(str, down))
            yield Problem(reason="NVLinkDown", message=f"{key}: links {numbers} are inactive")
        fabric = cards[key].fabric
        if fabric is not None and fabric.trouble:
            yield Problem(reason=fabric.trouble, message=f"{key}: {fabric.stage}")
    cliques = {c.fabric.clique_id for c in cards.values() if c.fabric} - {None}
    if len(cliques) > 1:
        yield Problem(reason="CliqueMismatch", message=f"cards of {len(cliques)} NVLink cliques")


def node_clique(cards: Mapping[str, CardLinks]) -> str | None:
    """Return the clique that all cards on a fabric agree on."""
    cliques = {c.fabric.clique_id for c in cards.values() if c.fabric and c.fabric.state}
    return cliques.pop() if len(cliques) == 1 else None


def relation(links: int, ancestor: int | None) -> str | None:
    """Name what joins two cards, as in a topology table: NV18, else the PCIe word."""
    return f"NV{links}" if links else ANCESTORS.get(ancestor if ancestor is not None else -1)


def peers(cards: Mapping[str, Card], links: Iterable[DeviceLink]) -> dict[str, str]:
    """Say for each card what joins it to each other one: `0000:24:00.0=NV18 ...`."""
    counts = {(link.a, link.b): link.count for link in links}
    told: dict[str, list[str]] = {key: [] for key in cards}
    for a, b in combinations(sorted(cards, key=sort_key), 2):
        count = counts.get((a, b), 0)
        if word := relation(count, None if count else _ancestor(cards[a], cards[b])):
            told[a].append(f"{b}={word}")
            told[b].append(f"{a}={word}")
    return {key: " ".join(words) for key, words in told.items()}


def _ancestor(a: Card, b: Card) -> int | None:
    name = "nvmlDeviceGetTopologyCommonAncestor"
    try:
        found = a.attempt((name, b.bus_id), lambda: a.nvml.call(name, a.handle, b.handle))
    except CardStopped:
        return None
    return found if isinstance(found, int) else None
