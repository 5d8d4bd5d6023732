"""By which way a vendor's devices get into a container, where a setting decides it."""

from __future__ import annotations

from msgspec.structs import replace

from agent.snapshot.host_devices import HostDevices
from agent.snapshot.node import NodeSnapshot

AUTO, CDI, NODES, ENV = "auto", "cdi", "nodes", "env"


def with_injection_mode(means: HostDevices, vendor: str, injection: str) -> HostDevices:
    """Return the host as it makes the vendor take this way; `env` is that of its own runtime."""
    if injection == AUTO:
        return means
    return replace(
        means,
        settings=means.settings.with_injection(injection),
        cdi_enabled=injection == CDI,
        default_handler=vendor if injection == ENV else "",
    )


def with_kubelet_injection(snapshot: NodeSnapshot, injection: str) -> NodeSnapshot:
    """Return the snapshot in which hooks decide as the kubelet's way does by this setting."""
    if injection == AUTO:
        return snapshot
    means, runtime = snapshot.means.value, snapshot.runtime.value
    vendors = {
        name: with_injection_mode(one, name, injection) for name, one in means.vendors.items()
    }
    return replace(
        snapshot,
        means=replace(snapshot.means, value=replace(means, vendors=vendors)),
        runtime=replace(snapshot.runtime, value=replace(runtime, takes_cdi=injection == CDI)),
    )
