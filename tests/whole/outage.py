"""Six hours without an API server: watches, writers, events and the kubelet's pods together.

Time is simulated; everything else is the agent's own. Devices change, pods restart and events
come all the while, and once the kubelet is away as well.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from agent.app.cluster_facts import ClusterFactsUpdater, create_watches
from agent.app.cluster_sink import ClusterPublishSink
from agent.app.identity import MachineIdentity
from agent.config.cluster import KubeletSettings
from agent.kube.errors import Unreachable
from agent.kube.events import EventSink
from agent.kube.watch.reflector import Reflector
from agent.kube.writer.api_writer import ApiWriter
from agent.kube.writer.context import WriterContext
from agent.kubelet.client import PodList
from agent.kubelet.poller import KubeletFactsSource, KubeletPoller
from agent.messages import MessageQueue
from agent.objects.device import DevicePublisher
from agent.objects.node_metric import NodeMetricPublisher
from agent.objects.node_resource_topology import V1ALPHA1
from agent.snapshot.device import Health, HealthState
from agent.snapshot.node import SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodRef, PodView
from agent.snapshot.usage import ResourceUsage, UsageAggregate, UsageReport
from agent.wire_formats.event import Event, EventReporter
from agent.wire_formats.kubelet import KubeletConfig
from agent.wire_formats.pod import decode_pod_list
from tests import factory
from tests.apiserver.admin import node
from tests.unit.kubelet.scripted import at_once
from tests.whole.simulated import SimulatedLoop, clock, simulate
from tests.whole.unreachable_api import AwayApi

NODE = factory.snapshot().node.name
GRANT = "scheduling.koordinator.sh/device-allocated"
HOUR_S = 3600.0
PODS = 20
SETTLED_S = 900.0  # before the outage, and after it
DEVICE_EVERY_S, EVENT_EVERY_S, RESTART_EVERY_S, REPORT_EVERY_S = 10.0, 4.0, 60.0, 60.0
LOOK_EVERY_S, TICK_S = 60.0, 10.0
WITHOUT_KUBELET_S = (2 * HOUR_S, 2.1 * HOUR_S)  # since the start
FOLLOWED = ("nodes", "nodeslos", "nodemetrics", "pods")

Json = dict[str, object]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it; counts of lists and writes are of the time after the outage."""

    lists: Mapping[str, int]
    writes: Mapping[str, int]
    is_newest: bool  # the server's Device shows what was found last
    lost: tuple[str, ...]  # pods, or their grants, that were missing at any look
    gone: tuple[str, ...]  # pods deleted meanwhile that are still known
    tries: int  # calls that were not answered
    most_waiting: int  # events
    told: int  # events, after the outage
    growth_bytes: int  # of traced memory, from half an hour into the outage to its end


def pod(index: int, restarts: int = 0) -> Json:
    """Return a running pod with a grant, as both servers show it."""
    status = {"name": "a", "containerID": f"containerd://{index:08x}{restarts:056x}"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"train-{index}",
            "namespace": "default",
            "uid": f"6f6f0000-0000-4000-8000-{index:012d}",
            "annotations": {GRANT: f'{{"gpu":[{{"minor":{index % 8}}}]}}'},
        },
        "spec": {"nodeName": NODE, "containers": [{"name": "a", "image": "a"}]},
        "status": {"phase": "Running", "qosClass": "Burstable", "containerStatuses": [status]},
    }


class LocalKubelet:
    """Lists the pods that run; each has restarted so often."""

    connections = 1

    def __init__(self, time: SimulatedLoop) -> None:
        self._time = time
        self.restarts: Counter[int] = Counter(dict.fromkeys(range(PODS), 0))
        self._listed: dict[int, int] = {}
        self._pods: tuple[PodView, ...] = ()

    async def pods(self) -> PodList:
        first_s, last_s = WITHOUT_KUBELET_S
        if first_s <= self._time.monotonic() < last_s:
            raise Unreachable("GET /pods/", "connection refused")
        if self._listed != self.restarts:
            self._listed = dict(self.restarts)
            items = [pod(index, times) for index, times in self.restarts.items()]
            body = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}
            pods, _ = decode_pod_list(msgspec.json.encode(body))
            self._pods = tuple(pods)
        return PodList(pods=self._pods)

    async def config(self) -> KubeletConfig | None:
        return None


class Outage:
    """The agent's cluster side, put together as the daemon does, and the world around it."""

    def __init__(self, hours: float, *, traced: bool) -> None:
        self.traced = traced
        self.time = clock()
        self.end_s = SETTLED_S + hours * HOUR_S
        self.api = AwayApi(self.time)
        self.kubelet = LocalKubelet(self.time)
        self.store = SnapshotStore(factory.snapshot())
        machine = MachineIdentity()
        self.known = ClusterFactsUpdater(NODE, machine, self.store, self.time, MessageQueue())
        self.lost: set[str] = set()
        self.happened = self.failed = self.most_waiting = 0
        self._fill()
        self.watches: dict[str, Reflector[Any, Any]] = {}
        self.outbox = ApiWriter(
            WriterContext(
                api=self.api,
                clock=self.time,
                store=self.store,
                messages=MessageQueue(),
                watches=self.watches,
            )
        )
        self.watches.update(
            create_watches(
                self.api,
                NODE,
                self.known,
                self.time,
                on_version=self.outbox.note_version,
                topology_version=lambda: V1ALPHA1,
            )
        )
        self.sink = EventSink(self.api, EventReporter(name=NODE), self.time)
        self.outlet = ClusterPublishSink(
            self.outbox, self.sink, self.store, self.time, machine, self.time
        )
        self.device = self.outlet.runner(DevicePublisher())
        self.report = self.outlet.runner(NodeMetricPublisher(REPORT_EVERY_S))
        self.poller = KubeletPoller(
            self.kubelet,
            self.time,
            KubeletSettings(interval_s=20.0),
            facts=KubeletFactsSource(
                self.kubelet, self.time, self.store, None, "/var/lib/kubelet", at_once
            ),
            listener=self.known,
        )

    async def run(self) -> Outcome:
        """Live before, through and after the outage; return what came of it."""
        running = [
            *(watch.run() for watch in self.watches.values()),
            self.outbox.run(),
            self.sink.run(),
            self.poller.run(),
            self._ages(),
        ]
        happening = [
            self._each(DEVICE_EVERY_S, self._change_device),
            self._each(EVENT_EVERY_S, self._happen),
            self._each(RESTART_EVERY_S, self._restart),
            self._each(REPORT_EVERY_S, self._report),
            self._each(LOOK_EVERY_S, self._look),
        ]
        tasks = [asyncio.ensure_future(work) for work in (*running, *happening)]
        await asyncio.sleep(SETTLED_S)
        self.api.leave()
        await asyncio.sleep(HOUR_S / 2)
        if self.traced:
            tracemalloc.start()
        before_bytes = _used_bytes()
        await asyncio.sleep(self.end_s - self.time.monotonic())
        growth_bytes = _used_bytes() - before_bytes
        tracemalloc.stop()
        for task in tasks[len(running) :]:
            task.cancel()
        outcome = await self._return(growth_bytes)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended
        return outcome

    async def _return(self, growth_bytes: int) -> Outcome:
        """Have the server back, with one pod less and one more than it had."""
        deleted, new = 0, PODS
        del self.kubelet.restarts[deleted]
        self.kubelet.restarts[new] = 0
        self.api.objects.delete("pods", f"train-{deleted}", "default")
        self.api.objects.put(pod(new))
        self.api.served.clear()
        self.api.come_back()
        await asyncio.sleep(SETTLED_S)
        self._look()
        stored = self.api.objects.get("Device", NODE)
        assert stored is not None
        healths = [
            device["health"] for device in stored["spec"]["devices"] if device["type"] == "gpu"
        ]
        served = self.api.served
        names = {one.name for one in self.store.current.cluster.pods}
        return Outcome(
            lists={name: served["list", name] for name in FOLLOWED},
            writes={name: served["patch", name] for name in ("devices", "nodemetrics")},
            is_newest=healths.count(False) == self.failed,
            lost=tuple(sorted(self.lost)),
            gone=tuple(sorted(names & {f"train-{deleted}"})),
            tries=self.api.refused,
            most_waiting=self.most_waiting,
            told=served["create", "events"],
            growth_bytes=growth_bytes,
        )

    def _fill(self) -> None:
        self.api.objects.put(node(NODE))
        for index in range(PODS):
            self.api.objects.put(pod(index))
        for kind in ("NodeSLO", "NodeMetric"):
            api_version = "slo.koordinator.sh/v1alpha1"
            body = {"apiVersion": api_version, "kind": kind, "metadata": {"name": NODE}, "spec": {}}
            self.api.objects.put(body)

    def _change_device(self) -> None:
        """One card more fails, until six have: then all are well again."""
        self.failed = (self.failed + 1) % 7
        view = self.store.current.devices.value
        bad = Health(state=HealthState.FAILED, reason="Xid79", message="gone")
        cards = tuple(
            factory.gpu(index, health=bad if index < self.failed else Health())
            for index in range(8)
        )
        devices = replace(self.store.current.devices, value=replace(view, devices=cards))
        self.store.put(devices=devices)
        self.device.run_once()

    def _happen(self) -> None:
        self.happened += 1
        number = self.happened
        where = PodRef(namespace="default", name=f"train-{number % PODS}", uid=str(number % PODS))
        event = Event(
            type="Warning",
            reason=f"Reason{number % 5}",
            message=f"this is the message number {number % 1000}",
            object_kind="Pod" if number % 2 else "Node",
            at_s=self.time.wall(),
            pod=where if number % 2 else None,
        )
        self.sink.offer((event,))
        self.most_waiting = max(self.most_waiting, self.sink.state.counts.waiting)

    def _restart(self) -> None:
        self.kubelet.restarts[int(self.time.monotonic() / RESTART_EVERY_S) % PODS] += 1

    def _report(self) -> None:
        now_s = self.time.monotonic()
        window = UsageAggregate(duration_s=300, node=(("avg", ResourceUsage(cpu_cores=now_s)),))
        self.store.put(report=SnapshotPart(UsageReport(aggregates=(window,)), now_s))
        self.report.run_once()

    def _look(self) -> None:
        """Note what is not known as it must be."""
        entries = {one.name: one for one in self.store.current.cluster.pods}
        for index in self.kubelet.restarts:
            result = entries.get(f"train-{index}")
            if result is None or GRANT not in dict(result.annotations):
                self.lost.add(f"train-{index}")

    async def _each(self, seconds: float, work: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(seconds)
            work()

    async def _ages(self) -> None:
        """As `agent.app.cluster` does."""
        while True:
            await asyncio.sleep(TICK_S)
            for part in ("node", "slo", "metric_policy"):
                now_s, state = self.time.monotonic(), self.watches[part].state
                self.known.confirm(part, state.contact_s(now_s), state.last_error)
            self.known.update_api_reachability(not self.watches["pods"].state.last_error)


def _used_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def outage(hours: float, *, traced: bool = False) -> Outcome:
    """Return what comes of an outage of so many hours; tracing memory takes four times as long."""

    async def live() -> Outcome:
        return await Outage(hours, traced=traced).run()

    return simulate(live())
