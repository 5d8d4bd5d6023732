"""Device-info files as a vendor: only switched on by its setting, and without its own process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.runbook.entry import RunbookEntry, entry_table
from agent.snapshot.device import VendorDevice
from agent.snapshot.host_files import HostFiles
from agent.snapshot.settings import SettingRule, VendorSettings
from agent.snapshot.vendor import SessionContext, VendorDescription
from plugins.shared import injection
from plugins.vendors.infofiles.settings import InfofilesSettings

if TYPE_CHECKING:
    from plugins.vendors.infofiles.session import InfofilesSession


NAME = "infofiles"
_MEND = "correct the file that the message names, or the program that writes it"
RUNBOOK = entry_table(
    RunbookEntry(
        "DeviceInfoOdd",
        "a part of a device-info file is ignored",
        "A field of an entry is not what the format allows.",
        "The device is published without that part.",
        _MEND,
    ),
    RunbookEntry(
        "DeviceInfoLeftOut",
        "a device of a device-info file is left out",
        "An entry, or a whole file, is not valid.",
        "The device is not published.",
        _MEND,
    ),
    RunbookEntry(
        "DeviceInfoUnreadable",
        "the device-info files cannot be read",
        "The kernel refuses the agent the folder of the files.",
        "Devices stay as they were read last.",
        "make the folder of discovery.infofiles readable for the agent",
    ),
    vendor=NAME,
)


class InfofilesVendor:
    """Accelerators of any maker, as described by koord-device-daemon or similar programs."""

    description = VendorDescription(
        name=NAME,
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
    runbook = RUNBOOK

    def detect(self, host: HostFiles, settings: VendorSettings) -> tuple[VendorDevice, ...]:  # noqa: ARG002 - see DeviceVendor
        """Return nothing: the setting alone decides whether the files are read."""
        return ()

    def open(
        self, host: HostFiles, settings: InfofilesSettings, context: SessionContext
    ) -> InfofilesSession:
        """Return a session; the folder need not exist yet."""
        from plugins.vendors.infofiles.session import InfofilesSession  # noqa: PLC0415 - when on

        return InfofilesSession(host, settings, context)
