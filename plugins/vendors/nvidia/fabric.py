"""The NVLink fabric behind a node's cards: its state, how long it may take, who is to blame."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from agent.model.device import DeviceCondition, Health, HealthState, Pairs

if TYPE_CHECKING:
    from plugins.vendors.nvidia.links import CardLinks

NONE, NOT_STARTED, IN_PROGRESS, COMPLETED = range(4)
STATES = {NOT_STARTED: "not-started", IN_PROGRESS: "in-progress", COMPLETED: "completed"}
PATIENCE_S = 300.0  # from the first sight of a fabric that is not ready
READY = "FabricReady"
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


class Fabric(msgspec.Struct, frozen=True, kw_only=True):
    """What a card says of the fabric behind its switches; `status` counts in state 3 only."""

    state: int  # 0 none, 1 not started, 2 in progress, 3 completed
    status: int = 0
    clique: int = 0
    cluster: bytes = bytes(16)
    mask: int = 0  # of version 2 on
    summary: int = 0  # of version 3 on

    @property
    def clique_id(self) -> str | None:
        """Name the multi-node clique: UUID and number; a zero UUID is a fabric of one node."""
        if self.state != COMPLETED or self.status or not any(self.cluster):
            return None
        h = self.cluster.hex()
        return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}.{self.clique}"

    @property
    def trouble(self) -> str | None:
        """Say why links through switches carry nothing; `None` when they do."""
        if self.state in (NOT_STARTED, IN_PROGRESS):
            return "FabricNotReady"
        return "FabricError" if self.state == COMPLETED and self.status else None

    @property
    def stage(self) -> str:
        """Name the state, with the status where it means something: else it may be anything."""
        told = f"fabric state {STATES.get(self.state, self.state)}"
        return f"{told}, status {self.status}" if self.state == COMPLETED else told

    def words(self) -> tuple[str, ...]:
        """Name what the health mask says, in the order of its bits."""
        found = [name for name, shift in _FLAGS if self.mask >> shift & 3 == 1]
        wrong = _CONFIGURATIONS.get(self.mask >> 8 & 15)
        found += [f"incorrect-configuration={wrong}"] if wrong else []
        found += ["no-partition-assigned"] if self.mask >> 12 & 3 == 2 else []
        found += ["manager-disconnected"] if self.mask >> 14 & 3 == 2 else []
        return tuple(found)

    def facts(self) -> Pairs:
        """Return the fabric for people; nothing of a card that has none."""
        told = (
            ("fabric", STATES.get(self.state)),
            ("fabric-health", _SUMMARIES.get(self.summary)),
            ("fabric-flags", ",".join(self.words())),
            ("clique", self.clique_id),
        )
        return tuple((key, value) for key, value in told if value)


def manager_down(sides: Mapping[str, CardLinks], switches: int) -> bool:
    """Say whether there are switches and no card reaches them: nobody runs the fabric.

    Cards before Hopper know of no fabric; all that shows is that no link of any is active. The
    sides are those of whole cards: one cut by MIG has its links switched off.
    """
    linked = [side for side in sides.values() if side.ends]
    silent = all(not end.active for side in linked for end in side.ends)
    told = any(side.fabric is not None and side.fabric.state for side in sides.values())
    return bool(switches and linked) and silent and not told


def must_be_ready(setting: object, switches: int, names: tuple[str, ...]) -> bool:
    """Say whether a fabric that is not ready takes the cards out of service.

    `on` and `off` decide; else it does on machines made around one: with switches of their own,
    or with cards of a rack's.
    """
    if setting in ("on", "off"):
        return setting == "on"
    return switches > 0 or any(name in model for model in names for name in ("GB200", "GB300"))


class FabricWatch:
    """Remembers since when each card's fabric is not ready; a starting one gets its time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s: dict[str, float] = {}

    def condition(
        self, key: str, fabric: Fabric | None, *, manager_is_down: bool
    ) -> DeviceCondition | None:
        """Return the condition `FabricReady` of a card; `None` without a fabric, or too early."""
        if manager_is_down:
            told = "no NVLink of any card is active: the service nvidia-fabricmanager must run"
            return _ready(MANAGER_DOWN, told)
        trouble = fabric.trouble if fabric is not None else None
        if trouble is None:
            self._since_s.pop(key, None)
        if fabric is None or fabric.state not in STATES:
            return None
        if trouble is None:
            told = "the fabric is configured"
            return DeviceCondition(type=READY, status=True, reason=READY, message=told)
        since_s = self._since_s.setdefault(key, self._clock())
        if fabric.state != COMPLETED and self._clock() - since_s <= PATIENCE_S:
            return None
        return _ready(trouble, ", ".join((fabric.stage, *fabric.words())))

    def keep(self, keys: set[str]) -> None:
        """Forget the cards that are not among these."""
        self._since_s = {key: since for key, since in self._since_s.items() if key in keys}


def _ready(reason: str, message: str) -> DeviceCondition:
    return DeviceCondition(type=READY, status=False, reason=reason, message=message)


def verdict(condition: DeviceCondition | None, *, must: bool) -> Health | None:
    """Return the health that a fabric which is not ready leaves to its card."""
    if condition is None or condition.status or not must:
        return None
    return Health(state=HealthState.FAILED, reason=condition.reason, message=condition.message)
