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
    inventories: list[Inventory] = []
    for state in machine.states:
        inventory = state.inventory.value
        reports = inventory is not None and bool(inventory.devices)
        if inventory is not None and reports and inventory not in inventories:
            inventories.append(inventory)
    return inventories


def complete(machine: Machine) -> bool:
    result = answers(machine)
    return bool(result) and not result[-1].partial


def test_every_card_comes_into_service_and_the_first_do_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        machine = Machine(tmp_path, **SLOW)
        client = machine.start(TIMING)
        await machine.until(lambda: bool(machine.states) and bool(machine.sampled()))
        assert not complete(machine)  # what is attached is sampled while the others follow
        await machine.until(lambda: complete(machine))
        result = answers(machine)
        allocations = [sum(bool(card.resources) for card in part.devices) for part in result]
        assert allocations[0] in (1, 2)
        assert allocations == sorted(allocations)
        assert allocations[-1] == len(BUSES)
        assert {len(part.devices) for part in result} == {len(BUSES)}
        waiting = [card for card in result[0].devices if not card.resources]
        assert {(c.health.reason, c.health.certain) for c in waiting} == {("NotYetAsked", False)}
        assert not any(part.groups for part in result[:-1])
        states = {card.health.state for card in machine.cards}
        assert states == {HealthState.HEALTHY}
        assert {state.state for state in machine.states} == {"starting", "ready"}
        assert machine.now.restarts == 0
        (problem,) = result[-1].problems
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
        result = answers(machine)
        assert any(part.partial for part in result)
        for part in result:
            reports = {card.key: (card.uuid, card.minor, card.resources) for card in part.devices}
            assert reports == before
        await second.stop()

    go(test())
