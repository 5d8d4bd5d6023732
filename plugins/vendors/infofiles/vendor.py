"""Device-info files as a vendor: on by setting only, and without a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent.errors import BadConfig
from agent.host.files import HostFiles
from agent.model.device import VendorDevice
from agent.model.inventory import MetricFamily
from plugins.injection.lazily import lazily

if TYPE_CHECKING:
    from plugins.vendors.infofiles.session import InfofilesSession


class InfofilesVendor:
    """Accelerators of any maker, as koord-device-daemon and its kin describe them."""

    name = "infofiles"
    isolated = False
    families: tuple[MetricFamily, ...] = ()
    edits = staticmethod(lazily("plugins.injection.plain"))

    def sighted(self, host: HostFiles) -> tuple[VendorDevice, ...]:  # noqa: ARG002 - see DeviceVendor
        """See nothing: files are believed only where a setting says so."""
        return ()

    def check(self, settings: Mapping[str, object]) -> None:
        """Raise `BadConfig` for a folder that is none."""
        folder = settings.get("directory")
        parts = folder.split("/") if isinstance(folder, str) else []
        if folder and (parts[:1] != [""] or ".." in parts):
            raise BadConfig("discovery.infofiles.directory: must be an absolute path")

    def open(self, host: HostFiles, settings: Mapping[str, object]) -> InfofilesSession:
        """Return a session; the folder need not exist yet."""
        self.check(settings)
        from plugins.vendors.infofiles.session import InfofilesSession  # noqa: PLC0415 - when on

        return InfofilesSession(host, settings)
