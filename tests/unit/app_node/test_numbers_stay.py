"""The view of devices over time: who came, who left, and whose number stays."""

from __future__ import annotations

from agent.clock import ManualClock
from agent.config.sources import decode_settings
from agent.devices.presence import REMOVED_SHOWN_S, add_removed
from agent.recording.host_source import HostSource
from agent.recording.tree import TreeBuilder
from agent.snapshot.device import DeviceKind, HealthState, VendorDevice
from agent.snapshot.inventory import Inventory
from agent.snapshot.node import HotplugView, NodeIdentity, NodeSnapshot, SnapshotStore, VendorState
from agent.snapshot.part import SnapshotPart
from tests.pipelines import JoinedHost

GPUS = tuple(
    VendorDevice(kind=DeviceKind.GPU, vendor="nvidia", bus_id=f"0000:1{n}:00.0", minor=n)
    for n in range(2)
)
NPUS = tuple(
    VendorDevice(kind=DeviceKind.NPU, vendor="huawei", bus_id=f"0000:c{n}:00.0", minor=n)
    for n in range(2)
)


class View:
    """A node whose vendors say what a test has them say."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))
        opened = HostSource(files=TreeBuilder().build(""))
        self._facts = JoinedHost(opened, decode_settings({}), self.store, self.clock)

    def join(self, *, state: str = "ready", **told: tuple[VendorDevice, ...]) -> dict[str, object]:
        """Return minor and state by key after the vendors said this."""
        self.store.put(
            vendors=tuple(
                VendorState(
                    vendor=vendor,
                    state=state,
                    inventory=SnapshotPart(Inventory(vendor=vendor, devices=devices), 1.0),
                )
                for vendor, devices in sorted(told.items())
            )
        )
        return self.again()

    def again(self) -> dict[str, object]:
        """Return minor by key after another look."""
        self._facts.join_devices()
        return {d.key: d.info.minor for d in self.store.current.devices.value.devices}


def test_a_vendor_that_answers_first_decides_nothing_while_another_is_awaited() -> None:
    view = View()
    view.join(nvidia=GPUS, state="starting")
    assert view.join(nvidia=GPUS, ascend=NPUS) == {
        NPUS[0].key: 0,
        NPUS[1].key: 1,
        GPUS[0].key: 2,
        GPUS[1].key: 3,
    }


def test_a_vendor_that_comes_late_holds_nobody_up_until_it_answers() -> None:
    view = View()
    first = view.join(nvidia=GPUS)
    late = VendorState(
        vendor="ascend", inventory=SnapshotPart(Inventory(vendor="ascend", devices=NPUS))
    )
    view.store.put(vendors=(late, *view.store.current.vendors))
    assert view.again() == first
    assert view.store.current.devices.value.awaited == ()
    assert view.join(nvidia=GPUS, ascend=NPUS) == {**first, NPUS[0].key: 2, NPUS[1].key: 3}


def test_numbers_stay_when_a_card_leaves_and_when_it_comes_back() -> None:
    view = View()
    first = view.join(nvidia=GPUS, ascend=NPUS)
    assert view.join(nvidia=GPUS, ascend=NPUS[:1]) == {
        key: minor for key, minor in first.items() if key != NPUS[1].key
    }
    assert view.join(nvidia=GPUS, ascend=NPUS) == first


def test_a_card_that_the_kernel_removed_stays_listed_for_ten_minutes() -> None:
    view = View()
    first = view.join(nvidia=GPUS)
    now_s = view.clock.monotonic()
    removed = add_removed((), "nvidia", GPUS[1], now_s, view.clock.wall())
    view.store.put(removed_devices=removed)
    assert view.join(nvidia=GPUS[:1]) == first
    states = [d.info.health.state for d in view.store.current.devices.value.devices]
    assert states == [HealthState.HEALTHY, HealthState.FAILED]
    view.clock.advance(REMOVED_SHOWN_S)
    assert view.join(nvidia=GPUS[:1]) == {GPUS[0].key: 0}


def test_a_node_without_uevents_reports_a_problem() -> None:
    view = View()
    view.store.put(hotplug=HotplugView(state="polling", problem="libudev cannot be loaded"))
    view.join()
    ((_, problem),) = view.store.current.devices.value.problems
    assert (problem.reason, problem.message) == (
        "UeventsUnavailable",
        "libudev cannot be loaded; every half minute is looked instead",
    )
