"""The agent in a cluster: the API session, watches and writers, and the kubelet's services."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from agent.app.cluster_facts import ClusterFactsUpdater, create_watches
from agent.app.cluster_sink import ClusterPublishSink
from agent.app.identity import read_machine
from agent.clock import Clock
from agent.config.cluster import KubeletSettings
from agent.config.containers import ENFORCE_MODES
from agent.config.settings import Settings
from agent.devices.published_minors import PublishedMinorStore
from agent.errors import ParseError
from agent.kube.api import ApiClient, ObjectRequests, decode_object
from agent.kube.api_versions import follow_api_versions
from agent.kube.credentials import Credentials
from agent.kube.endpoint import ApiTarget
from agent.kube.errors import ApiError, NotFound
from agent.kube.events import EventSink
from agent.kube.eviction import EvictionService, PodEvictor
from agent.kube.flow_control import Backoff
from agent.kube.resources import DEVICES, NODE_METRICS
from agent.kube.session import ApiSession, open_session
from agent.kube.volume_claims import follow_volume_names
from agent.kube.watch.reflector import Reflector
from agent.kube.writer.api_writer import ApiWriter
from agent.kube.writer.context import WriterContext, WriterTiming
from agent.kubelet.client import KubeletClient
from agent.kubelet.pod_list_file import PodListFile
from agent.kubelet.pod_resources_socket import kubelet_socket
from agent.kubelet.poller import KubeletFactsSource, KubeletPoller
from agent.loop import log_failure, run_forever, run_in_thread
from agent.messages import MessageQueue, MinorsRead
from agent.objects.node_resource_topology import API_GROUP, V1ALPHA1, version_to_write
from agent.snapshot.cluster import ClusterServiceStatus, PodResourcesProxyStatus
from agent.snapshot.host_files import HostFiles
from agent.snapshot.node import SnapshotStore
from agent.wire_formats.event import EventReporter

if TYPE_CHECKING:
    from agent.kubelet.pod_resources_proxy import PodResourcesProxy

log = logging.getLogger(__name__)

FIRST_WATCH = "node"  # followed before all others: nothing is written until it is known

AGES_INTERVAL_S = 2.0  # how often ages are carried into the snapshot

TASK_LOST = "cluster_task_lost"

RETRY_S = 1.0  # after a bug, doubled each time

NODE_DEADLINE_S = 1.0  # at a start: an API server that is away keeps nobody from serving

FLUSH_DEADLINE_S = 1.5  # at a stop: for objects that are not written yet, and as long for events


class _NodeObjectUids:
    """The uids of the Node and of the objects that the agent writes."""

    def __init__(self, store: SnapshotStore, outbox: ApiWriter) -> None:
        self._store = store
        self._outbox = outbox

    def uid(self, kind: str) -> str:
        """Return the uid; empty while it is unknown. For any thread."""
        return self._store.current.node.uid if kind == "Node" else self._outbox.uid(kind)


class ClusterService:
    """The connection of the agent to one cluster. Belongs to the loop thread."""

    def __init__(
        self,
        settings: Settings,
        host_files: HostFiles,
        store: SnapshotStore,
        clock: Clock,
        target: ApiTarget,
        messages: MessageQueue,
        minors: PublishedMinorStore | None = None,
        pod_file: PodListFile | None = None,
    ) -> None:
        """Read the minors of the Device object unless `minors` is complete."""
        self._settings = settings
        self._host_files = host_files
        self._store = store
        self._clock = clock
        self._pod_file = pod_file
        self._minor_store = minors or PublishedMinorStore()
        self._messages = messages
        self._target = target
        name = store.current.node.name
        self._machine = read_machine(host_files)
        self.facts = ClusterFactsUpdater(
            name,
            self._machine,
            store,
            clock,
            messages,
        )
        # set when a new list of the kubelet's pods is needed; the poller limits how often
        self.pods_wanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.watches: dict[str, Reflector[Any, Any]] = {}  # by the snapshot's name of it
        self.session: ApiSession | None = None
        self.outbox: ApiWriter | None = None
        self.event_sink: EventSink | None = None
        self.kubelet: KubeletService | None = None
        self._evictions: EvictionService | None = None

    async def open(self) -> ClusterPublishSink:
        """Open the session and start the watches; raises `NoApiServer`.

        It waits for no answer: an API server that is down may come back later.
        """
        store, clock, api = self._store, self._clock, self._settings.api
        self.session = session = await open_session(self._target, clock, os.environ)

        name = store.current.node.name
        pace = WriterTiming(
            resync_s=api.resync_s, takeover_s=api.takeover_s, deadline_s=api.deadline_s
        )
        context = WriterContext(
            api=session,
            clock=clock,
            store=store,
            messages=self._messages,
            watches=self.watches,
            timing=pace,
        )
        self.outbox = outbox = ApiWriter(context)
        self.watches.update(
            create_watches(
                session,
                name,
                self.facts,
                clock,
                on_version=outbox.note_version,
                topology_version=lambda: version_to_write(store.current) or V1ALPHA1,
            )
        )
        self._run_forever(self.watches[FIRST_WATCH].run, f"watch {FIRST_WATCH}")
        self._run_forever(self.facts.apply_slos, "NodeSLO")
        self._run_forever(partial(self._follow_metric_policy, outbox), "NodeMetric")
        self._spawn(outbox.run(), "outbox")
        if api.events:
            self.event_sink = EventSink(
                session,
                EventReporter(name=name),
                clock,
                uids=_NodeObjectUids(store, outbox),
                may_send=lambda: self.facts.write_permission().is_allowed,
                deadline_s=api.deadline_s,
            )
            self._run_forever(self.event_sink.run, "events at the API server")
        self._run_forever(self._update_ages, "ages")
        if not self._minor_store.is_complete:
            self._run_forever(partial(self._adopt_minors, session, name), "published minors")
        return ClusterPublishSink(
            outbox,
            self.event_sink,
            store,
            clock,
            self._machine,
            asyncio.get_running_loop(),
        )

    async def _adopt_minors(self, api: ApiClient, name: str) -> None:
        """Read the Device object and take its minors; no Device is published before that."""
        deadline_s = self._settings.api.deadline_s
        self._messages.put(MinorsRead(await read_device(api, name, deadline_s)))

    async def wait_for_node(self) -> None:
        """Wait a short time until the Node is known, or known to be unavailable."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NODE_DEADLINE_S):
                await self.watches[FIRST_WATCH].wait_ready()

    def start_rest(self) -> None:
        """Start all other parts: pods, NodeSLO, NodeMetric, API versions, the kubelet."""
        if self.session is None:
            return
        self._start_other_watches(self.session)
        if not self._settings.kubelet.enabled:
            return

        self.kubelet = build_kubelet_service(
            self._settings.kubelet,
            self._host_files,
            self._store,
            self._clock,
            self.session.credentials,
            self.facts,
            self._pod_file,
        )
        for name, work in self.kubelet.tasks():
            self._run_forever(work, name)
        self._run_forever(partial(self._poll_wanted_pods, self.kubelet.poller), "wanted pods")

    def _start_other_watches(self, session: ApiSession) -> None:
        """Start the watches of other objects.

        Each connection would delay the first Device by 5 ms.
        """
        for part, watch in self.watches.items():
            if part != FIRST_WATCH:
                self._run_forever(watch.run, f"watch {part}")
        versions = partial(
            follow_api_versions, session, API_GROUP, self.facts.update_topology_versions
        )
        self._run_forever(versions, "versions of the topology")
        if self._settings.enforce.strategies.block_io != ENFORCE_MODES[0]:
            facts = self.facts
            volumes = partial(
                follow_volume_names, session, facts.needed_claims, facts.update_volume_names
            )
            self._run_forever(volumes, "volumes of claims")

    def start_evictions(self, evictions: EvictionService) -> None:
        """Execute the requests of the strategies."""
        if self.session is None:
            return
        deadline_s = self._settings.api.deadline_s
        evictor = PodEvictor(self.session, self.facts, deadline_s)
        self._evictions = evictions
        self._run_forever(partial(evictions.run, evictor), "evictions")

    async def _follow_metric_policy(self, outbox: ApiWriter) -> None:
        """Write NodeMetric at once when the object appears."""
        with self._store.subscribe("cluster.metric_policy.value") as changes:
            while True:
                await changes.wait()
                if self._store.current.cluster.metric_policy.value is not None:
                    outbox.recheck(NODE_METRICS.kind)

    async def _poll_wanted_pods(self, poller: KubeletPoller) -> None:
        while True:
            await self.pods_wanted.wait()
            self.pods_wanted.clear()
            poller.poll_soon()

    async def stop(self) -> None:
        """Write the last objects and events, each for a limited time; then end everything."""
        if self.outbox is not None:
            await self.outbox.close(FLUSH_DEADLINE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.event_sink is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.event_sink.step(), FLUSH_DEADLINE_S)
        if self.kubelet is not None:
            await self.kubelet.close()
        if self.session is not None:
            await self.session.close()

    def status(self) -> ClusterServiceStatus | None:
        """Return the state of every part; `None` before `open`. For any thread."""
        if self.session is None or self.outbox is None:
            return None
        return ClusterServiceStatus(
            session=self.session.state,
            watches=tuple(watch.state for watch in self.watches.values()),
            writers=self.outbox.states(),
            events=self.event_sink.state if self.event_sink is not None else None,
            kubelet=self.kubelet.poller.state if self.kubelet is not None else None,
            proxy=self.kubelet.proxy_status() if self.kubelet is not None else None,
            write_permission=self.facts.write_permission(),
            slo_stale_s=self._settings.api.slo_stale_s,
        )

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        # a bug: this part of the cluster service stands still
        task.add_done_callback(lambda done: log_failure(done, log, TASK_LOST, task=name))
        self._tasks.append(task)

    def _run_forever(self, work: Callable[[], Coroutine[object, object, None]], name: str) -> None:
        """Run a task and restart it after a bug, which must not stop the updates for ever."""
        monotonic = self._clock.monotonic
        endless_work = run_forever(
            name, work, again_s=RETRY_S, monotonic=monotonic, sleep=asyncio.sleep
        )
        self._spawn(endless_work, name)

    async def _update_ages(self) -> None:
        while True:
            await asyncio.sleep(AGES_INTERVAL_S)
            now_s = self._clock.monotonic()
            for part in ("node", "slo", "metric_policy"):
                state = self.watches[part].state
                self.facts.confirm(part, state.contact_s(now_s), state.last_error)
            if (absent_s := self.watches["slo"].state.absent_s) is not None:
                self.facts.confirm_no_slo(absent_s)
            self.facts.update_api_reachability(not self.watches["pods"].state.last_error)
            if self.kubelet is not None:
                self.kubelet.poll_for_unlisted_pods()
            if self._evictions is not None and self.outbox is not None:
                self._record_metric(self._evictions, self.outbox)

    def _record_metric(self, evictions: EvictionService, outbox: ApiWriter) -> None:
        """Record when the API server last acknowledged NodeMetric."""
        clock = self._clock
        for state in outbox.states():
            if state.kind == NODE_METRICS.kind and state.last_ack_s is not None:
                evictions.record_metric(clock.monotonic() - (clock.wall() - state.last_ack_s))


async def read_device(
    api: ApiClient,
    name: str,
    deadline_s: float,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    uniform: Callable[[float, float], float] = random.uniform,
) -> object:
    """Return the Device object as JSON data, `None` if there is none; retry until it is certain."""
    request = ObjectRequests(resource=DEVICES, name=name, deadline_s=deadline_s).read()
    backoff, failures = Backoff(), 0
    while True:
        try:
            return decode_object((await api.call(request)).body)
        except NotFound:
            return None
        except (ApiError, ParseError) as error:
            failures += 1
            after_s = error.retry_after_s if isinstance(error, ApiError) else None
            await sleep(backoff.wait_s(failures, after_s, uniform))


StartWork = Callable[[], Coroutine[object, object, None]]


class KubeletService:
    """Polls the kubelet and serves its pod-resources API. Belongs to the loop thread."""

    def __init__(
        self,
        settings: KubeletSettings,
        store: SnapshotStore,
        client: KubeletClient,
        poller: KubeletPoller,
        pod_file: PodListFile | None = None,
    ) -> None:
        """For the proxy, the pods of `pod_file` replace the cluster's."""
        self._settings = settings
        self._store = store
        self._client = client
        self.poller = poller
        self._pod_file = pod_file
        self._proxy: PodResourcesProxy | None = None
        self._unlisted_pods: frozenset[str] = frozenset()

    def tasks(self) -> Iterator[tuple[str, StartWork]]:
        """Return the functions that run until cancelled, by name."""
        yield "kubelet", self.poller.run
        if self._settings.pod_resources_proxy:
            yield "pod-resources proxy", self._serve_pod_resources

    def proxy_status(self) -> PodResourcesProxyStatus | None:
        """Return the state of the pod-resources proxy; `None` if it is switched off."""
        if not self._settings.pod_resources_proxy:
            return None
        return PodResourcesProxyStatus() if self._proxy is None else self._proxy.state

    async def _serve_pod_resources(self) -> None:
        if self._proxy is None:
            settings, store, pod_file = self._settings, self._store, self._pod_file
            self._proxy = await run_in_thread(
                lambda: build_pod_resources_proxy(settings, store, pod_file)
            )
        await self._proxy.run()

    def poll_for_unlisted_pods(self) -> None:
        """Poll the kubelet at once when a pod runs here that neither source of pods lists."""
        now = self._store.current
        listed = {pod.uid for pod in now.cluster.pods}
        sandboxes = now.runtime.value.sandboxes.values()
        unnamed = frozenset(
            (
                *(pod.uid for pod in now.pods.value if not pod.name),
                *(box.uid for box in sandboxes if not box.stopped and box.uid not in listed),
            )
        )
        if unnamed - self._unlisted_pods:
            self.poller.poll_soon()
        self._unlisted_pods = unnamed

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()
        if self._proxy is not None:
            await self._proxy.close()


def build_kubelet_service(
    settings: KubeletSettings,
    host_files: HostFiles,
    store: SnapshotStore,
    clock: Clock,
    credentials: Credentials,
    facts: ClusterFactsUpdater,
    pod_file: PodListFile | None = None,
) -> KubeletService:
    """Return the service for the kubelet, which hands pods and settings to `facts`."""
    client = KubeletClient(settings, credentials, store, clock)
    source = KubeletFactsSource(client, clock, store, host_files, settings.root_dir)
    poller = KubeletPoller(client, clock, settings, facts=source, listener=facts)
    return KubeletService(settings, store, client, poller, pod_file)


def build_pod_resources_proxy(
    settings: KubeletSettings, store: SnapshotStore, pod_file: PodListFile | None
) -> PodResourcesProxy:
    """Return the proxy, which does not serve yet.

    Imports gRPC: 100 ms and 12 MB, so on a thread and only if the proxy is switched on.
    """
    from agent.kubelet.pod_resources_proxy import (  # noqa: PLC0415 - grpc
        PodResourcesChannel,
        PodResourcesProxy,
    )

    channel = PodResourcesChannel(kubelet_socket(settings.root_dir))
    return PodResourcesProxy(settings.pod_resources_proxy_dir, channel, store, pod_file)
