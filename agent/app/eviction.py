"""Carries evictions from the strategies to the API server and the runtime, and results back."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator

from agent.cgroup.enforcement import EnforcementPlan
from agent.cgroup.layout import CgroupLayout
from agent.clock import Clock
from agent.kube.eviction import PodEvictor
from agent.kubelet.container_runtime import ContainerRuntime
from agent.messages import EventReported, MessageQueue
from agent.qos.engine import QosEngine
from agent.qos.strategy import CurrentValues
from agent.snapshot.eviction import (
    EvictionFeedback,
    EvictionOutcome,
    EvictionRequest,
    EvictionResult,
    EvictionStatus,
)
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.self_check import FileCondition

SUCCESS, FAILURE, PLANNED = "evictPodSuccess", "evictPodFail", "evictPodPlanned"  # of events
REASON = "evicted"  # Koordinator's word for all evictions
NO_API_SERVER = "there is no API server"
DONE = (EvictionOutcome.EVICTED, EvictionOutcome.KILLED)
MAX_PODS = 256  # with a series each; the oldest is dropped
QUIET = (EvictionOutcome.PLANNED, EvictionOutcome.BLOCKED, EvictionOutcome.GONE)
SHOWN_S = 60.0  # a refusal is shown so long


class EvictionService:
    """Executes requests in their order.

    `submit` and `take_feedback` belong to the collector thread, `run` to the loop thread; any
    thread may call `status`.
    """

    def __init__(
        self,
        messages: MessageQueue,
        clock: Clock,
        runtime: ContainerRuntime | None = None,
    ) -> None:
        """Without `runtime`, no container is stopped past the API server."""
        self._messages = messages
        self._clock = clock
        self._runtime = runtime
        self._lock = threading.Lock()  # guards everything below
        self._requests: deque[EvictionRequest] = deque()
        self._results: deque[EvictionResult] = deque()
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._pods: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        self._blocked: dict[str, float] = {}  # namespace/name, and since when
        self._problem = ""
        self._problem_s = 0.0
        self._metric_published_s: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_requests = asyncio.Event()

    def submit(self, requests: Iterable[EvictionRequest]) -> None:
        """Queue requests; returns at once."""
        with self._lock:
            self._requests.extend(requests)
            loop = self._loop if self._requests else None
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(self._has_requests.set)

    def take_feedback(self) -> EvictionFeedback:
        """Return the results since the last call."""
        with self._lock:
            results = tuple(self._results)
            self._results.clear()
            return EvictionFeedback(results=results, metric_published_s=self._metric_published_s)

    def record_metric(self, published_s: float) -> None:
        """Record when the last NodeMetric was published; monotonic."""
        with self._lock:
            self._metric_published_s = published_s

    def status(self) -> EvictionStatus:
        """Return the figures."""
        now_s = self._clock.monotonic()
        with self._lock:
            outcomes: dict[str, list[tuple[str, int]]] = {}
            for (feature, outcome), count in sorted(self._outcomes.items()):
                outcomes.setdefault(feature, []).append((outcome, count))
            return EvictionStatus(
                outcomes=tuple((name, tuple(counts)) for name, counts in outcomes.items()),
                pods=dict(self._pods),
                blocked=tuple(
                    sorted(name for name, at_s in self._blocked.items() if now_s - at_s < SHOWN_S)
                ),
                problem=self._problem if now_s - self._problem_s < SHOWN_S else "",
            )

    async def run(self, evictor: PodEvictor | None) -> None:
        """Execute requests until cancelled; without an API server they fail."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            if self._requests:
                self._has_requests.set()
        while True:
            await self._has_requests.wait()
            self._has_requests.clear()
            while (request := self._next_request()) is not None:
                self._record(await self._execute(request, evictor))

    def _next_request(self) -> EvictionRequest | None:
        with self._lock:
            return self._requests.popleft() if self._requests else None

    async def _execute(
        self, request: EvictionRequest, evictor: PodEvictor | None
    ) -> EvictionResult:
        if request.is_planned:
            return EvictionResult(request=request, outcome=EvictionOutcome.PLANNED)
        if request.container_ids and self._runtime is not None:
            error = await self._runtime.stop_containers(request.container_ids, request.grace_s)
            outcome = EvictionOutcome.REFUSED if error else EvictionOutcome.KILLED
            return EvictionResult(request=request, outcome=outcome, message=error)
        if evictor is None:
            outcome = EvictionOutcome.REFUSED
            return EvictionResult(request=request, outcome=outcome, message=NO_API_SERVER)
        return await evictor.evict(request)

    def _record(self, result: EvictionResult) -> None:
        request, outcome, now_s = result.request, result.outcome, self._clock.monotonic()
        pod = request.pod
        name = f"{pod.namespace}/{pod.name}"
        with self._lock:
            self._results.append(result)
            self._outcomes[request.feature, outcome.value] += 1
            self._blocked = {
                one: at_s for one, at_s in self._blocked.items() if now_s - at_s < SHOWN_S
            }
            self._blocked.pop(name, None)
            if outcome is EvictionOutcome.BLOCKED:
                self._blocked[name] = now_s
            if outcome in DONE:
                self._problem = ""
                key = (pod.namespace, pod.name, request.feature)
                self._pods[key] = self._pods.pop(key, 0) + 1
                while len(self._pods) > MAX_PODS:
                    self._pods.popitem(last=False)
            elif outcome not in QUIET:
                self._problem, self._problem_s = result.message, now_s
        self._messages.put(event_of(result))


def event_of(result: EvictionResult) -> EventReported:
    """Return the event on the pod, in Koordinator's words."""
    request, outcome = result.request, result.outcome
    pod = request.pod
    text = f"evict Pod:{pod.namespace}/{pod.name}, reason: {REASON}, message: {request.message}"
    if outcome is EvictionOutcome.PLANNED:
        return EventReported(PLANNED, f"plan mode: would {text}", pod)
    if outcome in DONE:
        return EventReported(SUCCESS, text, pod)
    return EventReported(FAILURE, f"{text}, error {result.message}", pod)


class StrategyRunner:
    """Asks the strategies and hands on their evictions. Belongs to the collector thread."""

    def __init__(self, engine: QosEngine, evictions: EvictionService) -> None:
        self._engine = engine
        self._evictions = evictions

    def plan(
        self, snapshot: NodeSnapshot, layout: CgroupLayout, current: CurrentValues, now_s: float
    ) -> EnforcementPlan:
        """Return what the strategies want of files now; their evictions are requested."""
        feedback = self._evictions.take_feedback()
        plan = self._engine.plan(snapshot, layout, current, now_s, feedback)
        self._evictions.submit(plan.evictions)
        return plan

    def record_refusals(self, count: int, now_s: float) -> None:
        """Record writes that the kernel refused in this cycle."""
        self._engine.record_refusals(count, now_s)

    def conditions(self) -> Iterator[FileCondition]:
        """Yield conditions of evictions."""
        evictions = self._evictions.status()
        if evictions.blocked:
            count, example = len(evictions.blocked), evictions.blocked[0]
            message = f"disruption budgets protect {count} pods that have to go, as {example}"
            yield FileCondition(reason="EvictionBlocked", message=message)
        if evictions.problem:
            yield FileCondition(reason="EvictionFailed", message=evictions.problem)
