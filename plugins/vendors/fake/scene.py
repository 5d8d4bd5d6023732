"""Decodes the file of fake devices strictly: unknown keys are refused."""

from __future__ import annotations

from typing import Literal

import msgspec

from agent.errors import BadConfig
from agent.snapshot.device import (
    DeviceKind,
    DeviceLink,
    DeviceNode,
    DevicePartition,
    DevicePort,
    HealthState,
    VirtualFunctionGroup,
)
from agent.snapshot.inventory import Problem
from agent.snapshot.pci import parse_address
from plugins.vendors.fake.curves import Curve, shape

SessionMethod = Literal["open", "discover", "sample", "clear", "events", "close"]
FaultAction = Literal[
    "hang",
    "slow",
    "exit",
    "crash",
    "raise",
    "print",
    "garbage",
    "endless",
    "half",
    "deaf",
    "leak",
    "upgrade",
    "forbid",
]


class FakeHealth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields as in `agent.snapshot.device.Health`."""

    state: HealthState
    reason: str
    message: str = ""


class FakeProcess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process on the device."""

    pid: int
    memory_bytes: int | None = None
    core_percent: float | None = None


class FakeDevice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of `agent.snapshot.device.VendorDevice`, and of its samples; each may be left out."""

    kind: DeviceKind = DeviceKind.GPU
    bus_id: str | None = None
    uuid: str | None = None
    minor: int | None = None
    model: str | None = None
    memory_bytes: int | None = None
    module_id: int | None = None
    managed: bool = True
    health: FakeHealth | None = None
    resources: dict[str, str] = {}
    labels: dict[str, str] = {}
    facts: dict[str, str] = {}
    nodes: tuple[DeviceNode, ...] = ()
    ports: tuple[DevicePort, ...] = ()
    partitions: tuple[DevicePartition, ...] = ()
    vf_groups: tuple[VirtualFunctionGroup, ...] = ()
    core_percent: Curve | None = None
    memory_used_bytes: Curve | None = None
    temperature_celsius: Curve | None = None
    power_watts: Curve | None = None
    processes: tuple[FakeProcess, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse values that are valid for their type only; msgspec adds the place."""
        if self.bus_id is None and self.uuid is None:
            raise ValueError("a device needs a bus_id or a uuid")
        if self.bus_id is not None and parse_address(self.bus_id) != self.bus_id:
            raise ValueError(f"bus_id: write {parse_address(self.bus_id)}")
        for curve in (
            self.core_percent,
            self.memory_used_bytes,
            self.temperature_celsius,
            self.power_watts,
        ):
            if curve is not None:
                shape(curve)


class FakeEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of `agent.snapshot.inventory.DeviceEvent`.

    `at_s` is in seconds after the session's start.
    """

    at_s: float
    key: str
    reason: str
    message: str = ""
    state: HealthState | None = None


class FakeFault(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"where": "in"}
):
    """A fault: `do` it in a method, in every call after the first `after` ones."""

    where: SessionMethod
    do: FaultAction
    after: int = 0
    seconds: float = 1.0  # of `slow`
    leak_bytes: int = 1 << 20  # of `leak`, in each call


class Scene(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the whole file."""

    devices: tuple[FakeDevice, ...] = ()
    links: tuple[DeviceLink, ...] = ()
    driver_version: str | None = None
    library: str | None = None
    facts: dict[str, str] = {}
    problems: tuple[Problem, ...] = ()
    events: tuple[FakeEvent, ...] = ()
    misbehave: tuple[FakeFault, ...] = ()


def parse_scene(data: object, file: str) -> Scene:
    """Decode the scene from decoded YAML; raises `BadConfig` that names the field."""
    try:
        scene = msgspec.convert(data if data is not None else {}, Scene)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadConfig(f"{file}: {error}") from error
    keys = [device.bus_id or device.uuid for device in scene.devices]
    if duplicate := next((key for key in keys if keys.count(key) > 1), None):
        raise BadConfig(f"{file}: two devices are called {duplicate}")
    return scene
