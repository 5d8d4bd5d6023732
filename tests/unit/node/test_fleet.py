"""Vendors' states and events as they go into the snapshot."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.clock import ManualClock
from agent.config.decode import settings_from
from agent.model.device import DeviceKind, Health, HealthState, VendorDevice
from agent.model.inventory import DeviceEvent, Inventory
from agent.model.snapshot import NodeIdentity, NodeSnapshot, Part, VendorState
from agent.node.crew import Enlisted, enlist
from agent.node.fleet import Fleet, with_vendor
from agent.node.store import SnapshotStore
from agent.node.vendors import vendor_settings
from agent.probe.process.spec import WorkerSpec
from agent.recording.open import open_host
from plugins.vendors.fake.vendor import FakeVendor

CARDS = tuple(
    VendorDevice(
        kind=DeviceKind.GPU, vendor="fake", bus_id=f"0000:0{i}:00.0", uuid=f"g{i}", minor=i
    )
    for i in range(2)
)
GONE = DeviceEvent(
    key=CARDS[1].key, reason="Xid79", message="off the bus", state=HealthState.FAILED
)


def test_vendors_stay_in_order_of_name() -> None:
    snapshot = NodeSnapshot(node=NodeIdentity(name="n"))
    for name in ("rdma", "fake", "nvidia", "fake"):
        snapshot = with_vendor(snapshot, VendorState(vendor=name))
    assert [v.vendor for v in snapshot.vendors] == ["fake", "nvidia", "rdma"]


def fleet_of_two_cards(
    folder: Path, *, launched: bool = False, empty: bool = False
) -> tuple[Fleet, SnapshotStore, list[str]]:
    file = folder / "cards.yaml"
    file.write_text("devices:\n- {uuid: g0, minor: 0}\n- {uuid: g1, minor: 1}\n")
    store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))
    changes: list[str] = []
    settings = settings_from({"discovery": {"fake": {"file": str(file)}}})
    seen = FakeVendor(str(file)).sighted(open_host(None).files)
    own = vendor_settings(settings)["fake"]
    crew: tuple[Enlisted, ...] = (
        Enlisted(spec=WorkerSpec(vendor="fake", settings=own), sighted=seen),
    )
    if launched:
        crew = enlist([FakeVendor(str(file))], open_host(None), settings)
    fleet = Fleet(
        () if empty else crew,
        settings,
        store,
        ManualClock(),
        lambda: changes.append("devices"),
    )
    return fleet, store, changes


def test_health_told_by_an_event_outlives_samples_and_ends_with_the_next_answer(
    tmp_path: Path,
) -> None:
    fleet, store, changes = fleet_of_two_cards(tmp_path)
    client = fleet.clients[0]
    answered = Inventory(vendor="fake", devices=CARDS)

    def heard(**parts: object) -> None:
        client.state = replace(client.state, **parts)
        fleet._heard_state(client.state)

    def states() -> list[HealthState]:
        inventory = store.current.vendors[0].inventory.value
        assert inventory is not None
        return [device.health.state for device in inventory.devices]

    heard(state="ready", inventory=Part(answered, 1.0))
    fleet._heard_events("fake", (GONE,))
    assert states() == [HealthState.HEALTHY, HealthState.FAILED]
    seen = len(changes)
    heard(samples=Part((), 2.0))
    assert states() == [HealthState.HEALTHY, HealthState.FAILED]
    assert len(changes) == seen
    heard(inventory=Part(replace(answered), 3.0))
    assert states() == [HealthState.HEALTHY, HealthState.HEALTHY]


def test_a_change_keeps_its_time_and_its_cause_through_answers_that_do_not_date_it(
    tmp_path: Path,
) -> None:
    fleet, store, _ = fleet_of_two_cards(tmp_path)
    client, clock = fleet.clients[0], fleet._clock
    assert isinstance(clock, ManualClock)

    def heard(*states: HealthState) -> Health:
        devices = tuple(
            replace(card, health=Health(state=state, reason=state.value))
            for card, state in zip(CARDS, states, strict=True)
        )
        answer = Part(Inventory(vendor="fake", devices=devices), clock.monotonic())
        client.state = replace(client.state, state="ready", inventory=answer)
        fleet._heard_state(client.state)
        return last()

    def last() -> Health:
        inventory = store.current.vendors[0].inventory.value
        assert inventory is not None
        return inventory.devices[1].health

    good, bad = HealthState.HEALTHY, HealthState.FAILED
    assert heard(good, good).since_s is None
    clock.advance(10)
    fell_s = clock.wall()
    fleet._heard_events("fake", (GONE,))
    assert (last().since_s, last().changes, last().last_event) == (fell_s, 1, "Xid79")
    clock.advance(10)
    assert heard(good, bad).since_s == fell_s
    clock.advance(10)
    back = heard(good, good)
    assert (back.since_s, back.changes, back.last_event) == (clock.wall(), 2, "Xid79")


def test_an_event_that_decides_nothing_is_told_with_the_next_answer(tmp_path: Path) -> None:
    fleet, store, changes = fleet_of_two_cards(tmp_path)
    client = fleet.clients[0]
    answer = Inventory(vendor="fake", devices=CARDS)
    for taken_s in (1.0, 2.0):
        part = Part(replace(answer), taken_s)
        client.state = replace(client.state, state="ready", inventory=part)
        fleet._heard_state(client.state)
        seen = len(changes)
        fleet._heard_events("fake", (replace(GONE, state=None),))
        assert len(changes) == seen
    inventory = store.current.vendors[0].inventory.value
    assert inventory is not None
    assert [device.health.last_event for device in inventory.devices] == ["", "Xid79"]


@pytest.mark.parametrize("launched", [False, True])
def test_a_fleet_starts_answers_and_stops(tmp_path: Path, launched: bool) -> None:
    fleet, store, _ = fleet_of_two_cards(tmp_path, launched=launched)

    async def live() -> None:
        fleet.start()
        assert not fleet.settled()
        async with asyncio.timeout(30):
            while not fleet.settled():
                await asyncio.sleep(0.01)
        await fleet.stop()

    asyncio.run(live())
    state = store.current.vendors[0]
    assert state.inventory.value is not None
    assert [d.uuid for d in state.inventory.value.devices] == ["g0", "g1"]


def test_a_vendor_that_comes_late_gets_a_worker_too_and_one_only(tmp_path: Path) -> None:
    fleet, _, _ = fleet_of_two_cards(tmp_path)
    late = Enlisted(spec=fleet.clients[0]._spec, sighted=())
    fleet, store, _ = fleet_of_two_cards(tmp_path, empty=True)

    async def live() -> None:
        fleet.start()
        assert fleet.settled()
        fleet.welcome(late)
        fleet.welcome(late)
        assert not fleet.settled()
        async with asyncio.timeout(30):
            while not fleet.settled():
                await asyncio.sleep(0.01)
        await fleet.stop()

    asyncio.run(live())
    assert len(fleet.clients) == 1
    inventory = store.current.vendors[0].inventory.value
    assert inventory is not None
    assert [d.uuid for d in inventory.devices] == ["g0", "g1"]


def test_a_vendor_that_a_bug_of_ours_loses_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet, _, _ = fleet_of_two_cards(tmp_path)

    def fail() -> None:
        raise RuntimeError("a bug")

    async def live() -> None:
        fleet.start()
        fleet._on_devices = fail
        await asyncio.wait(fleet._tasks, timeout=30)
        await fleet.stop()

    asyncio.run(live())
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == ["vendor_lost"]
