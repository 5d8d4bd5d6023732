"""The session over libdcmi: loads the library, discovers, samples, receives faults."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from agent.clock import SYSTEM_CLOCK, Clock
from agent.errors import AgentError, LibraryReplaced
from agent.host.kernel import read_boot_id
from agent.snapshot.device import Health, HealthState, VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import (
    DeviceEvent,
    DeviceSample,
    Inventory,
    Problem,
    SliceReport,
    SliceRequest,
)
from agent.snapshot.vendor import LIVE_CONTEXT, SessionContext
from plugins.shared.call_journal import LibraryCallJournal
from plugins.shared.library_file import LibraryUnavailable
from plugins.vendors.ascend.discovery import npu_smi
from plugins.vendors.ascend.discovery.chip_table import ChipTable
from plugins.vendors.ascend.discovery.descriptions import cores, describe_vnpu
from plugins.vendors.ascend.discovery.enumeration import ChipEnumeration, ChipEnumerator
from plugins.vendors.ascend.discovery.inventory import (
    describe_unlisted,
    describe_watched_chip,
    distinct_problems,
    links_of_node,
    load_fault_codes,
    mark_uncertain,
    node_facts,
)
from plugins.vendors.ascend.discovery.models import template_model
from plugins.vendors.ascend.discovery.sysfs import AscendFunction, describe_function, find_npus
from plugins.vendors.ascend.health.fault_store import FaultStore
from plugins.vendors.ascend.health.watch import FAILING_POLLS, ChipHealthWatch, WatchedChip
from plugins.vendors.ascend.library.dcmi import Dcmi, DcmiLoader, chip_name, driver_version
from plugins.vendors.ascend.library.events import FaultQueue
from plugins.vendors.ascend.library.network import NetworkWatch
from plugins.vendors.ascend.sampler import AscendSampler
from plugins.vendors.ascend.settings import AscendSettings
from plugins.vendors.ascend.vnpu.maker import DivisibleChip, VnpuMaker, reconcile_vnpus
from plugins.vendors.ascend.vnpu.ownership import VnpuOwnershipFile, with_owners

RETRY_LIBRARY_S = 30.0  # between two looks for a driver that is not there
BOOTING_S = 10.0  # between two looks for cards that are still booting
BOOTING_LOOKS = 6
MAX_PENDING = 256


class AscendSession:
    """The Ascend chips of one host. One thread calls it; `events` may have another."""

    def __init__(
        self,
        host: HostFiles,
        settings: AscendSettings,
        context: SessionContext = LIVE_CONTEXT,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._host = host
        self._is_replay = context.is_replay
        self._clock = clock
        self._loader = DcmiLoader(host, settings, clock, self._slow)
        self._command = npu_smi.NpuSmi(settings.driver_root, clock=clock)
        self._by_command = False  # while there is no library
        self._roster = ChipEnumerator()
        self._chips = ChipTable(host, context.state_dir, settings.forget_after_s, clock)
        self._network = NetworkWatch(clock)
        self._book = FaultStore(context.state_dir)
        table, odd = load_fault_codes(settings.fault_codes)
        self._watch = ChipHealthWatch(
            self._book,
            table,
            self._network,
            clock,
            network_counts=settings.network_is_health,
        )
        ledger = VnpuOwnershipFile(context.state_dir, read_boot_id(host))
        self._vnpus = VnpuMaker(ledger)
        # what was lost at the start stays lost
        self._odd = distinct_problems(odd, self._book.problem, self._chips.problem, ledger.problem)
        self._queue = FaultQueue()
        self._pending: deque[DeviceEvent] = deque(maxlen=MAX_PENDING)
        self._late: set[str] = set()  # symbols that took too long
        self._again_s: float | None = None  # when a discovery is to be asked for
        self._try_s = (
            clock.monotonic() + RETRY_LIBRARY_S
        )  # when a driver that is not there is looked for
        self._booting = 0  # looks at a list that was not complete
        self._interval_s = settings.sample_interval_s
        self._sampler = AscendSampler(self._interval_s, clock)
        self._next_s = 0.0
        self._samples: tuple[DeviceSample, ...] = ()
        self._last: Inventory | None = None
        self._failures = 0  # discoveries in a row that told nothing

    def journal_calls(self, journal: LibraryCallJournal) -> None:
        """Tell the journal of each call of the library, which is not loaded yet."""
        self._loader.calls = journal
        self._name_chips(self._chips.stored.values())

    def _name_chips(self, devices: Iterable[VendorDevice]) -> None:
        for described in devices:
            facts = dict(described.facts)
            card, number = facts.get("card", ""), facts.get("chip", "")
            if card.isdecimal() and number.isdecimal():
                self._loader.calls.assign(chip_name(int(card), int(number)), described.key)

    def discover(self) -> Inventory:
        """Describe every chip; one that does not answer stays listed and hides no other."""
        seen = find_npus(self._host)
        if self._is_replay:
            devices = tuple(describe_function(function, "NoRecordedAnswers") for function in seen)
            return Inventory(vendor="ascend", devices=devices)
        self._again_s = None
        try:
            dcmi = self._library()
            roll = self._roster.enumerate(dcmi, {function.bus_id: function for function in seen})
        except LibraryUnavailable as absent:
            return self._without(seen, Problem(reason=absent.reason, message=str(absent)))
        except LibraryReplaced:
            raise
        except AgentError as error:
            return self._failed(seen, Problem(reason="DriverError", message=str(error)))
        self._failures, self._last = 0, self._inventory(dcmi, roll, seen)
        return self._last

    def _library(self) -> Dcmi:
        fresh = self._loader.dcmi is None
        dcmi = self._loader.load()
        if fresh:
            self._watch.subscribed = self._queue.subscribe(dcmi)
        return dcmi

    def _slow(self, symbol: str, elapsed_s: float) -> None:
        if symbol not in self._late:
            self._late.add(symbol)
            told = f"{symbol} took {elapsed_s:.1f} s"
            self._tell(DeviceEvent(key="", reason="SlowAnswer", message=told))

    def _failed(self, seen: tuple[AscendFunction, ...], problem: Problem) -> Inventory:
        """Doubt what was known; one failing call condemns no chip, three in a row do all."""
        self._failures += 1
        if self._last is None or self._failures >= FAILING_POLLS:
            return self._without(seen, problem)
        doubted = tuple(mark_uncertain(found, str(problem.message)) for found in self._last.devices)
        return replace(self._last, devices=doubted, problems=(problem,))

    def _without(self, seen: tuple[AscendFunction, ...], problem: Problem) -> Inventory:
        told = None
        if problem.reason in ("LibraryMissing", "LibraryUnfit"):
            try:
                told = self._command.query(seen)
            except AgentError as error:
                problem = replace(problem, message=f"{problem.message}; {error}")
        self._by_command = told is not None
        if told is not None:
            return npu_smi.inventory_from_npu_smi(told, self._host, seen, problem)
        return npu_smi.inventory_from_sysfs(seen, self._chips.stored, self._host, problem)

    def _inventory(
        self, dcmi: Dcmi, roll: ChipEnumeration, seen: tuple[AscendFunction, ...]
    ) -> Inventory:
        for event in self._chips.update(roll, {function.bus_id for function in seen}):
            self._tell(event)
        known = self._chips.chips
        self._watch.set_chips(known.values())
        for watched in known.values():
            watched.next_poll_s = 0.0
        looked = {key: self._watch.poll(watched) for key, watched in known.items()}
        self._watch.spread_resets(known.values())
        devices = [
            describe_watched_chip(w, self._watch.verdict(w, looked[key]), self._host)
            for key, w in known.items()
        ]
        devices.sort(key=lambda found: -1 if found.minor is None else found.minor)
        devices += describe_unlisted(seen, devices, self._chips.stored)
        self._chips.save_devices(devices)
        self._name_chips(devices)
        self._book.flush()
        self._network.watch(dcmi, self._chips.ports())
        found = links_of_node(dcmi, self._chips)
        return Inventory(
            vendor="ascend",
            devices=with_owners(devices, self._vnpus.entries),
            links=found.links,
            driver_version=driver_version(self._host) or dcmi.version(),
            library=dcmi.path,
            facts=node_facts(dcmi, tuple(known.values()), self._network),
            problems=(*self._problems(roll), *found.problems),
            groups=found.groups,
            group_policy=found.policy,
        )

    def _problems(self, roll: ChipEnumeration) -> tuple[Problem, ...]:
        now = (self._book.problem, self._chips.problem)
        found = list(distinct_problems(*roll.problems, *self._odd, *now))
        if roll.is_booting:
            told = "the driver counts cards that it does not name yet"
            found.append(Problem(reason="CardsBooting", message=told))
            self._booting += 1
            if self._booting <= BOOTING_LOOKS:
                self._again_s = self._clock.monotonic() + BOOTING_S
        else:
            self._booting = 0
        if self._queue.dropped:
            told = f"{self._queue.dropped} fault events came faster than they were read"
            found.append(Problem(reason="EventsLost", message=told))
        return tuple(found)

    def sample(self) -> tuple[DeviceSample, ...]:
        """Sample the chips that answer, at most as often as the settings say.

        In between the last values are repeated, without a verdict: nobody looked.
        """
        self._loader.check_not_replaced()
        now_s = self._clock.monotonic()
        self._look_again(now_s)
        if now_s >= self._next_s:
            self._next_s = now_s + self._interval_s
            self._samples = self._round()
            return self._samples
        return tuple(replace(found, health=None) for found in self._samples)

    def _look_again(self, now_s: float) -> None:
        """Ask for a discovery where cards are booting, or when the driver has come."""
        if self._again_s is not None and now_s >= self._again_s:
            self._again_s = None
            self._tell(DeviceEvent(key="", reason="CardsBooting"))
        if self._loader.dcmi is None and now_s >= self._try_s:
            self._try_s = now_s + RETRY_LIBRARY_S
            try:
                self._library()
            except LibraryUnavailable:
                return
            self._tell(DeviceEvent(key="", reason="DriverCame"))

    def _round(self) -> tuple[DeviceSample, ...]:
        if self._loader.dcmi is None or self._loader.unloaded:
            return self._command.samples(find_npus(self._host)) if self._by_command else ()
        known = self._chips.chips
        self._chips.mark_missing()
        before = {key: watched.health for key, watched in known.items()}
        looked = {key: self._watch.poll(watched) for key, watched in known.items()}
        self._watch.spread_resets(known.values())
        samples = []
        for key, watched in known.items():
            health = looked[key]
            if health is not None or watched.is_out_of_service:
                health = self._watch.verdict(watched, health)
                self._announce(key, before[key], health)
            samples.append(replace(self._sample(watched), health=health))
        self._book.flush()
        return tuple(samples)

    def _sample(self, watched: WatchedChip) -> DeviceSample:
        if not watched.is_answering:
            return DeviceSample(key=watched.description.key)
        watched.chip.begin_round()
        port = self._network.port(watched.description.key)
        return self._sampler.sample(watched.description, watched.chip, port)

    def _announce(self, key: str, before: Health | None, now: Health) -> None:
        """Tell at once that a chip is out of service: the driver is sure of what it says."""
        if now.state is not HealthState.FAILED or not now.certain:
            return
        if before is None or (before.state, before.reason) != (now.state, now.reason):
            event = DeviceEvent(key=key, reason=now.reason, message=now.message, state=now.state)
            self._tell(event)

    def _tell(self, event: DeviceEvent) -> None:
        self._pending.append(event)
        self._queue.wake()

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Wait for faults, and for what sampling noticed."""
        until_s = self._clock.monotonic() + wait_s
        while True:
            left_s = 0.0 if self._pending else until_s - self._clock.monotonic()
            told = [self._watch.take_event(event) for event in self._queue.take(max(0.0, left_s))]
            found = [event for event in told if event is not None]
            while self._pending:
                found.append(self._pending.popleft())
            if found or self._clock.monotonic() >= until_s:
                return tuple(found)

    def clear(self, key: str) -> bool:
        """Let a chip back that was taken out until a person looks at it; say whether it was."""
        watched = self._chips.chips.get(key)
        if watched is None or not self._book.release(watched.description.uuid):
            return False
        self._book.flush()
        watched.next_poll_s = 0.0
        self._next_s = 0.0
        return True

    def slices(self, wishes: Sequence[SliceRequest], pods: Collection[str] | None) -> SliceReport:
        """Keep the vNPUs that are wished for, and none of ours for pods that are gone."""
        chips = {key: self._cuttable(w) for key, w in self._chips.chips.items() if w.is_answering}
        return reconcile_vnpus(self._vnpus, chips, wishes, pods)

    def _cuttable(self, watched: WatchedChip) -> DivisibleChip:
        chip = watched.description
        return DivisibleChip(
            chip=watched.chip,
            die=chip.uuid,
            model=template_model(chip.family, chip.facts.name),
            cores=cores(chip.family, chip.facts),
            describe=lambda made: describe_vnpu(chip, made, self._host),
        )

    def close(self) -> None:
        """Wake who waits; the library stays for as long as the process."""
        self._network.close()
        self._queue.wake()
