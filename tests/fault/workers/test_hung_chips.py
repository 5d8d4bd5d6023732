"""Libraries of Huawei and Cambricon that hang in one call of one device."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.snapshot.device import HealthState
from agent.workers.call_journal import LibraryCall, call_in_progress, prepare_journal, read_journal
from tests.stubs.child import Child, on_tree
from tests.stubs.dcmi.machines import b3x8
from tests.stubs.stub import Stub
from tests.unit.ascend.conftest import Machine
from tests.unit.cambricon.cards import machine, stub_of, tree_of

POWER = "xpu_device_power_watts"


class Hanging:
    """A vendor's session over a stub; the first of its devices hangs in the call for its power."""

    def __init__(self, stub: Stub, child: Child, hang: str, call: LibraryCall) -> None:
        self.stub = stub
        self.child = child
        self.hang = hang
        self.call = call  # as the journal names it


@pytest.fixture(params=["ascend", "cambricon"])
def hanging(request: pytest.FixtureRequest, tmp_path: Path) -> Hanging:
    """Return a session of each vendor, not yet started."""
    journal = prepare_journal(str(tmp_path / "run"), str(request.param))
    if request.param == "ascend":
        chips = Machine(tmp_path, "910b3x8", b3x8())
        stub, child = chips.stub, chips.session()
        symbol = "dcmi_get_device_power_info"
        call = LibraryCall(symbol, "card 0 chip 0")
        hang = f"call.{symbol}.0.0.hang 1"
    else:
        stub = stub_of(tmp_path, *machine(2))
        settings = {"library_path": str(stub.path)}
        child = on_tree("cambricon", stub.environment, tree_of(tmp_path, 2), settings)
        symbol = "cndevGetDevicePowerInfo"
        call = LibraryCall(symbol, "card 0")
        hang = f"call.{symbol}.0.hang 1"
    child.journal = journal
    return Hanging(stub, child, hang, call)


def test_the_call_in_progress_stands_in_the_journal(hanging: Hanging) -> None:
    with hanging.child as child:
        child.discover()
        child.sample()
        assert call_in_progress(read_journal(child.journal)) is None
        hanging.stub.add(hanging.hang)
        with pytest.raises(TimeoutError):
            child.ask("sample", deadline_s=2.0)
        result = call_in_progress(read_journal(child.journal))
    assert result is not None
    assert replace(result, began_s=0.0) == hanging.call


def test_the_next_process_leaves_it_out_and_names_call_and_device(hanging: Hanging) -> None:
    hanging.stub.add(hanging.hang)
    hanging.child.hung_call = hanging.call
    with hanging.child as child:
        result = child.discover()
        samples = child.sample()
    first, *others = result.devices
    (condition,) = [c for c in first.conditions if c.type == "Degraded"]
    assert condition.reason == "CallHung"
    assert f"{hanging.call} did not return" in condition.message
    assert {card.health.state for card in result.devices} == {HealthState.HEALTHY}
    assert not [c for card in others for c in card.conditions if c.type == "Degraded"]
    assert "CallHung" in [problem.reason for problem in result.problems]
    keys = {s.key for s in samples if POWER in {r.family for r in s.readings}}
    assert keys == {card.key for card in others}


def test_a_second_call_takes_the_device_and_no_other(hanging: Hanging) -> None:
    hanging.stub.add(hanging.hang.replace(hanging.call.symbol, "*"))
    hanging.child.hung_call = hanging.call
    with hanging.child as child, pytest.raises(TimeoutError):
        child.ask("discover", deadline_s=2.0)
    second = call_in_progress(read_journal(hanging.child.journal))
    assert second is not None
    assert (second.symbol != hanging.call.symbol, second.device) == (True, hanging.call.device)
    again = Child(
        **{name: getattr(hanging.child, name) for name in COPIED_FIELDS}, hung_call=second
    )
    with again as child:
        result = child.discover()
        child.sample()
    states = [card.health.state for card in result.devices]
    assert states.count(HealthState.HEALTHY) == len(states) - 1
    assert any("no call about it is made" in problem.message for problem in result.problems)


COPIED_FIELDS = ("vendor", "arguments", "environment", "settings", "forked", "journal")
