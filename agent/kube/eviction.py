"""Evicts pods through the API server (`policy/v1` Eviction), which respects disruption budgets.

Requests come from the collector thread, and their results go back there.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from typing import Protocol

import msgspec

from agent.clock import Clock
from agent.kube.api import ApiClient, ApiRequest
from agent.kube.errors import (
    ApiError,
    BadResponse,
    Conflict,
    Forbidden,
    NotFound,
    ServerError,
    Throttled,
    Unreachable,
)
from agent.kube.resources import PODS
from agent.messages import EventReported, MessageQueue
from agent.snapshot.cluster import WritePermission
from agent.snapshot.pod import (
    EvictionFeedback,
    EvictionOutcome,
    EvictionRequest,
    EvictionResult,
    EvictionStatus,
)

EVICTION = "eviction"  # subresource of a pod
API_VERSION, KIND = "policy/v1", "Eviction"
DISRUPTION_BUDGET = "DisruptionBudget"  # cause of a 429
# in the message of a 403 by RBAC; one by an admission webhook is about a single pod
NO_RIGHT = ' is forbidden: User "'
NO_PERMISSION_S = 60.0  # without a request for any pod
UID_PRECONDITION = "UID in precondition"  # in the message of a 409


class PermissionSource(Protocol):
    """Knows whether the Node of this name is this machine."""

    def write_permission(self) -> WritePermission:
        """Return whether anything may be written for the Node now."""
        ...


class PodEvictor:
    """Requests evictions one at a time. Belongs to the loop thread."""

    def __init__(
        self, api: ApiClient, permissions: PermissionSource, deadline_s: float = 10.0
    ) -> None:
        """No pod is evicted before `permissions` says that the Node is this machine."""
        self._api = api
        self._permissions = permissions
        self._deadline_s = deadline_s

    async def evict(self, request: EvictionRequest) -> EvictionResult:
        """Request the eviction of this very pod, with its own grace period; raise nothing."""
        permission = self._permissions.write_permission()
        if not permission.is_allowed:
            return EvictionResult(
                request=request,
                outcome=EvictionOutcome.REFUSED,
                message=permission.message,
                retry_after_s=NO_PERMISSION_S,
            )
        try:
            response = await self._api.call(eviction_request(request, self._deadline_s))
        except ApiError as error:
            is_right_missing = isinstance(error, Forbidden) and NO_RIGHT in str(error)
            return EvictionResult(
                request=request,
                outcome=outcome_of_error(error),
                message=str(error),
                retry_after_s=NO_PERMISSION_S if is_right_missing else error.retry_after_s,
            )
        failure = failure_in(response.body)
        if failure:
            outcome = EvictionOutcome.BLOCKED
            return EvictionResult(request=request, outcome=outcome, message=failure)
        return EvictionResult(request=request, outcome=EvictionOutcome.EVICTED)


def eviction_request(request: EvictionRequest, deadline_s: float) -> ApiRequest:
    """Return the call. The uid is a precondition: another pod of that name is not evicted."""
    pod = request.pod
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }
    return ApiRequest(
        method="POST",
        path=PODS.path(pod.name, pod.namespace, EVICTION),
        body=msgspec.json.encode(body),
        deadline_s=deadline_s,
    )


class _Status(msgspec.Struct):
    status: str = ""
    message: str = ""


def failure_in(body: bytes) -> str:
    """Return why a response of 2xx is a refusal; empty if it is none.

    The API server answers 201 with a failed Status for a pod that has several disruption budgets.
    """
    try:
        status = msgspec.json.decode(body, type=_Status)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ""
    return status.message or "the API server refuses" if status.status == "Failure" else ""


def outcome_of_error(error: ApiError) -> EvictionOutcome:
    """Return what an error means for the pod."""
    if isinstance(error, NotFound):
        return EvictionOutcome.GONE
    if isinstance(error, Conflict):  # another pod has the name, or the pod changed meanwhile
        is_other = UID_PRECONDITION in str(error)
        return EvictionOutcome.GONE if is_other else EvictionOutcome.REFUSED
    if isinstance(error, Throttled):
        is_budget = any(cause.reason == DISRUPTION_BUDGET for cause in error.causes)
        return EvictionOutcome.BLOCKED if is_budget else EvictionOutcome.THROTTLED
    if isinstance(error, (ServerError, Unreachable, BadResponse)):
        return EvictionOutcome.UNKNOWN  # the pod may be deleted already
    return EvictionOutcome.REFUSED


SUCCESS, FAILURE, PLANNED = "evictPodSuccess", "evictPodFail", "evictPodPlanned"  # of events
REASON = "evicted"  # Koordinator's word for all evictions
NO_API_SERVER = "there is no API server"
DONE = (EvictionOutcome.EVICTED, EvictionOutcome.KILLED)
MAX_PODS = 256  # with a series each; the oldest is dropped
QUIET = (EvictionOutcome.PLANNED, EvictionOutcome.BLOCKED, EvictionOutcome.GONE)
SHOWN_S = 60.0  # a refusal is shown so long
MAX_WAIT_S = 10.0  # of a request behind others; after that it is decided anew
WAITED = f"it waited for more than {MAX_WAIT_S:g} s: whether it is still needed is decided anew"
BUSY = "the API server asked to wait, or does not permit evictions"


class ContainerStopper(Protocol):
    """The container runtime."""

    async def stop_containers(self, ids: Iterable[str], grace_s: int) -> str:
        """Stop containers; return why one was not stopped, else nothing."""
        ...


class EvictionService:
    """Executes requests in their order.

    `submit` and `take_feedback` belong to the collector thread, `run` to the loop thread; any
    thread may call `status`.
    """

    def __init__(
        self,
        messages: MessageQueue,
        clock: Clock,
        runtime: ContainerStopper | None = None,
    ) -> None:
        """Without `runtime`, no container is stopped past the API server."""
        self._messages = messages
        self._clock = clock
        self._runtime = runtime
        self._lock = threading.Lock()  # guards everything below
        self._requests: deque[tuple[float, EvictionRequest]] = deque()  # with the time of arrival
        self._results: deque[EvictionResult] = deque()
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._pods: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        self._blocked: dict[str, float] = {}  # namespace/name, and since when
        self._problem = ""
        self._problem_s = 0.0
        self._metric_published_s: float | None = None
        self._busy_until_s = 0.0  # the API server takes no requests; of the loop thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_requests = asyncio.Event()

    def submit(self, requests: Iterable[EvictionRequest]) -> None:
        """Queue requests; returns at once."""
        now_s = self._clock.monotonic()
        with self._lock:
            self._requests.extend((now_s, request) for request in requests)
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
            while (queued := self._next_request()) is not None:
                self._record(await self._execute(*queued, evictor))

    def _next_request(self) -> tuple[float, EvictionRequest] | None:
        with self._lock:
            return self._requests.popleft() if self._requests else None

    async def _execute(
        self, queued_s: float, request: EvictionRequest, evictor: PodEvictor | None
    ) -> EvictionResult:
        if request.is_planned:
            return EvictionResult(request=request, outcome=EvictionOutcome.PLANNED)
        now_s, outcome = self._clock.monotonic(), EvictionOutcome.THROTTLED
        if now_s - queued_s > MAX_WAIT_S:  # the API server is slow, and memory may be free by now
            return EvictionResult(
                request=request, outcome=outcome, message=WAITED, retry_after_s=0.0
            )
        if request.container_ids and self._runtime is not None:
            error = await self._runtime.stop_containers(request.container_ids, request.grace_s)
            outcome = EvictionOutcome.REFUSED if error else EvictionOutcome.KILLED
            return EvictionResult(request=request, outcome=outcome, message=error)
        if evictor is None:
            outcome = EvictionOutcome.REFUSED
            return EvictionResult(request=request, outcome=outcome, message=NO_API_SERVER)
        if now_s < self._busy_until_s:
            wait_s = self._busy_until_s - now_s
            return EvictionResult(
                request=request, outcome=outcome, message=BUSY, retry_after_s=wait_s
            )
        result = await evictor.evict(request)
        if result.holds_up_others:
            wait_s = MAX_WAIT_S if result.retry_after_s is None else result.retry_after_s
            self._busy_until_s = self._clock.monotonic() + wait_s
        return result

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
