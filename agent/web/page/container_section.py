"""The section of the status page about the ways to containers: the runtime and the kubelet."""

from __future__ import annotations

from agent.snapshot.container import RuntimeView
from agent.snapshot.device_plugin import DevicePluginView, PluginResource
from agent.snapshot.node import NodeSnapshot
from agent.web.page.html import badge, grid, section, tag, text

_RUNTIME_STATES = {
    "synchronized": "healthy",
    "registered": "probing",
    "waiting": "suspect",
    "refused": "failed",
}
_RESOURCE_STATES = {
    "watched": "healthy",
    "conflict": "failed",
    "refused": "failed",
    "waiting": "suspect",
}


def container_section(snapshot: NodeSnapshot) -> str:
    """Return the state of runtime and kubelet, and problems of the host's files for containers.

    Empty before the first check.
    """
    runtime = snapshot.runtime
    if runtime.taken_s is None and snapshot.allocations.taken_s is None:
        return ""
    served = snapshot.served.value
    ways = [
        _runtime_row(runtime.value),
        *(_resource_row(resource, served) for resource in served.resources),
    ]
    problems = [[tag("code", text(r)), text(m)] for r, m in snapshot.host_devices.value.problems]
    return section(
        "containers",
        "Containers",
        grid(("way", "state", "what it says"), ways, "How containers are reached"),
        grid(("what", "why"), problems, "What is wrong on this host") if problems else "",
    )


def _runtime_row(view: RuntimeView) -> list[str]:
    description = f"{view.runtime} {view.version}".strip() or "container runtime"
    message = ": ".join(part for part in (view.reason, view.message) if part)
    if view.is_synchronized:
        count = len(view.containers)
        message = f"{count} {'container' if count == 1 else 'containers'} known"
    return [
        text(description),
        badge(_RUNTIME_STATES.get(view.state, "unmanaged"), view.state),
        text(message),
    ]


def _resource_row(resource: PluginResource, served: DevicePluginView) -> list[str]:
    message = f"{resource.healthy} of {resource.devices} devices healthy"
    if resource.withdrawn_ids:
        ids = ", ".join(resource.withdrawn_ids)
        message += f"; withdrawn, in use without the kubelet's knowledge: {ids}"
    pairs = served.exchanges(resource.name)
    if pairs:
        exchanged = ", ".join(f"{device} in place of {name}" for name, device in sorted(pairs))
        message += f"; exchanged: {exchanged}"
    if resource.reason:
        message = f"{resource.reason}: {resource.message}"
    tone = badge(_RESOURCE_STATES.get(resource.state, "probing"), resource.state)
    return [tag("code", text(resource.name)), tone, text(message)]
