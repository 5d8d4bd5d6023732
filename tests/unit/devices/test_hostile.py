"""Vendors that say anything: told or refused, and kept, without an error."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.config.health import HealthSettings
from agent.devices.health_file import decode_health, encode_health, select_records
from agent.devices.vendor_health import VendorHealth
from agent.snapshot.device import HealthState
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory
from agent.snapshot.node import VendorState
from agent.snapshot.part import SnapshotPart
from tests.hostile import few, healths, inventories, texts
from tests.unit.devices.looks import at

verdicts = st.lists(st.builds(DeviceSample, key=texts, health=st.none() | healths), max_size=4)
happened = st.lists(
    st.builds(DeviceEvent, key=texts, reason=texts, state=st.none() | st.sampled_from(HealthState)),
    max_size=4,
)


@few
@given(st.lists(st.tuples(inventories("x"), verdicts, happened), min_size=1, max_size=4))
def test_any_answer_of_a_vendor_is_published_or_refused_and_can_be_stored(
    turns: list[tuple[Inventory, list[DeviceSample], list[DeviceEvent]]],
) -> None:
    health = VendorHealth("x", HealthSettings())
    for second, (answer, samples, events) in enumerate(turns):
        state = VendorState(
            vendor="x",
            state="ready",
            inventory=SnapshotPart(answer),
            samples=SnapshotPart(tuple(samples)),
        )
        inventory = health.update(state, at(second)).inventory.value
        assert inventory is not None
        assert [device.key for device in inventory.devices] == [
            device.key for device in answer.devices
        ]
        health.record_events(events, at(second))
        health.needs_check(at(second))
    data = encode_health(select_records({"x": health.tracks}), "b007", at(9))
    assert set(decode_health(data, "b007", at(10))) <= {"x"}
