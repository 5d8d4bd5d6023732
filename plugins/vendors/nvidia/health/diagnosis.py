"""The diagnosis of each card of a node, from events, the kernel log and polls."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from agent.errors import HostFileError
from agent.host.files import LiveHostFiles
from agent.host.kernel import read_boot_id
from agent.snapshot.device import DeviceCondition, Health, HealthState, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import DeviceEvent, Problem
from plugins.shared.state_file import JsonStateFile
from plugins.vendors.nvidia.health import card_facts
from plugins.vendors.nvidia.health import causes as why
from plugins.vendors.nvidia.health.card_facts import HealthFacts, HealthFinding
from plugins.vendors.nvidia.health.card_state import CardFaultState, DiagnosisTime
from plugins.vendors.nvidia.health.causes import Cure, FaultCause, ResetMarks
from plugins.vendors.nvidia.health.xid import (
    EVENT_ONLY,
    XidClass,
    XidRules,
    read_xid_rules,
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
    """What is kept of one card."""

    uuid: str = ""
    causes: tuple[FaultCause, ...] = ()
    marks: ResetMarks = ResetMarks()


class DiagnosisRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What outlives the process."""

    version: int
    boot_id: str = ""
    read_to: int = -1  # number of the last kernel record of that boot that was looked at
    cards: dict[str, CardFaultRecord] = {}  # by bus id; msgspec copies the default


class XidReport(msgspec.Struct, frozen=True, kw_only=True):
    """One Xid as somebody reported it."""

    number: int
    source: XidSource
    at_s: float  # monotonic
    is_fatal: bool = False  # the line says so, of NVLink
    partitions: tuple[str, ...] = ()  # slices it is confined to; none: the whole card
    is_past: bool = False  # from before this process
    age_s: float = 0.0
    sequence: int = -1  # number of the kernel's record


class Diagnosis:
    """The causes of all cards by bus id. Any thread may call any method; none waits for a card."""

    def __init__(self, rules: XidRules, now: Callable[[], DiagnosisTime], folder: object) -> None:
        """Take up what `folder` keeps; without a folder nothing outlives the process."""
        self._tally = XidCounter()
        self.read_to = -1  # kernel records up to this one have been looked at, also by others
        self._judged_to = -1  # the last of them that says something against a card
        self._rules = rules
        self._now = now
        self._lock = threading.RLock()
        self._disk = threading.Lock()  # one writes at a time
        self._cards: dict[str, CardFaultState] = {}
        self._file = JsonStateFile(folder, FILE_NAME, DiagnosisRecord)
        self._take_up(self._file.load())
        self._written: _Content | None = self._content()

    def _take_up(self, record: DiagnosisRecord | None) -> None:
        if record is None or record.version != VERSION:
            return
        if record.boot_id == self._now().boot_id:
            self.read_to = record.read_to
        for key, kept in list(record.cards.items())[:MAX_CARDS]:
            self._cards[key] = CardFaultState(kept.uuid, kept.causes[: why.MAX_CAUSES], kept.marks)

    def _content(self) -> _Content:
        """Return what the file is about; marks and last times move all the time and go with it."""
        cards = self._cards.items()
        causes = {key: why.with_rough_times(card.causes) for key, card in cards if card.causes}
        return self._judged_to, causes

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Say what is wrong with the file."""
        return (self._file.problem,) if self._file.problem is not None else ()

    def save(self) -> None:
        """Write the causes if they are others than were written; as slow as the disk."""
        with self._disk:
            record = self._changed()
            if record is None or self._file.save(record) or self._file.problem is None:
                return
            with self._lock:
                self._written = None  # to be tried again

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
        found = self._cards.get(key)
        if found is None:
            found = CardFaultState()
            if len(self._cards) < MAX_CARDS:
                self._cards[key] = found
        return found

    def identify(self, key: str, uuid: str | None, *, clique: bool = False) -> None:
        """Note which card sits at an address, and whether it is on a multi-node NVLink."""
        with self._lock:
            card = self._card(key)
            card.clique = clique
            if uuid is not None:
                card.identify(uuid)

    def uuid_of(self, key: str) -> str:
        """Return the UUID of the card that was met at an address; "" if none was."""
        with self._lock:
            return self._card(key).uuid

    # What happened

    def report_xid(self, key: str, report: XidReport) -> tuple[DeviceEvent, ...]:
        """Take a reported Xid; return what others should hear of it."""
        with self._lock:
            heard = self._tally.count((key, report.number), report.source, report.at_s)
            kind = self._class(report, again=heard.is_repeated)
            if not heard.is_new and not (report.is_fatal and kind is XidClass.RESET):
                return ()
            found = _finding(report.number, kind)
            card, news = self._card(key), False
            if found is not None:
                now = self._now()
                then = replace(now, wall_s=now.wall_s - report.age_s)
                self._judged_to = max(self._judged_to, report.sequence)
                for part in report.partitions or ("",):
                    news |= card.add(found, then, part, past=report.is_past)
            if report.is_past or not (heard.is_reported or news):
                return ()
            card.told = card.health()
        fails = found is not None and found.cure is not Cure.TIME
        return tuple(
            DeviceEvent(
                key=key,
                reason=f"Xid{report.number}",
                message=xid_message(report.number),
                state=HealthState.FAILED if fails else None,
                partition=part,
            )
            for part in report.partitions or ("",)
        )

    def count_logged(self, key: str, number: int, at_s: float) -> CountedXid:
        """Count a line of the kernel's log, and nothing more."""
        with self._lock:
            return self._tally.count((key, number), XidSource.KERNEL_LOG, at_s)

    def xid_counts(self, key: str) -> tuple[tuple[int, int], ...]:
        """Return (number, count) of the Xids of a card, by number."""
        with self._lock:
            return self._tally.counts_of(key)

    def _class(self, report: XidReport, *, again: bool) -> XidClass:
        kind = self._rules.class_of(report.number)
        if kind is not XidClass.NVLINK:
            return kind
        return XidClass.RESET if report.is_fatal or again else XidClass.WARNING

    def report_finding(self, key: str, found: HealthFinding) -> tuple[DeviceEvent, ...]:
        """Take an event of the driver other than an Xid, as what it means for the card."""
        with self._lock:
            card = self._card(key)
            card.add(found, self._now())
            card.told = card.health()
        state = None if found.cure is Cure.TIME else HealthState.FAILED
        told = DeviceEvent(key=key, reason=found.reason, message=found.message, state=state)
        return (told,)

    def report_action(self, key: str, value: int) -> tuple[DeviceEvent, ...]:
        """Take the recovery action that the driver asks for now."""
        with self._lock:
            card = self._card(key)
            if value:
                card.note_recovery_action()
            found = card_facts.action_finding(value, clique=card.clique)
        return self.report_finding(key, found) if found is not None else ()

    def note_driver_loaded(self) -> None:
        """Take note that the kernel module was loaded: every card was reset."""
        with self._lock:
            for card in self._cards.values():
                card.note_reset()

    def note_log_position(self, sequence: int) -> None:
        """Note that kernel records up to this one have been looked at."""
        with self._lock:
            self.read_to = max(self.read_to, sequence)

    # What a look shows

    def check(
        self,
        key: str,
        facts: HealthFacts,
        link_errors: Mapping[str, float] | None = None,
        *,
        discovery: bool = False,
    ) -> tuple[DeviceEvent, ...]:
        """Take what a card told when asked; return the change of its health or its warnings.

        A change of warnings asks for a discovery, which reads them: in one it is no news.
        """
        with self._lock:
            card = self._card(key)
            moment = self._now()
            card.check(facts, link_errors or {}, moment)
            now, before = card.health(), card.told
            card.told = now
            warned, warns = card.warned, card.warnings(moment)
            card.warned = warns
        if (now.state, now.reason) == (before.state, before.reason):
            return () if discovery else _warning_events(key, warned, warns)
        if now.state is HealthState.HEALTHY:
            # how long it must look well before it counts is not for the vendor to say
            return (DeviceEvent(key=key, reason="CauseGone", message=f"{before.reason} is over"),)
        return (DeviceEvent(key=key, reason=now.reason, message=now.message, state=now.state),)

    def report_lost(self, key: str, codes: Mapping[int, str]) -> tuple[DeviceEvent, ...]:
        """Take that a card could not be looked up, with the codes and the calls that gave them."""
        # a look-up that finds nothing while sysfs has the function: the card is gone for NVML
        plain = {
            library_codes.GPU_IS_LOST if c in library_codes.HARMLESS else c: n
            for c, n in codes.items()
        }
        return self.check(key, HealthFacts(faults=plain, answers_lookup=False))

    # What follows

    def health(self, key: str, partition: str = "") -> Health:
        """Return the verdict of now on a card, or on a slice of it by UUID."""
        with self._lock:
            found = self._cards.get(key)
            return found.health(partition) if found is not None else Health()

    def conditions(self, key: str) -> tuple[DeviceCondition, ...]:
        """Return what the card should be watched for: `Degraded`, or nothing."""
        with self._lock:
            found = self._cards.get(key)
            return found.conditions(self._now()) if found is not None else ()

    def cards_in_doubt(self, keys: Iterable[str]) -> frozenset[str]:
        """Return those of the cards that have a cause, also one of a slice, or answer oddly."""
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
        """Return an event for each card that is out of service, for who has not heard of it."""
        with self._lock:
            verdicts = {key: card.health() for key, card in self._cards.items()}
        return tuple(
            DeviceEvent(key=key, reason=found.reason, message=found.message, state=found.state)
            for key, found in sorted(verdicts.items())
            if found.state is HealthState.FAILED
        )

    def clear(self, key: str) -> bool:
        """Forget all causes of a card, on a person's word; say whether there were any."""
        with self._lock:
            found = self._cards.get(key)
            if found is None or not found.causes:
                return False
            found.causes = ()
            found.told = found.health()
        self.save()
        return True


def _warning_events(
    key: str, before: Mapping[str, str], now: Mapping[str, str]
) -> tuple[DeviceEvent, ...]:
    """Return an event if other warnings hold than before: the condition is read by a discovery."""
    if before.keys() == now.keys():
        return ()
    new = [reason for reason in now if reason not in before]
    if new:
        return (DeviceEvent(key=key, reason=new[0], message=now[new[0]]),)
    gone = next(reason for reason in before if reason not in now)
    return (DeviceEvent(key=key, reason="WarningGone", message=f"{gone} is over"),)


def _finding(number: int, kind: XidClass) -> HealthFinding | None:
    """Return what an Xid of a class speaks against a card; `None`: nothing."""
    if kind is XidClass.WARNING:
        cure = None if number in EVENT_ONLY else Cure.TIME
    else:
        cure = _CURES.get(kind)
    return HealthFinding(f"Xid{number}", xid_message(number), cure) if cure is not None else None


MODULE = "/sys/module/nvidia"


def open_diagnosis(
    host: HostFiles,
    settings: Mapping[str, object],
    environment: Mapping[str, str],
    wall: Callable[[], float],
) -> Diagnosis:
    """Return the diagnosis of a host's cards, with what its state folder keeps of them.

    `environment` may hold the variables of NVIDIA's device plug-in.
    """
    boot_id = read_boot_id(host)

    def now() -> DiagnosisTime:
        return DiagnosisTime(wall_s=wall(), boot_id=boot_id, module=module_identity(host))

    return Diagnosis(read_xid_rules(settings, environment), now, settings.get("state_dir"))


def module_identity(host: HostFiles) -> str:
    """Name the kernel module that is loaded; another one after it was loaded again."""
    if not isinstance(host, LiveHostFiles):
        return ""
    try:
        # the kernel gives every object in sysfs a number of its own
        return str(os.stat(host.path(MODULE)).st_ino)
    except OSError:
        return ""


def has_fallen_off_bus(host: HostFiles, bus_id: str) -> bool:
    """Say whether a function's config space reads all ones: nothing is there any more.

    Only for cards that are under suspicion already; reading wakes a sleeping one.
    """
    try:
        return host.read(f"/sys/bus/pci/devices/{bus_id}/config", 2) == b"\xff\xff"
    except HostFileError:
        return False  # gone from sysfs as well, or not ours to read: the library is asked


def combine_health(found: Health, standing: Health | None) -> Health:
    """Return the verdict on a card: its causes first, then what no look at it can lift."""
    return found if standing is None or found.state is HealthState.FAILED else standing


def apply_diagnosis(device: VendorDevice, diagnosis: Diagnosis) -> VendorDevice:
    """Return the device with the verdict of its causes, on its slices as well.

    What the discovery itself has against the card stays, unless a cause is graver; what takes
    the card out of service takes its slices along.
    """
    if not device.managed:
        return device
    conditions = (
        *(c for c in device.conditions if c.type != "Degraded"),
        *diagnosis.conditions(device.key),
    )
    whole = device.health if device.health.state is HealthState.FAILED else None
    parts = tuple(
        replace(
            part,
            health=_graver_health(whole or part.health, diagnosis.health(device.key, part.uuid)),
        )
        for part in device.partitions
    )
    health = _graver_health(device.health, diagnosis.health(device.key))
    return replace(device, health=health, conditions=conditions, partitions=parts)


def _graver_health(own: Health, found: Health) -> Health:
    plain = own.state is HealthState.HEALTHY and own.certain
    return combine_health(found, None if plain else own)
