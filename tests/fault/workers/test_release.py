"""A worker let go on request, so that its driver can be unloaded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from agent.errors import WorkerError
from agent.workers.client import MAX_REQUESTS
from agent.workers.lifecycle import ClearFaultRequest, WorkerTiming
from tests.fault.workers.watched import QUICK, Watched, go, nothing_left, scene

__all__ = ["nothing_left"]
pytestmark = pytest.mark.usefixtures("nothing_left")


def test_a_released_worker_ends_and_its_last_answer_stays_with_the_reason(tmp_path: Path) -> None:
    async def test() -> None:
        worker = Watched(scene(tmp_path / "a"), QUICK, skip_waits=False)
        ready = await worker.until_state("ready")
        await worker.client.release(600.0)
        released = worker.states[-1]
        assert (released.state, released.reason, released.pid) == ("released", "Released", None)
        assert ready.pid is not None
        assert not psutil.pid_exists(ready.pid)
        assert released.inventory.value == ready.inventory.value
        assert released.inventory.error.startswith("released on request until ")
        assert released.restarts == 0
        worker.client.rediscover()
        await asyncio.sleep(0.05)
        assert worker.states[-1] == released
        worker.client.retry()
        back = await worker.until_state("ready")
        assert (back.restarts, back.inventory.error) == (0, "")
        await worker.client.stop()

    go(test())


def test_a_release_can_be_made_longer_while_it_lasts(tmp_path: Path) -> None:
    async def test() -> None:
        worker = Watched(scene(tmp_path / "a"), QUICK, skip_waits=False)
        await worker.until_state("ready")
        await worker.client.release(600.0)
        first = worker.states[-1]
        await worker.client.release(3600.0)
        assert worker.states[-1].state == "released"
        assert worker.states[-1].message > first.message  # a later time
        await worker.client.stop()

    go(test())


def test_a_release_ends_with_its_time(tmp_path: Path) -> None:
    async def test() -> None:
        worker = Watched(scene(tmp_path / "a"), WorkerTiming(), skip_waits=True)
        await worker.until_state("ready")
        asked_s = worker.clock.mono_s
        releasing = asyncio.ensure_future(worker.client.release(600.0))
        await worker.until_state("released")
        await worker.until_state("ready")
        assert worker.clock.mono_s >= asked_s + 600
        await releasing
        await worker.client.stop()

    go(test())


@pytest.mark.parametrize("where", ["open", "discover", "sample", "close"])
def test_a_worker_that_hangs_is_released_as_well(tmp_path: Path, where: str) -> None:
    async def test() -> None:
        hang = {"in": where, "do": "hang"}
        worker = Watched(scene(tmp_path / "a", hang), WorkerTiming(), skip_waits=False)
        if where == "close":
            await worker.until_state("ready")
        else:
            await worker.until(lambda states: bool(states) and states[-1].pid is not None)
        await worker.client.release(600.0)
        await worker.until_state("released")
        assert worker.states[-1].pid is None
        assert "Late" not in worker.reasons()
        await worker.client.stop()

    go(test())


def test_a_worker_that_takes_longer_to_end_than_its_release_lasts_has_not_died(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        worker = Watched(
            scene(tmp_path / "a", {"in": "sample", "do": "hang"}), WorkerTiming(), skip_waits=False
        )
        ready = await worker.until_state("ready")
        await worker.client.release(0.01)
        assert worker.states[-1].state == "released"
        await worker.until_state("ready")
        assert worker.states[-1].pid not in (None, ready.pid)
        assert worker.states[-1].restarts == 0
        assert worker.reasons() == {"Released"}
        await worker.client.stop()

    go(test())


def test_a_worker_in_quarantine_can_be_released_and_tried_again_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        file = scene(tmp_path / "a", {"in": "discover", "do": "exit"})
        worker = Watched(file, QUICK, skip_waits=True)
        await worker.until_state("quarantined")
        await worker.client.release(3600.0)
        await worker.until_state("released")
        scene(file)
        worker.client.retry()
        await worker.until_state("ready")
        await worker.client.stop()

    go(test())


def test_a_clear_without_a_worker_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        worker = Watched(scene(tmp_path / "a"), QUICK, skip_waits=False)
        await worker.until_state("ready")
        await worker.client.release(600.0)
        with pytest.raises(WorkerError, match="the worker is released"):
            await worker.client.request(ClearFaultRequest("FAKE-0"))
        await worker.client.stop()

    go(test())


def test_requests_to_clear_do_not_pile_up_and_end_with_the_worker(tmp_path: Path) -> None:
    async def test() -> None:
        hang = {"in": "clear", "do": "hang"}
        worker = Watched(scene(tmp_path / "a", hang), QUICK, skip_waits=False)
        await worker.until_state("ready")
        requests = [
            asyncio.ensure_future(worker.client.request(ClearFaultRequest("FAKE-0")))
            for _ in range(MAX_REQUESTS + 2)
        ]
        await asyncio.sleep(0.05)
        await worker.client.release(600.0)
        answers = await asyncio.gather(*requests, return_exceptions=True)
        assert all(isinstance(answer, WorkerError) for answer in answers)
        assert any("wait for their turn" in str(answer) for answer in answers)
        await worker.client.stop()

    go(test())
