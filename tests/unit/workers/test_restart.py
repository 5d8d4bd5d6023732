from __future__ import annotations

import pytest

from agent.workers.client import RestartHistory
from agent.workers.lifecycle import RestartPolicy

POLICY = RestartPolicy()


def _after(*deaths_s: float) -> RestartHistory:
    history = RestartHistory()
    for death_s in deaths_s:
        history = history.with_death(death_s, POLICY)
    return history


@pytest.mark.parametrize(("deaths", "wait_s"), [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0)])
def test_waits_double_from_death_to_death(deaths: int, wait_s: float) -> None:
    assert _after(*range(deaths)).wait_s(POLICY, 1.0) == wait_s


def test_jitter_takes_up_to_half_of_the_wait() -> None:
    assert _after(0, 1).wait_s(POLICY, 0.0) == 1.0
    assert _after(0, 1).wait_s(POLICY, 0.5) == 1.5


def test_a_wait_has_an_upper_bound() -> None:
    patient = RestartPolicy(deaths=50)
    history = RestartHistory(tuple(float(t) for t in range(40)))
    assert history.wait_s(patient, 1.0) == patient.longest_s


def test_five_deaths_in_ten_minutes_are_a_quarantine() -> None:
    assert not _after(0, 100, 200, 300).is_quarantined
    history = _after(0, 100, 200, 300, 400)
    assert history.is_quarantined
    assert history.wait_s(POLICY, 0.0) == POLICY.quarantine_s


def test_deaths_that_are_long_ago_do_not_count() -> None:
    history = _after(0, 100, 200, 300, 700)
    assert not history.is_quarantined
    assert history.deaths_s == (200, 300, 700)


def test_a_death_in_quarantine_keeps_it() -> None:
    assert _after(0, 1, 2, 3, 4).with_death(5000, POLICY).is_quarantined


def test_an_answer_ends_the_quarantine_and_its_count() -> None:
    history = _after(0, 1, 2, 3, 4).with_answer()
    assert history == RestartHistory()


def test_an_answer_outside_quarantine_forgets_no_death() -> None:
    assert _after(0, 1).with_answer() == _after(0, 1)


def test_the_history_is_bounded() -> None:
    assert len(_after(*(t / 10 for t in range(1000))).deaths_s) == POLICY.deaths
