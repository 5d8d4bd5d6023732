"""Polls chips and receives their fault events; computes the health of every chip."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from agent.clock import Clock
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
)  # between two polls: after a fault or without events; otherwise
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
    """A chip and its state between polls; times are monotonic."""

    description: ChipDescription
    chip: Chip
    health: Health | None = None  # the last result
    status: ChipStatus = ChipStatus()
    next_poll_s: float = 0.0
    careful_until_s: float = 0.0  # polled often until then
    failed_polls: int = 0  # consecutive polls without a result
    failing_call: str = ""
    denied_call: str = ""  # a call of the last poll without permission
    is_inconsistent: bool = False  # firmware and driver do not fit, by the last poll
    starting_s: float | None = None  # since when the chip has been starting
    sibling_starting_s: float | None = None
    upgrading_s: float | None = None
    loss_reason: str = ""  # why the chip counts as lost; empty: present
    absent_rounds: int = 0  # consecutive enumerations without the chip
    last_answer_s: float = 0.0  # when the driver last listed it
    is_in_sysfs: bool = False  # sysfs has, or had, its function
    is_off_bus: bool = False  # sysfs had its function and no longer has it
    has_node: bool = False  # /dev has, or had, its node
    vdevs: tuple[Vdev, ...] = ()

    @property
    def is_out_of_service(self) -> bool:
        """Return whether it is lost, or a chip of its card is being reset, whatever it reports."""
        return bool(self.loss_reason) or self.sibling_starting_s is not None

    @property
    def is_answering(self) -> bool:
        """Return whether the chip can be sampled."""
        silent_codes = (codes.NOT_READY, codes.UPGRADING, *codes.LOST)
        return (
            self.status.error not in silent_codes
            and not self.loss_reason
            and self.upgrading_s is None
        )


class ChipHealthWatch:
    """Computes the health of chips. Polls and events come on different threads."""

    def __init__(
        self,
        faults: FaultStore,
        table: CodeTable,
        network: NetworkWatch,
        clock: Clock,
        *,
        network_counts: bool = False,
    ) -> None:
        self._faults = faults
        self._table = table
        self._network = network
        self._clock = clock
        self._network_counts = network_counts
        self.subscribed = False  # to events of the driver
        self._by_logic: dict[int, WatchedChip] = {}

    def set_chips(self, chips: Iterable[WatchedChip]) -> None:
        """Set the chips whose events are handled."""
        self._by_logic = {watched.description.logic: watched for watched in chips}

    def poll(self, watched: WatchedChip) -> Health | None:
        """Poll a chip if its time has come; return its health, `None` without a result."""
        now_s = self._clock.monotonic()
        if now_s < watched.next_poll_s:
            return None
        watched.chip.begin_round()
        poll_start_s = self._clock.wall()
        status = read_status(watched.chip)
        health = self._apply_status(watched, status, now_s, poll_start_s)
        if health is not None and health.state is not HealthState.HEALTHY:
            watched.careful_until_s = now_s + AFTER_FAULT_S
        is_careful = (
            not self.subscribed or now_s < watched.careful_until_s or watched.failed_polls > 0
        )
        watched.next_poll_s = now_s + (
            POLL_CAREFUL_S if is_careful and watched.upgrading_s is None else POLL_QUIET_S
        )
        return health

    def _apply_status(
        self, watched: WatchedChip, status: ChipStatus, now_s: float, poll_start_s: float
    ) -> Health | None:
        if status.error == codes.UPGRADING:
            watched.upgrading_s = now_s if watched.upgrading_s is None else watched.upgrading_s
            if now_s - watched.upgrading_s <= UPGRADE_S:
                return self._health_during_upgrade(watched)
        else:
            watched.upgrading_s = None
        watched.failed_polls = 0 if status.error in _ANSWERED_CODES else watched.failed_polls + 1
        if 0 < watched.failed_polls < FAILING_POLLS:
            return None
        if not watched.failed_polls:
            watched.failing_call = ""
        elif not watched.failing_call:  # keep the first code: a new text would be a write
            is_implausible = "dcmi_get_device_health" in watched.chip.implausible
            cause = (
                "an answer that cannot be true" if is_implausible else f"DCMI error {status.error}"
            )
            watched.failing_call = f"dcmi_get_device_health ({cause})"
        watched.status = status
        # copied now, because `begin_round` clears the chip's list before each sample
        watched.denied_call = watched.chip.faults.get(codes.NO_PERMISSION, "")
        watched.is_inconsistent = codes.INCONSISTENT in watched.chip.faults
        if status.codes is not None:
            self._record_codes(watched, status.codes, now_s, poll_start_s)
        is_starting = status.is_booted is False
        since_s = watched.starting_s if watched.starting_s is not None else now_s
        watched.starting_s = since_s if is_starting else None
        return self.judge(watched)

    def _record_codes(
        self, watched: WatchedChip, fault_codes: tuple[int, ...], now_s: float, poll_start_s: float
    ) -> None:
        """Record the codes of a poll; if they changed, poll the chip often for a while."""
        uuid = watched.description.uuid
        before = active_codes(self._faults.history_of(uuid))
        if (
            active_codes(
                self._faults.record_poll(uuid, fault_codes, self._clock.wall(), poll_start_s)
            )
            != before
        ):
            watched.careful_until_s = now_s + AFTER_FAULT_S

    def _health_during_upgrade(self, watched: WatchedChip) -> Health:
        """Return the last health, uncertain: during an upgrade the state is unknown."""
        health = watched.health or Health()
        message = f"NPU {watched.description.phy}: its firmware is being upgraded (-8017)"
        return replace(health, reason="FirmwareUpgrade", message=message, certain=False)

    def mark_sibling_resets(self, all_watched: Iterable[WatchedChip]) -> None:
        """Mark all chips of a card as starting while one of them is, if they are reset together."""
        group = [w for w in all_watched if _reset_by_card(w.description)]
        starting = {w.description.card: w.starting_s for w in group if w.starting_s is not None}
        for watched in group:
            watched.sibling_starting_s = starting.get(watched.description.card)

    def health_after(self, watched: WatchedChip, polled: Health | None) -> Health:
        """Return the health after a poll; without a result the last health, uncertain."""
        if polled is not None and not polled.certain:
            return polled
        if polled is not None or watched.is_out_of_service:
            return self.judge(watched)
        last = watched.health or Health(state=HealthState.SUSPECT)
        message = f"NPU {watched.description.phy}: the driver does not tell how it is"
        return replace(last, reason="DriverError", message=message, certain=False)

    def judge(self, watched: WatchedChip) -> Health:
        """Compute the health from the present state."""
        chip, status = watched.description, watched.status
        since_s = watched.starting_s
        since_s = watched.sibling_starting_s if since_s is None else since_s
        port = self._network.port(chip.key)
        driver_loss = "the driver does not know it any more" if status.error in codes.LOST else ""
        watched.health = judge_chip(
            ChipState(
                phy=chip.phy,
                health=status.health,
                history=self._faults.history_of(chip.uuid),
                severities=self._faults.severities(chip.uuid),
                uncoded_faults=status.uncoded_faults,
                loss_reason=watched.loss_reason or driver_loss,
                is_not_ready=status.error == codes.NOT_READY,
                resetting_s=None if since_s is None else self._clock.monotonic() - since_s,
                failing_call=watched.failing_call,
                denied_call=watched.denied_call,
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
        """Record an event; return the event to publish, `None` for an unknown chip."""
        watched = self._by_logic.get(event.logic_id)
        if watched is None:
            return None
        chip = watched.description
        watched.next_poll_s = 0.0
        watched.careful_until_s = self._clock.monotonic() + AFTER_FAULT_S
        if event.code == RESET_FINISHED:
            watched.starting_s = None
        wall_s = self._clock.wall()
        if event.assertion == CLEARED:
            self._faults.record_cleared(chip.uuid, event.code, wall_s)
            message = f"NPU {chip.phy}: fault {event.code:08X} is over"
            return DeviceEvent(key=chip.key, reason="FaultCleared", message=message)
        self._faults.record_raised(chip.uuid, event.code, event.severity, wall_s)
        if event.assertion == ONCE:
            self._faults.record_cleared(chip.uuid, event.code, wall_s)
        health = self.judge(watched)
        if health.state is HealthState.HEALTHY or event.assertion == ONCE:
            name = f" {event.name}" if event.name else ""
            message = f"NPU {chip.phy}: {event.code:08X}{name}"
            return DeviceEvent(key=chip.key, reason="FaultNotice", message=message)
        return DeviceEvent(
            key=chip.key, reason=health.reason, message=health.message, state=health.state
        )


def _reset_by_card(chip: ChipDescription) -> bool:
    return chip.family == A3 or chip.product == DUO
