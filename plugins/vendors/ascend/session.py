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
from plugins.vendors.ascend.discovery.descriptions import cores, describe_vnpu, place_of
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
from plugins.vendors.ascend.health.history import active_codes
from plugins.vendors.ascend.health.watch import FAILING_POLLS, ChipHealthWatch, WatchedChip
from plugins.vendors.ascend.library.dcmi import Dcmi, DcmiLoader, chip_name, driver_version
from plugins.vendors.ascend.library.events import FaultQueue
from plugins.vendors.ascend.library.hccn_tool import LinkWatch
from plugins.vendors.ascend.library.network import NetworkWatch
from plugins.vendors.ascend.library.traffic import TrafficWatch
from plugins.vendors.ascend.sampler import AscendSampler, PolledState
from plugins.vendors.ascend.settings import AscendSettings
from plugins.vendors.ascend.vnpu.maker import DivisibleChip, VnpuMaker, reconcile_vnpus
from plugins.vendors.ascend.vnpu.ownership import VnpuOwnershipFile, with_owners

RETRY_LIBRARY_S = 30.0  # between two searches for a missing driver
BOOTING_S = 10.0  # between two discoveries while cards are booting
BOOTING_TRIES = 6
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
        self._loader = DcmiLoader(host, settings, clock, self._report_slow_call)
        self._npu_smi = npu_smi.NpuSmi(settings.driver_root, clock=clock)
        self._uses_npu_smi = False  # as long as there is no library
        self._chips = ChipTable(host, context.state_dir, settings.forget_after_s, clock)
        self._enumerator = ChipEnumerator(self._chips.stored.values())
        self._network = NetworkWatch(clock)
        self._traffic = TrafficWatch(clock)
        self._links = LinkWatch(settings.driver_root, settings.network_tool_interval_s, clock)
        self._faults = FaultStore(context.state_dir)
        table, table_problem = load_fault_codes(settings.fault_codes)
        self._watch = ChipHealthWatch(
            self._faults,
            table,
            self._network,
            clock,
            network_counts=settings.network_is_health,
        )
        ledger = VnpuOwnershipFile(context.state_dir, read_boot_id(host))
        self._vnpus = VnpuMaker(ledger)
        # problems of files that were read at the start do not go away
        self._start_problems = distinct_problems(
            table_problem, self._faults.problem, self._chips.problem, ledger.problem
        )
        self._queue = FaultQueue()
        self._pending: deque[DeviceEvent] = deque(maxlen=MAX_PENDING)
        self._reported_symbols: set[str] = set()  # slow symbols with an event
        self._discovery_request_s: float | None = None  # time to request a discovery
        self._library_retry_s = clock.monotonic() + RETRY_LIBRARY_S  # next search for the driver
        self._incomplete_lists = 0  # consecutive incomplete lists of cards
        self._interval_s = settings.sample_interval_s
        self._sampler = AscendSampler(self._interval_s, clock)
        self._next_s = 0.0
        self._samples: tuple[DeviceSample, ...] = ()
        self._last: Inventory | None = None
        self._failures = 0  # consecutive failed discoveries

    def journal_calls(self, journal: LibraryCallJournal) -> None:
        """Set the journal of library calls; called before the library is loaded."""
        self._loader.calls = journal
        self._name_chips(self._chips.stored.values())

    def _name_chips(self, devices: Iterable[VendorDevice]) -> None:
        for device in devices:
            place = place_of(device)
            if place is not None:
                self._loader.calls.assign(chip_name(*place), device.key)

    def discover(self) -> Inventory:
        """Describe all chips; a chip that does not answer stays listed and hides no other chip."""
        functions = find_npus(self._host)
        if self._is_replay:
            devices = tuple(
                describe_function(function, "NoRecordedAnswers") for function in functions
            )
            return Inventory(vendor="ascend", devices=devices)
        self._discovery_request_s = None
        try:
            dcmi = self._library()
            enumeration = self._enumerator.enumerate(
                dcmi, {function.bus_id: function for function in functions}
            )
        except LibraryUnavailable as error:
            return self._inventory_without_library(
                functions, Problem(reason=error.reason, message=str(error))
            )
        except LibraryReplaced:
            raise
        except AgentError as error:
            return self._inventory_after_failure(
                functions, Problem(reason="DriverError", message=str(error))
            )
        self._failures, self._last = 0, self._inventory(dcmi, enumeration, functions)
        return self._last

    def _library(self) -> Dcmi:
        is_first = self._loader.dcmi is None
        dcmi = self._loader.load()
        if is_first:
            self._watch.subscribed = self._queue.subscribe(dcmi)
        return dcmi

    def _report_slow_call(self, symbol: str, elapsed_s: float) -> None:
        if symbol not in self._reported_symbols:
            self._reported_symbols.add(symbol)
            message = f"{symbol} took {elapsed_s:.1f} s"
            self._queue_event(DeviceEvent(key="", reason="SlowAnswer", message=message))

    def _inventory_after_failure(
        self, functions: tuple[AscendFunction, ...], problem: Problem
    ) -> Inventory:
        """Return the last inventory, uncertain; after three failures in a row, that of sysfs."""
        self._failures += 1
        if self._last is None or self._failures >= FAILING_POLLS:
            return self._inventory_without_library(functions, problem)
        devices = tuple(
            mark_uncertain(device, str(problem.message)) for device in self._last.devices
        )
        return replace(self._last, devices=devices, problems=(problem,))

    def _inventory_without_library(
        self, functions: tuple[AscendFunction, ...], problem: Problem
    ) -> Inventory:
        answer = None
        if problem.reason in ("LibraryMissing", "LibraryUnfit"):
            try:
                answer = self._npu_smi.query(functions)
            except AgentError as error:
                problem = replace(problem, message=f"{problem.message}; {error}")
        self._uses_npu_smi = answer is not None
        if answer is not None:
            return npu_smi.inventory_from_npu_smi(answer, self._host, functions, problem)
        return npu_smi.inventory_from_sysfs(functions, self._chips.stored, self._host, problem)

    def _inventory(
        self, dcmi: Dcmi, enumeration: ChipEnumeration, functions: tuple[AscendFunction, ...]
    ) -> Inventory:
        for event in self._chips.update(enumeration, {function.bus_id for function in functions}):
            self._queue_event(event)
        chips = self._chips.chips
        self._watch.set_chips(chips.values())
        for watched in chips.values():
            watched.next_poll_s = 0.0
        polled = {key: self._watch.poll(watched) for key, watched in chips.items()}
        self._watch.mark_sibling_resets(chips.values())
        devices = [
            describe_watched_chip(w, self._watch.health_after(w, polled[key]), self._host)
            for key, w in chips.items()
        ]
        devices.sort(key=lambda device: -1 if device.minor is None else device.minor)
        devices += describe_unlisted(functions, devices, self._chips.stored)
        self._chips.save_devices(devices)
        self._name_chips(devices)
        self._faults.flush()
        self._network.watch(dcmi, self._chips.ports())
        self._traffic.watch(dcmi, self._chips.places())
        self._links.watch(self._chips.port_numbers())
        topology = links_of_node(dcmi, self._chips)
        return Inventory(
            vendor="ascend",
            devices=with_owners(devices, self._vnpus.entries),
            links=topology.links,
            driver_version=driver_version(self._host) or dcmi.version(),
            library=dcmi.path,
            facts=node_facts(dcmi, tuple(chips.values()), self._network),
            problems=(*self._problems(enumeration), *topology.problems),
            groups=topology.groups,
            group_policy=topology.policy,
        )

    def _problems(self, enumeration: ChipEnumeration) -> tuple[Problem, ...]:
        store_problems = (self._faults.problem, self._chips.problem)
        problems = list(
            distinct_problems(*enumeration.problems, *self._start_problems, *store_problems)
        )
        if enumeration.is_booting:
            message = "the driver counts cards that it does not name yet"
            problems.append(Problem(reason="CardsBooting", message=message))
            self._incomplete_lists += 1
            if self._incomplete_lists <= BOOTING_TRIES:
                self._discovery_request_s = self._clock.monotonic() + BOOTING_S
        else:
            self._incomplete_lists = 0
        if self._queue.dropped:
            message = f"{self._queue.dropped} fault events came faster than they were read"
            problems.append(Problem(reason="EventsLost", message=message))
        return tuple(problems)

    def sample(self) -> tuple[DeviceSample, ...]:
        """Sample the chips that answer, at most once per `sample_interval_s`.

        In between, return the last samples without health.
        """
        self._loader.check_not_replaced()
        now_s = self._clock.monotonic()
        self._request_discovery(now_s)
        if now_s >= self._next_s:
            self._next_s = now_s + self._interval_s
            self._samples = self._sample_round()
            return self._samples
        return tuple(replace(sample, health=None) for sample in self._samples)

    def _request_discovery(self, now_s: float) -> None:
        """Request a discovery if cards were booting, or when the driver becomes available."""
        if self._discovery_request_s is not None and now_s >= self._discovery_request_s:
            self._discovery_request_s = None
            self._queue_event(DeviceEvent(key="", reason="CardsBooting"))
        if self._loader.dcmi is None and now_s >= self._library_retry_s:
            self._library_retry_s = now_s + RETRY_LIBRARY_S
            try:
                self._library()
            except LibraryUnavailable:
                return
            self._queue_event(DeviceEvent(key="", reason="DriverCame"))

    def _sample_round(self) -> tuple[DeviceSample, ...]:
        if self._loader.dcmi is None or self._loader.unloaded:
            return self._npu_smi.samples(find_npus(self._host)) if self._uses_npu_smi else ()
        chips = self._chips.chips
        self._chips.mark_missing()
        before = {key: watched.health for key, watched in chips.items()}
        polled = {key: self._watch.poll(watched) for key, watched in chips.items()}
        self._watch.mark_sibling_resets(chips.values())
        samples = []
        for key, watched in chips.items():
            health = polled[key]
            if health is not None or watched.is_out_of_service:
                health = self._watch.health_after(watched, health)
                self._publish_failure(key, before[key], health)
            samples.append(replace(self._sample(watched), health=health))
        self._faults.flush()
        return tuple(samples)

    def _sample(self, watched: WatchedChip) -> DeviceSample:
        if not watched.is_answering:
            return DeviceSample(key=watched.description.key)
        watched.chip.begin_round()
        chip = watched.description
        state = PolledState(
            fault_codes=active_codes(self._faults.history_of(chip.uuid)),
            port=self._network.port(chip.key),
            traffic=self._traffic.traffic(chip.key),
            link=self._links.link(chip.key),
        )
        return self._sampler.sample(chip, watched.chip, state)

    def _publish_failure(self, key: str, before: Health | None, now: Health) -> None:
        """Publish an event when a chip fails, without waiting for the next discovery."""
        if now.state is not HealthState.FAILED or not now.certain:
            return
        if before is None or (before.state, before.reason) != (now.state, now.reason):
            event = DeviceEvent(key=key, reason=now.reason, message=now.message, state=now.state)
            self._queue_event(event)

    def _queue_event(self, event: DeviceEvent) -> None:
        self._pending.append(event)
        self._queue.wake()

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Wait for fault events and for events of the sampling."""
        until_s = self._clock.monotonic() + wait_s
        while True:
            remaining_s = 0.0 if self._pending else until_s - self._clock.monotonic()
            received = [
                self._watch.take_event(event) for event in self._queue.take(max(0.0, remaining_s))
            ]
            events = [event for event in received if event is not None]
            while self._pending:
                events.append(self._pending.popleft())
            if events or self._clock.monotonic() >= until_s:
                return tuple(events)

    def clear(self, key: str) -> bool:
        """Release a separated chip at a person's request; return whether it was separated."""
        watched = self._chips.chips.get(key)
        if watched is None or not self._faults.release(watched.description.uuid):
            return False
        self._faults.flush()
        watched.next_poll_s = 0.0
        self._next_s = 0.0
        return True

    def slices(self, requests: Sequence[SliceRequest], pods: Collection[str] | None) -> SliceReport:
        """Create requested vNPUs, and destroy the agent's vNPUs of deleted pods."""
        chips = {
            key: self._divisible_chip(w) for key, w in self._chips.chips.items() if w.is_answering
        }
        return reconcile_vnpus(self._vnpus, chips, requests, pods)

    def _divisible_chip(self, watched: WatchedChip) -> DivisibleChip:
        chip = watched.description
        return DivisibleChip(
            chip=watched.chip,
            die=chip.uuid,
            model=template_model(chip.family, chip.facts.name),
            cores=cores(chip.family, chip.facts),
            describe=lambda vdev: describe_vnpu(chip, vdev, self._host),
        )

    def close(self) -> None:
        """End waiting threads; the library stays loaded until the process ends."""
        self._network.close()
        self._traffic.close()
        self._links.close()
        self._queue.wake()
