"""The kubelet's pods are asked in turn and on a poke, and nothing that is known is forgotten."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kube.errors import ApiError
from agent.kube.flow_control import TokenBucket
from agent.kubelet.client import PodList
from agent.snapshot.cluster import (
    KUBELET_ABSENT,
    KUBELET_EMPTY,
    KUBELET_FORBIDDEN,
    KUBELET_HANGING,
    KUBELET_OK,
    KUBELET_UNAUTHORISED,
)
from tests.unit.kubelet.scripted import (
    AWAY,
    BARRED,
    LATE,
    NO_PODS,
    NOBODY,
    World,
    in_world,
    pods,
)


def test_a_poll_with_pods_makes_them_fresh_also_when_nothing_changed() -> None:
    async def test(world: World) -> None:
        assert await world.poller.poll() == 10.0
        world.clock.advance(10)
        world.kubelet.listed = pods("a")
        await world.poller.poll()
        first, second = world.pods
        assert first.value is second.value
        assert (second.taken_s or 0) - (first.taken_s or 0) == 10
        assert world.poller.state.pods == KUBELET_OK

    in_world(test)


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (AWAY, KUBELET_ABSENT),
        (LATE, KUBELET_HANGING),
        (NOBODY, KUBELET_UNAUTHORISED),
        (BARRED, KUBELET_FORBIDDEN),
        (NO_PODS, KUBELET_EMPTY),
    ],
)
def test_an_error_or_an_empty_list_keeps_the_pods_and_their_age_grows(
    answer: PodList | ApiError, state: str
) -> None:
    async def test(world: World) -> None:
        await world.poller.poll()
        world.kubelet.listed = answer
        world.clock.advance(60)
        await world.poller.poll()
        entries, records = world.pods
        assert records.value == entries.value
        assert records.age_s(world.clock.monotonic()) == 60
        assert records.error
        assert world.poller.state.pods == state
        assert world.poller.state.detail == records.error

    in_world(test)


def test_pods_that_were_never_known_have_no_age() -> None:
    async def test(world: World) -> None:
        world.kubelet.listed = NO_PODS
        await world.poller.poll()
        assert world.pods[0].value == ()
        assert world.pods[0].taken_s is None

    in_world(test)


def test_a_list_of_malformed_pods_only_says_so() -> None:
    async def test(world: World) -> None:
        world.kubelet.listed = PodList(pods=(), malformed=3)
        await world.poller.poll()
        assert "3 malformed" in world.poller.state.detail

    in_world(test)


def test_six_hours_without_a_kubelet_lose_no_pod_and_cost_few_questions() -> None:
    async def test(world: World) -> None:
        world.kubelet.listed = pods(*(f"pod-{number}" for number in range(250)))
        await world.poller.poll()
        world.kubelet.listed = AWAY
        looks = await world.pass_time(6 * 3600)
        assert len(world.pods[-1].value) == 250
        assert (world.pods[-1].age_s(world.clock.monotonic()) or 0) >= 6 * 3600
        assert 700 < looks < 740  # one in thirty seconds
        assert world.kubelet.asked_settings == 1
        world.kubelet.listed = pods("new")
        await world.poller.poll()
        assert [view.name for view in world.pods[-1].value] == ["new"]
        assert world.poller.state.restarts == 1
        assert world.poller.state.failures == 0

    in_world(test)


def test_a_returned_kubelet_is_noticed_within_seconds_and_its_settings_read() -> None:
    async def test(world: World) -> None:
        await world.pass_time(20)
        world.kubelet.listed = AWAY
        await world.pass_time(3)
        assert world.poller.state.pods == KUBELET_ABSENT
        world.kubelet.listed, world.kubelet.connections = pods("a"), 2
        world.slept.clear()
        await world.pass_time(1)
        assert max(world.slept) <= 10
        assert world.poller.state.pods == KUBELET_OK
        assert world.kubelet.asked_settings == 2

    in_world(test)


def test_a_restart_between_two_polls_is_noticed_by_the_new_connection() -> None:
    async def test(world: World) -> None:
        await world.pass_time(60)
        assert world.kubelet.asked_settings == 1
        world.kubelet.connections += 1
        await world.poller.poll()
        assert world.kubelet.asked_settings == 2
        assert world.poller.state.restarts == 0  # it was never seen to be away

    in_world(test)


def test_a_request_causes_a_poll_at_once_and_many_requests_one_poll() -> None:
    async def test(world: World) -> None:
        forever = asyncio.Event()

        async def never(_: float) -> None:
            await forever.wait()

        world.poller._sleep = never
        task = asyncio.create_task(world.poller.run())
        while world.kubelet.asked < 1:
            await asyncio.sleep(0)
        for _ in range(50):
            world.poller.poll_soon()
        while world.kubelet.asked < 2:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert world.kubelet.asked == 2
        assert world.poller.state.early_polls == 1
        task.cancel()

    in_world(test)


def test_requests_without_end_cause_five_polls_a_second() -> None:
    async def test(world: World) -> None:
        class Poking(asyncio.Event):
            """An event that is set again whenever it is cleared."""

            def clear(self) -> None:
                self.set()

        async def held_only(seconds: float) -> None:
            if seconds >= 1:
                await asyncio.Event().wait()  # the pause between two looks, which a poke ends
            await world._sleep(seconds)

        world.poller._sleep = held_only
        world.poller._early_poll = Poking()
        world.poller._early_poll.set()
        started_s = world.clock.monotonic()
        task = asyncio.create_task(world.poller.run())
        while world.kubelet.asked < 110:
            await asyncio.sleep(0)
        # eleven at once, the first of them in turn, and 99 after a fifth of a second each
        assert world.clock.monotonic() - started_s == pytest.approx(19.8)
        task.cancel()

    in_world(test)


def test_the_bucket_fills_up_to_its_burst_only() -> None:
    bucket = TokenBucket(10, 0.2)
    assert [bucket.reserve(3600.0) for _ in range(10)] == [0.0] * 10
    assert bucket.reserve(3600.0) == pytest.approx(0.2)
    assert bucket.reserve(3600.4) == pytest.approx(0.0)


def test_polls_are_counted_by_their_result() -> None:
    async def test(world: World) -> None:
        for answer in (pods("a"), AWAY, AWAY, NO_PODS, pods("a")):
            world.kubelet.listed = answer
            await world.poller.poll()
        assert world.poller.state.polls == (
            (KUBELET_ABSENT, 2),
            (KUBELET_EMPTY, 1),
            (KUBELET_OK, 2),
        )

    in_world(test)


ANSWERS = (pods("a"), pods("a", "b"), NO_PODS, AWAY, LATE, NOBODY, BARRED)


@given(st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=30))
def test_whatever_the_kubelet_does_the_pods_are_those_of_its_last_list(
    answers: list[PodList | ApiError],
) -> None:
    async def test(world: World) -> None:
        expected: PodList = NO_PODS
        taken_s = None
        for answer in answers:
            world.kubelet.listed = answer
            wait_s = await world.poller.poll()
            if isinstance(answer, PodList) and answer.pods:
                expected, taken_s = answer, world.clock.monotonic()
            pod = world.pods[-1]
            assert (pod.value, pod.taken_s) == (expected.pods, taken_s)
            assert bool(pod.error) == bool(world.poller.state.failures)
            assert 0 < wait_s <= 30
            world.clock.advance(wait_s)
        assert len(world.pods) == len(world.facts) == len(answers)
        assert sum(count for _, count in world.poller.state.polls) == len(answers)

    in_world(test)
