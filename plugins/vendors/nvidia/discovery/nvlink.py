"""NVLink and fabric of a node: links between cards, switches, fabric state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

import msgspec

from agent.clock import Clock
from agent.snapshot.device import DeviceCondition, DeviceLink, Health, HealthState, Pairs
from agent.snapshot.inventory import Problem
from agent.snapshot.pci import address_sort_key
from plugins.vendors.nvidia.discovery.names import bus_id
from plugins.vendors.nvidia.library.card import CardUnavailable, NvmlCard

NO_FABRIC, NOT_STARTED, IN_PROGRESS, COMPLETED = range(4)
STATES = {NOT_STARTED: "not-started", IN_PROGRESS: "in-progress", COMPLETED: "completed"}
FABRIC_START_S = 300.0  # time that a fabric may take to become ready
FABRIC_READY = "FabricReady"
MANAGER_DOWN = "FabricManagerDown"
_SUMMARIES = {1: "healthy", 2: "unhealthy", 3: "limited-capacity"}

# bits of the health mask: name, shift; 0 does not apply, 1 true, 2 false
_FLAGS = (
    ("degraded-bandwidth", 0),
    ("route-recovery", 2),
    ("route-unhealthy", 4),
    ("access-timeout-recovery", 6),
)

_CONFIGURATIONS = {
    2: "system-guid",
    3: "chassis-serial",
    4: "no-partition",
    5: "too-few-nvlinks",
    6: "gpu-firmware",
    7: "invalid-location",
    8: "gpu-state",
}


class NvlinkFabric(msgspec.Struct, frozen=True, kw_only=True):
    """The fabric as one card reports it; `status` is valid in state 3 only."""

    state: int  # 0 none, 1 not started, 2 in progress, 3 completed
    status: int = 0
    clique: int = 0
    cluster: bytes = bytes(16)
    mask: int = 0  # health mask, since version 2 of the structure
    summary: int = 0  # health summary, since version 3

    @property
    def clique_id(self) -> str | None:
        """UUID and number of the multi-node clique; `None` for a fabric of one node."""
        if self.state != COMPLETED or self.status or not any(self.cluster):
            return None
        h = self.cluster.hex()
        return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}.{self.clique}"

    @property
    def problem_reason(self) -> str | None:
        """The reason why links through switches do not work; `None` if they work."""
        if self.state in (NOT_STARTED, IN_PROGRESS):
            return "FabricNotReady"
        return "FabricError" if self.state == COMPLETED and self.status else None

    @property
    def stage(self) -> str:
        """The state as text, with the status where it is valid."""
        text = f"fabric state {STATES.get(self.state, self.state)}"
        return f"{text}, status {self.status}" if self.state == COMPLETED else text

    def health_flags(self) -> tuple[str, ...]:
        """Return the problems in the health mask, in the order of its bits."""
        flags = [name for name, shift in _FLAGS if self.mask >> shift & 3 == 1]
        configuration = _CONFIGURATIONS.get(self.mask >> 8 & 15)
        flags += [f"incorrect-configuration={configuration}"] if configuration else []
        flags += ["no-partition-assigned"] if self.mask >> 12 & 3 == 2 else []
        flags += ["manager-disconnected"] if self.mask >> 14 & 3 == 2 else []
        return tuple(flags)

    def facts(self) -> Pairs:
        """Return the fabric as facts for people; empty for a card without a fabric."""
        facts = (
            ("fabric", STATES.get(self.state)),
            ("fabric-health", _SUMMARIES.get(self.summary)),
            ("fabric-flags", ",".join(self.health_flags())),
            ("clique", self.clique_id),
        )
        return tuple((key, value) for key, value in facts if value)


def is_manager_down(card_links: Mapping[str, CardLinks], switches: int) -> bool:
    """Return whether there are switches and no card reaches them: no fabric manager runs.

    Cards before Hopper report no fabric; then it only shows in the links, none of which is
    active. `card_links` has no cards with MIG instances, whose links are switched off.
    """
    linked = [side for side in card_links.values() if side.ends]
    is_inactive = all(not end.is_active for side in linked for end in side.ends)
    has_fabric = any(side.fabric is not None and side.fabric.state for side in card_links.values())
    return bool(switches and linked) and is_inactive and not has_fabric


def must_fabric_be_ready(setting: str, switches: int, names: tuple[str, ...]) -> bool:
    """Return whether a fabric that is not ready takes the cards out of service.

    The settings `on` and `off` decide. Otherwise it does on machines that depend on a fabric:
    machines with switches, or with cards of a rack-scale system.
    """
    if setting in ("on", "off"):
        return setting == "on"
    return switches > 0 or any(name in model for model in names for name in ("GB200", "GB300"))


class FabricStateTracker:
    """Stores since when each card's fabric is not ready, to give a starting fabric time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s: dict[str, float] = {}

    def condition(
        self, key: str, fabric: NvlinkFabric | None, *, manager_is_down: bool
    ) -> DeviceCondition | None:
        """Return a card's condition `FabricReady`; `None` without a fabric, or while it starts."""
        if manager_is_down:
            message = "no NVLink of any card is active: the service nvidia-fabricmanager must run"
            return _ready(MANAGER_DOWN, message)
        problem_reason = fabric.problem_reason if fabric is not None else None
        if problem_reason is None:
            self._since_s.pop(key, None)
        if fabric is None or fabric.state not in STATES:
            return None
        if problem_reason is None:
            message = "the fabric is configured"
            return DeviceCondition(
                type=FABRIC_READY, status=True, reason=FABRIC_READY, message=message
            )
        since_s = self._since_s.setdefault(key, self._clock.monotonic())
        if fabric.state != COMPLETED and self._clock.monotonic() - since_s <= FABRIC_START_S:
            return None
        return _ready(problem_reason, ", ".join((fabric.stage, *fabric.health_flags())))

    def retain(self, keys: set[str]) -> None:
        """Remove all cards but these."""
        self._since_s = {key: since for key, since in self._since_s.items() if key in keys}


def _ready(reason: str, message: str) -> DeviceCondition:
    return DeviceCondition(type=FABRIC_READY, status=False, reason=reason, message=message)


def fabric_health(condition: DeviceCondition | None, *, is_required: bool) -> Health | None:
    """Return FAILED for a card whose required fabric is not ready, else `None`."""
    if condition is None or condition.status or not is_required:
        return None
    return Health(state=HealthState.FAILED, reason=condition.reason, message=condition.message)


MAX_LINKS = 36
LINK_COUNT = (91, 0)
SPEEDS = ((90, 0), (84, 0))  # MB/s of each link, else of the first link
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
    """One NVLink as one card reports it; `remote` is the bus id of the other end, if known."""

    number: int
    is_active: bool
    kind: int = _UNKNOWN  # 0 GPU, 2 switch, 255 unknown
    remote: str | None = None


class CardLinks(msgspec.Struct, frozen=True, kw_only=True):
    """The NVLinks and the fabric of one card."""

    ends: tuple[LinkEnd, ...] = ()
    fabric: NvlinkFabric | None = None  # None: the driver reports no fabric
    link_bytes_per_s: int | None = None  # one link, one direction; None: unknown

    def direct_links(self) -> Counter[str]:
        """Count the active links to each other card."""
        return Counter(e.remote for e in self.ends if e.is_active and e.kind == _GPU and e.remote)

    def switched_links(self) -> int:
        """Count the active links to switches that carry traffic."""
        completed = self.fabric is not None and self.fabric.state == COMPLETED
        if self.fabric is not None and self.fabric.problem_reason:
            return 0
        kinds = (_SWITCH, _UNKNOWN) if completed else (_SWITCH,)
        return sum(e.is_active and e.kind in kinds for e in self.ends)

    def inactive_links(self) -> tuple[int, ...]:
        """Return the numbers of links that are inactive while others are active."""
        if not any(e.is_active for e in self.ends):
            return ()
        return tuple(e.number for e in self.ends if not e.is_active)


def read_links(card: NvmlCard) -> CardLinks:
    """Read a card's links; a card without NVLink has none."""
    count = card.fields((LINK_COUNT,)).get(LINK_COUNT)
    total = min(int(count), MAX_LINKS) if count is not None else MAX_LINKS
    ends: list[LinkEnd] = []
    for number in range(total):
        state = card.number("nvmlDeviceGetNvLinkState", number)
        if state is None:
            if count is None and not ends:
                break  # a card without link 0 has no other links
            continue
        ends.append(_end(card, number, active=state == _ACTIVE))
    speeds = card.fields(SPEEDS) if ends else {}
    speed = next((speeds[key] for key in SPEEDS if speeds.get(key, 0) > 0), None)
    return CardLinks(
        ends=tuple(ends),
        fabric=read_fabric(card),
        link_bytes_per_s=int(speed) * 1_000_000 if speed else None,
    )


def _end(card: NvmlCard, number: int, *, active: bool) -> LinkEnd:
    if not active:
        return LinkEnd(number=number, is_active=False)
    kind = card.number("nvmlDeviceGetNvLinkRemoteDeviceType", number)
    remote = None
    if kind is None or kind == _GPU:
        name = "nvmlDeviceGetNvLinkRemotePciInfo"
        answer = card.attempt((name,), lambda: card.nvml.bus_id(name, card.handle, number))
        remote = bus_id(answer) if isinstance(answer, str) else None
        kind = _GPU if remote else _UNKNOWN
    return LinkEnd(number=number, is_active=True, kind=kind, remote=remote)


def read_fabric(card: NvmlCard) -> NvlinkFabric | None:
    """Read the fabric with the newest version of the structure that the driver supports."""
    for version in (3, 2, 1):
        info = card.attempt(
            ("fabric", version),
            lambda v=version: card.nvml.fabric(card.handle, v),  # type: ignore[misc]
        )
        if info is not None:
            return NvlinkFabric(
                state=int(getattr(info, "state", 0)),
                status=int(getattr(info, "status", 0)),
                clique=int(getattr(info, "cliqueId", 0)),
                cluster=bytes(getattr(info, "clusterUuid", bytes(16))),
                mask=int(getattr(info, "healthMask", 0)),
                summary=int(getattr(info, "healthSummary", 0)),
            )
    return None


def link_matrix(
    cards: Mapping[str, CardLinks],
) -> tuple[tuple[DeviceLink, ...], tuple[Problem, ...]]:
    """Return the links between cards by bus id, and problems of links.

    If the two cards of a link report different counts, the smaller one is used; between cards
    behind switches it is the count of the card with fewer links.
    """
    links: list[DeviceLink] = []
    problems: list[Problem] = []
    for a, b in combinations(sorted(cards, key=address_sort_key), 2):
        forward, backward = cards[a].direct_links()[b], cards[b].direct_links()[a]
        if forward != backward:
            problems.append(
                Problem(
                    reason="NVLinkAsymmetric",
                    message=f"{a} counts {forward} links to {b}, which counts {backward}",
                )
            )
        if count := min(forward, backward):
            links.append(DeviceLink(a=a, b=b, type="NVLink", count=count))
        elif count := _switched(cards[a], cards[b]):
            links.append(DeviceLink(a=a, b=b, type="NVSwitch", count=count))
    return tuple(links), (*problems, *_fabric_problems(cards))


def _switched(a: CardLinks, b: CardLinks) -> int:
    clique_a = a.fabric.clique_id if a.fabric else None
    clique_b = b.fabric.clique_id if b.fabric else None
    return (
        0
        if clique_a and clique_b and clique_a != clique_b
        else min(a.switched_links(), b.switched_links())
    )


def _fabric_problems(cards: Mapping[str, CardLinks]) -> Iterator[Problem]:
    for key in sorted(cards, key=address_sort_key):
        if down := cards[key].inactive_links():
            numbers = ",".join(map(str, down))
            yield Problem(reason="NVLinkDown", message=f"{key}: links {numbers} are inactive")
        fabric = cards[key].fabric
        if fabric is not None and fabric.problem_reason:
            yield Problem(reason=fabric.problem_reason, message=f"{key}: {fabric.stage}")
    cliques = {c.fabric.clique_id for c in cards.values() if c.fabric} - {None}
    if len(cliques) > 1:
        yield Problem(reason="CliqueMismatch", message=f"cards of {len(cliques)} NVLink cliques")


def node_clique(cards: Mapping[str, CardLinks]) -> str | None:
    """Return the clique of the node's cards; `None` if they differ."""
    cliques = {c.fabric.clique_id for c in cards.values() if c.fabric and c.fabric.state}
    return cliques.pop() if len(cliques) == 1 else None


def relation_name(links: int, ancestor: int | None) -> str | None:
    """Return the relation of two cards as in `nvidia-smi topo`: NV18, else the PCIe relation."""
    return f"NV{links}" if links else ANCESTORS.get(ancestor if ancestor is not None else -1)


def describe_peers(cards: Mapping[str, NvmlCard], links: Iterable[DeviceLink]) -> dict[str, str]:
    """Return each card's relations to all other cards, such as `0000:24:00.0=NV18 ...`."""
    counts = {(link.a, link.b): link.count for link in links}
    relations: dict[str, list[str]] = {key: [] for key in cards}
    for a, b in combinations(sorted(cards, key=address_sort_key), 2):
        count = counts.get((a, b), 0)
        if relation := relation_name(count, None if count else _ancestor(cards[a], cards[b])):
            relations[a].append(f"{b}={relation}")
            relations[b].append(f"{a}={relation}")
    return {key: " ".join(names) for key, names in relations.items()}


def _ancestor(a: NvmlCard, b: NvmlCard) -> int | None:
    name = "nvmlDeviceGetTopologyCommonAncestor"
    try:
        answer = a.attempt((name, b.bus_id), lambda: a.nvml.call(name, a.handle, b.handle))
    except CardUnavailable:
        return None
    return answer if isinstance(answer, int) else None
