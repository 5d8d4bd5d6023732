"""The health of every chip: polled when it is due, told by events, judged in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from agent.model.device import Health, HealthState
from agent.model.inventory import DeviceEvent
from plugins.bindings.dcmi import codes
from plugins.bindings.dcmi.chip import Chip
from plugins.bindings.dcmi.events import CLEARED, ONCE, FaultEvent
from plugins.bindings.dcmi.network import NetworkWatch
from plugins.bindings.dcmi.state import Polled, poll
from plugins.bindings.dcmi.vdev import Vdev
from plugins.faults.ascend.book import FaultBook
from plugins.faults.ascend.codes import CodeTable
from plugins.faults.ascend.history import active
from plugins.faults.ascend.verdict import ChipState, judge
from plugins.vendors.ascend.describe import Described
from plugins.vendors.ascend.identity import A3, A5, DUO

SOON_S, SELDOM_S = 5.0, 30.0  # between two looks: after a fault or without events, and else
AFTER_FAULT_S = 300.0
FAILING_LOOKS = 3
UPGRADE_S = 3600.0  # a firmware upgrade that takes longer has failed
RESET_FINISHED = 0x8C2FA009
_TELLING = (codes.SUCCESS, codes.NOT_READY, codes.NO_PERMISSION, codes.UNSUPPORTED, *codes.LOST)
_UNSUPPORTED = Health(
    state=HealthState.SUSPECT,
    reason="UnsupportedGeneration",
    message="a chip of the 950 generation, of which the agent knows little",
)


class Watched(msgspec.Struct):
    """What is known of a chip between looks; times are monotonic."""

    described: Described
    chip: Chip
    health: Health | None = None  # the last verdict
    polled: Polled = Polled()
    due_s: float = 0.0
    careful_until_s: float = 0.0  # looked at often until then
    fails: int = 0  # looks in a row that told nothing
    failing: str = ""
    denied: str = ""  # the call of the last look that is not allowed
    inconsistent: bool = False  # what the last look said of the firmware
    starting_s: float | None = None  # since when it has not finished to start
    sibling_starting_s: float | None = None
    upgrading_s: float | None = None
    gone: str = ""  # how it is known that it is gone
    missing: int = 0  # rolls in a row in which it did not answer
    seen_s: float = 0.0  # when it last did
    sighted: bool = False  # sysfs has, or had, its function
    off_bus: bool = False  # and has it no more
    has_node: bool = False  # /dev has, or had, its node
    vdevs: tuple[Vdev, ...] = ()

    @property
    def out(self) -> bool:
        """Say whether others than the chip itself know that it is out of service."""
        return bool(self.gone) or self.sibling_starting_s is not None

    @property
    def answers(self) -> bool:
        """Say whether there is a point in sampling the chip."""
        silent = (codes.NOT_READY, codes.UPGRADING, *codes.LOST)
        return self.polled.error not in silent and not self.gone and self.upgrading_s is None


class HealthWatch:
    """Judges chips. Polls come on the thread of the questions, events on one of their own."""

    def __init__(
        self,
        book: FaultBook,
        table: CodeTable,
        network: NetworkWatch,
        clock: Callable[[], float],
        wall: Callable[[], float],
        *,
        network_counts: bool = False,
    ) -> None:
        self._book = book
        self._table = table
        self._network = network
        self._clock = clock
        self._wall = wall
        self._network_counts = network_counts
        self.subscribed = False  # to events of the driver
        self._by_logic: dict[int, Watched] = {}

    def follow(self, chips: Iterable[Watched]) -> None:
        """Trace events to these chips from now on."""
        self._by_logic = {watched.described.logic: watched for watched in chips}

    def look(self, watched: Watched) -> Health | None:
        """Poll a chip if it is due and judge it; `None`: it was not looked at, or told nothing."""
        now_s = self._clock()
        if now_s < watched.due_s:
            return None
        watched.chip.begin()
        asked_s = self._wall()
        told = poll(watched.chip)
        health = self._heard(watched, told, now_s, asked_s)
        if health is not None and health.state is not HealthState.HEALTHY:
            watched.careful_until_s = now_s + AFTER_FAULT_S
        often = not self.subscribed or now_s < watched.careful_until_s or watched.fails > 0
        watched.due_s = now_s + (SOON_S if often and watched.upgrading_s is None else SELDOM_S)
        return health

    def _heard(self, watched: Watched, told: Polled, now_s: float, asked_s: float) -> Health | None:
        if told.error == codes.UPGRADING:
            watched.upgrading_s = now_s if watched.upgrading_s is None else watched.upgrading_s
            if now_s - watched.upgrading_s <= UPGRADE_S:
                return self._frozen(watched)
        else:
            watched.upgrading_s = None
        watched.fails = 0 if told.error in _TELLING else watched.fails + 1
        if 0 < watched.fails < FAILING_LOOKS:
            return None
        if not watched.fails:
            watched.failing = ""
        elif not watched.failing:  # the first code stands: each new text would be a write
            refused = "dcmi_get_device_health" in watched.chip.refused
            why = "an answer that cannot be true" if refused else f"DCMI error {told.error}"
            watched.failing = f"dcmi_get_device_health ({why})"
        watched.polled = told
        # noted now: the chip's own list is begun anew before each sample
        watched.denied = watched.chip.faults.get(codes.NO_PERMISSION, "")
        watched.inconsistent = codes.INCONSISTENT in watched.chip.faults
        if told.codes is not None:
            self._note(watched, told.codes, now_s, asked_s)
        starting = told.booted is False
        since_s = watched.starting_s if watched.starting_s is not None else now_s
        watched.starting_s = since_s if starting else None
        return self.judge(watched)

    def _note(self, watched: Watched, told: tuple[int, ...], now_s: float, asked_s: float) -> None:
        """Keep the codes of a look; where they changed, the chip is looked at often for a while."""
        uuid = watched.described.uuid
        before = active(self._book.of(uuid))
        if active(self._book.polled(uuid, told, self._wall(), asked_s)) != before:
            watched.careful_until_s = now_s + AFTER_FAULT_S

    def _frozen(self, watched: Watched) -> Health:
        """Keep everything as it was: nobody can tell before the upgrade is over."""
        known = watched.health or Health()
        told = f"NPU {watched.described.phy}: its firmware is being upgraded (-8017)"
        return replace(known, reason="FirmwareUpgrade", message=told, certain=False)

    def spread_resets(self, all_watched: Iterable[Watched]) -> None:
        """Let chips that are reset together be out of service together."""
        together = [w for w in all_watched if _reset_by_card(w.described)]
        starting = {w.described.card: w.starting_s for w in together if w.starting_s is not None}
        for watched in together:
            watched.sibling_starting_s = starting.get(watched.described.card)

    def verdict(self, watched: Watched, looked: Health | None) -> Health:
        """Return what a look came to, or the last verdict in doubt if the look told nothing."""
        if looked is not None and not looked.certain:
            return looked
        if looked is not None or watched.out:
            return self.judge(watched)
        known = watched.health or Health(state=HealthState.SUSPECT)
        told = f"NPU {watched.described.phy}: the driver does not tell how it is"
        return replace(known, reason="DriverError", message=told, certain=False)

    def judge(self, watched: Watched) -> Health:
        """Return the verdict on what is known now."""
        chip, polled = watched.described, watched.polled
        since_s = watched.starting_s
        since_s = watched.sibling_starting_s if since_s is None else since_s
        port = self._network.port(chip.key)
        lost = "the driver does not know it any more" if polled.error in codes.LOST else ""
        watched.health = judge(
            ChipState(
                phy=chip.phy,
                health=polled.health,
                history=self._book.of(chip.uuid),
                severities=self._book.severities(chip.uuid),
                uncoded=polled.uncoded,
                lost=watched.gone or lost,
                not_ready=polled.error == codes.NOT_READY,
                resetting_s=None if since_s is None else self._clock() - since_s,
                failing=watched.failing,
                denied=watched.denied,
                inconsistent=watched.inconsistent,
                network=port.state if port is not None and not port.works else None,
                network_counts=self._network_counts,
            ),
            self._table,
        )
        if chip.family == A5 and watched.health.state is HealthState.HEALTHY:
            watched.health = _UNSUPPORTED
        return watched.health

    def happened(self, event: FaultEvent) -> DeviceEvent | None:
        """Take an event in; return what is to be told of it, `None` for a chip nobody knows."""
        watched = self._by_logic.get(event.logic)
        if watched is None:
            return None
        chip = watched.described
        watched.due_s = 0.0
        watched.careful_until_s = self._clock() + AFTER_FAULT_S
        if event.code == RESET_FINISHED:
            watched.starting_s = None
        wall_s = self._wall()
        if event.assertion == CLEARED:
            self._book.cleared(chip.uuid, event.code, wall_s)
            told = f"NPU {chip.phy}: fault {event.code:08X} is over"
            return DeviceEvent(key=chip.key, reason="FaultCleared", message=told)
        self._book.raised(chip.uuid, event.code, event.severity, wall_s)
        if event.assertion == ONCE:
            self._book.cleared(chip.uuid, event.code, wall_s)
        now = self.judge(watched)
        if now.state is HealthState.HEALTHY or event.assertion == ONCE:
            name = f" {event.name}" if event.name else ""
            told = f"NPU {chip.phy}: {event.code:08X}{name}"
            return DeviceEvent(key=chip.key, reason="FaultNotice", message=told)
        return DeviceEvent(key=chip.key, reason=now.reason, message=now.message, state=now.state)


def _reset_by_card(chip: Described) -> bool:
    return chip.family == A3 or chip.product == DUO
