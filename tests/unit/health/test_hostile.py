"""Vendors that say anything: told or refused, and kept, without an error."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.config.health import HealthSettings
from agent.health.lasting import decode, encode, worth_keeping
from agent.health.vendor import VendorHealth
from agent.model.device import HealthState
from agent.model.inventory import DeviceEvent, DeviceSample, Inventory
from agent.model.part import Part
from agent.model.snapshot import VendorState
from tests.hostile import few, healths, inventories, texts
from tests.unit.health.looks import at

verdicts = st.lists(st.builds(DeviceSample, key=texts, health=st.none() | healths), max_size=4)
happened = st.lists(
    st.builds(DeviceEvent, key=texts, reason=texts, state=st.none() | st.sampled_from(HealthState)),
    max_size=4,
)


@few
@given(st.lists(st.tuples(inventories("x"), verdicts, happened), min_size=1, max_size=4))
def test_whatever_a_vendor_says_it_is_told_or_refused_and_can_be_kept(
    turns: list[tuple[Inventory, list[DeviceSample], list[DeviceEvent]]],
) -> None:
    health = VendorHealth("x", HealthSettings())
    for second, (answer, samples, events) in enumerate(turns):
        state = VendorState(
            vendor="x", state="ready", inventory=Part(answer), samples=Part(tuple(samples))
        )
        told = health.heard(state, at(second)).inventory.value
        assert told is not None
        assert [device.key for device in told.devices] == [device.key for device in answer.devices]
        health.happened(events, at(second))
        health.wants_look(at(second))
    data = encode(worth_keeping({"x": health.tracks}), "b007", at(9))
    assert set(decode(data, "b007", at(10))) <= {"x"}
