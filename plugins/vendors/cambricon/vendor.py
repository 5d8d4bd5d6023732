"""Cambricon as a vendor: sighted from sysfs by the agent, opened in its worker only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent.errors import BadConfig
from agent.host.files import HostFiles
from agent.model.device import VendorDevice
from agent.model.inventory import MetricFamily
from plugins.injection.lazily import lazily, needs_lazily
from plugins.vendors.cambricon.families import FAMILIES
from plugins.vendors.cambricon.sight import device, look

if TYPE_CHECKING:
    from plugins.vendors.cambricon.session import CambriconSession


class CambriconVendor:
    """MLUs of Cambricon. Settings: library_path, driver_root, cntopo_file, smlu_unit_mib."""

    name: str = "cambricon"
    families: tuple[MetricFamily, ...] = FAMILIES
    edits = staticmethod(lazily("plugins.injection.cambricon"))
    needs = staticmethod(needs_lazily("plugins.injection.cambricon"))

    def sighted(self, host: HostFiles) -> tuple[VendorDevice, ...]:
        """List accelerator functions of Cambricon's."""
        return tuple(device(bus_id) for bus_id in look(host))

    def check(self, settings: Mapping[str, object]) -> None:
        """Raise `BadConfig` for a path that is not absolute."""
        for key in ("library_path", "driver_root", "cntopo_file"):
            path = settings.get(key)
            if isinstance(path, str) and path and not path.startswith("/"):
                raise BadConfig(f"discovery.cambricon.{key}: {path!r} is not an absolute path")

    def remedy(self, reason: str, message: str) -> str:
        """Return what a person does about a reason given for a card."""
        from plugins.faults.cambricon import remedy  # noqa: PLC0415 - only commands ask

        return remedy(reason, message)

    def open(self, host: HostFiles, settings: Mapping[str, object]) -> CambriconSession:
        """Return a session; the library is looked for at its first discovery."""
        from plugins.vendors.cambricon.session import CambriconSession  # noqa: PLC0415 - workers only

        return CambriconSession(host, settings)
