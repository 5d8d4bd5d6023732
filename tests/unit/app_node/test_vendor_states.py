"""Vendors' states and events as they go into the snapshot."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.app.pipeline import HealthUpdater
from agent.clock import ManualClock
from agent.devices.health_file import HealthFile
from agent.messages import MessageQueue, VendorStateChanged
from agent.recording.host_source import open_host
from agent.snapshot.device import DeviceKind, Health, HealthState, VendorDevice
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore, VendorState
from agent.snapshot.part import SnapshotPart
from agent.state_writer import StateWriter
from agent.workers.load import vendor_settings
from agent.workers.manager import VendorManager, replace_vendor
from agent.workers.process import WorkerSpec
from agent.workers.selection import SelectedVendor, launch_workers
from plugins.vendors.fake.vendor import FakeSettings, FakeVendor
from tests.patience import PATIENCE_S
from tests.vendors import decode

CARDS = tuple(
    VendorDevice(
        kind=DeviceKind.GPU, vendor="fake", bus_id=f"0000:0{i}:00.0", uuid=f"g{i}", minor=i
    )
    for i in range(2)
)
LOSS = DeviceEvent(
    key=CARDS[1].key, reason="Xid79", message="off the bus", state=HealthState.FAILED
)


GOOD, BAD = HealthState.HEALTHY, HealthState.FAILED


def test_vendors_stay_in_order_of_name() -> None:
    snapshot = NodeSnapshot(node=NodeIdentity(name="n"))
    for name in ("rdma", "fake", "nvidia", "fake"):
        snapshot = replace_vendor(snapshot, VendorState(vendor=name))
    assert [v.vendor for v in snapshot.vendors] == ["fake", "nvidia", "rdma"]


def fleet_of_two_cards(
    folder: Path,
    *,
    launched: bool = False,
    empty: bool = False,
    health_file: HealthFile | None = None,
) -> tuple[VendorManager, SnapshotStore, HealthUpdater, MessageQueue]:
    file = folder / "cards.yaml"
    file.write_text("devices:\n- {uuid: g0, minor: 0}\n- {uuid: g1, minor: 1}\n")
    store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))
    settings = decode({"discovery": {"fake": {"file": str(file)}}})
    observations = FakeVendor().detect(open_host(None).files, FakeSettings(file=str(file)))
    own = vendor_settings(settings, {"fake": FakeVendor()})["fake"]
    crew: tuple[SelectedVendor, ...] = (
        SelectedVendor(spec=WorkerSpec(vendor="fake", settings=own), detected_devices=observations),
    )
    if launched:
        crew = launch_workers([FakeVendor()], open_host(None), settings)
    clock, messages = ManualClock(), MessageQueue()
    fleet = VendorManager(() if empty else crew, settings, clock, messages)
    health = HealthUpdater(settings.health, store, clock, fleet, health_file or HealthFile("", ""))
    return fleet, store, health, messages


async def settle(health: HealthUpdater, messages: MessageQueue, vendors: int) -> None:
    """Apply states until so many vendors have answered."""
    waits = True
    async with asyncio.timeout(PATIENCE_S):
        while waits:
            await messages.wait_messages()
            for message in messages.drain():
                assert isinstance(message, VendorStateChanged)
                health.update_state(message.state)
            waits = len(health._states) < vendors or not health.is_settled()


class VendorScene:
    """A fleet that has answered once, spoken to directly; time stands still unless it is moved."""

    def __init__(self, folder: Path) -> None:
        self.fleet, self.store, self.health, _ = fleet_of_two_cards(folder)
        self.begin()
        self.answer(GOOD, GOOD)

    def begin(self) -> None:
        """Take the state that the client begins with."""
        self.changes = 0
        self.client = self.fleet.clients[0]
        assert isinstance(self.fleet._clock, ManualClock)
        self.clock = self.fleet._clock
        self.health.update_state(self.client.state)

    def report(self, event: DeviceEvent) -> None:
        """Report an event of a device."""
        self.changes += self.health.record_events("fake", (event,))

    def answer(self, *states: HealthState) -> Health:
        devices = tuple(
            replace(card, health=Health(state=state, reason=state.value))
            for card, state in zip(CARDS, states, strict=True)
        )
        part = SnapshotPart(Inventory(vendor="fake", devices=devices), self.clock.monotonic())
        return self.publish(state="ready", inventory=part)

    def publish(self, **parts: object) -> Health:
        self.client.state = replace(self.client.state, **parts)
        self.changes += self.health.update_state(self.client.state)
        return self.last

    @property
    def last(self) -> Health:
        """Health of the second card."""
        return self.of(1)

    def of(self, index: int) -> Health:
        inventory = self.store.current.vendors[0].inventory.value
        assert inventory is not None
        return inventory.devices[index].health


@pytest.fixture
def vendor_scene(tmp_path: Path) -> VendorScene:
    return VendorScene(tmp_path)


def test_a_failure_of_an_event_ends_with_the_third_answer_without_it(
    vendor_scene: VendorScene,
) -> None:
    vendor_scene.report(LOSS)
    assert (vendor_scene.of(0).state, vendor_scene.last.state) == (GOOD, BAD)
    changes = vendor_scene.changes
    vendor_scene.publish(samples=SnapshotPart((), 2.0))
    assert vendor_scene.last.state is BAD
    assert vendor_scene.changes == changes
    states = [vendor_scene.answer(GOOD, GOOD).state for _ in range(3)]
    assert states == [HealthState.PROBING, HealthState.PROBING, GOOD]


def test_a_change_keeps_its_time_and_its_cause_through_answers_that_do_not_date_it(
    vendor_scene: VendorScene,
) -> None:
    vendor_scene.clock.advance(10)
    fell_s = vendor_scene.clock.wall()
    vendor_scene.report(LOSS)
    fell = vendor_scene.last
    assert (fell.since_s, fell.changes, fell.last_event) == (fell_s, 1, "Xid79")
    vendor_scene.clock.advance(10)
    assert vendor_scene.answer(GOOD, BAD).since_s == fell_s
    vendor_scene.clock.advance(10)
    for _ in range(3):
        back = vendor_scene.answer(GOOD, GOOD)
    assert (back.since_s, back.changes, back.last_event) == (vendor_scene.clock.wall(), 3, "Xid79")


def test_an_event_without_an_effect_is_published_with_the_next_answer(
    vendor_scene: VendorScene,
) -> None:
    changes = vendor_scene.changes
    vendor_scene.report(replace(LOSS, state=None))
    assert vendor_scene.changes == changes
    assert vendor_scene.last.last_event == ""
    assert vendor_scene.answer(GOOD, GOOD).last_event == "Xid79"


def test_an_answer_and_samples_that_say_the_same_are_no_change(vendor_scene: VendorScene) -> None:
    changes = vendor_scene.changes
    vendor_scene.answer(GOOD, GOOD)
    same = Health(state=GOOD, reason="healthy")
    vendor_scene.publish(samples=SnapshotPart((DeviceSample(key=CARDS[1].key, health=same),), 2.0))
    assert vendor_scene.changes == changes


def test_a_verdict_within_a_sample_counts_at_once(vendor_scene: VendorScene) -> None:
    failed = Health(state=BAD, reason="EccError", message="twice")
    sample = DeviceSample(key=CARDS[1].key, health=failed)
    assert vendor_scene.publish(samples=SnapshotPart((sample,), 2.0)).reason == "EccError"
    assert vendor_scene.of(0).state is GOOD


def test_a_suspect_device_is_checked_again_until_it_is_healthy(vendor_scene: VendorScene) -> None:
    requests: list[float] = []
    vendor_scene.client.rediscover = lambda: requests.append(vendor_scene.clock.monotonic())  # type: ignore[method-assign]  # seen here
    vendor_scene.answer(GOOD, BAD)
    began_s = vendor_scene.clock.monotonic()
    for _ in range(12):
        vendor_scene.clock.advance(1)
        vendor_scene.changes += vendor_scene.health.tick()
        if requests and requests[-1] == vendor_scene.clock.monotonic():
            vendor_scene.answer(GOOD, GOOD)
    assert [at_s - began_s for at_s in requests] == [5, 10]
    vendor_scene.answer(GOOD, GOOD)
    vendor_scene.clock.advance(600)
    vendor_scene.changes += vendor_scene.health.tick()
    assert len(requests) == 2


def test_a_vendor_that_falls_silent_takes_its_devices_out_of_service_in_the_end(
    vendor_scene: VendorScene,
) -> None:
    vendor_scene.publish(
        state="stalled", reason="Late", message="no answer to discover within 30 s"
    )
    observations = []
    for wait_s in (0, 59, 1, 239, 1):
        vendor_scene.clock.advance(wait_s)
        vendor_scene.changes += vendor_scene.health.tick()
        observations.append(
            (vendor_scene.last.reason, vendor_scene.last.certain, vendor_scene.last.state)
        )
    assert observations == [
        ("healthy", True, GOOD),
        ("healthy", True, GOOD),
        ("DriverStalled", False, GOOD),
        ("DriverStalled", False, GOOD),
        ("DriverStalled", True, BAD),
    ]
    assert vendor_scene.answer(GOOD, GOOD).state is HealthState.PROBING


def test_what_had_failed_before_the_agent_began_anew_is_watched_before_it_serves(
    tmp_path: Path,
) -> None:
    writer = StateWriter()
    file = HealthFile(str(tmp_path / "state"), "b007", writer)
    first = VendorScene(tmp_path)
    first.health._health_file = file
    first.answer(GOOD, BAD)
    since_s = first.answer(GOOD, BAD).since_s
    assert writer.close(deadline_s=PATIENCE_S)
    health_file = HealthFile(str(tmp_path / "state"), "b007")
    second = VendorScene.__new__(VendorScene)
    second.fleet, second.store, second.health, _ = fleet_of_two_cards(
        tmp_path, health_file=health_file
    )
    second.begin()
    answer = second.answer(GOOD, GOOD)
    assert (answer.state, answer.since_s, answer.reason) == (HealthState.PROBING, since_s, "failed")
    assert second.of(0).state is GOOD


@pytest.mark.parametrize("launched", [False, True])
def test_a_fleet_starts_answers_and_stops(tmp_path: Path, launched: bool) -> None:
    fleet, store, health, messages = fleet_of_two_cards(tmp_path, launched=launched)

    async def live() -> None:
        fleet.start()
        await settle(health, messages, 1)
        await fleet.stop()

    asyncio.run(live())
    state = store.current.vendors[0]
    assert state.inventory.value is not None
    assert [d.uuid for d in state.inventory.value.devices] == ["g0", "g1"]


def test_a_vendor_that_comes_late_gets_a_worker_too_and_one_only(tmp_path: Path) -> None:
    fleet, *_ = fleet_of_two_cards(tmp_path)
    late = SelectedVendor(spec=fleet.clients[0]._spec, detected_devices=())
    fleet, store, health, messages = fleet_of_two_cards(tmp_path, empty=True)

    async def live() -> None:
        fleet.start()
        assert health.is_settled()
        fleet.add(late)
        fleet.add(late)
        await settle(health, messages, 1)
        await fleet.stop()

    asyncio.run(live())
    assert len(fleet.clients) == 1
    inventory = store.current.vendors[0].inventory.value
    assert inventory is not None
    assert [d.uuid for d in inventory.devices] == ["g0", "g1"]


def test_a_vendor_that_a_bug_stops_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet, *_ = fleet_of_two_cards(tmp_path)

    def fail(_: object) -> None:
        raise RuntimeError("a bug")

    async def live() -> None:
        fleet.start()
        fleet._messages.put = fail  # type: ignore[assignment]
        await asyncio.wait(fleet._tasks, timeout=PATIENCE_S)
        await fleet.stop()

    asyncio.run(live())
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == ["vendor_lost"]
