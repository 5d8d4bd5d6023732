from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.snapshot.device import HealthState
from plugins.vendors.rdma.health.ports import (
    DeviceHistory,
    ErrorWindow,
    PortReading,
    check_errors,
    count_downed,
    judge_ports,
    mark_used_ports,
    observe_ports,
    pause,
)

HEALTHY, SUSPECT, FAILED = HealthState.HEALTHY, HealthState.SUSPECT, HealthState.FAILED
UP, DOWN = PortReading(number=1, state=4), PortReading(number=1, state=1, physical=2)
ONE = frozenset({1})


def ib(state: int | None, *, sm_lid: int | None = None, number: int = 1) -> PortReading:
    return PortReading(number=number, state=state, sm_lid=sm_lid, is_infiniband=True, physical=5)


@pytest.mark.parametrize(
    ("ports", "used", "policy", "state", "reason"),
    [
        pytest.param((UP,), ONE, "any", HEALTHY, "DeviceHealthy", id="active"),
        pytest.param((UP, replace(DOWN, number=2)), ONE, "any", HEALTHY, "DeviceHealthy", id="V75"),
        pytest.param((ib(2, sm_lid=0),), ONE, "any", FAILED, "NoSubnetManager", id="V76"),
        pytest.param((ib(2, sm_lid=3),), ONE, "any", FAILED, "PortInit", id="init-with-a-manager"),
        pytest.param((ib(2),), ONE, "any", FAILED, "PortInit", id="init-manager-not-told"),
        pytest.param(
            (PortReading(number=1, state=2, sm_lid=0),),
            ONE,
            "any",
            FAILED,
            "PortInit",
            id="ethernet",
        ),
        pytest.param((ib(3),), ONE, "any", FAILED, "PortArmed", id="armed"),
        pytest.param((ib(5),), ONE, "any", SUSPECT, "PortActiveDefer", id="defers"),
        pytest.param((DOWN,), ONE, "any", FAILED, "PortDown", id="down"),
        pytest.param(
            (replace(DOWN, physical=3),), ONE, "any", FAILED, "PortDisabled", id="disabled"
        ),
        pytest.param(
            (replace(DOWN, physical=3), replace(DOWN, number=2)),
            frozenset({1, 2}),
            "any",
            FAILED,
            "PortDown",
            id="one-disabled-one-down",
        ),
        pytest.param((), frozenset(), "any", FAILED, "NoPorts", id="no-ports"),
        pytest.param(
            (PortReading(number=1, state=None, is_readable=False),),
            ONE,
            "any",
            FAILED,
            "NoPorts",
            id="unreadable",
        ),
        pytest.param(
            (PortReading(number=1, state=None),),
            ONE,
            "any",
            SUSPECT,
            "PortStateUnknown",
            id="row-12",
        ),
        pytest.param((ib(44),), ONE, "any", FAILED, "PortDown", id="row-12-44-is-not-active"),
        pytest.param(
            (UP, replace(DOWN, number=2)),
            frozenset({1, 2}),
            "all",
            FAILED,
            "PortDown",
            id="policy-all",
        ),
        pytest.param(
            (UP, replace(DOWN, number=2)), ONE, "all", HEALTHY, "DeviceHealthy", id="all-used-ones"
        ),
        pytest.param(
            (UP, replace(DOWN, number=2)), frozenset(), "any", HEALTHY, "DeviceHealthy", id="new"
        ),
        pytest.param((ib(3),), ONE, "all", FAILED, "PortArmed", id="all-and-armed"),
        pytest.param((UP,), frozenset({7}), "any", HEALTHY, "DeviceHealthy", id="used-but-absent"),
    ],
)
def test_one_look(
    ports: tuple[PortReading, ...],
    used: frozenset[int],
    policy: str,
    state: HealthState,
    reason: str,
) -> None:
    health = judge_ports(ports, used, policy)
    assert (health.state, health.reason) == (state, reason)
    assert health.message


def run(
    *looks: tuple[float, PortReading], memory: DeviceHistory | None = None, lag: bool = False
) -> list[tuple[HealthState, str]]:
    """Take looks in at given seconds; return what was published after each."""
    now = memory or DeviceHistory()
    reports = []
    for at, observations in looks:
        now = observe_ports(now, (observations,), now_s=at, wall_s=at + 1e9, lag_degraded=lag)
        assert now.health is not None
        reports.append((now.health.state, now.health.reason))
    return reports


GOOD, BAD = (HEALTHY, "DeviceHealthy"), (FAILED, "PortDown")


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        pytest.param([(0, DOWN)], [BAD], id="the-first-look-counts"),
        pytest.param([(0, UP), (1, DOWN), (2, UP)], [GOOD] * 3, id="V77"),
        pytest.param(
            [(0, UP), (1, DOWN), (2, DOWN), (3, DOWN)], [GOOD, GOOD, GOOD, BAD], id="two-seconds"
        ),
        pytest.param(
            [(0, UP), (1, DOWN), (2, UP), (3, DOWN), (4.5, DOWN)], [GOOD] * 5, id="broken-doubt"
        ),
        pytest.param(
            [(0, DOWN), (1, UP), (10, UP), (10.9, UP), (11, UP)],
            [BAD, BAD, BAD, BAD, GOOD],
            id="ten-seconds-up",
        ),
        pytest.param(
            [(0, DOWN), (1, UP), (9, DOWN), (10, UP), (15, UP), (20, UP)],
            [BAD, BAD, BAD, BAD, BAD, GOOD],
            id="up-must-be-unbroken",
        ),
        pytest.param([(0, UP), (100, DOWN), (160, DOWN)], [GOOD, GOOD, BAD], id="slow-looks"),
        pytest.param(
            [(0, DOWN), (1, ib(3))], [BAD, (FAILED, "PortArmed")], id="another-reason-at-once"
        ),
        pytest.param(
            [(0, UP), (1, ib(5))], [GOOD, (SUSPECT, "PortActiveDefer")], id="suspect-at-once"
        ),
        pytest.param(
            [(0, DOWN), (1, ib(None)), (30, ib(None))], [BAD] * 3, id="unknown-changes-nothing"
        ),
    ],
)
def test_readings_over_time(
    looks: list[tuple[float, PortReading]], told: list[tuple[HealthState, str]]
) -> None:
    assert run(*looks) == told


def test_three_short_falls_make_it_suspect_and_not_unhealthy_vector_78() -> None:
    reports = run((-1, UP), (0, DOWN), (1, UP), (200, DOWN), (201, UP), (500, DOWN), (501, UP))
    assert reports[-1] == (SUSPECT, "LinkFlapping")
    assert all(state is not FAILED for state, _ in reports)


def test_flapping_is_forgiven_half_an_hour_after_the_last_fall() -> None:
    looks = [(-1.0, UP), (0.0, DOWN), (1.0, UP), (2.0, DOWN), (3.0, UP), (4.0, DOWN), (5.0, UP)]
    reports = run(*looks, (1803.0, UP), (1804.0, UP))
    assert reports[-2:] == [(SUSPECT, "LinkFlapping"), GOOD]


def test_three_falls_in_more_than_ten_minutes_are_no_flapping() -> None:
    reports = run((-1, UP), (0, DOWN), (1, UP), (300, DOWN), (301, UP), (601, DOWN), (602, UP))
    assert reports[-1] == GOOD


def test_the_counter_of_the_port_shows_falls_between_readings() -> None:
    memory = observe_ports(DeviceHistory(), (UP,), now_s=0, wall_s=0)
    for at, value in ((10, 5), (20, 6), (30, 8)):
        memory = count_downed(memory, 1, value, at)
    assert run((31, UP), memory=memory) == [(SUSPECT, "LinkFlapping")]


def test_a_counter_at_its_end_grows_no_more_vector_79() -> None:
    memory = observe_ports(DeviceHistory(), (UP,), now_s=0, wall_s=0)
    for at, value in ((10, 255), (20, 255)):
        memory = count_downed(memory, 1, value, at)
    assert run((21, UP), memory=memory) == [GOOD]


def test_a_counter_that_starts_again_is_no_fall() -> None:
    memory = count_downed(DeviceHistory(), 1, 200, 0)
    assert count_downed(memory, 1, 0, 10).flapping_until_s == 0


def test_a_bond_with_one_dead_member_is_suspect() -> None:
    assert run((0, UP), lag=True) == [(SUSPECT, "LagDegraded")]
    assert run((0, DOWN), lag=True) == [BAD]


def test_a_change_is_dated_and_a_first_reading_is_not() -> None:
    first = observe_ports(DeviceHistory(), (UP,), now_s=0, wall_s=50)
    assert first.health is not None
    assert first.health.since_s is None
    doubt = observe_ports(first, (DOWN,), now_s=1, wall_s=51)
    later = observe_ports(doubt, (DOWN,), now_s=3, wall_s=53)
    assert later.health is not None
    assert later.health.since_s == 53
    assert observe_ports(later, (DOWN,), now_s=9, wall_s=59).health == later.health


def test_an_expected_port_counts_though_it_was_never_up() -> None:
    memory = mark_used_ports(DeviceHistory(), (2,))
    observations = (UP, replace(DOWN, number=2))
    health = observe_ports(memory, observations, now_s=0, wall_s=0, policy="all").health
    assert health is not None
    assert (health.reason, health.message) == (
        "PortDown",
        "port 2 is not active, and all that are in use have to be (discovery.rdma.port_policy)",
    )


def test_a_device_that_comes_back_did_not_fall() -> None:
    memory = pause(observe_ports(DeviceHistory(), (UP,), now_s=0, wall_s=0))
    assert observe_ports(memory, (DOWN,), now_s=5, wall_s=5).port(1).flaps == 0


def test_own_falls_are_counted() -> None:
    memory = DeviceHistory()
    for at, observations in enumerate((UP, DOWN, DOWN, UP, DOWN)):
        memory = observe_ports(memory, (observations,), now_s=at, wall_s=at)
    assert memory.port(1).flaps == 2


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"symbol_error": 0}, {"symbol_error": 10}, ""),
        ({"symbol_error": 0}, {"symbol_error": 11}, "symbol_error +11"),
        ({"local_link_integrity_errors": 3}, {"local_link_integrity_errors": 4}, "+1"),
        ({"rx_icrc_encapsulated": 9}, {"rx_icrc_encapsulated": 0}, ""),
        ({}, {"port_rcv_errors": 500}, ""),
    ],
)
def test_errors_beyond_their_limits_are_reported(
    before: dict[str, int], after: dict[str, int], words: str
) -> None:
    window, _ = check_errors(None, tuple(before.items()), 0)
    _, reports = check_errors(window, tuple(after.items()), 60)
    assert words in reports
    assert bool(words) is bool(reports)


def test_a_counter_that_started_anew_is_counted_from_there() -> None:
    window, reports = None, ""
    for at, value in enumerate((900, 0, 11)):
        window, reports = check_errors(window, (("symbol_error", value),), at * 10)
    assert reports == "symbol_error +11"


def test_errors_are_reported_once_in_five_minutes() -> None:
    window: ErrorWindow | None = None
    reports = []
    for at in range(0, 700, 10):
        window, words = check_errors(window, (("symbol_error", at),), at)
        reports.append(bool(words))
    assert sum(reports) == 3


_LOOKS = st.lists(
    st.tuples(
        st.floats(0, 2000),
        st.lists(
            st.builds(
                PortReading,
                number=st.integers(1, 3),
                state=st.one_of(st.none(), st.integers(0, 60)),
                physical=st.one_of(st.none(), st.integers(0, 9)),
                sm_lid=st.one_of(st.none(), st.integers(0, 5)),
                is_infiniband=st.booleans(),
                is_readable=st.booleans(),
            ),
            max_size=3,
        ),
    ),
    max_size=30,
)


@given(_LOOKS, st.sampled_from(["any", "all"]))
def test_any_readings_give_a_health_and_a_bounded_memory(
    looks: list[tuple[float, list[PortReading]]], policy: str
) -> None:
    memory, clock = DeviceHistory(), 0.0
    for step, observations in looks:
        clock += step
        memory = observe_ports(
            memory, tuple(observations), now_s=clock, wall_s=clock, policy=policy
        )
        assert memory.health is not None
        assert all(len(port.edges) <= 3 for port in memory.ports)
        assert memory.doubt_s is None or memory.doubt_s <= clock
