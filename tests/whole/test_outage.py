"""Six hours without an API server, on a simulated clock."""

from __future__ import annotations

import pytest

from agent.kube.event_backlog import MAX_WAITING
from tests.whole.outage import FOLLOWED, Outcome, outage

MAX_GROWTH_BYTES = 5 << 20


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return outage(hours=6)


def test_no_pod_and_no_grant_is_lost_in_six_hours_without_api_server(outcome: Outcome) -> None:
    assert outcome.lost == ()


def test_each_resource_is_listed_once_after_six_hours_and_what_is_gone_is_known_to_be(
    outcome: Outcome,
) -> None:
    assert outcome.lists == dict.fromkeys(FOLLOWED, 1)
    assert outcome.gone == ()


def test_only_the_newest_of_six_hours_is_written_and_once(outcome: Outcome) -> None:
    assert outcome.is_newest
    assert outcome.writes == {"devices": 1, "nodemetrics": 1}


def test_events_of_six_hours_wait_in_bounded_number_and_are_sent_when_the_server_is_back(
    outcome: Outcome,
) -> None:
    assert 0 < outcome.told <= outcome.most_waiting <= MAX_WAITING


@pytest.mark.slow
def test_memory_grows_by_five_megabytes_at_most_in_six_hours_without_api_server() -> None:
    assert outage(hours=6, traced=True).growth_bytes <= MAX_GROWTH_BYTES


def test_memory_does_not_grow_hour_by_hour_without_api_server() -> None:
    assert outage(hours=1.5, traced=True).growth_bytes <= MAX_GROWTH_BYTES / 6
