"""Cards that take seconds to attach, as without persistence mode: the deadline is of one card."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.snapshot.device import HealthState
from agent.snapshot.inventory import Inventory
from agent.workers.lifecycle import WorkerTiming
from tests.fault.workers.nvidia_machine import BUSES, Machine
from tests.fault.workers.watched import go, nothing_left

__all__ = ["nothing_left"]
pytestmark = pytest.mark.usefixtures("nothing_left")

# eight cards take longer than one question may
SLOW = {"persistence": 0, "attach_ms": 1100}
TIMING = WorkerTiming(sample_every_s=0.5, discover_deadline_s=5.0)


def answers(machine: Machine) -> list[Inventory]:
    """Return the different answers that were published, without the sighting before them."""
    found: list[Inventory] = []
    for state in machine.states:
        inventory = state.inventory.value
        told = inventory is not None and bool(inventory.devices)
        if inventory is not None and told and inventory not in found:
            found.append(inventory)
    return found


def complete(machine: Machine) -> bool:
    found = answers(machine)
    return bool(found) and not found[-1].partial


def test_every_card_comes_into_service_and_the_first_do_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        machine = Machine(tmp_path, **SLOW)
        client = machine.start(TIMING)
        await machine.until(lambda: bool(machine.states) and bool(machine.sampled()))
        assert not complete(machine)  # what is attached is sampled while the others follow
        await machine.until(lambda: complete(machine))
        found = answers(machine)
        granted = [sum(bool(card.resources) for card in part.devices) for part in found]
        assert granted[0] in (1, 2)
        assert granted == sorted(granted)
        assert granted[-1] == len(BUSES)
        assert {len(part.devices) for part in found} == {len(BUSES)}
        waiting = [card for card in found[0].devices if not card.resources]
        assert {(c.health.reason, c.health.certain) for c in waiting} == {("NotYetAsked", False)}
        assert not any(part.groups for part in found[:-1])
        states = {card.health.state for card in machine.cards}
        assert states == {HealthState.HEALTHY}
        assert {state.state for state in machine.states} == {"starting", "ready"}
        assert machine.now.restarts == 0
        (problem,) = found[-1].problems
        assert problem.reason == "PersistenceModeOff"
        assert problem.message.startswith(BUSES[0])
        assert "8 cards" in problem.message
        await client.stop()

    go(test())


def test_persistence_mode_is_not_named_where_it_is_on(tmp_path: Path) -> None:
    async def test() -> None:
        machine = Machine(tmp_path, persistence=1, attach_ms=1100)
        client = machine.start(TIMING)
        await machine.until(lambda: complete(machine))
        assert answers(machine)[-1].problems == ()
        await client.stop()

    go(test())


def test_after_a_restart_of_the_agent_no_card_is_taken_from_its_pods(tmp_path: Path) -> None:
    async def test() -> None:
        machine = Machine(tmp_path, persistence=1)
        boot = machine.tree / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text("0000\n")
        state_dir = str(tmp_path / "state")
        first = machine.start(TIMING, state_dir=state_dir)
        await machine.until(lambda: complete(machine))
        await first.stop()
        before = {card.key: (card.uuid, card.minor, card.resources) for card in machine.cards}
        machine.gpus = Machine(tmp_path / "slow", **SLOW).gpus
        machine.play()
        machine.states.clear()
        second = machine.start(TIMING, state_dir=state_dir)
        await machine.until(lambda: complete(machine))
        found = answers(machine)
        assert any(part.partial for part in found)
        for part in found:
            told = {card.key: (card.uuid, card.minor, card.resources) for card in part.devices}
            assert told == before
        await second.stop()

    go(test())
