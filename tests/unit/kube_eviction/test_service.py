"""The queue of evictions between the collector thread and the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from agent.clock import ManualClock
from agent.kube.api import ApiRequest, ApiResponse
from agent.kube.errors import ApiError, Forbidden, NotFound, StatusCause, Throttled
from agent.kube.eviction import MAX_PODS, MAX_WAIT_S, SHOWN_S, EvictionService, PodEvictor
from agent.messages import EventReported, MessageQueue
from agent.snapshot.cluster import WritePermission
from agent.snapshot.pod import EvictionOutcome, EvictionRequest, PodRef
from tests.patience import PATIENCE_S


class Answers:
    """An API server, and a runtime, that answer what a test says."""

    def __init__(self, *errors: ApiError | None) -> None:
        self.errors = list(errors)
        self.calls: list[str] = []
        self.stopped: list[tuple[tuple[str, ...], int]] = []
        self.stop_error = ""
        self.before_answer: Callable[[], None] = lambda: None

    def write_permission(self) -> WritePermission:
        return WritePermission(is_allowed=True)

    async def call(self, request: ApiRequest) -> ApiResponse:
        self.calls.append(request.path)
        self.before_answer()
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return ApiResponse(status=201, headers={}, body=b'{"status":"Success"}')

    async def stop_containers(self, ids: Iterable[str], grace_s: int) -> str:
        self.stopped.append((tuple(ids), grace_s))
        return self.stop_error


def request(name: str = "p", **changes: object) -> EvictionRequest:
    pod = PodRef(namespace="team-a", name=name, uid=f"uid-{name}")
    return EvictionRequest(pod=pod, feature="MemoryEvict", **changes)  # type: ignore[arg-type]


class Service:
    """A service between a cluster and its strategies."""

    def __init__(self, answers: Answers | None) -> None:
        self.clock = ManualClock()
        self.messages = MessageQueue()
        self.answers = answers or Answers()
        self.service = EvictionService(self.messages, self.clock, answers)

    def execute(self, *requests: EvictionRequest, has_api: bool = True) -> None:
        async def run() -> None:
            evictor = PodEvictor(self.answers, self.answers) if has_api else None  # type: ignore[arg-type]
            task = asyncio.create_task(self.service.run(evictor))
            await asyncio.sleep(0)
            await asyncio.to_thread(self.service.submit, requests)
            until_s = asyncio.get_running_loop().time() + PATIENCE_S
            while self.done < len(requests):
                assert asyncio.get_running_loop().time() < until_s
                assert not task.done()
                await asyncio.sleep(0.001)
            task.cancel()

        asyncio.run(run())

    @property
    def done(self) -> int:
        return sum(count for _, counts in self.service.status().outcomes for _, count in counts)

    def events(self) -> list[tuple[str, str]]:
        drained: tuple[EventReported, ...] = self.messages.drain_events()
        return [(one.reason, one.message) for one in drained]


def executed(answers: Answers | None, *requests: EvictionRequest) -> Service:
    """Return a service after it has executed these requests."""
    service = Service(answers)
    service.execute(*requests, has_api=answers is not None)
    return service


TEXT = (
    "evict Pod:team-a/p, reason: evicted, message: trigger by koordlet feature MemoryEvict, kill"
    " pod: p"
)


def test_an_eviction_is_counted_and_has_its_event_and_its_result() -> None:
    service = executed(Answers(), request())
    assert service.answers.calls == ["/api/v1/namespaces/team-a/pods/p/eviction"]
    status = service.service.status()
    assert status.outcomes == (("MemoryEvict", (("evicted", 1),)),)
    assert status.pods == {("team-a", "p", "MemoryEvict"): 1}
    assert service.events() == [("evictPodSuccess", TEXT)]
    (result,) = service.service.take_feedback().results
    assert result.outcome is EvictionOutcome.EVICTED
    assert service.service.take_feedback().results == ()


def test_in_plan_mode_only_an_event_is_written() -> None:
    service = executed(Answers(), request(is_planned=True))
    assert service.answers.calls == []
    assert service.events() == [("evictPodPlanned", f"plan mode: would {TEXT}")]
    assert service.service.status().pods == {}


def test_a_refusal_by_a_budget_is_shown_for_a_minute() -> None:
    cause = StatusCause("", "no", "DisruptionBudget")
    error = Throttled("POST x", "budget", code=429, causes=(cause,))
    service = executed(Answers(error), request())
    assert service.service.status().blocked == ("team-a/p",)
    assert service.events() == [("evictPodFail", f"{TEXT}, error POST x: 429 budget")]
    service.clock.advance(SHOWN_S)
    assert service.service.status().blocked == ()


def test_a_missing_permission_is_a_problem_for_a_minute() -> None:
    service = executed(Answers(Forbidden("POST x", "no", code=403)), request())
    assert service.service.status().problem == "POST x: 403 no"
    service.clock.advance(SHOWN_S)
    assert service.service.status().problem == ""


def test_a_pod_that_is_gone_is_no_problem() -> None:
    service = executed(Answers(NotFound("POST x", "gone", code=404)), request())
    assert (service.service.status().problem, service.service.status().blocked) == ("", ())


def test_requests_are_executed_in_their_order() -> None:
    service = executed(Answers(), *(request(name) for name in ("a", "b", "c")))
    assert [path.split("/")[-2] for path in service.answers.calls] == ["a", "b", "c"]


def test_without_an_api_server_requests_fail() -> None:
    service = executed(None, request())
    assert service.service.status().problem == "there is no API server"


def test_the_runtime_stops_containers_instead_of_an_eviction() -> None:
    service = executed(Answers(), request(container_ids=("c1", "c2"), grace_s=7))
    assert service.answers.calls == []
    assert service.answers.stopped == [(("c1", "c2"), 7)]
    assert service.events() == [("evictPodSuccess", TEXT)]


def test_a_runtime_that_fails_is_a_problem() -> None:
    answers = Answers()
    answers.stop_error = "StopContainer c1: UNAVAILABLE: gone"
    service = executed(answers, request(container_ids=("c1",), grace_s=7))
    assert service.service.status().problem == answers.stop_error


def test_the_number_of_pods_with_a_count_is_bounded() -> None:
    service = executed(Answers(), *(request(f"p{n}") for n in range(MAX_PODS + 5)))
    pods = service.service.status().pods
    assert len(pods) == MAX_PODS
    assert ("team-a", "p0", "MemoryEvict") not in pods


def test_requests_from_before_the_event_loop_are_executed_by_it() -> None:
    service = Service(Answers())
    service.service.submit([request("early")])
    service.execute(request("late"))
    assert [path.split("/")[-2] for path in service.answers.calls] == ["early", "late"]


def test_requests_that_waited_for_long_behind_a_slow_one_are_decided_again() -> None:
    service = Service(Answers())
    service.answers.before_answer = lambda: service.clock.advance(MAX_WAIT_S + 1.0)
    service.execute(request("slow"), request("late"), request("planned", is_planned=True))
    assert [path.split("/")[-2] for path in service.answers.calls] == ["slow"]
    results = service.service.take_feedback().results
    assert [one.outcome.value for one in results] == ["evicted", "throttled", "planned"]
    assert results[1].retry_after_s == 0.0


def test_after_the_answer_of_a_busy_api_server_no_other_request_is_sent() -> None:
    busy = Throttled("POST x", "busy", code=429, retry_after_s=7.0)
    service = executed(Answers(busy), *(request(name) for name in ("a", "b", "c")))
    assert len(service.answers.calls) == 1
    results = service.service.take_feedback().results
    assert [one.outcome.value for one in results] == ["throttled"] * 3


def test_without_the_right_to_evict_no_other_request_is_sent() -> None:
    text = 'pods "a" is forbidden: User "u" cannot create resource "pods/eviction" in API group'
    answers = Answers(Forbidden("POST x", text, code=403, reason="Forbidden"))
    service = executed(answers, *(request(name) for name in ("a", "b", "c")))
    assert len(service.answers.calls) == 1
