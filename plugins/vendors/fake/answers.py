"""The answers of the fake vendor: pure functions of the scene and the time since its start."""

from __future__ import annotations

from agent.snapshot.device import Health, VendorDevice
from agent.snapshot.inventory import (
    DeviceEvent,
    DeviceSample,
    Inventory,
    MetricFamily,
    MetricValue,
    ProcessSample,
)
from plugins.vendors.fake.curves import Curve, value_at
from plugins.vendors.fake.scene import FakeDevice, Scene

NAME = "fake"
FAMILIES = (
    MetricFamily(
        name="xpu_fake_temperature_celsius", type="gauge", help="Temperature of the chip."
    ),
    MetricFamily(name="xpu_fake_power_watts", type="gauge", help="Power drawn."),
)
MAX_VALUE = 1e15


def build_inventory(scene: Scene) -> Inventory:
    """Return the scene's devices as an inventory."""
    return Inventory(
        vendor=NAME,
        devices=tuple(_device(device) for device in scene.devices),
        links=scene.links,
        driver_version=scene.driver_version,
        library=scene.library,
        facts=tuple(scene.facts.items()),
        problems=scene.problems,
    )


def build_samples(scene: Scene, elapsed_s: float) -> tuple[DeviceSample, ...]:
    """Return the samples of the devices at a time after the start, in seconds."""
    return tuple(_sample(device, elapsed_s) for device in scene.devices)


def events_between(scene: Scene, after_s: float, until_s: float) -> tuple[DeviceEvent, ...]:
    """Return the events of the interval, its end included, in their order."""
    due = sorted(
        (event for event in scene.events if after_s < event.at_s <= until_s), key=lambda e: e.at_s
    )
    return tuple(
        DeviceEvent(key=event.key, reason=event.reason, message=event.message, state=event.state)
        for event in due
    )


def next_event_s(scene: Scene, after_s: float) -> float | None:
    """Return when the next event is due; `None` if there is none."""
    return min((event.at_s for event in scene.events if event.at_s > after_s), default=None)


def _device(device: FakeDevice) -> VendorDevice:
    health = Health()
    if device.health is not None:
        told_health = device.health
        health = Health(
            state=told_health.state, reason=told_health.reason, message=told_health.message
        )
    return VendorDevice(
        kind=device.kind,
        vendor=NAME,
        bus_id=device.bus_id,
        uuid=device.uuid,
        minor=device.minor,
        vendor_minor=device.minor,
        model=device.model,
        memory_bytes=device.memory_bytes,
        module_id=device.module_id,
        managed=device.managed,
        health=health,
        resources=tuple(device.resources.items()),
        labels=tuple(device.labels.items()),
        facts=tuple(device.facts.items()),
        nodes=device.nodes,
        ports=device.ports,
        partitions=device.partitions,
        vf_groups=device.vf_groups,
    )


def _sample(device: FakeDevice, elapsed_s: float) -> DeviceSample:
    def at(curve: Curve | None, high: float = MAX_VALUE) -> float | None:
        return None if curve is None else value_at(curve, elapsed_s, 0.0, high)

    total = device.memory_bytes
    used = at(device.memory_used_bytes, float(total) if total is not None else MAX_VALUE)
    readings = (
        ("xpu_fake_temperature_celsius", at(device.temperature_celsius)),
        ("xpu_fake_power_watts", at(device.power_watts)),
    )
    return DeviceSample(
        key=_device(device).key,
        core_percent=at(device.core_percent, 100.0),
        memory_used_bytes=None if used is None else int(used),
        memory_total_bytes=total,
        processes=None
        if device.processes is None
        else tuple(
            ProcessSample(
                pid=process.pid,
                memory_bytes=process.memory_bytes,
                core_percent=process.core_percent,
            )
            for process in device.processes
        ),
        readings=tuple(
            MetricValue(family=family, value=value)
            for family, value in readings
            if value is not None
        ),
    )
