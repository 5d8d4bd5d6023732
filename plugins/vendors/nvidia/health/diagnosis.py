"""The diagnosis of each card of a node, from events, the kernel log and polls."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from agent.clock import Clock
from agent.errors import HostFileError
from agent.host.files import LiveHostFiles
from agent.host.kernel import read_boot_id
from agent.snapshot.device import DeviceCondition, Health, HealthState, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import DeviceEvent, Problem
from plugins.shared.state_file import JsonStateFile
from plugins.vendors.nvidia.health import card_facts
from plugins.vendors.nvidia.health import causes as fault_causes
from plugins.vendors.nvidia.health.card_facts import HealthFacts, HealthFinding
from plugins.vendors.nvidia.health.card_state import CardFaultState, DiagnosisTime
from plugins.vendors.nvidia.health.causes import Cure, FaultCause, ResetMarks
from plugins.vendors.nvidia.health.xid import (
    EVENT_ONLY,
    XidClass,
    XidRules,
    xid_message,
)
from plugins.vendors.nvidia.health.xid_counter import CountedXid, XidCounter, XidSource
from plugins.vendors.nvidia.library import codes as library_codes

FILE_NAME = "nvidia-causes.json"
VERSION = 1
MAX_CARDS = 64

_Content = tuple[int, dict[str, tuple[FaultCause, ...]]]

_CURES = {XidClass.RESET: Cure.RESET, XidClass.REBOOT: Cure.REBOOT, XidClass.FAULT: Cure.QUIET}


class CardFaultRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One card in the state file."""

    uuid: str = ""
    causes: tuple[FaultCause, ...] = ()
    marks: ResetMarks = ResetMarks()


class DiagnosisRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the state file."""

    version: int
    boot_id: str = ""
    read_to: int = -1  # number of the last kernel log record of that boot that was read
    cards: dict[str, CardFaultRecord] = {}  # by bus id; msgspec copies the default


class XidReport(msgspec.Struct, frozen=True, kw_only=True):
    """One Xid as the driver or the kernel log reported it."""

    number: int
    source: XidSource
    at_s: float  # monotonic
    is_fatal: bool = False  # the log line of NVLink says so
    partitions: tuple[str, ...] = ()  # UUIDs of affected slices; empty: the whole card
    is_past: bool = False  # from before this process
    age_s: float = 0.0
    sequence: int = -1  # number of the kernel log record


class Diagnosis:
    """The fault causes of all cards by bus id. Thread-safe; no method waits for a card."""

    def __init__(self, rules: XidRules, now: Callable[[], DiagnosisTime], folder: str) -> None:
        """Load the state file in `folder`; without a folder nothing survives the process."""
        self._counter = XidCounter()
        self.read_to = -1  # number of the last kernel log record that any agent process read
        self._last_fault_record = -1  # the last one that changed causes
        self._rules = rules
        self._now = now
        self._lock = threading.RLock()
        self._write_lock = threading.Lock()  # one thread writes at a time
        self._cards: dict[str, CardFaultState] = {}
        self._file = JsonStateFile(folder, FILE_NAME, DiagnosisRecord)
        self._restore(self._file.load())
        self._written: _Content | None = self._content()

    def _restore(self, record: DiagnosisRecord | None) -> None:
        if record is None or record.version != VERSION:
            return
        if record.boot_id == self._now().boot_id:
            self.read_to = record.read_to
        for key, card_record in list(record.cards.items())[:MAX_CARDS]:
            self._cards[key] = CardFaultState(
                card_record.uuid, card_record.causes[: fault_causes.MAX_CAUSES], card_record.marks
            )

    def _content(self) -> _Content:
        """Return the values whose change makes a write necessary: not marks, not exact times."""
        cards = self._cards.items()
        causes = {
            key: fault_causes.with_rough_times(card.causes) for key, card in cards if card.causes
        }
        return self._last_fault_record, causes

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problem of the state file, if there is one."""
        return (self._file.problem,) if self._file.problem is not None else ()

    def save(self) -> None:
        """Write the causes if they changed since the last write. Waits for the disk."""
        with self._write_lock:
            record = self._changed()
            if record is None or self._file.save(record) or self._file.problem is None:
                return
            with self._lock:
                self._written = None  # the next call tries again

    def _changed(self) -> DiagnosisRecord | None:
        with self._lock:
            content = self._content()
            if content == self._written:
                return None
            self._written = content
            cards = {
                key: CardFaultRecord(uuid=card.uuid, causes=card.causes, marks=card.marks)
                for key, card in self._cards.items()
                if card.causes
            }
            boot_id, read_to = self._now().boot_id, self.read_to
            return DiagnosisRecord(version=VERSION, boot_id=boot_id, read_to=read_to, cards=cards)

    def _card(self, key: str) -> CardFaultState:
        card = self._cards.get(key)
        if card is None:
            card = CardFaultState()
            if len(self._cards) < MAX_CARDS:
                self._cards[key] = card
        return card

    def identify(self, key: str, uuid: str | None, *, clique: bool = False) -> None:
        """Set the UUID of the card at an address, and whether it is on multi-node NVLink."""
        with self._lock:
            card = self._card(key)
            card.clique = clique
            if uuid is not None:
                card.identify(uuid)

    def uuid_of(self, key: str) -> str:
        """Return the UUID of the card at an address; "" if it is unknown."""
        with self._lock:
            return self._card(key).uuid

    # Reports

    def report_xid(self, key: str, report: XidReport) -> tuple[DeviceEvent, ...]:
        """Record an Xid; return the events to publish."""
        with self._lock:
            counted = self._counter.count((key, report.number), report.source, report.at_s)
            kind = self._class(report, is_repeated=counted.is_repeated)
            if not counted.is_new and not (report.is_fatal and kind is XidClass.RESET):
                return ()
            finding = _finding(report.number, kind)
            card, changed = self._card(key), False
            if finding is not None:
                now = self._now()
                report_time = replace(now, wall_s=now.wall_s - report.age_s)
                self._last_fault_record = max(self._last_fault_record, report.sequence)
                for part in report.partitions or ("",):
                    changed |= card.add(finding, report_time, part, past=report.is_past)
            if report.is_past or not (counted.is_reportable or changed):
                return ()
            card.reported_health = card.health()
        is_failure = finding is not None and finding.cure is not Cure.TIME
        return tuple(
            DeviceEvent(
                key=key,
                reason=f"Xid{report.number}",
                message=xid_message(report.number),
                state=HealthState.FAILED if is_failure else None,
                partition=part,
            )
            for part in report.partitions or ("",)
        )

    def count_logged(self, key: str, number: int, at_s: float) -> CountedXid:
        """Count an Xid of the kernel log without any effect on the health."""
        with self._lock:
            return self._counter.count((key, number), XidSource.KERNEL_LOG, at_s)

    def xid_counts(self, key: str) -> tuple[tuple[int, int], ...]:
        """Return (number, count) of the Xids of a card, sorted by number."""
        with self._lock:
            return self._counter.counts_of(key)

    def last_xid(self, key: str) -> int:
        """Return the number of the last Xid of a card; 0 if none was reported."""
        with self._lock:
            return self._counter.last_of(key)

    def _class(self, report: XidReport, *, is_repeated: bool) -> XidClass:
        kind = self._rules.class_of(report.number)
        if kind is not XidClass.NVLINK:
            return kind
        return XidClass.RESET if report.is_fatal or is_repeated else XidClass.WARNING

    def report_finding(self, key: str, finding: HealthFinding) -> tuple[DeviceEvent, ...]:
        """Record the finding of a driver event other than an Xid; return the event to publish."""
        with self._lock:
            card = self._card(key)
            card.add(finding, self._now())
            card.reported_health = card.health()
        state = None if finding.cure is Cure.TIME else HealthState.FAILED
        event = DeviceEvent(key=key, reason=finding.reason, message=finding.message, state=state)
        return (event,)

    def report_action(self, key: str, value: int) -> tuple[DeviceEvent, ...]:
        """Record the recovery action that the driver requires; return the events to publish."""
        with self._lock:
            card = self._card(key)
            if value:
                card.note_recovery_action()
            finding = card_facts.action_finding(value, clique=card.clique)
        return self.report_finding(key, finding) if finding is not None else ()

    def note_driver_loaded(self) -> None:
        """Record that the kernel module was loaded, which resets every card."""
        with self._lock:
            for card in self._cards.values():
                card.note_reset()

    def note_log_position(self, sequence: int) -> None:
        """Record that kernel log records up to this number were read."""
        with self._lock:
            self.read_to = max(self.read_to, sequence)

    # Checks

    def check(
        self,
        key: str,
        facts: HealthFacts,
        link_errors: Mapping[str, float] | None = None,
        *,
        discovery: bool = False,
    ) -> tuple[DeviceEvent, ...]:
        """Record the values of a check; return an event if health or warnings changed.

        An event for changed warnings requests a discovery, which publishes them; a check that is
        part of a discovery therefore returns none.
        """
        with self._lock:
            card = self._card(key)
            time = self._now()
            card.check(facts, link_errors or {}, time)
            now, before = card.health(), card.reported_health
            card.reported_health = now
            warnings_before, warnings_now = card.reported_warnings, card.warnings(time)
            card.reported_warnings = warnings_now
        if (now.state, now.reason) == (before.state, before.reason):
            return () if discovery else _warning_events(key, warnings_before, warnings_now)
        if now.state is HealthState.HEALTHY:
            # without a state: the agent decides how long the card must stay good
            return (DeviceEvent(key=key, reason="CauseGone", message=f"{before.reason} is over"),)
        return (DeviceEvent(key=key, reason=now.reason, message=now.message, state=now.state),)

    def report_lost(self, key: str, codes: Mapping[int, str]) -> tuple[DeviceEvent, ...]:
        """Record that the look-up of a card failed, with return codes and the names of calls."""
        # sysfs has the function but NVML does not find it: NVML has lost the card
        faults = {
            library_codes.GPU_IS_LOST if c in library_codes.HARMLESS else c: n
            for c, n in codes.items()
        }
        return self.check(key, HealthFacts(faults=faults, answers_lookup=False))

    # Results

    def health(self, key: str, partition: str = "") -> Health:
        """Return the current health of a card, or of its slice with that UUID."""
        with self._lock:
            card = self._cards.get(key)
            return card.health(partition) if card is not None else Health()

    def conditions(self, key: str) -> tuple[DeviceCondition, ...]:
        """Return the condition `Degraded` of a card with warnings, else nothing."""
        with self._lock:
            card = self._cards.get(key)
            return card.conditions(self._now()) if card is not None else ()

    def suspected_cards(self, keys: Iterable[str]) -> frozenset[str]:
        """Return the cards with a failure, also of a slice only, or with odd answers."""
        with self._lock:
            return frozenset(
                key
                for key in keys
                if (card := self._cards.get(key)) is not None
                and (
                    any(cause.cure is not Cure.TIME for cause in card.causes)
                    or card.health().state is not HealthState.HEALTHY
                )
            )

    def failure_events(self) -> tuple[DeviceEvent, ...]:
        """Return an event for each failed card, for an agent that has just connected."""
        with self._lock:
            health_by_card = {key: card.health() for key, card in self._cards.items()}
        return tuple(
            DeviceEvent(key=key, reason=health.reason, message=health.message, state=health.state)
            for key, health in sorted(health_by_card.items())
            if health.state is HealthState.FAILED
        )

    def clear(self, key: str) -> bool:
        """Remove all causes of a card at a person's request; return whether there were any."""
        with self._lock:
            card = self._cards.get(key)
            if card is None or not card.causes:
                return False
            card.causes = ()
            card.reported_health = card.health()
        self.save()
        return True


def _warning_events(
    key: str, before: Mapping[str, str], now: Mapping[str, str]
) -> tuple[DeviceEvent, ...]:
    """Return an event if the reasons of warnings changed, so that a discovery publishes them."""
    if before.keys() == now.keys():
        return ()
    new = [reason for reason in now if reason not in before]
    if new:
        return (DeviceEvent(key=key, reason=new[0], message=now[new[0]]),)
    ended = next(reason for reason in before if reason not in now)
    return (DeviceEvent(key=key, reason="WarningGone", message=f"{ended} is over"),)


def _finding(number: int, kind: XidClass) -> HealthFinding | None:
    """Return the finding for an Xid of a class; `None` if the card stays healthy."""
    if kind is XidClass.WARNING:
        cure = None if number in EVENT_ONLY else Cure.TIME
    else:
        cure = _CURES.get(kind)
    return HealthFinding(f"Xid{number}", xid_message(number), cure) if cure is not None else None


MODULE = "/sys/module/nvidia"


def open_diagnosis(
    host: HostFiles,
    rules: XidRules,
    state_dir: str,
    clock: Clock,
) -> Diagnosis:
    """Return the diagnosis of a host's cards, loaded from its state folder."""
    boot_id = read_boot_id(host)

    def now() -> DiagnosisTime:
        return DiagnosisTime(wall_s=clock.wall(), boot_id=boot_id, module=module_identity(host))

    return Diagnosis(rules, now, state_dir)


def module_identity(host: HostFiles) -> str:
    """Return an identity of the loaded kernel module, which differs after a new load."""
    if not isinstance(host, LiveHostFiles):
        return ""
    try:
        # the kernel gives every object in sysfs a new inode number
        return str(os.stat(host.path(MODULE)).st_ino)
    except OSError:
        return ""


def has_fallen_off_bus(host: HostFiles, bus_id: str) -> bool:
    """Return whether a function's config space reads all ones, as without a device.

    Called for suspected cards only, because the read wakes a sleeping card.
    """
    try:
        return host.read(f"/sys/bus/pci/devices/{bus_id}/config", 2) == b"\xff\xff"
    except HostFileError:
        return False  # not in sysfs, or not readable: the library decides


def combine_health(diagnosed: Health, other: Health | None) -> Health:
    """Return the health from the diagnosis if it is FAILED or the only one, else `other`."""
    return diagnosed if other is None or diagnosed.state is HealthState.FAILED else other


def apply_diagnosis(device: VendorDevice, diagnosis: Diagnosis) -> VendorDevice:
    """Return the device with the health of its diagnosis, also on its slices.

    The health from the discovery stays, unless that of the diagnosis is worse. Slices of a
    failed card have failed.
    """
    if not device.managed:
        return device
    conditions = (
        *(c for c in device.conditions if c.type != "Degraded"),
        *diagnosis.conditions(device.key),
    )
    card_health = device.health if device.health.state is HealthState.FAILED else None
    parts = tuple(
        replace(
            part,
            health=_worse_health(
                card_health or part.health, diagnosis.health(device.key, part.uuid)
            ),
        )
        for part in device.partitions
    )
    health = _worse_health(device.health, diagnosis.health(device.key))
    return replace(device, health=health, conditions=conditions, partitions=parts)


def _worse_health(discovered: Health, diagnosed: Health) -> Health:
    is_plain = discovered.state is HealthState.HEALTHY and discovered.certain
    return combine_health(diagnosed, None if is_plain else discovered)
