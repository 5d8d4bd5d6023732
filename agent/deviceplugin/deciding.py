"""What the kubelet is told of devices, put together from the decisions of this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent.deviceplugin.base import Allocated, NotAllocated, Resource

if TYPE_CHECKING:
    from agent.config.containers import DevicePluginSettings
    from agent.model.snapshot import NodeSnapshot
    from agent.probe.base import DeviceVendor


class Deciding:
    """Decisions by the settings; `BadConfig` if they are wrong. `vendors` are those loaded."""

    def __init__(
        self, settings: DevicePluginSettings, vendors: Mapping[str, DeviceVendor]
    ) -> None:
        self._settings = settings
        self._vendors = vendors

    def resources(self, snapshot: NodeSnapshot) -> tuple[Resource, ...]:
        """Return what is offered now, by name."""
        return ()

    def preferred(
        self,
        resource: str,
        available: tuple[str, ...],
        required: tuple[str, ...],
        size: int,
        snapshot: NodeSnapshot,
    ) -> tuple[str, ...]:
        """Return the best `size` ids of those available, with all required ones."""
        return available[:size]

    def allocate(
        self, resource: str, ids: tuple[str, ...], snapshot: NodeSnapshot, *, last: bool = False
    ) -> Allocated:
        """Return what a container with these ids gets; raise `NotAllocated` or `GrantRefused`."""
        raise NotAllocated("UnknownResource", resource)

    def check_start(self, resource: str, ids: tuple[str, ...], snapshot: NodeSnapshot) -> None:
        """Raise `NotAllocated` if somebody else is on a whole card of these."""
