"""A vendor with two cards that is heard, second by second."""

from __future__ import annotations

from msgspec.structs import replace

from agent.config.health import HealthSettings
from agent.devices.vendor_health import VendorHealth
from agent.snapshot.device import DeviceKind, DevicePartition, Health, HealthState, VendorDevice
from agent.snapshot.inventory import DeviceEvent, DeviceSample, Inventory
from agent.snapshot.node import VendorState
from agent.snapshot.part import SnapshotPart
from tests.unit.devices.looks import SHORT, at

CARDS = tuple(
    VendorDevice(kind=DeviceKind.GPU, vendor="x", bus_id=f"0000:0{i}:00.0", uuid=f"g{i}", minor=i)
    for i in range(2)
)
SLICES = tuple(DevicePartition(uuid=f"MIG-{i}", profile="1g.10gb") for i in range(2))


class Vendor:
    """A vendor that is heard, second by second."""

    def __init__(self, vendor: str = "x", **settings: float) -> None:
        sighted = Inventory(vendor="x", devices=CARDS)
        self.sighted = VendorState(vendor="x", inventory=SnapshotPart(sighted))
        self.health = VendorHealth(vendor, HealthSettings(**settings), sighted)  # type: ignore[arg-type]  # as a test writes them
        self.state = self.sighted
        self.told = Inventory(vendor="x")
        self.second = 0.0

    def hear(self, after_s: float = 1.0, **parts: object) -> str:
        """Publish a state; return the initials of the devices' states."""
        self.second += after_s
        self.state = replace(self.state, **parts)
        inventory = self.health.update(self.state, at(self.second)).inventory.value
        assert inventory is not None
        self.told = inventory
        return "".join(SHORT[device.health.state] for device in inventory.devices)

    def answer(self, *healths: Health, after_s: float = 1.0) -> str:
        cards = (replace(c, health=h) for c, h in zip(CARDS, healths, strict=False))
        return self.list(*cards, after_s=after_s)

    def list(
        self, *cards: VendorDevice, after_s: float = 1.0, subjects: tuple[str, ...] | None = None
    ) -> str:
        answer = Inventory(vendor="x", devices=cards, subjects=subjects)
        return self.hear(after_s, state="ready", message="", inventory=SnapshotPart(answer))

    def sample(self, *healths: Health | None) -> str:
        samples = (DeviceSample(key=c.key, health=h) for c, h in zip(CARDS, healths, strict=False))
        return self.hear(samples=SnapshotPart(tuple(samples)))

    def happen(self, *events: DeviceEvent) -> bool:
        return self.health.record_events(events, at(self.second))

    def tick(self, after_s: float) -> bool:
        self.second += after_s
        return self.health.tick(at(self.second))


def event(state: HealthState | None = HealthState.FAILED, key: str = CARDS[1].key) -> DeviceEvent:
    return DeviceEvent(key=key, reason="Xid79", message="off the bus", state=state)
