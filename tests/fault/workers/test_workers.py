"""Real worker processes that hang, die and lie, on purpose; the others keep going."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from agent.clock import ManualClock
from agent.snapshot.inventory import Inventory
from agent.workers.lifecycle import WorkerTiming
from agent.workers.tape import TapeWriter
from tests.fault.workers.watched import QUICK, SHORT_S, Watched, go, hurried, nothing_left, scene

__all__ = ["nothing_left"]
pytestmark = pytest.mark.usefixtures("nothing_left")


def test_a_worker_answers_and_ends_orderly(tmp_path: Path) -> None:
    async def test() -> None:
        worker = Watched(scene(tmp_path / "a"), QUICK, skip_waits=False)
        await worker.until(lambda states: bool(states) and bool(states[-1].samples.value))
        assert worker.states[0].state == "starting"
        first = worker.states[0].inventory.value
        assert first is not None
        assert [device.key for device in first.devices] == ["fake"]
        last = worker.states[-1]
        assert last.state == "ready"
        assert last.inventory.value is not None
        assert [device.key for device in last.inventory.value.devices] == ["FAKE-0"]
        assert last.samples.value[0].core_percent == 40
        assert last.pid is not None
        assert os.getsid(last.pid) != os.getsid(0)  # a terminal's interrupt is not for it
        await worker.client.stop()
        assert worker.task.done()
        assert not worker.reasons()

    go(test())


def test_events_arrive_without_a_request(tmp_path: Path) -> None:
    async def test() -> None:
        events = [{"at_s": 0, "key": "FAKE-0", "reason": "Xid79", "state": "failed"}]
        slow = WorkerTiming(sample_every_s=3600.0)
        worker = Watched(scene(tmp_path / "a", events=events), slow, skip_waits=False)
        await worker.until(lambda _: bool(worker.events))
        assert [event.reason for event in worker.events] == ["Xid79"]
        await worker.client.stop()

    go(test())


def test_a_discovery_on_request_shows_what_changed(tmp_path: Path) -> None:
    async def test() -> None:
        file = scene(tmp_path / "a")
        worker = Watched(file, WorkerTiming(sample_every_s=3600.0), skip_waits=False)
        await worker.until_state("ready")
        scene(file, driver_version="2")
        worker.client.rediscover()
        await worker.until(
            lambda states: getattr(states[-1].inventory.value, "driver_version", None) == "2"
        )
        await worker.client.stop()

    go(test())


def test_any_number_of_events_causes_one_discovery_a_second(tmp_path: Path) -> None:
    async def test() -> None:
        timing = WorkerTiming(sample_every_s=3600.0)
        worker = Watched(scene(tmp_path / "a"), timing, skip_waits=False)
        worker.client._clock = clock = ManualClock()

        def answers() -> int:
            return len({state.inventory.taken_s for state in worker.states}) - 1

        await worker.until(lambda states: states[-1:] != [] and states[-1].samples.value != ())
        for _ in range(100):
            clock.advance(0.001)
            worker.client.rediscover()
            await asyncio.sleep(0)
        assert answers() == 1
        clock.advance(1.0)
        worker.client.rediscover()
        await worker.until(lambda _: answers() == 2)
        await worker.client.stop()

    go(test())


@pytest.mark.parametrize(
    ("fault", "state", "reason"),
    [
        ({"in": "open", "do": "hang"}, "stalled", "Late"),
        ({"in": "discover", "do": "hang"}, "stalled", "Late"),
        ({"in": "sample", "do": "hang", "after": 2}, "stalled", "Late"),
        ({"in": "sample", "do": "deaf", "after": 2}, "stalled", "Late"),
        ({"in": "open", "do": "exit"}, "restarting", "Closed"),
        ({"in": "discover", "do": "exit"}, "restarting", "Closed"),
        ({"in": "sample", "do": "crash", "after": 2}, "restarting", "Closed"),
        ({"in": "events", "do": "exit"}, "restarting", "Closed"),
        ({"in": "sample", "do": "half"}, "restarting", "Closed"),
        ({"in": "discover", "do": "garbage"}, "restarting", "Garbage"),
        ({"in": "sample", "do": "garbage"}, "restarting", "Garbage"),
        ({"in": "discover", "do": "endless"}, "restarting", "TooLong"),
        ({"in": "discover", "do": "raise"}, "restarting", "UnexpectedError"),
        ({"in": "sample", "do": "raise"}, "restarting", "UnexpectedError"),
        ({"in": "open", "do": "crash"}, "restarting", "Closed"),
        ({"in": "open", "do": "garbage"}, "restarting", "Garbage"),
        ({"in": "open", "do": "endless"}, "restarting", "TooLong"),
        ({"in": "open", "do": "raise"}, "restarting", "UnexpectedError"),
        ({"in": "discover", "do": "half"}, "restarting", "Closed"),
        ({"in": "sample", "do": "endless"}, "restarting", "TooLong"),
        ({"in": "events", "do": "crash"}, "restarting", "Closed"),
        ({"in": "events", "do": "garbage"}, "restarting", "Garbage"),
        # the other thread may still answer into the half line
        ({"in": "events", "do": "half"}, "restarting", "Closed or Garbage"),
    ],
    ids=lambda value: f"{value['do']} in {value['in']}" if isinstance(value, dict) else value,
)
def test_a_bad_worker_is_ended_and_started_again_while_another_keeps_going(
    tmp_path: Path, fault: dict[str, object], state: str, reason: str
) -> None:
    async def test() -> None:
        good = Watched(scene(tmp_path / "good"), QUICK, skip_waits=False)
        await good.until_state("ready")
        timing = hurried(str(fault["in"])) if reason == "Late" else QUICK
        bad = Watched(scene(tmp_path / "bad", fault), timing, skip_waits=True)
        result = await bad.until_state(state)
        assert result.reason in reason.split(" or ")
        assert result.pid is None or state == "stalled"
        assert result.reason in result.inventory.error
        assert result.inventory.value is not None
        output = len(good.states)
        await good.until(lambda states: len(states) > output + 5)
        scene(tmp_path / "bad")  # repaired
        recovered = await bad.until_state("ready")
        assert recovered.restarts >= 1
        assert recovered.inventory.error == ""
        await asyncio.gather(good.client.stop(), bad.client.stop())
        assert not good.reasons()

    go(test())


def test_a_stalled_vendor_keeps_its_last_answer(tmp_path: Path) -> None:
    async def test() -> None:
        hang = {"in": "sample", "do": "hang", "after": 1}
        worker = Watched(scene(tmp_path / "a", hang), hurried("sample"), skip_waits=True)
        ready = await worker.until_state("ready")
        stalled = await worker.until_state("stalled")
        assert stalled.inventory.value == ready.inventory.value
        assert stalled.inventory.taken_s == ready.inventory.taken_s
        assert [sample.key for sample in stalled.samples.value] == ["FAKE-0"]
        assert f"no answer to sample within {SHORT_S} s" in stalled.samples.error
        assert stalled.pid is None
        await worker.client.stop()

    go(test())


def test_a_vendor_that_cannot_sample_is_no_failure_however_often_it_says_so(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        tape = tmp_path / "tape"
        with tape.open("wb") as file:
            TapeWriter("fake", file.write).write_inventory(Inventory(vendor="fake"), 0.1)
        worker = Watched(tmp_path / "none", WorkerTiming(), skip_waits=True, tape=tape)
        await worker.until(lambda seen: len({state.inventory.taken_s for state in seen}) > 5)
        assert "NotSupported" in worker.states[-1].samples.error
        assert not worker.reasons()
        await worker.client.stop()

    go(test())


def test_settings_that_cannot_be_sent_are_the_reason_and_no_crash(tmp_path: Path) -> None:
    async def test() -> None:
        worker = Watched(tmp_path / "a\udc80", QUICK, skip_waits=True)
        assert (await worker.until_state("quarantined")).reason == "BadConfig"
        await worker.client.stop()

    go(test())


def test_what_a_library_prints_does_no_harm(tmp_path: Path) -> None:
    async def test() -> None:
        prints = [{"in": where, "do": "print"} for where in ("open", "discover", "sample")]
        worker = Watched(scene(tmp_path / "a", *prints), QUICK, skip_waits=False)
        await worker.until(lambda states: bool(states) and bool(states[-1].samples.value))
        await worker.client.stop()
        assert not worker.reasons()

    go(test())


def test_a_slow_answer_within_its_deadline_is_no_failure(tmp_path: Path) -> None:
    async def test() -> None:
        slow = {"in": "sample", "do": "slow", "seconds": 0.2}
        worker = Watched(scene(tmp_path / "a", slow), QUICK, skip_waits=False)
        await worker.until(lambda states: bool(states) and bool(states[-1].samples.value))
        await worker.client.stop()
        assert not worker.reasons()

    go(test())


def test_five_deaths_are_a_quarantine_that_an_answer_ends(tmp_path: Path) -> None:
    async def test() -> None:
        file = scene(tmp_path / "a", {"in": "discover", "do": "exit"})
        worker = Watched(file, QUICK, skip_waits=True)
        result = await worker.until_state("quarantined")
        assert result.reason == "Closed"
        assert "exit status 3" in result.message
        assert result.restarts == 4
        scene(file)
        ready = await worker.until_state("ready")
        assert ready.restarts >= 5
        assert ready.pid is not None
        since = len(worker.states)
        os.kill(ready.pid, signal.SIGKILL)
        await worker.until(lambda states: states[-1].pid not in (None, ready.pid))
        # one more death is the first of a new row
        assert "quarantined" not in {state.state for state in worker.states[since:]}
        await worker.client.stop()

    go(test())


@pytest.mark.parametrize("where", ["open", "discover", "sample", "events", "close"])
def test_a_hanging_worker_does_not_delay_the_end(tmp_path: Path, where: str) -> None:
    async def test() -> None:
        worker = Watched(
            scene(tmp_path / "a", {"in": where, "do": "hang"}), WorkerTiming(), skip_waits=False
        )
        if where in ("close", "events"):
            await worker.until_state("ready")
        else:
            await worker.until(lambda states: bool(states) and states[-1].pid is not None)
        await worker.client.stop()
        assert worker.task.done()

    go(test())


def test_being_cancelled_leaves_no_process(tmp_path: Path) -> None:
    async def test() -> None:
        worker = Watched(scene(tmp_path / "a"), QUICK, skip_waits=False)
        await worker.until_state("ready")
        worker.task.cancel()
        await asyncio.wait({worker.task})
        assert worker.task.cancelled()

    go(test())
