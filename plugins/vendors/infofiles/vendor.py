"""Device-info files as a vendor: only switched on by its setting, and without its own process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.snapshot.device import VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.settings import SettingRule, VendorSettings
from agent.snapshot.vendor import SessionContext, VendorDescription
from plugins.shared import injection
from plugins.vendors.infofiles.settings import InfofilesSettings

if TYPE_CHECKING:
    from plugins.vendors.infofiles.session import InfofilesSession


class InfofilesVendor:
    """Accelerators of any maker, as described by koord-device-daemon or similar programs."""

    description = VendorDescription(
        name="infofiles",
        title="device-info files",
        switch=SettingRule(
            "devices that device-info files describe", choices=("on", "off"), maturity="beta"
        ),
        switch_default="off",
        settings=InfofilesSettings,
        is_isolated=False,
    )
    host_query = staticmethod(injection.host_query)
    edits = staticmethod(injection.edits)

    def detect(self, host: HostFiles, settings: VendorSettings) -> tuple[VendorDevice, ...]:  # noqa: ARG002 - see DeviceVendor
        """Return nothing: the setting alone decides whether the files are read."""
        return ()

    def open(
        self, host: HostFiles, settings: InfofilesSettings, context: SessionContext
    ) -> InfofilesSession:
        """Return a session; the folder need not exist yet."""
        from plugins.vendors.infofiles.session import InfofilesSession  # noqa: PLC0415 - when on

        return InfofilesSession(host, settings, context)
