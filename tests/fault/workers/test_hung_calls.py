"""A library that hangs in one call of one card: the other cards stay in service."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.snapshot.device import HealthState
from agent.workers.call_journal import call_in_progress, read_hangs, read_journal
from tests.fault.workers.nvidia_machine import BUSES, SYSTEM, TIMING, Machine
from tests.fault.workers.watched import go, nothing_left

__all__ = ["nothing_left"]
pytestmark = pytest.mark.usefixtures("nothing_left")

BAD = 3
POWER, TEMPERATURE = "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature"  # in this order
LOOK_UP = "nvmlDeviceGetHandleByPciBusId"


def names(machine: Machine, symbol: str, *, out: bool = False) -> bool:
    """Say whether the vendor answers, and names the call and the card."""
    if not machine.cards or machine.now.state != "ready":
        return False
    card = machine.cards[BAD]
    conditions = [c for c in card.conditions if c.reason == "CallHung"]
    failed = card.health.state is HealthState.FAILED
    return any(f"{symbol} of {BUSES[BAD]}" in c.message for c in conditions) and failed is out


def good_ones_are_well(machine: Machine) -> bool:
    good = [card for card in machine.cards if card.key != BUSES[BAD]]
    well = all(c.health.state is HealthState.HEALTHY and c.resources for c in good)
    return len(good) == len(BUSES) - 1 and well


def test_a_call_that_hangs_while_sampling_is_left_out_and_named(tmp_path: Path) -> None:
    async def test() -> None:
        machine = Machine(tmp_path)
        client = machine.start()
        await machine.until(lambda: bool(machine.states) and machine.sampled() == set(BUSES))
        machine.play(f"hang {TEMPERATURE} {BAD}")
        await machine.until(lambda: names(machine, TEMPERATURE))
        # the card itself goes on, without that reading
        await machine.until(lambda: machine.sampled() == set(BUSES))
        assert good_ones_are_well(machine)
        assert machine.cards[BAD].resources
        assert not {s.state for s in machine.states} & {"quarantined"}
        stalled = next(s for s in machine.states if s.state == "stalled")
        assert f"{TEMPERATURE} of {BUSES[BAD]}" in stalled.message
        problems = machine.now.inventory.value
        assert problems is not None
        assert [p.reason for p in problems.problems] == ["CallHung"]
        events = [e for e in machine.events if e.reason == "CallHung"]
        assert [(e.key, e.state) for e in events] == [(BUSES[BAD], None)]
        assert TEMPERATURE in events[0].message
        await client.stop()

    go(test())


def test_a_second_call_that_hangs_takes_the_card_and_no_other(tmp_path: Path) -> None:
    async def test() -> None:
        machine = Machine(tmp_path)
        machine.play(f"hang {TEMPERATURE} {BAD}", f"hang {POWER} {BAD}")
        client = machine.start()
        await machine.until(lambda: names(machine, TEMPERATURE, out=True))
        await machine.until(lambda: good_ones_are_well(machine))
        await machine.until(lambda: machine.sampled() == set(BUSES) - {BUSES[BAD]})
        assert machine.cards[BAD].health.reason == "CallHung"
        assert "no call about it is made" in machine.cards[BAD].health.message
        await client.stop()

    go(test())


def test_a_card_that_hangs_in_all_calls_is_out_and_the_others_are_in_service(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        machine = Machine(tmp_path)
        machine.play(f"hang * {BAD}")
        client = machine.start()
        await machine.until(lambda: names(machine, LOOK_UP, out=True))
        await machine.until(lambda: good_ones_are_well(machine))
        assert machine.cards[BAD].health.reason == "CallHung"
        assert machine.now.restarts == 1
        await client.stop()

    go(test())


def test_a_call_that_names_no_card_itself_is_blamed_on_the_one_it_is_about(tmp_path: Path) -> None:
    async def test() -> None:
        machine = Machine(tmp_path)
        machine.play(f"gpm {BAD} 2 50", "hang nvmlGpmMetricsGet")
        client = machine.start()
        await machine.until(lambda: names(machine, "nvmlGpmMetricsGet"))
        await machine.until(lambda: machine.sampled() == set(BUSES))
        assert good_ones_are_well(machine)
        await client.stop()

    go(test())


def test_what_hung_is_known_to_the_next_agent(tmp_path: Path) -> None:
    async def test() -> None:
        machine = Machine(tmp_path)
        machine.play(f"hang * {BAD}")
        first = machine.start()
        await machine.until(lambda: names(machine, LOOK_UP, out=True))
        await first.stop()
        machine.states.clear()
        second = machine.start()
        await machine.until(lambda: names(machine, LOOK_UP, out=True))
        assert machine.now.restarts == 0
        assert {s.state for s in machine.states} == {"starting", "ready"}
        await second.stop()

    go(test())


def test_as_many_cards_may_hang_as_there_are_before_anything_is_a_quarantine(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        machine = Machine(tmp_path)
        hung = (1, 2, 4)
        machine.play(*(f"hang * {card}" for card in hung))
        two = replace(TIMING.restart, deaths=2)
        client = machine.start(replace(TIMING, restart=two))

        def settled() -> bool:
            states = [card.health.state for card in machine.cards]
            out = [n for n, state in enumerate(states) if state is HealthState.FAILED]
            return machine.now.state == "ready" and out == list(hung)

        await machine.until(lambda: bool(machine.states) and settled())
        assert "quarantined" not in {s.state for s in machine.states}
        assert machine.now.restarts == len(hung)
        await client.stop()

    go(test())


def test_a_crash_in_a_call_is_left_out_like_a_hang(tmp_path: Path) -> None:
    async def test() -> None:
        machine = Machine(tmp_path)
        machine.stub.play(SYSTEM, *machine.gpus)
        with machine.stub.scenario.open("a") as scenario:
            scenario.write(f"call.{TEMPERATURE}.{BAD}.abort 11\n")
        client = machine.start()
        await machine.until(lambda: names(machine, TEMPERATURE))
        await machine.until(lambda: machine.sampled() == set(BUSES))
        assert machine.now.restarts == 1
        await client.stop()

    go(test())


def test_a_round_that_is_slow_on_the_whole_blames_no_call(tmp_path: Path) -> None:
    async def test() -> None:
        machine = Machine(tmp_path)
        machine.play(f"delay {TEMPERATURE} 600")
        client = machine.start()
        await machine.until(lambda: any(s.state == "stalled" for s in machine.states))
        stalled = next(s for s in machine.states if s.state == "stalled")
        assert "it was in" not in stalled.message
        machine.play()
        await machine.until(lambda: machine.now.state == "ready")
        await machine.until(lambda: good_ones_are_well(machine))
        assert not [c for card in machine.cards for c in card.conditions]
        assert read_hangs(read_journal(machine.journal)) == ()
        await client.stop()
        assert call_in_progress(read_journal(machine.journal)) is None

    go(test())
