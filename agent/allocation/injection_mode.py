"""How a vendor's devices get into a container, if a setting decides it."""

from __future__ import annotations

from msgspec.structs import replace

from agent.snapshot.host_devices import HostDevices
from agent.snapshot.node import NodeSnapshot

AUTO, CDI, NODES, ENV = "auto", "cdi", "nodes", "env"


def with_injection_mode(host_devices: HostDevices, vendor: str, injection: str) -> HostDevices:
    """Return the host facts that make the vendor inject this way; `env` is its own runtime."""
    if injection == AUTO:
        return host_devices
    return replace(
        host_devices,
        settings=host_devices.settings.with_injection(injection),
        cdi_enabled=injection == CDI,
        default_handler=vendor if injection == ENV else "",
    )


def with_kubelet_injection(snapshot: NodeSnapshot, injection: str) -> NodeSnapshot:
    """Return a snapshot in which hooks inject as this setting says for the kubelet."""
    if injection == AUTO:
        return snapshot
    host_view, runtime = snapshot.host_devices.value, snapshot.runtime.value
    vendors = {
        name: with_injection_mode(one, name, injection) for name, one in host_view.vendors.items()
    }
    return replace(
        snapshot,
        host_devices=replace(snapshot.host_devices, value=replace(host_view, vendors=vendors)),
        runtime=replace(snapshot.runtime, value=replace(runtime, takes_cdi=injection == CDI)),
    )
