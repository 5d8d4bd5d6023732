"""The extender as a service: takes the lease, follows the cluster for a term, answers, and ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import uuid

from agent.access.rules import AccessFiles
from agent.clock import Clock, SystemClock
from agent.command_line import raise_open_file_limit
from agent.errors import ParseError
from agent.kube.api import ApiClient
from agent.kube.endpoint import find_api_target
from agent.kube.errors import ApiError
from agent.kube.events import EventSink
from agent.kube.session import open_session
from agent.loop import run_forever
from agent.wire_formats.event import EventReporter
from plugins.scheduler.allocation_audit import AllocationAudit
from plugins.scheduler.cluster_state import ClusterState
from plugins.scheduler.decisions import DecisionMaker
from plugins.scheduler.load.node_loads import NodeLoads
from plugins.scheduler.server.binding import Binder
from plugins.scheduler.server.cluster_feed import ClusterFeed
from plugins.scheduler.server.device_ledger import DeviceLedger
from plugins.scheduler.server.extender import Extender
from plugins.scheduler.server.http_server import ExtenderServer, TermSource, tls_context, tls_files
from plugins.scheduler.server.lease import LeaderApi, LeaderElector
from plugins.scheduler.server.load_feed import LoadFeed
from plugins.scheduler.server.resource_publisher import ResourcePublisher
from plugins.scheduler.server.scheduler_events import COMPONENT, SchedulerEvents
from plugins.scheduler.server.service_address import ServiceAddress
from plugins.scheduler.server.settings import SchedulerSettings
from plugins.scheduler.server.vendor_plugins import VendorPlugins

log = logging.getLogger(__name__)

POD_IP = "POD_IP"  # variable with the address of this pod
ADDRESS_RETRY_S = 2.0
RESOLVE_S = 30.0  # between two looks at bindings whose outcome is not known
CHECK_S = 2.0  # between two checks of the allocations
RESTART_S = 1.0
SYNC_POLL_S = 0.05


def node_loads(settings: SchedulerSettings, clock: Clock) -> NodeLoads:
    """Return the empty state of the scores by load and requests."""
    return NodeLoads(settings.load_score, settings.fit_plus, settings.scarce_resources, clock)


class LeaderTerm:
    """The objects of one term; a new one starts empty and lists the most recent state."""

    def __init__(
        self,
        api: ApiClient,
        settings: SchedulerSettings,
        clock: Clock,
        term: int = 0,
        events: SchedulerEvents | None = None,
    ) -> None:
        """`term` is the lease's number of this term."""
        self.events = events or SchedulerEvents(None, clock)
        self._ledger = DeviceLedger(api, term) if settings.strict_ledger else None
        self.state = ClusterState()
        self.decisions = DecisionMaker(self.state, settings.rules(), settings.strategy())
        loads = node_loads(settings, clock) if settings.has_load_scores else None
        self.extender = Extender(
            self.decisions, clock, loads, device_weight=settings.device_score_weight
        )
        self.feed = ClusterFeed(api, self.state, clock)
        self.audit = AllocationAudit(self.state, self.feed.pods)
        self._load_feed = None if loads is None else LoadFeed(api, loads, clock)
        self._publisher: ResourcePublisher | None = None
        if settings.publish_node_resources:
            shares = settings.publish_gpu_shared
            self._publisher = ResourcePublisher(api, clock, advertises_shared=shares)
        writes_vendors = settings.vendor_annotations
        self.binder = Binder(
            api,
            self.state,
            self.decisions,
            self.feed.pods,
            clock,
            ledger=self._ledger,
            vendor_plugins=VendorPlugins(api, self.state, clock) if writes_vendors else None,
        )
        self._clock = clock
        self._unreported: frozenset[str] = frozenset()  # uids at the last look

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        if self._ledger is not None:
            await self._read_marks(self._ledger)
        async with asyncio.TaskGroup() as group:
            for part in (self.feed, self._load_feed, self._publisher):
                for name, work in (part.tasks() if part is not None else {}).items():
                    group.create_task(self._forever(name, work), name=name)
            group.create_task(self._resolve(), name="uncertain bindings")
            group.create_task(
                self._forever("allocations", self._check_allocations), name="allocations"
            )

    async def _read_marks(self, ledger: DeviceLedger) -> None:
        while True:
            try:
                await ledger.start()
            except (ApiError, ParseError) as error:
                log.warning("device_marks_not_read", extra={"error": str(error)})
                await asyncio.sleep(RESTART_S)
            else:
                return

    async def _forever(self, name: str, work: object) -> None:
        await run_forever(
            name,
            work,  # type: ignore[arg-type]  # a reflector's `run`
            again_s=RESTART_S,
            monotonic=self._clock.monotonic,
            sleep=asyncio.sleep,
        )

    async def _resolve(self) -> None:
        while True:
            await asyncio.sleep(RESOLVE_S)
            await self.resolve()

    async def _check_allocations(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            if self.feed.is_synced:
                async for problem in self.audit.check():
                    self.events.report_problem(problem)

    async def resolve(self) -> None:
        """Settle bindings whose outcome is not known, and pods that no watch has shown for long.

        A pod that was deleted while the watch was broken is in no list and in no event.
        """
        await self.binder.resolve_uncertain()
        unreported = self.feed.pods.unreported()
        await self.binder.confirm(pod for pod in unreported if pod.key.uid in self._unreported)
        self._unreported = frozenset(pod.key.uid for pod in unreported)


class SchedulerService:
    """Runs until the lease is lost or a signal arrives."""

    def __init__(
        self,
        api: ApiClient,
        settings: SchedulerSettings,
        clock: Clock,
        address: ServiceAddress | None = None,
        events: EventSink | None = None,
    ) -> None:
        """`address` is published in each term, once the cluster is known."""
        self._events = SchedulerEvents(events, clock)
        self._api = api
        self._settings = settings
        self._clock = clock
        self._address = address
        self._term: LeaderTerm | None = None
        lease = settings.leader_election
        self._elector: LeaderElector | None = None
        if lease.enabled:
            self._identity = f"{socket.gethostname()}_{uuid.uuid4()}"
            self._elector = LeaderElector(
                api, clock, self._identity, namespace=lease.namespace, name=lease.name
            )

    def is_leader(self) -> bool:
        """Return whether this replica may answer and write now."""
        return self._elector is None or self._elector.is_leader

    def current_term(self) -> LeaderTerm | None:
        """Return what answers; `None` while this replica is not the leader or not synced."""
        term = self._term
        return term if term is not None and self.is_leader() and term.feed.is_synced else None

    def why_silent(self) -> str:
        """Return why there is no term, for people."""
        if self._elector is not None and not self._elector.is_leader:
            holder = self._elector.holder or "nobody"
            return f"not the leader: {holder} holds the lease. {self._elector.error}".strip()
        statuses = self._term.feed.statuses if self._term is not None else ()
        missing = ", ".join(status.resource for status in statuses if not status.synced)
        return f"not synced: {missing or 'starting'}"

    async def run(self) -> None:
        """Serve one term; return when the lease is lost."""
        if self._elector is not None:
            await self._elector.acquire()
            log.info("leadership_taken")
            lease = self._settings.leader_election
            uid = self._elector.lease_uid
            self._events.report_leadership(self._identity, lease.namespace, lease.name, uid)
        self._term = term = LeaderTerm(
            self._api if self._elector is None else LeaderApi(self._api, self._elector),
            self._settings,
            self._clock,
            term=0 if self._elector is None else self._elector.term,
            events=self._events,
        )
        work = asyncio.create_task(term.run(), name="term")
        publishing = asyncio.create_task(self._publish_address(term), name="address")
        try:
            if self._elector is None:
                await work
            else:
                await self._elector.hold()
        finally:
            for task in (publishing, work):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            self._term = None

    async def _publish_address(self, term: LeaderTerm) -> None:
        """Send calls to this replica as soon as it can answer them."""
        while self._address is not None:
            if self.is_leader() and term.feed.is_synced and await self._address.publish():
                return
            await asyncio.sleep(ADDRESS_RETRY_S if term.feed.is_synced else SYNC_POLL_S)

    async def release(self) -> None:
        """Give up the lease at the end, so that another replica takes over at once."""
        if self._elector is not None:
            await self._elector.release()


async def _send_events(events: EventSink | None, clock: Clock) -> None:
    if events is not None:
        await run_forever(
            "events",
            events.run,
            again_s=RESTART_S,
            monotonic=clock.monotonic,
            sleep=asyncio.sleep,
        )


async def _follow_files(files: AccessFiles | None, clock: Clock) -> None:
    if files is not None:
        await run_forever(
            "certificates",
            files.run,
            again_s=RESTART_S,
            monotonic=clock.monotonic,
            sleep=asyncio.sleep,
        )


async def freeze_synced_cluster(terms: TermSource) -> None:
    """Exclude the objects of the cluster from garbage collection once they are all there.

    A search through those of 10,000 nodes takes 0.1 s, for which calls would wait now and then.
    A process serves one term, so that nothing of an earlier one is kept.
    """
    while terms.current_term() is None:
        await asyncio.sleep(SYNC_POLL_S)
    gc.collect()
    gc.freeze()


async def serve(settings: SchedulerSettings, listen: tuple[str, int], kubeconfig: str = "") -> int:
    """Run the extender until SIGTERM, SIGINT or the loss of the lease; return the exit status."""
    raise_open_file_limit()
    clock = SystemClock()
    certificates = tls_files(settings.tls)
    context = None if certificates is None else tls_context(certificates)
    target = find_api_target(os.environ, kubeconfig, option="--kubeconfig")
    session = await open_session(target, clock, os.environ)
    lease = settings.leader_election
    address = None
    if settings.service:
        pod_ip = os.environ.get(POD_IP, "")
        address = ServiceAddress(session, lease.namespace, settings.service, pod_ip, listen[1])
    events = None
    if settings.events:
        reporter = EventReporter(component=COMPONENT, name=socket.gethostname())
        events = EventSink(session, reporter, clock)
    service = SchedulerService(session, settings, clock, address, events)
    server = ExtenderServer(service, context, settings.tls.client_names)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        url = await server.open(*listen)
        print(f"xpu-scheduler: {url}", flush=True)  # noqa: T201 - the one line of the command
        running = asyncio.create_task(service.run(), name="service")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        sending = asyncio.create_task(_send_events(events, clock), name="events")
        freezing = asyncio.create_task(freeze_synced_cluster(service), name="freeze")
        following = asyncio.create_task(_follow_files(certificates, clock), name="certificates")
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        is_lost = running.done()
        tasks = (running, stopping, sending, freezing, following)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await service.release()
        return 1 if is_lost else 0
    finally:
        await server.close()
        await session.close()
