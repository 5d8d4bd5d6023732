"""Device-info files as a vendor: on by setting only, and without a process of its own."""

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
    """Accelerators of any maker, as koord-device-daemon and its kin describe them."""

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
        """Return nothing: the files count only if the setting is on."""
        return ()

    def open(
        self, host: HostFiles, settings: InfofilesSettings, context: SessionContext
    ) -> InfofilesSession:
        """Return a session; the folder need not exist yet."""
        from plugins.vendors.infofiles.session import InfofilesSession  # noqa: PLC0415 - when on

        return InfofilesSession(host, settings, context)
