"""The health of every chip, from polls and events."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from agent.snapshot.device import Health, HealthState
from agent.snapshot.inventory import DeviceEvent
from plugins.vendors.ascend.discovery.descriptions import ChipDescription
from plugins.vendors.ascend.discovery.models import A3, A5, DUO
from plugins.vendors.ascend.health.fault_codes import CodeTable
from plugins.vendors.ascend.health.fault_store import FaultStore
from plugins.vendors.ascend.health.history import active_codes
from plugins.vendors.ascend.health.verdict import ChipState, judge_chip
from plugins.vendors.ascend.library import codes
from plugins.vendors.ascend.library.chip import Chip
from plugins.vendors.ascend.library.events import CLEARED, ONCE, FaultEvent
from plugins.vendors.ascend.library.network import NetworkWatch
from plugins.vendors.ascend.library.state import ChipStatus, read_status
from plugins.vendors.ascend.library.vdev import Vdev

POLL_CAREFUL_S, POLL_QUIET_S = (
    5.0,
    30.0,
)  # between two looks: after a fault or without events, and else
AFTER_FAULT_S = 300.0
FAILING_POLLS = 3
UPGRADE_S = 3600.0  # a firmware upgrade that takes longer has failed
RESET_FINISHED = 0x8C2FA009
_ANSWERED_CODES = (
    codes.SUCCESS,
    codes.NOT_READY,
    codes.NO_PERMISSION,
    codes.UNSUPPORTED,
    *codes.LOST,
)
_UNSUPPORTED = Health(
    state=HealthState.SUSPECT,
    reason="UnsupportedGeneration",
    message="a chip of the 950 generation, of which the agent knows little",
)


class WatchedChip(msgspec.Struct):
    """What is known of a chip between looks; times are monotonic."""

    description: ChipDescription
    chip: Chip
    health: Health | None = None  # the last verdict
    status: ChipStatus = ChipStatus()
    due_s: float = 0.0
    careful_until_s: float = 0.0  # looked at often until then
    fails: int = 0  # looks in a row that told nothing
    failing: str = ""
    denied: str = ""  # the call of the last look that is not allowed
    is_inconsistent: bool = False  # what the last look said of the firmware
    starting_s: float | None = None  # since when it has not finished to start
    sibling_starting_s: float | None = None
    upgrading_s: float | None = None
    gone: str = ""  # how it is known that it is gone
    missing: int = 0  # rolls in a row in which it did not answer
    seen_s: float = 0.0  # when it last did
    is_in_sysfs: bool = False  # sysfs has, or had, its function
    is_off_bus: bool = False  # and has it no more
    has_node: bool = False  # /dev has, or had, its node
    vdevs: tuple[Vdev, ...] = ()

    @property
    def is_out_of_service(self) -> bool:
        """Say whether others than the chip itself know that it is out of service."""
        return bool(self.gone) or self.sibling_starting_s is not None

    @property
    def is_answering(self) -> bool:
        """Say whether there is a point in sampling the chip."""
        silent = (codes.NOT_READY, codes.UPGRADING, *codes.LOST)
        return self.status.error not in silent and not self.gone and self.upgrading_s is None


class ChipHealthWatch:
    """Judges chips. Polls come on the thread of the questions, events on one of their own."""

    def __init__(
        self,
        book: FaultStore,
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
        self._by_logic: dict[int, WatchedChip] = {}

    def set_chips(self, chips: Iterable[WatchedChip]) -> None:
        """Trace events to these chips from now on."""
        self._by_logic = {watched.description.logic: watched for watched in chips}

    def poll(self, watched: WatchedChip) -> Health | None:
        """Poll a chip if it is due and judge it; `None`: it was not looked at, or told nothing."""
        now_s = self._clock()
        if now_s < watched.due_s:
            return None
        watched.chip.begin_round()
        asked_s = self._wall()
        told = read_status(watched.chip)
        health = self._heard(watched, told, now_s, asked_s)
        if health is not None and health.state is not HealthState.HEALTHY:
            watched.careful_until_s = now_s + AFTER_FAULT_S
        often = not self.subscribed or now_s < watched.careful_until_s or watched.fails > 0
        watched.due_s = now_s + (
            POLL_CAREFUL_S if often and watched.upgrading_s is None else POLL_QUIET_S
        )
        return health

    def _heard(
        self, watched: WatchedChip, told: ChipStatus, now_s: float, asked_s: float
    ) -> Health | None:
        if told.error == codes.UPGRADING:
            watched.upgrading_s = now_s if watched.upgrading_s is None else watched.upgrading_s
            if now_s - watched.upgrading_s <= UPGRADE_S:
                return self._frozen(watched)
        else:
            watched.upgrading_s = None
        watched.fails = 0 if told.error in _ANSWERED_CODES else watched.fails + 1
        if 0 < watched.fails < FAILING_POLLS:
            return None
        if not watched.fails:
            watched.failing = ""
        elif not watched.failing:  # the first code stands: each new text would be a write
            refused = "dcmi_get_device_health" in watched.chip.refused
            why = "an answer that cannot be true" if refused else f"DCMI error {told.error}"
            watched.failing = f"dcmi_get_device_health ({why})"
        watched.status = told
        # noted now: the chip's own list is begun anew before each sample
        watched.denied = watched.chip.faults.get(codes.NO_PERMISSION, "")
        watched.is_inconsistent = codes.INCONSISTENT in watched.chip.faults
        if told.codes is not None:
            self._note(watched, told.codes, now_s, asked_s)
        starting = told.is_booted is False
        since_s = watched.starting_s if watched.starting_s is not None else now_s
        watched.starting_s = since_s if starting else None
        return self.judge(watched)

    def _note(
        self, watched: WatchedChip, told: tuple[int, ...], now_s: float, asked_s: float
    ) -> None:
        """Keep the codes of a look; where they changed, the chip is looked at often for a while."""
        uuid = watched.description.uuid
        before = active_codes(self._book.history_of(uuid))
        if active_codes(self._book.record_poll(uuid, told, self._wall(), asked_s)) != before:
            watched.careful_until_s = now_s + AFTER_FAULT_S

    def _frozen(self, watched: WatchedChip) -> Health:
        """Keep everything as it was: nobody can tell before the upgrade is over."""
        known = watched.health or Health()
        told = f"NPU {watched.description.phy}: its firmware is being upgraded (-8017)"
        return replace(known, reason="FirmwareUpgrade", message=told, certain=False)

    def spread_resets(self, all_watched: Iterable[WatchedChip]) -> None:
        """Let chips that are reset together be out of service together."""
        together = [w for w in all_watched if _reset_by_card(w.description)]
        starting = {w.description.card: w.starting_s for w in together if w.starting_s is not None}
        for watched in together:
            watched.sibling_starting_s = starting.get(watched.description.card)

    def verdict(self, watched: WatchedChip, looked: Health | None) -> Health:
        """Return what a look came to, or the last verdict in doubt if the look told nothing."""
        if looked is not None and not looked.certain:
            return looked
        if looked is not None or watched.is_out_of_service:
            return self.judge(watched)
        known = watched.health or Health(state=HealthState.SUSPECT)
        told = f"NPU {watched.description.phy}: the driver does not tell how it is"
        return replace(known, reason="DriverError", message=told, certain=False)

    def judge(self, watched: WatchedChip) -> Health:
        """Return the verdict on what is known now."""
        chip, polled = watched.description, watched.status
        since_s = watched.starting_s
        since_s = watched.sibling_starting_s if since_s is None else since_s
        port = self._network.port(chip.key)
        lost = "the driver does not know it any more" if polled.error in codes.LOST else ""
        watched.health = judge_chip(
            ChipState(
                phy=chip.phy,
                health=polled.health,
                history=self._book.history_of(chip.uuid),
                severities=self._book.severities(chip.uuid),
                uncoded=polled.uncoded_faults,
                lost=watched.gone or lost,
                is_not_ready=polled.error == codes.NOT_READY,
                resetting_s=None if since_s is None else self._clock() - since_s,
                failing=watched.failing,
                denied=watched.denied,
                is_inconsistent=watched.is_inconsistent,
                network=port.state if port is not None and not port.is_working else None,
                network_counts=self._network_counts,
            ),
            self._table,
        )
        if chip.family == A5 and watched.health.state is HealthState.HEALTHY:
            watched.health = _UNSUPPORTED
        return watched.health

    def take_event(self, event: FaultEvent) -> DeviceEvent | None:
        """Take an event in; return what is to be told of it, `None` for a chip nobody knows."""
        watched = self._by_logic.get(event.logic_id)
        if watched is None:
            return None
        chip = watched.description
        watched.due_s = 0.0
        watched.careful_until_s = self._clock() + AFTER_FAULT_S
        if event.code == RESET_FINISHED:
            watched.starting_s = None
        wall_s = self._wall()
        if event.assertion == CLEARED:
            self._book.record_cleared(chip.uuid, event.code, wall_s)
            told = f"NPU {chip.phy}: fault {event.code:08X} is over"
            return DeviceEvent(key=chip.key, reason="FaultCleared", message=told)
        self._book.record_raised(chip.uuid, event.code, event.severity, wall_s)
        if event.assertion == ONCE:
            self._book.record_cleared(chip.uuid, event.code, wall_s)
        now = self.judge(watched)
        if now.state is HealthState.HEALTHY or event.assertion == ONCE:
            name = f" {event.name}" if event.name else ""
            told = f"NPU {chip.phy}: {event.code:08X}{name}"
            return DeviceEvent(key=chip.key, reason="FaultNotice", message=told)
        return DeviceEvent(key=chip.key, reason=now.reason, message=now.message, state=now.state)


def _reset_by_card(chip: ChipDescription) -> bool:
    return chip.family == A3 or chip.product == DUO
