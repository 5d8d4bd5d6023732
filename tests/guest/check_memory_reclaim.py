"""Memory of best-effort pods on version 2 groups: reclaimed, limited, and given back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cgroup_v2.session import CACHE_BYTES
from tests.guest.inside.restore import DRIVERS

UNTOUCHED = ["max", "max", "0"]


@pytest.fixture
def reclaimed(facts: dict[str, Any]) -> Any:
    return facts["memory_reclaim"]["reclaimed"]


def test_the_kernel_reclaims_what_is_requested(reclaimed: Any) -> None:
    before, after, _ = reclaimed["used"]
    assert before >= CACHE_BYTES
    assert CACHE_BYTES // 2 <= before - after <= CACHE_BYTES


def test_a_request_for_more_than_there_is_reclaims_all_and_kills_nothing(reclaimed: Any) -> None:
    before, _, after = reclaimed["used"]
    assert before - after >= CACHE_BYTES * 3 // 4
    assert (reclaimed["problems"], reclaimed["alive"]) == ([""] * 3, "alive")


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_limit_is_set_while_memory_is_short_and_restored(
    facts: dict[str, Any], driver: str
) -> None:
    node = facts["memory_reclaim"][driver]
    limited = ["28991029248", "max", "0"]
    assert node["values"] == [UNTOUCHED, limited, limited, UNTOUCHED]
    assert node["left"] == []
