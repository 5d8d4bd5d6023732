"""Accelerators without a plug-in of their own, as one vendor that reads sysfs inside the agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent.host.files import HostFiles
from agent.model.device import VendorDevice
from agent.model.inventory import MetricFamily
from plugins.injection.lazily import lazily
from plugins.vendors.accelerators.sight import look, unmanaged

if TYPE_CHECKING:
    from plugins.vendors.accelerators.session import AcceleratorsSession


class AcceleratorsVendor:
    """What PCI classes call accelerators, of makers that no plug-in of ours drives."""

    name = "accelerators"
    isolated = False
    families: tuple[MetricFamily, ...] = ()
    edits = staticmethod(lazily("plugins.injection.plain"))

    def sighted(self, host: HostFiles) -> tuple[VendorDevice, ...]:
        """List them; cards that settings describe are managed from the first discovery on."""
        return tuple(unmanaged(seen) for seen in look(host))

    def check(self, settings: Mapping[str, object]) -> None:
        """Raise `BadConfig` that names the key of a card that cannot be understood."""
        if settings.get("cards"):
            from plugins.vendors.accelerators.described import decode  # noqa: PLC0415 - few have one

            decode(settings)

    def open(self, host: HostFiles, settings: Mapping[str, object]) -> AcceleratorsSession:
        """Return a session; there is no library."""
        # imported here: the agent starts its workers first
        from plugins.vendors.accelerators.session import AcceleratorsSession  # noqa: PLC0415 - see above

        return AcceleratorsSession(host, settings)
