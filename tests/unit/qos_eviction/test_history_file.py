"""Limits of evictions over restarts of the agent."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from agent.qos.eviction.history import (
    EvictionHistory,
    InFlightRequest,
    advance_history,
    record_requests,
)
from agent.qos.eviction.history_file import (
    FILE_NAME,
    EvictionHistoryFile,
    decode_history,
    encode_history,
)
from agent.snapshot.pod import EvictionRequest, PodRef
from agent.state_writer import StateWriter
from tests.unit.qos_eviction.evictions import GB, Rounds, cpu_rounds, memory_rounds, pod

BOOT = "00000000-0000-4000-8000-000000000001"
REQUEST = EvictionRequest(pod=PodRef(namespace="n", name="p", uid="uid-p"), feature="BEMemoryEvict")
BUSY = EvictionHistory(
    times_s=(90.0, 95.0),
    last_s={"cpu": 90.0},
    in_flight={"uid-p": InFlightRequest(REQUEST, 99.0)},
    ending_until_s={"uid-q": 150.0},
)


def test_a_request_without_an_answer_counts_as_an_eviction_after_a_restart() -> None:
    history = decode_history(encode_history(BUSY, BOOT), BOOT, 100.0)
    assert history.times_s == (90.0, 95.0, 99.0)
    assert history.last_s == {"cpu": 90.0, "memory": 99.0}
    assert history.ending_until_s == {"uid-p": 219.0, "uid-q": 150.0}
    assert history.in_flight == {}


@pytest.mark.parametrize("boot_id", ["", "another"])
def test_times_of_another_boot_mean_nothing(boot_id: str) -> None:
    assert decode_history(encode_history(BUSY, BOOT), boot_id, 5.0) == EvictionHistory()


def test_times_in_the_future_are_no_longer_ahead() -> None:
    history = decode_history(encode_history(BUSY, BOOT), BOOT, 50.0)
    assert history.times_s == (50.0, 50.0, 50.0)
    assert max(history.ending_until_s.values()) == 170.0


@given(st.binary(max_size=200))
def test_any_other_content_is_refused(data: bytes) -> None:
    with pytest.raises(ParseError):
        decode_history(data, BOOT, 1.0)


def restarted(rounds: Rounds, now_s: float) -> Rounds:
    """Another agent, with what the file of the first one says."""
    after = memory_rounds(*rounds.inputs.pods)
    after.history = decode_history(encode_history(rounds.history, BOOT), BOOT, now_s)
    return after


def test_an_agent_that_restarts_again_and_again_evicts_no_more_than_one_that_runs() -> None:
    rounds = memory_rounds(*(pod(f"p{n:02}", memory=GB // 2) for n in range(40)))
    requested: list[float] = []
    for second in range(120):
        evicted = rounds.run(float(second))
        requested += [float(second)] * len(evicted)
        assert sum(second - at_s < 60 for at_s in requested) <= 5
        rounds = restarted(rounds, float(second))
    assert len(requested) == 10


def test_the_loop_for_cpu_waits_after_a_restart_whatever_the_file_says() -> None:
    victim = pod("p", used={"cpu": 5000}, is_enabled=True)
    rounds = cpu_rounds(victim)
    rounds.history = EvictionHistory(last_s={"cpu": 10.0})
    assert rounds.run(100.0) == []
    assert rounds.run(119.9) == []
    assert rounds.run(120.0) == ["p"]


def test_the_file_holds_what_was_saved(tmp_path: Path) -> None:
    writer = StateWriter()
    file = EvictionHistoryFile(str(tmp_path), BOOT, writer)
    assert file.load(1.0) == EvictionHistory()
    history = record_requests(EvictionHistory(), [REQUEST], 7.0)
    assert file.save(history)
    loaded = EvictionHistoryFile(str(tmp_path), BOOT, StateWriter()).load(8.0)
    assert loaded.times_s == (7.0,)
    assert advance_history(loaded, 68.0, (), frozenset()).times_s == ()
    writer.close()


def test_a_damaged_file_is_put_aside_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("{")
    file = EvictionHistoryFile(str(tmp_path), BOOT, StateWriter())
    assert file.load(1.0) == EvictionHistory()
    assert (tmp_path / f"{FILE_NAME}.bad").exists()


def test_without_a_folder_nothing_is_stored(tmp_path: Path) -> None:
    file = EvictionHistoryFile("", BOOT, StateWriter())
    assert file.load(1.0) == EvictionHistory()
    assert not file.save(BUSY)
    assert list(tmp_path.iterdir()) == []
