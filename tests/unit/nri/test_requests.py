"""The hooks are asked within the budget; whatever they do, the runtime is answered in time."""

from __future__ import annotations

import asyncio
import gc

import pytest

from agent.nri.messages import RuntimeEvents
from agent.nri.session import hook_budget_s
from agent.nri.versions import RuntimePeer
from agent.snapshot.container import Adjustment, ContainerState, HookRequest, HookStage
from agent.snapshot.edits import ContainerEdits
from agent.wire_formats.device_allocated import ANNOTATION
from proto.gen import nri_plugin_pb2 as calls
from tests.patience import PATIENCE_S
from tests.unit.nri.messages import container, pod
from tests.unit.nri.talk import Talk, never, nothing
from tests.unit.nri.test_session import CREATED, play

SHORT_S = 0.01


@pytest.mark.parametrize(
    ("budget_s", "call_s", "request_s", "patience"),
    [
        (0.5, 0, 2.0, 0.5),
        (0.5, 2.0, 2.0, 0.5),
        (1.5, 2.0, 2.0, 1.5),
        (1.5, 1.0, 2.0, 0.8),  # 0.2 s before the caller's limit
        (1.5, 60.0, 1.0, 0.8),
        (0.5, 0.3, 2.0, 0.15),  # half of a short one
    ],
)
def test_the_budget_ends_before_the_patience_of_the_runtime(
    budget_s: float, call_s: float, request_s: float, patience: float
) -> None:
    result = hook_budget_s(budget_s, call_s, RuntimePeer(request_timeout_s=request_s))
    assert result == pytest.approx(patience)


def test_a_late_hook_costs_its_change_and_not_the_connection() -> None:
    async def through(both: Talk) -> None:
        both.answer = never
        answer = await both.call("CreateContainer", CREATED)
        assert not answer.HasField("status")
        assert answer.payload == b""
        assert both.results("CreateContainer") == {"late": 1}
        assert dict(both.picture.view.missed) == {"c1": "BudgetExceeded"}
        state = both.figures.statistics
        assert (state.late, state.in_flight) == (1, 0)
        both.answer = nothing
        assert not (await both.call("UpdateContainer")).HasField("status")

    play(through, SHORT_S)


def test_a_container_with_allocated_devices_is_refused_if_its_answer_is_late() -> None:
    """Its devices cannot be given to it later; the kubelet creates a refused one again."""
    granted = calls.CreateContainerRequest()
    granted.CopyFrom(CREATED)
    granted.pod.annotations[ANNOTATION] = "{}"

    async def through(both: Talk) -> None:
        both.answer = never
        answer = await both.call("CreateContainer", granted)
        assert (answer.status.code, answer.payload) == (9, b"")
        assert answer.status.message.startswith("BudgetExceeded: ")
        assert both.results("CreateContainer") == {"late": 1}
        assert (dict(both.picture.view.containers), dict(both.picture.view.missed)) == ({}, {})
        run = calls.RunPodSandboxRequest(pod=granted.pod)
        assert not (await both.call("RunPodSandbox", run)).HasField("status")
        assert dict(both.picture.view.missed) == {"p1": "BudgetExceeded"}

    play(through, SHORT_S)


def test_a_granted_container_is_refused_if_the_list_of_pods_is_not_read_in_time() -> None:
    granted = calls.CreateContainerRequest()
    granted.CopyFrom(CREATED)
    granted.pod.annotations[ANNOTATION] = "{}"

    async def through(both: Talk) -> None:
        both.asking.list_applied.clear()
        answer = await both.call("CreateContainer", granted)
        assert (answer.status.code, both.asked) == (9, [])

    play(through, SHORT_S)


def test_an_answered_container_is_created_before_the_next_request() -> None:
    async def through(both: Talk) -> None:
        both.answer = nothing
        await both.call("CreateContainer", CREATED)
        assert both.picture.view.containers["c1"].state is ContainerState.CREATED

    play(through, SHORT_S)


def test_a_limit_of_the_call_itself_counts_too() -> None:
    async def through(both: Talk) -> None:
        both.answer = never
        assert (await both.call("CreateContainer", CREATED, timeout_s=0.02)).payload == b""
        assert both.results("CreateContainer") == {"late": 1}

    play(through, 60)


def test_a_late_hook_is_reported_and_its_answer_is_dropped() -> None:
    ended: list[str] = []

    async def stubborn(hook_request: HookRequest) -> Adjustment:
        try:
            return await never(hook_request)
        except asyncio.CancelledError:
            ended.append(hook_request.stage.value)
            return Adjustment(failed="too late")

    async def through(both: Talk) -> None:
        both.answer = stubborn
        await both.call("CreateContainer", CREATED)
        await asyncio.sleep(0)
        assert ended == [HookStage.CREATE.value]
        assert not (await both.call("Synchronize")).HasField("status")  # not a second answer

    play(through, SHORT_S)


def test_a_slow_hook_holds_up_nobody_else() -> None:
    gate = asyncio.Event()

    async def slow_first(hook_request: HookRequest) -> Adjustment:
        if hook_request.container is not None and hook_request.container.name == "slow":
            await gate.wait()
        return Adjustment(edits=ContainerEdits(env=(("A", hook_request.stage.value),)))

    async def through(both: Talk) -> None:
        both.answer = slow_first
        slow = container("c9")
        slow.name = "slow"
        first = both.send(
            "CreateContainer", calls.CreateContainerRequest(pod=pod(), container=slow)
        )
        for _ in range(3):
            assert (await both.call("CreateContainer", CREATED)).payload
        assert both.figures.statistics.in_flight == 1
        gate.set()
        assert (await both.answered())[0] == first
        assert both.figures.statistics.adjustments == 4

    play(through)


def test_a_hundred_questions_overlap_and_each_has_its_own_answer() -> None:
    async def named(hook_request: HookRequest) -> Adjustment:
        await asyncio.sleep(0)
        name = hook_request.container.name if hook_request.container is not None else ""
        return Adjustment(edits=ContainerEdits(env=(("NAME", name),)))

    async def through(both: Talk) -> None:
        both.answer = named
        names = dict[int, str]()
        for number in range(100):
            one = container(f"c{number}")
            one.name = f"name-{number}"
            container_request = calls.CreateContainerRequest(pod=pod(), container=one)
            names[both.send("CreateContainer", container_request)] = one.name
        for _ in range(100):
            stream, answer = await both.answered()
            container_response = calls.CreateContainerResponse.FromString(answer.payload)
            assert container_response.adjust.env[0].value == names.pop(stream)

    play(through)


def test_a_bug_in_a_hook_stops_no_pod() -> None:
    async def broken(hook_request: HookRequest) -> Adjustment:
        raise ZeroDivisionError(hook_request.stage.value)

    async def through(both: Talk) -> None:
        both.answer = broken
        answer = await both.call("CreateContainer", CREATED)
        assert (answer.status.code, answer.payload) == (0, b"")
        assert dict(both.picture.view.missed) == {"c1": "HookFailed"}
        assert both.results("CreateContainer") == {"broken": 1}

    play(through)


def test_an_answer_at_once_takes_no_turn_and_its_bugs_stop_no_pod_either() -> None:
    def at_once(hook_request: HookRequest) -> Adjustment:
        if hook_request.stage is HookStage.RUN_POD:
            raise ZeroDivisionError
        return Adjustment(edits=ContainerEdits(env=(("A", "1"),)))

    async def through(both: Talk) -> None:
        both.handler.on_request = at_once
        assert (await both.call("CreateContainer", CREATED)).payload
        assert both.results("CreateContainer") == {"ok": 1}
        answer = await both.call("RunPodSandbox", calls.RunPodSandboxRequest(pod=pod()))
        assert not answer.HasField("status")
        assert dict(both.picture.view.missed) == {"p1": "HookFailed"}
        many = [container(f"c{number}") for number in range(100)]
        both.send("Synchronize", calls.SynchronizeRequest(pods=[pod()], containers=many))
        both.send("CreateContainer", CREATED)  # waits for the list, and is answered all the same
        assert [(await both.answered())[0] for _ in range(2)] == [5, 7]
        assert both.figures.statistics.adjustments == 2

    play(through)


def test_a_hook_that_cancels_itself_is_answered_for() -> None:
    async def cancelled(hook_request: HookRequest) -> Adjustment:
        raise asyncio.CancelledError(hook_request.stage.value)

    async def through(both: Talk) -> None:
        both.answer = cancelled
        answer = await both.call("CreateContainer", CREATED)
        assert (answer.status.code, answer.payload) == (0, b"")
        assert both.figures.statistics.in_flight == 0

    play(through)


def test_a_question_that_is_dropped_before_its_first_turn_leaves_nothing_behind(
    recwarn: pytest.WarningsRecorder,
) -> None:
    async def through(both: Talk) -> None:
        runtime_events = RuntimeEvents(both.picture)
        replies: list[str] = []
        question = runtime_events.create_container(CREATED, RuntimePeer())
        both.asking.submit(question, 1e9, lambda result, _: replies.append(result))
        both.asking.cancel_all()
        await asyncio.sleep(0)
        assert (replies, both.asked, both.figures.statistics.in_flight) == ([], [], 0)

    play(through)
    gc.collect()
    assert [str(one.message) for one in recwarn] == []


def test_a_connection_that_is_lost_ends_its_questions_and_marks_their_containers() -> None:
    async def through(both: Talk) -> None:
        both.answer = never
        both.send("CreateContainer", CREATED)
        async with asyncio.timeout(PATIENCE_S):
            while not both.asked:
                await asyncio.sleep(0.001)
        both.writer.close()
        async with asyncio.timeout(PATIENCE_S):
            await both.trunk.closed.wait()
        assert dict(both.picture.view.missed) == {"c1": "ConnectionLost"}
        assert both.figures.statistics.in_flight == 0

    play(through)
