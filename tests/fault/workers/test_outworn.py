"""Workers that are replaced in good order: too large, or an upgraded library underneath."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.errors import WorkerError
from agent.workers.client import MEMORY_EVERY_S, MIN_REPLACEMENT_INTERVAL_S
from agent.workers.lifecycle import ClearFaultRequest
from agent.workers.process import resident_bytes
from tests.fault.workers.watched import QUICK, Watched, go, nothing_left, scene

__all__ = ["nothing_left"]
pytestmark = pytest.mark.usefixtures("nothing_left")

MIB = 1 << 20
SECONDS = replace(QUICK, sample_every_s=1.0)
CAPPED = replace(SECONDS, memory_limit_bytes=192 * MIB)


def test_the_resident_size_is_that_of_the_process() -> None:
    own = resident_bytes(os.getpid())
    assert own is not None
    assert own > 10 * MIB
    assert resident_bytes(2**22 + 1) is None  # beyond the largest id


def test_a_worker_that_leaks_is_replaced_before_it_takes_the_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It really leaks; only the waits between the calls are left out."""
    caplog.set_level(logging.WARNING)

    async def test() -> None:
        leak = {"in": "sample", "do": "leak", "after": 5, "leak_bytes": 2 * MIB}
        worker = Watched(scene(tmp_path / "a", leak), CAPPED, skip_waits=True)
        first = await worker.until_state("ready")
        await worker.until(lambda states: states[-1].recycles == 1)
        await worker.until(lambda states: states[-1].pid not in (None, first.pid))
        scene(tmp_path / "a")
        taken_s = worker.states[-1].inventory.taken_s
        await worker.until(lambda states: states[-1].inventory.taken_s != taken_s)
        assert worker.states[-1].restarts == 0
        assert {state.state for state in worker.states} == {"starting", "ready"}
        assert all(state.inventory.value is not None for state in worker.states)
        await worker.client.stop()

    go(test())
    (record,) = [r for r in caplog.records if r.getMessage() == "worker_recycled"]
    assert vars(record)["reason"] == "MemoryLimit"
    assert f"more than {192 * MIB}" in vars(record)["error"]


def test_a_worker_that_is_too_large_from_the_start_ends_in_quarantine_and_says_why(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        timing = replace(SECONDS, memory_limit_bytes=MIB)
        worker = Watched(scene(tmp_path / "a"), timing, skip_waits=True)
        result = await worker.until_state("quarantined")
        assert (result.reason, result.restarts) == ("MemoryLimit", 4)
        assert MEMORY_EVERY_S < MIN_REPLACEMENT_INTERVAL_S
        await worker.client.stop()

    go(test())


@pytest.mark.parametrize("size", [None, 0, 192 * MIB], ids=["unknown", "none", "just allowed"])
def test_a_worker_within_its_limit_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    async def test() -> None:
        looks: list[int] = []

        def resident(pid: int) -> int | None:
            looks.append(pid)
            return size

        monkeypatch.setattr("agent.workers.client.resident_bytes", resident)
        worker = Watched(scene(tmp_path / "a"), CAPPED, skip_waits=True)
        await worker.until(lambda _: len(looks) > 5)
        assert set(looks) == {worker.states[-1].pid}
        assert not worker.reasons()
        await worker.client.stop()

    go(test())


@pytest.mark.parametrize("where", ["sample", "discover"])
def test_a_library_that_was_upgraded_gets_a_new_process_at_once_and_no_mark(
    tmp_path: Path, where: str
) -> None:
    async def test() -> None:
        timing = replace(SECONDS, discover_every_s=30.0)
        after = 2 if where == "discover" else 5
        upgrade = {"in": where, "do": "upgrade", "after": after}
        worker = Watched(scene(tmp_path / "a", upgrade), timing, skip_waits=True)
        first = await worker.until_state("ready")
        await worker.until(lambda states: states[-1].recycles == 1)
        recycled_s = worker.clock.mono_s
        await worker.until(lambda states: states[-1].pid not in (None, first.pid))
        assert worker.clock.mono_s == recycled_s
        assert worker.states[-1].restarts == 0
        assert {state.state for state in worker.states} == {"starting", "ready"}
        await worker.client.stop()

    go(test())


def test_a_library_that_seems_upgraded_all_the_time_is_no_endless_loop(tmp_path: Path) -> None:
    async def test() -> None:
        upgrade = {"in": "sample", "do": "upgrade"}
        worker = Watched(scene(tmp_path / "a", upgrade), SECONDS, skip_waits=True)
        result = await worker.until_state("quarantined")
        assert (result.reason, result.restarts) == ("LibraryReplaced", 4)
        await worker.client.stop()

    go(test())


@pytest.mark.parametrize("where", ["open", "discover", "sample"])
def test_a_worker_that_the_kernel_refuses_says_so_and_no_device_failed(
    tmp_path: Path, where: str
) -> None:
    async def test() -> None:
        file = scene(tmp_path / "a")
        worker = Watched(file, SECONDS, skip_waits=True)
        ready = await worker.until_state("ready")
        scene(file, {"in": where, "do": "forbid"})
        worker.client.retry()
        assert worker.client._worker is not None
        await worker.client._worker.kill()
        result = await worker.until_state("quarantined")
        assert result.reason == "NoPermission"
        assert "/dev/fake of" in result.message
        assert result.inventory.value == ready.inventory.value
        scene(file)
        worker.client.retry()
        await worker.until_state("ready")
        await worker.client.stop()

    go(test())


@pytest.mark.parametrize(
    ("do", "reason"),
    [("exit", "Closed"), ("garbage", "Garbage"), ("endless", "TooLong"), ("raise", "Unexpected")],
)
def test_a_worker_that_fails_while_it_clears_is_like_any_other(
    tmp_path: Path, do: str, reason: str
) -> None:
    async def test() -> None:
        file = scene(tmp_path / "a", {"in": "clear", "do": do})
        worker = Watched(file, QUICK, skip_waits=False)
        await worker.until_state("ready")
        with pytest.raises(WorkerError, match=reason):
            await worker.client.request(ClearFaultRequest("FAKE-0"))
        if do == "raise":  # that was one question: the others are answered
            assert not worker.reasons()
        else:
            await worker.until_state("restarting")
            scene(file)
            await worker.until_state("ready")
        await worker.client.stop()

    go(test())


@pytest.mark.parametrize("do", ["exit", "crash", "garbage", "half", "hang"])
def test_how_a_worker_ends_that_is_to_end_counts_for_nothing(tmp_path: Path, do: str) -> None:
    async def test() -> None:
        worker = Watched(scene(tmp_path / "a", {"in": "close", "do": do}), QUICK, skip_waits=False)
        await worker.until_state("ready")
        await worker.client.release(600.0)
        assert worker.states[-1].state == "released"
        worker.client.retry()
        assert (await worker.until_state("ready")).restarts == 0
        await worker.client.stop()

    go(test())


def test_what_a_person_clears_reaches_the_session_in_its_turn(tmp_path: Path) -> None:
    async def test() -> None:
        events = [{"at_s": 0, "key": "FAKE-0", "reason": "Xid79"}]
        worker = Watched(scene(tmp_path / "a", events=events), QUICK, skip_waits=False)
        await worker.until_state("ready")
        answers = await asyncio.gather(
            *(worker.client.request(ClearFaultRequest("FAKE-0")) for _ in range(3))
        )
        assert answers == [False, False, False]
        assert not worker.reasons()
        await worker.client.stop()

    go(test())
