"""What is wrong with each card of a node: fed by events, the kernel's log and polls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from agent.model.device import DeviceCondition, Health, HealthState
from agent.model.inventory import DeviceEvent, Problem
from plugins.bindings.nvml import library
from plugins.faults.nvidia import causes as why
from plugins.faults.nvidia import polled
from plugins.faults.nvidia.card_state import CardState, Now
from plugins.faults.nvidia.causes import Cause, Cure, Marks
from plugins.faults.nvidia.polled import Finding, HealthFacts
from plugins.faults.nvidia.tally import Heard, Tally, Witness
from plugins.faults.nvidia.xid import EVENT_ONLY, XidClass, XidRules, message
from plugins.lasting import LastingFile

FILE_NAME = "nvidia-causes.json"
VERSION = 1
MAX_CARDS = 64
_Content = tuple[int, dict[str, tuple[Cause, ...]]]

_CURES = {XidClass.RESET: Cure.RESET, XidClass.REBOOT: Cure.REBOOT, XidClass.FAULT: Cure.QUIET}


class CardRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one card."""

    uuid: str = ""
    causes: tuple[Cause, ...] = ()
    marks: Marks = Marks()


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What outlives the process."""

    version: int
    boot_id: str = ""
    read_to: int = -1  # number of the last kernel record of that boot that was looked at
    cards: dict[str, CardRecord] = {}  # by bus id; msgspec copies the default


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One Xid as somebody reported it."""

    number: int
    witness: Witness
    at_s: float  # monotonic
    fatal: bool = False  # the line says so, of NVLink
    partitions: tuple[str, ...] = ()  # slices it is confined to; none: the whole card
    past: bool = False  # from before this process
    age_s: float = 0.0
    sequence: int = -1  # number of the kernel's record


class Diagnosis:
    """The causes of all cards by bus id. Any thread may call any method; none waits for a card."""

    def __init__(self, rules: XidRules, now: Callable[[], Now], folder: object) -> None:
        """Take up what `folder` keeps; without a folder nothing outlives the process."""
        self._tally = Tally()
        self.read_to = -1  # kernel records up to this one have been looked at, also by others
        self._judged_to = -1  # the last of them that says something against a card
        self._rules = rules
        self._now = now
        self._lock = threading.RLock()
        self._disk = threading.Lock()  # one writes at a time
        self._cards: dict[str, CardState] = {}
        self._file = LastingFile(folder, FILE_NAME, Record)
        self._take_up(self._file.load())
        self._written: _Content | None = self._content()

    def _take_up(self, record: Record | None) -> None:
        if record is None or record.version != VERSION:
            return
        if record.boot_id == self._now().boot_id:
            self.read_to = record.read_to
        for key, kept in list(record.cards.items())[:MAX_CARDS]:
            self._cards[key] = CardState(kept.uuid, kept.causes[: why.MAX_CAUSES], kept.marks)

    def _content(self) -> _Content:
        """Return what the file is about; marks and last times move all the time and go with it."""
        cards = self._cards.items()
        causes = {key: why.dated_roughly(card.causes) for key, card in cards if card.causes}
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

    def _changed(self) -> Record | None:
        with self._lock:
            content = self._content()
            if content == self._written:
                return None
            self._written = content
            cards = {
                key: CardRecord(uuid=card.uuid, causes=card.causes, marks=card.marks)
                for key, card in self._cards.items()
                if card.causes
            }
            boot_id, read_to = self._now().boot_id, self.read_to
            return Record(version=VERSION, boot_id=boot_id, read_to=read_to, cards=cards)

    def _card(self, key: str) -> CardState:
        found = self._cards.get(key)
        if found is None:
            found = CardState()
            if len(self._cards) < MAX_CARDS:
                self._cards[key] = found
        return found

    def met(self, key: str, uuid: str | None, *, clique: bool = False) -> None:
        """Note which card sits at an address, and whether it is on a multi-node NVLink."""
        with self._lock:
            card = self._card(key)
            card.clique = clique
            if uuid is not None:
                card.met(uuid)

    def uuid_of(self, key: str) -> str:
        """Return the UUID of the card that was met at an address; "" if none was."""
        with self._lock:
            return self._card(key).uuid

    # What happened

    def xid(self, key: str, report: Report) -> tuple[DeviceEvent, ...]:
        """Take a reported Xid; return what others should hear of it."""
        with self._lock:
            heard = self._tally.hear((key, report.number), report.witness, report.at_s)
            kind = self._class(report, again=heard.again)
            if not heard.new and not (report.fatal and kind is XidClass.RESET):
                return ()
            found = _finding(report.number, kind)
            card, news = self._card(key), False
            if found is not None:
                now = self._now()
                then = replace(now, wall_s=now.wall_s - report.age_s)
                self._judged_to = max(self._judged_to, report.sequence)
                for part in report.partitions or ("",):
                    news |= card.add(found, then, part, past=report.past)
            if report.past or not (heard.tell or news):
                return ()
            card.told = card.health()
        fails = found is not None and found.cure is not Cure.TIME
        return tuple(
            DeviceEvent(
                key=key,
                reason=f"Xid{report.number}",
                message=message(report.number),
                state=HealthState.FAILED if fails else None,
                partition=part,
            )
            for part in report.partitions or ("",)
        )

    def recount(self, key: str, number: int, at_s: float) -> Heard:
        """Count a line of the kernel's log, and nothing more."""
        with self._lock:
            return self._tally.hear((key, number), Witness.KERNEL_LOG, at_s)

    def xids(self, key: str) -> tuple[tuple[int, int], ...]:
        """Return (number, count) of the Xids of a card, by number."""
        with self._lock:
            return self._tally.of(key)

    def _class(self, report: Report, *, again: bool) -> XidClass:
        kind = self._rules.class_of(report.number)
        if kind is not XidClass.NVLINK:
            return kind
        return XidClass.RESET if report.fatal or again else XidClass.WARNING

    def happened(self, key: str, found: Finding) -> tuple[DeviceEvent, ...]:
        """Take an event of the driver other than an Xid, as what it means for the card."""
        with self._lock:
            card = self._card(key)
            card.add(found, self._now())
            card.told = card.health()
        state = None if found.cure is Cure.TIME else HealthState.FAILED
        told = DeviceEvent(key=key, reason=found.reason, message=found.message, state=state)
        return (told,)

    def action(self, key: str, value: int) -> tuple[DeviceEvent, ...]:
        """Take the recovery action that the driver asks for now."""
        with self._lock:
            card = self._card(key)
            if value:
                card.asked()
            found = polled.action_finding(value, clique=card.clique)
        return self.happened(key, found) if found is not None else ()

    def driver_loaded(self) -> None:
        """Take note that the kernel module was loaded: every card was reset."""
        with self._lock:
            for card in self._cards.values():
                card.reset()

    def read(self, sequence: int) -> None:
        """Note that kernel records up to this one have been looked at."""
        with self._lock:
            self.read_to = max(self.read_to, sequence)

    # What a look shows

    def looked(
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
            card.looked(facts, link_errors or {}, moment)
            now, before = card.health(), card.told
            card.told = now
            warned, warns = card.warned, card.warns(moment)
            card.warned = warns
        if (now.state, now.reason) == (before.state, before.reason):
            return () if discovery else _of_warnings(key, warned, warns)
        if now.state is HealthState.HEALTHY:
            # how long it must look well before it counts is not for the vendor to say
            return (DeviceEvent(key=key, reason="CauseGone", message=f"{before.reason} is over"),)
        return (DeviceEvent(key=key, reason=now.reason, message=now.message, state=now.state),)

    def lost(self, key: str, codes: Mapping[int, str]) -> tuple[DeviceEvent, ...]:
        """Take that a card could not be looked up, with the codes and the calls that gave them."""
        # a look-up that finds nothing while sysfs has the function: the card is gone for NVML
        plain = {library.GPU_IS_LOST if c in library.NOTHING else c: n for c, n in codes.items()}
        return self.looked(key, HealthFacts(faults=plain, probed=False))

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

    def unwell(self, keys: Iterable[str]) -> frozenset[str]:
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

    def failed(self) -> tuple[DeviceEvent, ...]:
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


def _of_warnings(
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


def _finding(number: int, kind: XidClass) -> Finding | None:
    """Return what an Xid of a class speaks against a card; `None`: nothing."""
    if kind is XidClass.WARNING:
        cure = None if number in EVENT_ONLY else Cure.TIME
    else:
        cure = _CURES.get(kind)
    return Finding(f"Xid{number}", message(number), cure) if cure is not None else None
